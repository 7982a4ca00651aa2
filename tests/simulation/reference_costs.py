"""What one operator costs for one microbatch: the scalar formulas of ``semu.hardware``, on the time grid."""

from __future__ import annotations

from functools import cache

from simulation.reference_experts import rounded_value

from semu.graph.dim import Dim, Poly
from semu.graph.operator import Operator
from semu.hardware.device import DeviceProfile
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup, collective_latency
from semu.workload import Microbatch

ATTENTION = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)


def on_grid(latency_s: float) -> float:
    """A latency rounded to a multiple of 2^-40 s."""
    return round(latency_s * 2**40) / 2**40


def value(dim: Dim, symbols: dict[str, int]) -> int:
    """A size for one microbatch."""
    if not isinstance(dim, Poly):
        return dim
    total = 0
    for monomial, coefficient in dim.terms.items():
        for name in monomial:
            if "@" in name:
                coefficient *= windowed_pairs(name, symbols)
            else:
                coefficient *= rounded_value(name, symbols) if "~" in name else symbols[name]
        total += coefficient
    return total


def windowed_pairs(name: str, symbols: dict[str, int]) -> int:
    """Pairs inside a window, row by row: half of those that ``i - j <= w`` lets see, half of those of ``i - j < w``."""
    stream, label = name.split(".pairs@")
    total = 0
    for number in range(symbols[f"{stream}.sequences"]):
        total += _seen(symbols[f"{stream}#{number}"], label)
    return total


@cache
def _seen(length: int, label: str) -> int:
    size = int("".join(filter(str.isdigit, label)))
    if "chunked" in label:
        return sum(min(size, length - i // size * size) for i in range(length))
    once = sum(min(i, size) + min(i + 1, size) for i in range(length))  # twice a causal mask's pairs
    return once


def symbols_of(microbatch: Microbatch, tp: int, cp: int = 1) -> dict[str, int]:
    """What the sizes of one microbatch depend on; token axes are padded to a multiple of tp.

    With cp > 1 every sequence is padded to 2 cp chunks, whose lengths stand for it in pairs.
    """
    parts = 2 * cp if cp > 1 else 1
    divisor = tp * parts
    chunks = {name: [(n + parts - 1) // parts for n in lengths] for name, lengths in all_streams(microbatch).items()}
    result: dict[str, int] = {}
    for name, lengths in chunks.items():
        result[f"{name}.shard"] = (parts * sum(lengths) + divisor - 1) // divisor
        result[f"{name}.pairs"] = sum(length * length for length in lengths)
        result[f"{name}.sequences"] = len(lengths)
        result |= {f"{name}#{number}": length for number, length in enumerate(lengths)}
        for other, partners in chunks.items():
            if other != name and len(lengths) == len(partners):
                result[f"{name}*{other}.pairs"] = sum(a * b for a, b in zip(lengths, partners, strict=True))
    return result


def all_streams(microbatch: Microbatch) -> dict[str, list[int]]:
    """Lengths of the batch's streams, and of those that models make of them."""
    result = {name: list(lengths) for name, lengths in microbatch.streams.items()}
    for name in ("vision", "audio", "text"):
        if name in result:
            lengths = result[name]
            result[f"{name}+1"] = [n + 1 if n else 0 for n in lengths]
            result[f"{name}=1"] = result[f"{name}+1=1"] = [min(n, 1) for n in lengths]
            result[f"{name}/2"] = [(n + 1) // 2 for n in lengths]
            result[f"{name}/2/2"] = [((n + 1) // 2 + 1) // 2 for n in lengths]
    return result


def latency_of(
    operator: Operator, symbols: dict[str, int], profile: DeviceProfile, groups: dict[str, CommGroup]
) -> float:
    """Latency of one operator [s]; one with nothing to do takes no time."""
    flop, mem, net = (value(d, symbols) for d in (operator.flop, operator.mem_bytes, operator.net_bytes))
    if operator.kind.is_communication:
        group = groups.get(operator.stream.name)
        if operator.stream.name in ("offload", "reload"):
            group = CommGroup(operator.stream.name, 2, local_port=Port.PCIE)
        assert group is not None
        return on_grid(collective_latency(profile, operator.kind, group, net))
    if operator.flop != 0 and flop == 0:
        return 0.0
    peak = profile.peak_flop_per_s(operator.dtype)
    if operator.kind not in ATTENTION:
        efficiency = profile.efficiency(operator.kind, dtype=operator.dtype)
        return on_grid(efficiency.latency_s(flop, mem, peak, profile.mem_bytes_per_s.value))
    tokens, _, pairs, _, _, head_dim, _, share = (value(d, symbols) for d in operator.key)
    efficiency = profile.efficiency(operator.kind, dtype=operator.dtype, head_dim=head_dim)
    return on_grid(
        efficiency.latency_s(
            flop,
            mem,
            peak,
            profile.mem_bytes_per_s.value,
            sequence_tokens=pairs / tokens,
            is_causal=share == 2,
        )
    )

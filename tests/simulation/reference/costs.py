"""What one operator costs for one microbatch, on the time grid: kernels by the scalar roofline of ``semu.hardware``."""

from __future__ import annotations

import math
from functools import cache

from simulation.reference.experts import rounded_value
from simulation.reference.network import collective_seconds

from semu.graph.dim import Dim, Poly
from semu.graph.operator import Operator, Phase
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup
from semu.workload import Microbatch

PRODUCTS = (OpKind.MATMUL, OpKind.GROUPED_MATMUL)
ROW_WISE = (OpKind.NORM, OpKind.SOFTMAX, OpKind.CROSS_ENTROPY)
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
    if not symbols:  # nothing at all
        return 0.0
    flop, mem, net = (value(d, symbols) for d in (operator.flop, operator.mem_bytes, operator.net_bytes))
    if operator.kind.is_communication:
        group = groups.get(operator.stream.name)
        if operator.stream.name in ("offload", "reload"):
            group = CommGroup(operator.stream.name, 2, local_port=Port.PCIE)
        assert group is not None
        return on_grid(collective_seconds(profile, operator.kind, group, net))
    if operator.flop != 0 and flop == 0:
        return 0.0
    peak = profile.peak_flop_per_s(operator.dtype)
    key = [value(d, symbols) for d in operator.key]
    efficiency = profile.efficiency(
        operator.kind, dtype=operator.dtype, head_dim=key[5] if operator.kind in ATTENTION else None
    )
    if operator.kind in ATTENTION:
        tokens, _, pairs, heads, _, _, _, share = key
        stretch = 1 + efficiency.s0_tokens * (1 if share == 2 else 0.5) * tokens / pairs
        flop *= stretch + efficiency.tile_rest * 128 * efficiency.tiles_at_once * share / (tokens * heads)
    elif operator.kind in PRODUCTS and efficiency.tiles_at_once:
        flop *= product_stretch(key, efficiency)
    elif operator.kind in ROW_WISE:
        cached, size, moved = efficiency.cached, efficiency.cache_bytes, mem
        if cached > 1 and size > 0:
            mem *= (
                1 / cached
                if moved <= size
                else 1
                if moved >= 2 * size
                else (1 + (cached - 1) * (moved / size - 1)) / cached
            )
        if len(key) == 4:  # rows of a softmax: as long as Megatron-LM's kernel takes, or as several kernels
            length = key[0] / key[1]
            if (length == int(length) and length % 4) or not 16 < length <= 16384:
                mem *= key[2] / key[3]
            mem *= 1 + efficiency.row0 / length
        if len(key) == 2:
            mem *= 1 + efficiency.row0 / key[1]
    return on_grid(
        efficiency.latency_s(
            flop,
            mem,
            peak,
            profile.mem_bytes_per_s.value,
            is_weight_gradient=operator.phase is Phase.WEIGHT_GRADIENT,
        )
    )


def product_stretch(key: list[int], efficiency: Efficiency) -> float:
    """Cost of a product in tiles over its FLOP, the best of five tiles."""
    m, n, k = (float(part) for part in key[:3])
    groups = 1.0
    if len(key) == 5:
        m, k, groups = m / key[3], k / key[4], key[3] * key[4]
    if len(key) == 6:  # of every sequence and head: scores over a head's width, or a head's width over a row of scores
        tokens, others, pairs, heads, width, is_scores = key
        row = pairs / tokens
        m, n, k = max(pairs / others, 1), row if is_scores else width, width if is_scores else row
        n, k, groups = max(n, 1), max(k, 1), heads * tokens * others / pairs
    at_once, costs = efficiency.tiles_at_once, []
    for rows, columns, rate in (
        (256, 128, 1),
        (128, 256, 1),
        (128, 128, efficiency.tile_128),
        (64, 128, efficiency.tile_128**2),
        (128, 64, efficiency.tile_128**2),
    ):
        waves = groups * math.ceil(m / rows) * math.ceil(n / columns) / at_once
        waves += efficiency.tile_rest * (math.ceil(waves) - waves)
        costs.append(2 * rows * columns * waves / min(rate, 1))
    return min(costs) * at_once * (k + efficiency.tile_k0) / (2 * groups * m * n * k)

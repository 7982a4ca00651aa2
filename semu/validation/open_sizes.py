"""What a row with ``run`` leaves open of its batch and its time: ``complete_sizes``.

* cp: ``sequence_parallel_size`` where the ranks come out so. Attention in space and then in time is exchanged between
  the two, so that every rank attends to whole frames and whole times: each is then a replica with its part of the
  sample, whose exchanges are left out.
* micro batch: the row's; else what its notes say ("micro batch is 16"), unless of images of another size ("(256 px)").
* global batch: the row's; else dp x micro_batch x num_microbatches (1); where there is no micro_batch either, as many
  samples as make a replica ``REPLICA_TOKENS`` tokens.
* iteration time, where it is not printed: global batch / samples per second, of ``samples_per_s`` or ``images_per_s``;
  of ``tokens_per_s_per_gpu`` where the row says a sample's tokens; of ``samples_per_s_per_gpu`` and all GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from semu.checks import is_integer, is_number
from semu.errors import ConfigError

Tables: TypeAlias = Mapping[str, Mapping[str, object]]
REPLICA_TOKENS = 32768
_NOTE = re.compile(r"micro[ -]?batch is (?P<size>[1-9]\d*)(?: \((?P<px>\d+) px\))?", re.IGNORECASE)


def complete_sizes(
    table: Mapping[str, object], run: Tables, sizes: Mapping[str, int], remarks: list[str]
) -> tuple[Tables, dict[str, int], tuple[int | None, int, float | None]]:
    """``run`` as it is simulated; parallel sizes; micro batch (None: open), global batch, iteration time [s] or None.

    Args:
        table: the row. run: its tables. sizes: as it says them. remarks: what was taken for open fields is added.
    """
    result, part = dict(sizes), None
    spread = table.get("sequence_parallel_size")
    if is_integer(spread) and spread > 1 and sizes["cp"] == 1:
        ranks = sizes["dp"] * sizes["tp"] * sizes["pp"]
        if ranks * spread == sizes["gpus"]:
            part = _shared(run, spread)
            result |= {"cp": spread} if part is None else {"dp": result["dp"] * spread}
            remarks.append(
                f"sequence_parallel_size {spread} taken as " + ("cp" if part is None else "parts of samples")
            )
    parts = result["dp"] // sizes["dp"]
    micro, total = _size(table, "micro_batch") or _noted(table, remarks), _size(table, "global_batch")
    tokens = _tokens(table)
    if total is None:
        each = micro
        if each is None:
            each = 1 << max((REPLICA_TOKENS // max(tokens or REPLICA_TOKENS, 1)).bit_length() - 1, 0)
        total = sizes["dp"] * each * (_size(table, "num_microbatches") or 1)
        remarks.append(f"global_batch taken as {total}")
    time = _time(table, total, tokens, result["gpus"], remarks)
    return run if part is None else part, result, (micro, total * parts, time)


def _shared(run: Tables, ranks: int) -> Tables | None:
    """A sample's part on each of some ranks; None: attention is not cut so, or the sample does not divide."""
    network, batch = run.get("model", {}).get("dit"), run.get("batch", {})
    if not isinstance(network, Mapping) or "frame_tokens" not in network:
        return None
    lengths = {name: length for name in ("video",) if is_integer(length := batch.get(name))}
    if any(length % ranks for length in lengths.values()):
        return None
    return {**run, "batch": {**batch, **{name: length // ranks for name, length in lengths.items()}}}


def _size(table: Mapping[str, object], name: str) -> int | None:
    value = table.get(name)
    if value is None:
        return None
    if not is_integer(value) or value < 1:
        raise ConfigError("a wrong value", where=name, expected="an integer >= 1 or null", got=value)
    return value


def _noted(table: Mapping[str, object], remarks: list[str]) -> int | None:
    """The micro batch that a row's notes tell."""
    found = _NOTE.search(str(table.get("notes") or ""))
    multimodal = table.get("multimodal")
    side = multimodal.get("image_size") if isinstance(multimodal, Mapping) else None
    if found is None or (found["px"] is not None and int(found["px"]) != side):
        return None
    remarks.append(f"micro_batch {found['size']} of the notes")
    return int(found["size"])


def _tokens(table: Mapping[str, object]) -> int | None:
    """Tokens of a sample, where the row tells."""
    told = table.get("multimodal")
    tokens = told.get("tokens") if isinstance(told, Mapping) else None
    return tokens if is_integer(tokens) and tokens >= 1 else None


def _time(table: Mapping[str, object], total: int, tokens: int | None, gpus: int, remarks: list[str]) -> float | None:
    printed = table.get("iteration_time_s")
    if printed is not None:
        if not is_number(printed) or not printed > 0:
            raise ConfigError("a wrong value", where="iteration_time_s", expected="a number > 0 or null", got=printed)
        return float(printed)
    measured = table.get("measured_values")
    rates = measured if isinstance(measured, Mapping) else {}
    factors = {"samples_per_s": 1.0, "images_per_s": 1.0}
    if tokens is not None:
        factors["tokens_per_s_per_gpu"] = gpus / tokens
    for name, factor in {**factors, "samples_per_s_per_gpu": float(gpus)}.items():
        rate = rates.get(name)
        if is_number(rate) and rate > 0:
            remarks.append(f"iteration_time_s follows from {name}")
            return total / (rate * factor)
    return None

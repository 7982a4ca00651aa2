"""``told_by_arguments``: what the launch arguments of a row (``megatron_args``) say that its own fields leave open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.checks import is_integer

_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"


def told_by_arguments(table: Mapping[str, object]) -> dict[str, Any]:
    """Fields of a row by its launch arguments; a field that the row has itself is not looked at.

    ``cross_entropy``: Megatron-LM's fused loss, which is its own pieces compiled unless the argument names Transformer
    Engine's; without the argument it is not fused. ``layout``: layers of the first and of the last pipeline rank, the
    others share the rest equally, where that comes out even and each rank has one chunk.

    Args:
        table: the row's object.
    """
    arguments = table.get("megatron_args")
    if not isinstance(arguments, Mapping):
        return {}
    found: dict[str, Any] = {}
    if table.get("cross_entropy") is None:
        is_te = arguments.get("--cross-entropy-fusion-impl") == "te"
        is_fused = arguments.get("--cross-entropy-loss-fusion")
        found["cross_entropy"] = ("fused" if is_te else "compiled") if is_fused else "in_place"
    layers = _layers(table, arguments) if table.get("layout") is None else None
    if layers is not None:
        found["layout"] = {"layers": layers}
    return found


def _layers(table: Mapping[str, object], arguments: Mapping[str, object]) -> list[int] | None:
    """Layers of each pipeline rank; None: the arguments do not say, or not in whole layers."""
    first, last = arguments.get(_FIRST), arguments.get(_LAST)
    model, ranks, chunks = table.get("model"), table.get("pp"), table.get("vp")
    count = model.get("layers") if isinstance(model, Mapping) else None
    if not is_integer(count) or not is_integer(ranks) or chunks not in (None, 1) or (first, last) == (None, None):
        return None
    head, tail = ([size] if is_integer(size) else [] for size in (first, last))
    between, rest = ranks - len(head + tail), count - sum(head + tail)
    if between < 1 or rest <= 0 or rest % between:
        return None
    return [*head, *[rest // between] * between, *tail]

"""What CUDA graphs take off the hosts (``training.cuda_graphs``): ``graphed_calls``.

A graph holds operators of one layer that follow one another and is one launch; its kernels then start without the
host. An operator belongs to a part of its layer by its path: the norm before a feed-forward network and the network, of
experts the router with the shared ones, the permutation, and the rest; all else of a layer is attention's. Forward and
backward are graphs of their own.

Off: a graph's one launch is counted as one kernel's, whatever it holds, and buffers that graphs keep (inputs of every
layer and microbatch in flight, and a pool that nothing else may use) are not in the memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.compile.template import Template

_HOLDS = {"moe": ("moe_router", "moe_preprocess", "moe")}


def graphed_calls(layout: Layout, calls: NDArray[np.floating]) -> NDArray[np.float64]:
    """Launches of every operator where graphs hold some of them.

    Args:
        layout: the job's. calls: float[num_rows], launches without graphs.
    Returns:
        float64[num_rows].
    """
    graphs = layout.job.training.cuda_graphs
    found = calls.astype(np.float64)
    if graphs is None:
        return found
    if graphs == ("iteration",):
        return np.zeros_like(found)
    held = {part for word in graphs for part in _HOLDS.get(word, (word,))}
    library = layout.library
    layers = {block.template for chunk in layout.chunks for block in chunk.blocks if block.is_layer}
    for number in sorted(layers):
        template, first = library.templates[number], library.row_offset[number]
        inside = np.array([graphs == ("layer",) or part in held for part in _parts(template)], dtype=np.bool_)
        begins = inside.copy()
        begins[1:] &= ~inside[:-1]
        backward = len(template.forward.operators)
        begins[backward : backward + 1] = inside[backward : backward + 1]
        own = found[first : first + len(inside)]
        own[inside] = begins[inside]
    return found


def _parts(template: Template) -> list[str]:
    """The part of its layer that each operator belongs to, as ``GRAPHS`` calls it."""
    paths = [operator.path.split(".") for operator in template.operators]
    is_sparse = any(path[:2] == ["mlp", "router"] for path in paths)
    return [_part(path, is_sparse=is_sparse) for path in paths]


def _part(path: list[str], *, is_sparse: bool) -> str:
    if path[0] not in ("mlp", "mlp_norm"):
        return "attn"
    if not is_sparse:
        return "mlp"
    if path[0] == "mlp_norm" or path[1].startswith(("router", "shared")):
        return "moe_router"
    return "moe_preprocess" if path[1] in ("permute", "permute_bw") else "moe"

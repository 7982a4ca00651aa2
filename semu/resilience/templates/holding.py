"""Which node holds which layers, and what a reconfiguration copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Copies:
    """What a reconfiguration copies.

    Attributes:
        total_bytes: of all copies. largest_bytes: that a node receives or sends at most.
    """

    total_bytes: float
    largest_bytes: float


def assign_nodes(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each row the column of its own that makes the sum of costs least (the Hungarian method, shortest paths).

    Args:
        cost: float64[n, n].
    Returns:
        int64[n]: column of each row.
    Source:
        R. Jonker, A. Volgenant, Computing 38, 1987.
    """
    n = len(cost)
    u, v = np.zeros(n + 1), np.zeros(n + 1)
    row_of = np.zeros(n + 1, dtype=np.int64)  # of a column, from 1 on; 0: none
    for row in range(1, n + 1):
        row_of[0], column = row, 0
        least, back = np.full(n + 1, np.inf), np.zeros(n + 1, dtype=np.int64)
        used = np.zeros(n + 1, dtype=bool)
        while True:
            used[column] = True
            here = row_of[column]
            free = ~used[1:]
            slack = cost[here - 1] - u[here] - v[1:]
            better = free & (slack < least[1:])
            least[1:][better], back[1:][better] = slack[better], column
            masked = np.where(free, least[1:], np.inf)
            next_column = int(np.argmin(masked)) + 1
            delta = masked[next_column - 1]
            u[row_of[used]] += delta
            v[used] -= delta
            least[1:][free] -= delta
            column = next_column
            if row_of[column] == 0:
                break
        while column:
            row_of[column] = row_of[back[column]]
            column = int(back[column])
    found = np.zeros(n, dtype=np.int64)
    found[row_of[1:] - 1] = np.arange(n)
    return found


def reassign(
    held: Mapping[int, frozenset[int]], wanted: Sequence[frozenset[int]], layer_bytes: NDArray[np.float64]
) -> tuple[list[int], Copies]:
    """Nodes for the places of new pipelines with the least copied bytes, and what is copied.

    Args:
        held: node -> layers that it holds. wanted: layers of each place, as many as nodes. layer_bytes: float64[L],
            state of each layer.
    Returns:
        (node of each place, copies). A layer comes from the holder that has sent least; one that nobody holds is not
        copied (``lost_layers``).
    """
    nodes = sorted(held)
    has = np.zeros((len(nodes), len(layer_bytes)), dtype=bool)
    for k, node in enumerate(nodes):
        has[k, sorted(held[node])] = True
    needs = np.zeros((len(wanted), len(layer_bytes)), dtype=bool)
    for k, layers in enumerate(wanted):
        needs[k, sorted(layers)] = True
    missing = needs[:, None, :] & ~has[None, :, :]
    cost = missing @ layer_bytes
    chosen = assign_nodes(cost)
    received, sent = np.zeros(len(nodes)), np.zeros(len(nodes))
    for place, k in enumerate(chosen.tolist()):
        for layer in np.flatnonzero(missing[place, k]).tolist():
            holders = np.flatnonzero(has[:, layer])
            if len(holders):
                sent[holders[np.argmin(sent[holders])]] += layer_bytes[layer]
                received[k] += layer_bytes[layer]
    largest = float(max(received.max(initial=0.0), sent.max(initial=0.0)))
    return [nodes[k] for k in chosen.tolist()], Copies(float(received.sum()), largest)


def lost_layers(held: Mapping[int, frozenset[int]], num_layers: int) -> list[int]:
    """Layers that no node holds."""
    seen = frozenset().union(*held.values()) if held else frozenset()
    return [layer for layer in range(num_layers) if layer not in seen]

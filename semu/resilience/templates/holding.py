"""Which node holds which layers, and what a reconfiguration copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

_STARTS = 16
_MOST_PLACES_WITH_STARTS = 64


@dataclass(frozen=True, eq=False)
class Copies:
    """What a reconfiguration copies.

    Attributes:
        total_bytes: of all copies. largest_bytes: that a node receives or sends at most.
        moves: (layer, node that sends it, node that receives it) of each.
    """

    total_bytes: float
    largest_bytes: float
    moves: tuple[tuple[int, int, int], ...] = ()


def reassign(
    held: Mapping[int, frozenset[int]],
    wanted: Sequence[frozenset[int]],
    layer_bytes: NDArray[np.float64],
    *,
    groups: Sequence[Sequence[int]] | None = None,
    rack_nodes: int = 0,
) -> tuple[list[int], Copies]:
    """Nodes for the places of new pipelines with the least copied bytes, and what is copied.

    Args:
        held: node -> layers that it holds. wanted: layers of each place. layer_bytes: float64[L], state of each layer.
        groups: nodes of each pipeline, one after another as many as places, where a node's pipeline is not free; None:
            all nodes of ``held`` for all places. rack_nodes: consecutive nodes that share a rack; then as few layers as
            can be have all their holders in one rack, before bytes count (``spread``); 0: racks count for nothing.
    Returns:
        (node of each place, copies). A layer comes from the holder that has sent least; one that nobody holds is not
        copied (``lost_layers``).
    """
    from scipy.optimize import linear_sum_assignment

    senders = sorted(held)
    has = _layers([held[node] for node in senders], len(layer_bytes))
    row_of = {node: k for k, node in enumerate(senders)}
    needs = _layers(wanted, len(layer_bytes))
    cost = (needs * layer_bytes) @ ~has.T
    places: list[int] = []
    for group in [senders] if groups is None else groups:
        rows = np.array([row_of[node] for node in group], dtype=np.int64)
        first = len(places)
        places += rows[linear_sum_assignment(cost[first : first + len(rows), rows])[1]].tolist()
    if rack_nodes and groups is None:
        places = spread(places, needs, np.array(senders) // rack_nodes, cost, layer_bytes)
    received, sent = np.zeros(len(senders)), np.zeros(len(senders))
    moves = []
    for place, k in enumerate(places):
        for layer in np.flatnonzero(needs[place] & ~has[k]).tolist():
            holders = np.flatnonzero(has[:, layer])
            if len(holders):
                source = holders[np.argmin(sent[holders])]
                sent[source] += layer_bytes[layer]
                received[k] += layer_bytes[layer]
                moves.append((layer, senders[source], senders[k]))
    largest = float(max(received.max(initial=0.0), sent.max(initial=0.0)))
    return [senders[k] for k in places], Copies(float(received.sum()), largest, tuple(moves))


def spread(
    chosen: Sequence[int],
    needs: NDArray[np.bool_],
    racks: NDArray[np.int64],
    cost: NDArray[np.float64],
    layer_bytes: NDArray[np.float64],
) -> list[int]:
    """Nodes of places, exchanged until no exchange of two leaves less of the model with all its holders in one rack.

    Of exchanges that help as much the one that copies least is made. Where something is left on up to 64 places, other
    starts are tried. Some racks hold all copies of something whatever is done: those with more than (pipelines - 1)
    nodes for each stage.

    Args:
        chosen: node of each place. needs: bool[places, L]. racks: int64[nodes]. cost: float64[places, nodes], bytes
            that a node lacks of a place. layer_bytes: float64[L].
    Returns:
        Node of each place.
    """
    best, left = _exchanged(np.array(chosen, dtype=np.int64), needs, racks, cost, layer_bytes)
    random = np.random.default_rng(0)
    for _ in range(_STARTS if len(chosen) <= _MOST_PLACES_WITH_STARTS else 0):
        if left == 0:
            break
        tried, lefts = _exchanged(random.permutation(best), needs, racks, cost, layer_bytes)
        if lefts < left:
            best, left = tried, lefts
    return [int(node) for node in best]


def _exchanged(
    found: NDArray[np.int64],
    needs: NDArray[np.bool_],
    racks: NDArray[np.int64],
    cost: NDArray[np.float64],
    layer_bytes: NDArray[np.float64],
) -> tuple[NDArray[np.int64], float]:
    """Nodes of places after the exchanges of ``spread``, bytes of layers whose holders share a rack."""
    holders = np.zeros((needs.shape[1], int(racks.max(initial=0)) + 1), dtype=np.int64)
    for place, node in enumerate(found.tolist()):
        holders[needs[place], racks[node]] += 1
    while True:
        exposed = _exposed(holders)
        least: tuple[float, float, int, int] | None = None
        for place in np.flatnonzero((needs & exposed).any(axis=1)).tolist():
            for other in np.flatnonzero(racks[found] != racks[found[place]]).tolist():
                touched = needs[place] ^ needs[other]
                counts = _moved(holders[touched], needs[place, touched], racks[found[place]], racks[found[other]])
                change = float(layer_bytes[touched] @ (_exposed(counts).astype(float) - exposed[touched]))
                if change < 0:
                    a, b = found[place], found[other]
                    more = float(cost[place, b] + cost[other, a] - cost[place, a] - cost[other, b])
                    least = min(least or (0.0, 0.0, 0, 0), (change, more, place, other))
        if least is None:
            return found, float(layer_bytes[exposed].sum())
        _, _, place, other = least
        touched = needs[place] ^ needs[other]
        holders[touched] = _moved(holders[touched], needs[place, touched], racks[found[place]], racks[found[other]])
        found[[place, other]] = found[[other, place]]


def _exposed(holders: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Layers that one rack holds alone, of int64[L, racks]."""
    found: NDArray[np.bool_] = np.count_nonzero(holders, axis=1) == 1
    return found


def _moved(holders: NDArray[np.int64], is_mine: NDArray[np.bool_], mine: int, theirs: int) -> NDArray[np.int64]:
    """Holders by rack after two nodes have exchanged layers: what is mine moves to the other rack, the rest here."""
    counts = holders.copy()
    way = np.where(is_mine, 1, -1)
    counts[:, mine] -= way
    counts[:, theirs] += way
    return counts


def layers_in_one_rack(held: Mapping[int, frozenset[int]], rack_nodes: int) -> list[int]:
    """Layers all of whose holders share a rack of so many consecutive nodes."""
    racks: dict[int, set[int]] = {}
    for node, layers in held.items():
        for layer in layers:
            racks.setdefault(layer, set()).add(node // rack_nodes)
    return sorted(layer for layer, found in racks.items() if len(found) == 1)


def _layers(rows: Sequence[frozenset[int]], count: int) -> NDArray[np.bool_]:
    """bool[rows, count], which layers are in each."""
    found = np.zeros((len(rows), count), dtype=bool)
    for k, layers in enumerate(rows):
        found[k, sorted(layers)] = True
    return found


def lost_layers(held: Mapping[int, frozenset[int]], num_layers: int) -> list[int]:
    """Layers that no node holds."""
    seen = frozenset().union(*held.values()) if held else frozenset()
    return [layer for layer in range(num_layers) if layer not in seen]

"""What to say when units wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Callable, Set

import numpy as np
from numpy.typing import NDArray

from semu.errors import GraphError

LONGEST = 12
"""A longer cycle is not printed in full."""


def find_cycle(source: NDArray[np.int32], target: NDArray[np.int32], done: NDArray[np.int32], n: int) -> list[int]:
    """A cycle among the units that are not done, the shortest through one of its units.

    Args:
        source, target: int32[k], edges. done: units that are out of it. n: number of units.
    Returns:
        Units in the order of their edges, the first not repeated; empty when there is none.
    """
    is_left = np.ones(n, dtype=np.bool_)
    is_left[done] = False
    after: dict[int, list[int]] = {}
    before: dict[int, int] = {}
    for a, b in zip(source.tolist(), target.tolist(), strict=True):
        if is_left[a] and is_left[b]:
            after.setdefault(a, []).append(b)
            before[b] = a
    if not before:
        return []
    unit = min(before)
    seen: set[int] = set()
    while unit not in seen:  # whoever is left waits for somebody who is left
        seen.add(unit)
        unit = before[unit]
    return _way_back(after, unit)


def _way_back(after: dict[int, list[int]], root: int) -> list[int]:
    """Breadth first from ``root`` to itself."""
    came: dict[int, int] = {}
    front = [root]
    while front:
        following = []
        for unit in front:
            for other in after.get(unit, ()):
                if other == root:
                    path = [unit]
                    while path[-1] != root:
                        path.append(came[path[-1]])
                    return path[::-1]
                if other not in came:
                    came[other] = unit
                    following.append(other)
        front = following
    return []


def cycle_error(
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    done: NDArray[np.int32],
    n: int,
    name: Callable[[int], str],
    added: Set[tuple[int, int]],
) -> GraphError:
    """The error that prints the cycle; edges that were added are marked.

    Args:
        source, target: int32[k], edges. done: units that could be dispatched. n: number of units. name: name of a unit.
        added: (source, target) of the edges to mark.
    """
    cycle = find_cycle(source, target, done, n)
    pieces = []
    for position, unit in enumerate(cycle):
        following = cycle[(position + 1) % len(cycle)]
        pieces.append(f"{name(unit)} {'=>' if (unit, following) in added else '->'}")
    if len(pieces) > LONGEST:
        pieces[LONGEST // 2 : len(pieces) - LONGEST // 2] = [f"... {len(pieces) - LONGEST} more ... ->"]
    text = " ".join(pieces) + (f" {name(cycle[0])}" if cycle else "")
    return GraphError(
        f"the edges close a cycle: {text} (=> is an added edge)",
        where=name(cycle[0]) if cycle else "edges",
        expected="edges that leave an order",
        got=f"a cycle of {len(cycle)}",
    )

"""The rule by which units are dispatched, word for word in plain Python: whole grid steps, no heaps, no caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Op:
    """An operator of a unit: latency [grid steps], stream of the program, earlier operators that it waits for."""

    latency: int
    stream: int
    preds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unit:
    """Operators that run together; it holds ``streams`` from its start to its end."""

    streams: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Edge:
    """From the end of a unit, or of its operator ``op``, to the start of a unit, or of its operator ``into``."""

    source: int
    target: int
    op: int | None = None
    into: int | None = None


@dataclass(frozen=True)
class Dispatched:
    """Units in order of dispatch, and of those: operators' absolute starts and ends, whether a release bound."""

    order: list[int]
    start: dict[int, int]
    end: dict[int, int]
    op_start: dict[int, list[int]]
    op_end: dict[int, list[int]]
    touched: dict[int, bool]


def run_ops(ops: Sequence[Op], begin: int, releases: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Starts and ends of the operators of a unit that begins at ``begin``, in issue order on each stream."""
    starts: list[int] = []
    ends: list[int] = []
    for position, op in enumerate(ops):
        bounds = [begin, releases.get(position, begin)]
        bounds += [ends[other] for other in op.preds]
        bounds += [ends[other] for other in range(position) if ops[other].stream == op.stream]
        starts.append(max(bounds))
        ends.append(starts[-1] + op.latency)
    return starts, ends


def dispatch(units: Sequence[Unit], edges: Sequence[Edge], rank: Sequence[int]) -> Dispatched:
    """Repeatedly dispatch, of the ready units, the one with the least (possible start, rank)."""
    done = Dispatched([], {}, {}, {}, {}, {})

    def time_of(edge: Edge) -> int:
        return done.end[edge.source] if edge.op is None else done.op_end[edge.source][edge.op]

    def possible_start(unit: int) -> int:
        bounds = [0]
        bounds += [time_of(edge) for edge in edges if edge.target == unit and edge.into is None]
        bounds += [done.end[other] for other in done.order if set(units[other].streams) & set(units[unit].streams)]
        return max(bounds)

    while True:
        ready = [
            unit
            for unit in range(len(units))
            if unit not in done.start and all(edge.source in done.start for edge in edges if edge.target == unit)
        ]
        if not ready:
            return done
        unit = min(ready, key=lambda unit: (possible_start(unit), rank[unit]))
        begin = possible_start(unit)
        releases: dict[int, int] = {}
        for edge in edges:
            if edge.target == unit and edge.into is not None:
                releases[edge.into] = max(releases.get(edge.into, 0), time_of(edge))
        starts, ends = run_ops(units[unit].ops, begin, releases)
        alone, _ = run_ops(units[unit].ops, begin, {})
        done.order.append(unit)
        done.start[unit] = begin
        done.end[unit] = max([begin, *ends])
        done.op_start[unit], done.op_end[unit] = starts, ends
        done.touched[unit] = any(releases[op] > alone[op] for op in releases)

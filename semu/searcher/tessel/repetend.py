"""``find_repetend``: the shortest repetend, by CP-SAT.

A repetend holds every block once, each of a microbatch of its own; one begins a period after the other, so block k of
microbatch i starts at ``start[k] + i x period`` (Tessel §4: for any k and any microbatch the same). On every rank the
blocks of a period do not overlap, and none crosses the end of the rank's period. Tessel gives this to Z3, and looks for
the shortest period among repetends of few microbatches; here the period is tried, from the work of the busiest rank
on, and of the repetends of the shortest period found the one whose microbatch takes the least time is kept: it has the
shortest warm-up and cool-down, and holds the fewest microbatches.
"""

from __future__ import annotations

import operator
import time

from semu.errors import ConfigError
from semu.records import dataclass
from semu.searcher.tessel.blocks import Blocks

STEP = 0.01
"""How much longer than the last one the next period is that is tried."""


@dataclass(frozen=True)
class Repetend:
    """A repetend.

    Attributes:
        period: [ticks]. start: of every block of microbatch 0 [ticks]. is_shortest: no period of the tried ones below
            it has a repetend, as was proven.
    """

    period: int
    start: tuple[int, ...]
    is_shortest: bool


def find_repetend(
    blocks: Blocks, limit_bytes: tuple[int, ...] | None = None, *, time_s: float = 60.0, workers: int = 2
) -> Repetend:
    """Search for a repetend.

    Args:
        blocks: of a microbatch. limit_bytes: what microbatches in flight may hold, per rank; None: any.
        time_s: of the whole search [s]. workers: threads.
    Raises:
        ConfigError: none was found within the time, or memory.
    """
    began, period, is_proven = time.perf_counter(), blocks.least_period, True
    longest = sum(block.ticks for block in blocks.blocks)
    least_held = [sum(size for *_, size in held) for held in blocks.held]
    if limit_bytes is not None and any(map(operator.gt, least_held, limit_bytes)):
        longest = 0  # one microbatch alone does not fit
    while True:
        left = time_s - (time.perf_counter() - began)
        if left <= 0 or period > longest:
            what = "within the time" if left <= 0 else "that fits in memory"
            raise ConfigError(
                f"Tessel finds no repetend {what}",
                where="--baseline tessel",
                expected=f"one within {time_s:g} s: fewer pipeline ranks, or smaller microbatches",
                got=f"{len(blocks.blocks)} blocks on {blocks.num_ranks} ranks",
            )
        start, is_infeasible = _solve(blocks, period, limit_bytes, left, workers)
        if start is not None:
            return Repetend(period, start, is_proven)
        is_proven &= is_infeasible
        period += max(int(STEP * blocks.least_period), 1)


def _solve(
    blocks: Blocks, period: int, limit_bytes: tuple[int, ...] | None, time_s: float, workers: int
) -> tuple[tuple[int, ...] | None, bool]:
    """Starts of the blocks under a period, None: none found; whether there are none."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most = len(blocks.blocks)
    horizon = period * most
    start = [model.new_int_var(0, horizon, f"start{k}") for k in range(most)]
    for k, block in enumerate(blocks.blocks):
        for other, late in block.before:
            model.add(start[k] >= start[other] + blocks.blocks[other].ticks + late)
    for rank in range(blocks.num_ranks):
        begin = model.new_int_var(0, period - 1, f"begin{rank}")
        intervals = []
        for k, block in enumerate(blocks.blocks):
            if rank in block.ranks:
                place = model.new_int_var(0, 2 * period, f"place{k}.{rank}")
                turns = model.new_int_var(-1, most, f"turns{k}.{rank}")
                model.add(start[k] == place + period * turns)
                model.add(place >= begin)
                model.add(place + block.ticks <= begin + period)
                intervals.append(model.new_fixed_size_interval_var(place, block.ticks, f"block{k}.{rank}"))
        model.add_no_overlap(intervals)
        if limit_bytes is not None:
            held = []
            for forward, backward, size in blocks.held[rank]:
                count = model.new_int_var(1, most, f"held{forward}.{rank}")
                end = start[backward] + blocks.blocks[backward].ticks
                model.add(count * period >= end - start[forward])
                held.append(count * size)
            model.add(sum(held) <= limit_bytes[rank])
    span = model.new_int_var(0, horizon + period, "span")
    for k, block in enumerate(blocks.blocks):
        model.add(span >= start[k] + block.ticks)
    model.minimize(span)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(time_s, 0.01)
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return tuple(int(solver.value(each)) for each in start), False
    return None, status == cp_model.INFEASIBLE

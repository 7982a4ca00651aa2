"""``complete``: the order of all blocks that a repetend gives, and a shorter warm-up and cool-down.

Blocks that begin before the first whole repetend are the warm-up, those that begin behind the last one the cool-down.
Tessel looks for the shortest of either by Z3 (§5); here CP-SAT does, with the repetends' order between them fixed.
Tessel-fast takes them in the order in which the repetend has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semu.searcher.tessel.blocks import Blocks
from semu.searcher.tessel.repetend import Repetend

Placed = tuple[int, int]
"""A block and its microbatch."""


def in_order(blocks: Blocks, repetend: Repetend, num_microbatches: int) -> list[Placed]:
    """All blocks by the time at which the repetend has them begin."""
    every = [(k, m) for m in range(num_microbatches) for k in range(len(blocks.blocks))]
    return sorted(every, key=lambda one: (repetend.start[one[0]] + one[1] * repetend.period, one[1], one[0]))


def complete(
    blocks: Blocks, repetend: Repetend, num_microbatches: int, *, time_s: float = 30.0, workers: int = 2
) -> list[Placed]:
    """All blocks in an order, with the shortest warm-up and cool-down that are found.

    Args:
        blocks, repetend: as found. num_microbatches: >= 1. time_s: of either search [s]. workers: threads.
    """
    order = in_order(blocks, repetend, num_microbatches)
    last_first = max(repetend.start)  # from then on repetends are whole, while there are microbatches
    first_last = min(repetend.start) + (num_microbatches - 1) * repetend.period
    begins = {(k, m): repetend.start[k] + m * repetend.period for k, m in order}
    if first_last <= last_first:  # too few microbatches for a whole repetend
        return _shortest(blocks, order, {}, begins, time_s, workers)
    head = [one for one in order if begins[one] < last_first]
    tail = [one for one in order if begins[one] >= first_last]
    middle = order[len(head) : len(order) - len(tail)]
    head = _shortest(blocks, head, {}, begins, time_s, workers)
    ends = {one: begins[one] + blocks.blocks[one[0]].ticks for one in (*head, *middle)}
    tail = _shortest(blocks, tail, ends, begins, time_s, workers)
    return [*head, *middle, *tail]


def _shortest(
    blocks: Blocks,
    order: Sequence[Placed],
    ended: Mapping[Placed, int],
    begins: Mapping[Placed, int],
    time_s: float,
    workers: int,
) -> list[Placed]:
    """Some blocks in the order of the shortest schedule; microbatches of a block stay in order.

    Args:
        order: a legal order, the first to be tried. ended: blocks that ran before, and when they ended [ticks].
        begins: when the repetend has blocks begin [ticks].
    """
    from ortools.sat.python import cp_model

    if not order:
        return []
    model, mine = cp_model.CpModel(), set(order)
    first = min(begins[one] for one in order)
    horizon = max(begins[k, m] + blocks.blocks[k].ticks for k, m in order) + first + 1
    start = {one: model.new_int_var(0, horizon, f"start{one}") for one in order}
    free = [0] * blocks.num_ranks
    for (k, _), over in ended.items():
        for rank in blocks.blocks[k].ranks:
            free[rank] = max(free[rank], over)
    intervals: list[list[cp_model.IntervalVar]] = [[] for _ in free]
    last = model.new_int_var(0, horizon, "last")
    for k, m in order:
        block = blocks.blocks[k]
        model.add(last >= start[k, m] + block.ticks)
        model.add_hint(start[k, m], begins[k, m])
        for rank in block.ranks:
            intervals[rank].append(model.new_fixed_size_interval_var(start[k, m], block.ticks, f"{k}.{m}.{rank}"))
            model.add(start[k, m] >= free[rank])
        for other, late in block.before:
            if (other, m) in mine:
                model.add(start[k, m] >= start[other, m] + blocks.blocks[other].ticks + late)
            elif (other, m) in ended:
                model.add(start[k, m] >= ended[other, m] + late)
        if (k, m - 1) in mine:
            model.add(start[k, m] >= start[k, m - 1] + block.ticks)
    for own in intervals:
        model.add_no_overlap(own)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(order)
    return sorted(order, key=lambda one: (solver.value(start[one]), begins[one], one))

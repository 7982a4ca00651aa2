"""Many schedules in one call (``restore_orders``) give the times of each restored alone."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items

import semu
from semu.errors import ScheduleError
from semu.parallel.config import Parallel
from semu.simulation import JobCheckpoint


def states() -> list[JobCheckpoint]:
    jobs = [
        job_of(vlm(), vlm_items(8, empty=(3,)), Parallel(dp=2, tp=2, pp=4)),
        job_of(gpt(), text_items(5), Parallel(tp=2, pp=3), overlap=overlap(tensor=True, pipeline=True)),
        job_of(vlm(), vlm_items(4), Parallel(pp=2, vpp=2)),
    ]
    return [semu.prepare(job) for job in jobs]


def shuffled(state: JobCheckpoint, random: Random, swaps: int) -> list[np.ndarray]:
    """1F1B with some neighbours swapped; it may deadlock."""
    orders = [order.copy() for order in state.units.orders(state.schedule("1f1b"))]
    for _ in range(swaps):
        order = random.choice(orders)
        at = random.randrange(len(order) - 1)
        order[[at, at + 1]] = order[[at + 1, at]]
    return orders


@pytest.mark.parametrize("number", [0, 1, 2])
def test_many_orders_at_once_are_each_alone(number: int) -> None:
    state, random = states()[number], Random(5)
    overlapped = state.job.overlaps_sends
    tried = [shuffled(state, random, swaps) for swaps in (0, 0, 1, 2, 3, 4, 6, 8, 12, 20)]
    times = state.restore_orders(np.stack([np.concatenate(orders) for orders in tried]), replica=0)
    n = state.units.num_units
    legal = 0
    for row, orders in enumerate(tried):
        edges = state.units.order_edges(orders, overlapped_sends=overlapped)
        if not times.is_legal[row]:
            assert times.makespan_s[row] == np.inf
            with pytest.raises(semu.GraphError, match="cycle"):
                state.restore(edges, replica=0)
            continue
        legal += 1
        alone = state.restore(edges, replica=0)
        assert (times.start[row] == alone.start[0, :n]).all()
        assert (times.end[row] == alone.end[0, :n]).all()
        assert times.makespan_s[row] == alone.end[0, :n].max()
    assert legal >= 3


def test_what_is_no_order_is_refused() -> None:
    state = states()[0]
    row = np.concatenate(state.units.orders(state.schedule("1f1b")))
    for wrong in (row[None, 1:], row, np.where(row == row[0], row[1], row)[None, :]):
        with pytest.raises(ScheduleError, match="not orders"):
            state.restore_orders(wrong)

"""Where torch.distributed.pipelining has a schedule, ours is the same, token by token, read through its CSV."""

from __future__ import annotations

import pytest
from schedule.torch_orders import NAMES, as_csv, torch_order

from semu.graph.operator import Phase
from semu.schedule.files import from_csv
from semu.schedule.generators.gpipe import gpipe
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import StageKey

torch = pytest.importorskip("torch.distributed.pipelining.schedules", reason="needs torch", exc_type=ImportError)


SIZES = [(p, m, v) for p in range(1, 9) for m in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 24, 32) for v in range(1, 5)]


def is_comparable(name: str, p: int, m: int, v: int) -> bool:
    """Beyond our own rules: torch lists forwards of more microbatches than there are in short 1F1B's, and gives one
    chunk per rank interleaved 1F1B's longer warm-up, where ours (as Megatron-LM's) is 1F1B."""
    if ALL_SCHEDULES[name].misfit(p, m, v) is not None:
        return False
    return not (name == "1f1b" and m < p) and not (name == "interleaved" and v == 1)


def renumbered(schedule: Schedule) -> Schedule:
    """torch lists the forwards of 1F1B's last rank from 1 (it runs them from 0)."""
    last = schedule.orders[-1]
    if last[0].microbatch == 0:
        return schedule
    shifted = [StageKey(s.chunk, s.phase, s.microbatch - (s.phase is Phase.FORWARD)) for s in last]
    return Schedule.build(schedule.name, [*schedule.orders[:-1], shifted])


@pytest.mark.parametrize("name", NAMES)
def test_orders_agree_token_by_token(name: str) -> None:
    family = ALL_SCHEDULES[name]
    sizes = [size for size in SIZES if is_comparable(name, *size)]
    assert len(sizes) > 30
    for p, m, v in sizes:
        shape = family.shape(p, m, v)
        ours = gpipe(shape, in_order=True) if name == "gpipe" else family(shape)
        theirs = from_csv(as_csv(torch_order(torch, name, p, m, v)))
        assert ours.orders == (renumbered(theirs) if name == "1f1b" else theirs).orders, (p, m, v)

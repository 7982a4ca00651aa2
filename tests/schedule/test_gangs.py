"""Gangs: chunks that several ranks hold and run together."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.gang_shapes import reference_times, with_gangs

from semu.errors import ScheduleError
from semu.schedule.gangs.weaving import weave, without_gangs
from semu.schedule.graph import graph_of
from semu.schedule.phases import CODE_OF_PHASE
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy

FAMILIES = [
    name
    for name, family in ALL_SCHEDULES.items()
    if family.adapt is None and not family.needs_encoder and family.placement.value != "bidirectional"
]


def woven(name: str, p: int, m: int, seconds: dict[str, float]) -> tuple[Schedule, PipelineShape] | None:
    family = ALL_SCHEDULES[name]
    slots = next((v for v in (1, 2) if family.misfit(p, m, v) is None and v >= family.fewest_slots), None)
    if slots is None:
        return None
    inner = family.shape(p, m, slots)
    shape = with_gangs(inner)
    return weave(family(inner), shape, lambda stage: seconds[stage.phase.value]), shape


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 4), (3, 6), (4, 8)])
def test_every_schedule_is_legal_with_gangs_woven_in(name: str, p: int, m: int) -> None:
    found = woven(name, p, m, {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0})
    if found is None:
        return  # the schedule has other sizes
    schedule, shape = found
    schedule.validate(shape)
    inner, kept = without_gangs(shape)
    left = [
        [StageKey(kept.index(s.chunk), s.phase, s.microbatch) for s in order if s.chunk in kept]
        for order in schedule.orders
    ]
    family = ALL_SCHEDULES[name]
    assert Schedule.build(schedule.name, left) == family(inner), "the layers keep their order"


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_times_are_those_of_the_slow_reference(data: st.DataObject) -> None:
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    name = data.draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "eager-1f1b"]))
    inner = PipelineShape.chain(p, m)
    shape = with_gangs(inner)
    draw = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    count = shape.num_chunks * m
    times = {f"{key}_s": draw.integers(1, 64, count) / 8.0 for key in ("forward", "input", "weight", "backward")}
    study = PipelineStudy.of(shape, **times)

    def seconds(stage: StageKey) -> float:
        pair = int(graph_of(shape).first[stage.chunk]) + stage.microbatch
        return float(study.costs.latency_s[4 * pair + CODE_OF_PHASE[stage.phase]])

    schedule = weave(ALL_SCHEDULES[name](inner), shape, seconds)
    schedule.validate(shape)
    expected = reference_times(schedule, shape, seconds)
    result = study.evaluate(schedule)
    stages = [stage for order in schedule.orders for stage in order]
    assert [(a, b) for a, b in zip(result.start_s.tolist(), result.end_s.tolist(), strict=True)] == [
        expected[stage] for stage in stages
    ]
    assert result.makespan_s == max(end for _, end in expected.values())


def test_two_ranks_that_run_gangs_in_other_orders_deadlock() -> None:
    shape = with_gangs(PipelineShape.chain(2, 2))
    schedule = weave(ALL_SCHEDULES["gpipe"](PipelineShape.chain(2, 2)), shape, lambda _: 1.0)
    orders = [list(order) for order in schedule.orders]
    a, b = (orders[1].index(StageKey.parse(f"1F{m}")) for m in (0, 1))
    orders[1][a], orders[1][b] = orders[1][b], orders[1][a]
    with pytest.raises(ScheduleError, match=re.compile("deadlocks.*rank 0: .*0F0.*cycle", re.DOTALL)):
        Schedule.build("crossed", orders).validate(shape)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk_rank": (0, 0, 0, 1, 0, 1)}, "on ranks [0, 0]"),
        ({"has_backward": (True, False, True, True, True, True)}, "cannot run together"),
        ({"sources": ((), (), (0,), (2,), (3,), ())}, "read chunks of their own ranks"),
        ({"chunk_gang": (0, 0)}, "not a gang for every chunk"),
    ],
)
def test_a_gang_that_cannot_run_together_is_refused(change: dict[str, object], message: str) -> None:
    shape = with_gangs(PipelineShape.chain(2, 2))
    with pytest.raises(ScheduleError, match=re.escape(message)):
        PipelineShape(**{**{f: getattr(shape, f) for f in shape.__dataclass_fields__}, **change})


def test_gangs_cost_a_rank_no_more_than_its_wait() -> None:
    """Four ranks, 1F1B: between two meetings every rank runs a forward and a backward, so ranks lose little."""
    inner = PipelineShape.chain(4, 32)
    shape = with_gangs(inner)
    study = PipelineStudy.of(shape)
    makespan = study.evaluate(
        weave(ALL_SCHEDULES["1f1b"](inner), shape, lambda s: 2.0 if s.phase.value == "B" else 1.0)
    )
    work = 32 * (3 * 3)  # embedding, layers, head: F of 1 and B of 2 each
    assert work < makespan.makespan_s < 1.35 * work

"""Gradient separation: closed forms of FlexPipe's brief, and what holds of any schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.shapes import legal_schedules, shapes

from semu.errors import MemoryLimitError
from semu.schedule.passes import split_backward
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.separation import separate
from semu.schedule.rules.traversal import Depth
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy


@pytest.mark.paper
@pytest.mark.parametrize("p", [2, 3, 4, 6, 8])
def test_1f1b_becomes_zb_h1_within_p_microbatches(p: int) -> None:
    family, late = ALL_SCHEDULES["1f1b"], ALL_SCHEDULES["zb-h1"]
    for m in (p, p + 1, 2 * p, 3 * p + 1):
        study = PipelineStudy.of(family.shape(p, m))
        made = separate(family(study.shape), study, p)
        made.validate(study.shape)
        assert study.evaluate(made).makespan_s == late.makespan(p, m, 1, 1, 1, 1) == 3 * m + p - 1


@pytest.mark.paper
@pytest.mark.parametrize("p", [4, 8])
def test_chimera_and_hanayo_lose_their_bubbles(p: int) -> None:
    """Chimera within p stages 3 m + p / 2 - 1; Hanayo within 2 p stages ZB-V's 6 m + p - 1."""
    for m in (p, 2 * p, 4 * p):
        shape = Placement.BIDIRECTIONAL.shape(p, m, 2)
        study = PipelineStudy.of(shape)
        rule = Priority(forward=Depth(), backward=Depth(), in_flight="p", clock="steps")
        for made in (ALL_SCHEDULES["chimera"](shape), Schedule("chimera", rule(shape))):
            found = study.evaluate(separate(made, study, p))
            assert (found.makespan_s, bool(found.peak_bytes.max() <= p)) == (3 * m + p / 2 - 1, True)
    for m in (2 * p - 1, 2 * p, 4 * p):
        study = PipelineStudy.of(ALL_SCHEDULES["hanayo"].shape(p, m, 2))
        found = study.evaluate(separate(ALL_SCHEDULES["hanayo"](study.shape), study, 2 * p))
        assert (found.makespan_s, bool(found.peak_bytes.max() <= 2 * p)) == (6 * m + p - 1, True)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(shapes(), st.data(), st.integers(0, 2**32 - 1), st.integers(0, 3), st.booleans())
def test_never_longer_idempotent_and_within_the_limit(
    shape: PipelineShape, data: st.DataObject, seed: int, extra: int, is_split: bool
) -> None:
    """Random graphs of chunks, random legal orders, whole or split: with no extra byte too."""
    schedule = data.draw(legal_schedules(shape))
    schedule = split_backward(schedule) if is_split else schedule
    rng, n = np.random.default_rng(seed), shape.num_chunks
    f, i, w = rng.integers(1, 9, (3, n)) / 4
    held = rng.integers(1, 9, n)
    study = PipelineStudy.of(
        shape,
        forward_s=f,
        input_s=i,
        weight_s=w,
        held_bytes=held,
        kept_bytes=held // 2,
        internal_bytes=(rng.integers(0, 12, n), 3, 2, 1),
        transfer_s=rng.integers(0, 3) / 8,
    )
    before = study.evaluate(schedule)
    limit = before.peak_bytes + extra
    made = separate(schedule, study, None if extra == 0 else limit)
    made.validate(shape)
    after = study.evaluate(made)
    assert after.makespan_s <= before.makespan_s
    assert np.all(after.peak_bytes <= limit)
    assert separate(made, study, limit) == made


def test_a_backward_stays_whole_where_nothing_is_gained() -> None:
    study = PipelineStudy.of(PipelineShape.chain(1, 4))
    alone = ALL_SCHEDULES["1f1b"](study.shape)
    assert separate(alone, study) is alone
    study = PipelineStudy.of(PipelineShape.chain(4, 8))
    made = separate(ALL_SCHEDULES["1f1b"](study.shape), study, 4)
    assert any(stage.phase.value == "B" for order in made.orders for stage in order)


def test_more_memory_never_makes_it_longer_on_1f1b() -> None:
    study = PipelineStudy.of(PipelineShape.chain(4, 12), weight_s=0.75)
    schedule = ALL_SCHEDULES["1f1b"](study.shape)
    times = [study.evaluate(separate(schedule, study, limit)).makespan_s for limit in (4, 5, 6, 8)]
    assert times == sorted(times, reverse=True)


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    study = PipelineStudy.of(PipelineShape.chain(4, 8))
    with pytest.raises(MemoryLimitError, match="does not fit in the memory of rank 0"):
        separate(ALL_SCHEDULES["gpipe"](study.shape), study, 4)

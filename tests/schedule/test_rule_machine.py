"""The rule machine against Algorithm 1 in plain Python; any pipeline gets a valid order, or a named refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.algorithm_1 import run_algorithm_1
from schedule.shapes import pipelines, shapes

from semu.errors import MemoryLimitError, ScheduleError
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.traversal import Breadth, Depth, Oldest
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

TRAVERSALS = st.one_of(
    st.builds(Breadth, st.sampled_from((None, 1, 2, "p")), st.booleans()),
    st.builds(Depth, st.sampled_from((None, 1, 2, "p")), st.booleans()),
    st.builds(Oldest, st.none(), st.booleans()),
)
RULES = st.builds(
    Priority,
    prefer=st.sampled_from(("backward", "forward", "alternate")),
    units=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    forward=TRAVERSALS,
    backward=TRAVERSALS,
    when_blocked=st.sampled_from(("yield", "wait")),
    checks=st.sampled_from(((), ("patient",))),
    admission=st.just("stage"),
)


def study_of(shape: PipelineShape, seed: int) -> PipelineStudy:
    rng, n = np.random.default_rng(seed), shape.num_chunks
    f, i, w = rng.integers(1, 9, (3, n)) / 4
    return PipelineStudy.of(shape, forward_s=f, input_s=i, weight_s=w, transfer_s=rng.integers(0, 3) / 8)


@settings(max_examples=300, deadline=None)
@given(shapes(max_microbatches=6), RULES, st.integers(0, 2**32 - 1), st.sampled_from((0, 1, 2, 3, 5, 99)))
def test_the_machine_does_what_algorithm_1_does(shape: PipelineShape, rule: Priority, seed: int, limit: int) -> None:
    """Random graphs of chunks, costs, limits: the same tokens, or both wait for ever."""
    study = study_of(shape, seed)
    wanted = run_algorithm_1(study, rule, [limit] * shape.num_ranks)
    total = sum(len(shape.every_part(c)) * (2 if back else 1) for c, back in enumerate(shape.has_backward))
    try:
        found = [list(order) for order in rule.on(study, limit)]
    except ScheduleError as error:
        assert sum(map(len, wanted)) < total
        assert "wait for ever: rank" in error.message
    else:
        assert found == wanted
        Schedule("found", found).validate(shape)


@settings(max_examples=200, deadline=None)
@given(pipelines(), RULES, st.integers(0, 2**32 - 1), st.one_of(st.none(), st.integers(1, 6)), st.booleans())
def test_any_pipeline_gets_a_valid_order_or_a_named_refusal(
    shape: PipelineShape, rule: Priority, seed: int, limit: int | None, by_microbatch: bool
) -> None:
    """Modules that cut microbatches and join parts too."""
    admission = "microbatch" if by_microbatch else "stage"
    rule = Priority(
        rule.prefer, rule.units, rule.forward, rule.backward, limit, admission, rule.when_blocked, rule.checks
    )
    study = study_of(shape, seed)
    try:
        made = Schedule("made", rule.on(study))
    except (ScheduleError, MemoryLimitError) as error:
        assert limit is not None or rule.when_blocked == "wait" or rule.forward.is_last
        assert error.where is not None
        assert "rank" in error.where
    else:
        made.validate(shape)


@pytest.mark.parametrize("prefer", ["backward", "forward", "alternate"])
def test_whole_microbatches_never_wait_for_ever(prefer: str) -> None:
    """On a V and on a wave, under every limit that has room for one microbatch."""
    from semu.schedule.placement import Placement

    for p, m, v in ((4, 8, 2), (3, 7, 2), (4, 9, 4)):
        shape = Placement.V_SHAPE.shape(p, m, v)
        for limit in range(v, 2 * p * v):
            for way in (Breadth(), Depth(), Oldest()):
                rule = Priority(prefer, forward=way, backward=way, in_flight=limit)  # type: ignore[arg-type]
                Schedule("made", rule(shape)).validate(shape)

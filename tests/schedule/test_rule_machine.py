"""The rule machine against Algorithm 1 in plain Python; any pipeline gets a valid order, or a named refusal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.algorithm_1 import run_algorithm_1
from schedule.shapes import pipelines, shapes

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.schedule.placement import Placement
from semu.schedule.rules.hooks import Step
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.text import rule_text
from semu.schedule.rules.traversal import Breadth, Depth, Oldest
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    for p, m, v in ((4, 8, 2), (3, 7, 2), (4, 9, 4)):
        shape = Placement.V_SHAPE.shape(p, m, v)
        for limit in range(v, 2 * p * v):
            for way in (Breadth(), Depth(), Oldest()):
                rule = Priority(prefer, forward=way, backward=way, in_flight=limit)  # type: ignore[arg-type]
                Schedule("made", rule(shape)).validate(shape)


# -- functions of Python ----------------------------------------------------------------------------------------------
SHAPE = Placement.V_SHAPE.shape(4, 6, 2)


def test_checks_in_python_say_what_named_limits_say() -> None:
    """A check on the stages in flight is in_flight; one that always agrees changes nothing."""

    def few(step: Step, stage: StageKey) -> bool:
        assert stage in step.ready
        assert step.rank == SHAPE.chunk_rank[stage.chunk]
        return stage.phase.value == "B" or sum(step.in_flight.values()) < 9

    for way in (Breadth(), Depth(), Oldest(), Depth("p")):
        rule = Priority(forward=way, in_flight=9, admission="stage")
        checked = Priority(forward=way, checks=(few,))
        assert list(checked(SHAPE)) == list(rule(SHAPE))
        always = Priority(forward=way, in_flight=9, admission="stage", checks=(lambda step, stage: True,))
        assert list(always(SHAPE)) == list(rule(SHAPE))


def test_figure_7_keeps_a_stage_out_of_the_step_of_its_source() -> None:
    """FlexPipe Fig. 7 (ii): where a chunk's source has just run, others wait; in steps of equal length that holds."""
    seen: list[int] = []

    def valid(step: Step, stage: StageKey) -> bool:
        sources = [StageKey(source, stage.phase, stage.microbatch) for source in SHAPE.sources[stage.chunk]]
        seen.append(len(step.done))
        return stage.phase.value == "B" or all(source in step.done for source in sources)

    assert list(Priority(checks=(valid,), in_flight="p*v")(SHAPE)) == list(Priority(in_flight="p*v")(SHAPE))
    assert seen == sorted(seen)


def test_a_priority_in_python_takes_the_place_of_both() -> None:
    def latest_backward(step: Step) -> StageKey | None:
        return min(step.ready, key=lambda stage: (stage.phase.value, stage.chunk))

    made = Priority(choose=latest_backward)(SHAPE)
    assert list(made) == list(Priority()(SHAPE))
    waits = Priority(choose=lambda step: None if step.rank == 0 and not step.done else step.ready[0])
    with pytest.raises(ScheduleError, match="wait for ever"):
        waits(SHAPE)


def test_functions_that_refuse_or_raise_are_named() -> None:
    def never(step: Step, stage: StageKey) -> bool:
        return str(stage) != "3F2"

    def broken(step: Step, stage: StageKey) -> bool:
        raise KeyError(stage)

    with pytest.raises(ScheduleError, match="rank 3 does not run 3F2, by the check never") as caught:
        Priority(checks=(never,))(SHAPE)
    assert (caught.value.exit_code, caught.value.where) == (4, "check never, rank 3, stage 3F2")
    with pytest.raises(ConfigError, match="the function broken failed: KeyError") as failed:
        Priority(checks=(broken,))(SHAPE)
    assert failed.value.where == "rank 0, stage 0F0"
    with pytest.raises(ConfigError, match="not a stage that is ready"):
        Priority(choose=lambda step: StageKey(7, step.ready[0].phase, 0))(SHAPE)
    with pytest.raises(ConfigError, match="function of Python"):
        rule_text(Priority(checks=(never,)))

"""New instructions of a rule, with dependencies across modality modules (FlexPipe Fig. 6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.algorithm_1 import run_algorithm_1
from schedule.gang_shapes import reference_times

import semu
import semu_models
from semu.errors import ConfigError, ScheduleError, SemuError
from semu.graph.operator import Phase
from semu.plan.compile import compile_plan
from semu.plan.verification.rules import verify
from semu.runfile import load_run
from semu.schedule.placement import FlowModule, stage_flow
from semu.schedule.rules.instructions import Instruction
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.separation import Separated
from semu.schedule.rules.text import parse_rule, rule_text
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy
from semu.simulation import prepare
from semu.workload import pair_batch

F, B = Phase.FORWARD, Phase.BACKWARD
SYNC = Instruction(("vision:F", "text:F"), ("vision:B", "text:B"), every=4)
TEXT = "priority in-flight=8 instructions=[sync:{after=[vision:F,text:F] before=[vision:B,text:B] every=4}]"


def towers(m: int = 8) -> PipelineShape:
    return stage_flow(3, m, [FlowModule("vision", (0, 1)), FlowModule("text", (2,))])


def starts_and_ends(orders: list[list[StageKey]], study: PipelineStudy) -> dict[StageKey, tuple[float, float]]:
    """When stages run, of the orders alone, which know what the rule waited for."""
    found = study.evaluate(Schedule("found", orders))
    keys = [study.arrays.key(int(stage)) for stage in found.stages]
    return dict(zip(keys, zip(found.start_s.tolist(), found.end_s.tolist(), strict=True), strict=True))


@pytest.mark.parametrize("every", [1, 2, 4, 8])
def test_backwards_of_a_group_wait_for_the_forwards_of_both_towers(every: int) -> None:
    rule = Priority(in_flight=8, instructions={"sync": Instruction(SYNC.after, SYNC.before, every)})
    study = PipelineStudy.of(towers(), forward_s=[3, 3, 1], input_s=1, weight_s=1)
    orders = Schedule("rule", rule.on(study)).orders
    times = starts_and_ends(orders, rule.waiting(study))
    for m in range(8):
        group = range(m // every * every, (m // every + 1) * every)
        features = max(times[StageKey(chunk, F, i)][1] for chunk in (1, 2) for i in group)
        for chunk in (1, 2):
            assert times[StageKey(chunk, B, m)][0] >= features
    assert orders[2].index(StageKey(2, B, 0)) >= every, "the text tower runs ahead of a group"
    alone = Schedule("rule", Priority(in_flight=8).on(study)).orders
    assert alone[2].index(StageKey(2, B, 0)) == 1, "and at once without the instruction"


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_machine_does_what_algorithm_1_does_with_instructions(data: st.DataObject) -> None:
    """Algorithm 1 in Python, written from the paper, over the same dependencies."""
    m = data.draw(st.integers(1, 8))
    modules = [FlowModule("image", (0, 1)), FlowModule("audio", (1, 2)), FlowModule("text", (2,), ("audio",))]
    shape = stage_flow(3, m, modules)
    stages = st.sampled_from(["image:F", "image:B", "audio:F", "audio:B", "text:F", "text:B"])
    sync = Instruction((data.draw(stages),), (data.draw(stages),), data.draw(st.integers(1, 3)))
    rule = Priority(data.draw(st.sampled_from(["backward", "forward", "alternate"])), instructions={"sync": sync})
    seconds = st.integers(1, 4)
    study = PipelineStudy.of(
        shape, forward_s=data.draw(seconds), input_s=data.draw(seconds), weight_s=1, transfer_s=data.draw(seconds)
    )
    try:
        waiting = rule.waiting(study)
    except ScheduleError as error:
        assert "wait for themselves" in str(error)
        return
    expected = run_algorithm_1(waiting, rule, [10**9] * 3)
    try:
        found = [list(order) for order in Schedule("rule", rule.on(study)).orders]
    except ScheduleError:
        assert sum(map(len, expected)) < 2 * shape.num_chunks * m
        return
    assert found == expected
    Schedule("rule", found).validate(shape)


def test_separation_keeps_what_the_instruction_holds_back() -> None:
    rule = Priority(in_flight=8, instructions={"sync": SYNC})
    study = PipelineStudy.of(towers(), forward_s=[3, 3, 1], input_s=1, weight_s=1)
    separated = Separated(rule)
    schedule = Schedule("separated", separated.on(study))
    schedule.validate(study.shape)
    assert separated.waiting(study).waits == rule.waiting(study).waits != ()
    waiting = rule.waiting(study)
    found = waiting.evaluate(schedule)
    assert found.makespan_s <= waiting.evaluate(Schedule("rule", rule.on(study))).makespan_s
    assert any(stage.phase is Phase.WEIGHT_GRADIENT for order in schedule.orders for stage in order)


def test_text_and_toml(tmp_path: Any) -> None:
    rule = Priority(in_flight=8, instructions={"sync": SYNC})
    assert rule_text(rule) == TEXT
    assert parse_rule(TEXT) == rule
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nname = "clip-vit-b-32"\n[cluster]\ndevice = "h100"\nnodes = 1\ngpus_per_node = 4\n'
        '[parallel]\npp = 4\nsegments = "apart"\nloss = "towers"\n'
        '[training]\nmicro_batch = 4\nglobal_batch = 32\nschedule = "mine"\n'
        '[batch]\nkind = "pairs"\npatches_per_image = 49\n'
        "[schedule.mine]\nin_flight = 8\n"
        "[schedule.mine.instructions.sync]\n"
        'after = ["vision:F", "text:F"]\nbefore = ["vision:B", "text:B"]\nevery = 4\n',
        encoding="utf-8",
    )
    assert load_run(path).training.schedule == TEXT


def clip(schedule: str, **sizes: Any) -> semu.TrainingJob:
    parallel = semu.Parallel(**{"dp": 1, "pp": 4, "segments": "apart", "loss": "towers", **sizes})
    overlap = semu.Overlap(param_gather=False, pipeline=True)
    training = semu.Training(global_batch=32, micro_batch=4, schedule=schedule, overlap=overlap)
    batch = pair_batch(patches_per_image=49)
    return semu.TrainingJob(semu_models.clip_vit_b_32(), semu.Cluster("h100", 1, 4), parallel, training, batch)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("separated", [False, True])
@pytest.mark.parametrize("every", [1, 2, 4, 3])
def test_a_job_gathers_features_group_by_group(every: int, separated: bool) -> None:
    """Simulated, planned and verified; the ranks meet once for each of a group's stages, all forwards first."""
    text = TEXT.replace("every=4", f"every={every}")
    job = clip(f"separated inner={{{text}}}" if separated else text)
    checkpoint = prepare(job)
    shape, order = checkpoint.pipeline_shape, checkpoint.schedule()
    order.validate(shape)
    for head in shape.gangs[0]:
        own = [stage for stage in order.orders[shape.chunk_rank[head]] if stage.chunk == head]
        expected = []
        for first in range(0, 8, every):
            group = range(first, min(first + every, 8))
            expected += [StageKey(head, phase, m) for phase in (F, B) for m in group]
        assert own == expected
    run = checkpoint.timed(order).run
    seconds = dict(zip(run.problem.stages, run.plain[0].tolist(), strict=False))
    delays = {
        (move.stage.chunk, move.consumer.chunk, move.stage.phase is F): lasts
        for move, lasts in zip(run.problem.transfers, run.plain[0][run.problem.num_stages :].tolist(), strict=True)
    }
    found = dict(zip(run.problem.stages, zip(run.start[0].tolist(), run.end[0].tolist(), strict=False), strict=False))
    slow = reference_times(
        order, shape, seconds.__getitem__, lambda source, reader, ahead, _: delays.get((source, reader, ahead), 0.0)
    )
    for stage, times in slow.items():
        assert found[stage] == pytest.approx(times, abs=1e-12)
    verify(compile_plan(job))


@pytest.mark.slow
def test_exploration_knows_that_towers_wait_for_each_other() -> None:
    found = semu.explore_schedules(clip("1f1b"), top=2)
    assert found.best is not None
    assert found.best.estimate.iteration_time_s <= semu.simulate(clip("1f1b")).iteration_time_s


def _on(instruction: Callable[[], Instruction], **rule: Any) -> Callable[[], object]:
    return lambda: Priority(instructions={"sync": instruction()}, **rule).on(PipelineStudy.of(towers()))


@pytest.mark.parametrize(
    ("make", "where", "words"),
    [
        (_on(lambda: Instruction(("vision",), ("text:B",))), "instructions.after", "module:F"),
        (_on(lambda: Instruction(("vision:F",), ())), "instructions.before", "module:F"),
        (_on(lambda: Instruction(("vison:F",), ("text:B",))), "instructions", "vision"),
        (_on(lambda: Instruction(("vision:F",), ("text:B",), every=0)), "instructions.every", ">= 1"),
        (_on(lambda: Instruction(("text:B",), ("text:F",))), "instructions.sync", "cycle"),
        (_on(lambda: SYNC, in_flight=2), "in_flight, rank", "in_flight"),
        (lambda: parse_rule("priority instructions=[sync:{after=[a:F]}]", "here"), "here.instructions.sync", "before"),
        (
            lambda: parse_rule("priority instructions=[sync:{after=[a:F] befor=[b:B]}]", "here"),
            "here.instructions.sync",
            "before",
        ),
    ],
)
def test_bad_instructions_name_the_place(make: Callable[[], object], where: str, words: str) -> None:
    with pytest.raises(SemuError) as caught:
        make()
    assert isinstance(caught.value, ConfigError | ScheduleError)
    assert str(caught.value.where).startswith(where)
    assert words in str(caught.value)


def test_two_instructions_whose_dependencies_form_a_cycle() -> None:
    first, second = Instruction(("vision:B",), ("text:F",)), Instruction(("text:B",), ("vision:F",))
    rule = Priority(instructions={"a": first, "b": second})
    with pytest.raises(ScheduleError, match="wait for themselves") as caught:
        rule.on(PipelineStudy.of(towers()))
    assert caught.value.where == "instructions.b"
    assert " -> " in str(caught.value.got)
    assert caught.value.exit_code == 4

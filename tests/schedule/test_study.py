"""``PipelineStudy`` on plain numbers: against a slow evaluation bit for bit, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.study_reference import flows, needs, orders, random_study, slow_evaluation, stages_to_run

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.graph.operator import Phase
from semu.schedule.check import dry_run, walk
from semu.schedule.family import ScheduleFamily
from semu.schedule.graph import PipelineGraph
from semu.schedule.passes import merge_backward, split_backward
from semu.schedule.phases import PHASES
from semu.schedule.placement import FlowModule, stage_flow
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.rules.earliest_start import EarliestStart
from semu.schedule.rules.limits import activation_limit
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy


# -- against the slow reference ----------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(flows(), st.data(), st.integers(0, 2**32 - 1))
def test_times_bubbles_and_memory_are_those_of_the_slow_evaluation(
    shape: PipelineShape, data: st.DataObject, seed: int
) -> None:
    schedule = data.draw(orders(shape, legal=True))
    schedule.validate(shape)
    study = random_study(shape, seed)
    found, slow = study.evaluate(schedule), slow_evaluation(study, schedule)
    assert slow.spans is not None
    stages = [stage for order in schedule.orders for stage in order]
    assert [study.arrays.key(number) for number in found.stages] == stages
    assert found.start_s.tolist() == [slow.spans[stage][0] for stage in stages]
    assert found.end_s.tolist() == [slow.spans[stage][1] for stage in stages]
    assert found.peak_bytes.tolist() == slow.peaks
    makespan = max((end for _, end in slow.spans.values()), default=0.0)
    work = sum(end - start for start, end in slow.spans.values())
    assert found.makespan_s == makespan
    assert found.bubble_ratio == pytest.approx(1 - work / (shape.num_ranks * makespan) if makespan else 0.0, abs=1e-12)
    spans = [[slow.spans[stage] for stage in order] for order in schedule.orders if order]
    assert found.span_s == max((rank[-1][1] - rank[0][0] for rank in spans), default=0.0)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(flows(), st.data(), st.integers(0, 2**32 - 1))
def test_any_order_deadlocks_exactly_where_the_slow_evaluation_is_stuck(
    shape: PipelineShape, data: st.DataObject, seed: int
) -> None:
    schedule = data.draw(orders(shape, legal=False))
    study = random_study(shape, seed)
    slow = slow_evaluation(study, schedule)
    columns, numbers = schedule.columns, study.arrays.numbers(schedule)
    ran = walk(study.arrays, columns.ptr, numbers)
    assert (ran.sum() == len(numbers)) == (slow.spans is not None)
    assert ran.tolist() == dry_run(study.arrays, columns.ptr, numbers).tolist()
    if slow.spans is not None:
        schedule.validate(shape)
        assert study.evaluate(schedule).peak_bytes.tolist() == slow.peaks
        return
    with pytest.raises(ScheduleError, match=r"deadlocks\n(.*\n)*  cycle: ") as caught:
        schedule.validate(shape)
    assert caught.value.exit_code == 4
    with pytest.raises(ScheduleError, match="deadlocks"):
        study.evaluate(schedule)


@settings(max_examples=100, deadline=None)
@given(flows())
def test_predecessors_are_those_of_the_definition(shape: PipelineShape) -> None:
    parts = range(max(shape.chunk_split) * shape.num_microbatches)
    for split in (False, True):
        is_split = {(chunk, part): split for chunk in range(shape.num_chunks) for part in parts}
        stages = stages_to_run(shape, is_split)
        arrays = PipelineGraph.of(shape)
        for stage in stages:
            number = int(4 * (arrays.first[stage.chunk] + stage.microbatch) + PHASES.index(stage.phase))
            listed = [int(before) for before in arrays.pred[arrays.pred_ptr[number] : arrays.pred_ptr[number + 1]]]
            met = {arrays.key(before + (1 if split and before % 4 == 1 else 0)) for before in listed}
            assert met == needs(shape, stages, stage)
            assert len(listed) == len(met)


@settings(max_examples=100, deadline=None)
@given(flows(), st.data(), st.integers(0, 2**32 - 1))
def test_no_legal_order_beats_the_lower_bound(shape: PipelineShape, data: st.DataObject, seed: int) -> None:
    whole = merged_everywhere(data.draw(orders(shape, legal=True)), shape)
    study = random_study(shape, seed)
    assert study.evaluate(whole).makespan_s >= study.lower_bound_s(split=False)
    assert study.evaluate(split_backward(whole)).makespan_s >= study.lower_bound_s(split=True)


def merged_everywhere(schedule: Schedule, shape: PipelineShape) -> Schedule:
    """Whole backwards in the places of the input gradients."""
    merged = [
        [StageKey(s.chunk, Phase.BACKWARD, s.microbatch) if s.phase is Phase.INPUT_GRADIENT else s for s in order]
        for order in schedule.orders
    ]
    result = Schedule.build("merged", ([s for s in order if s.phase is not Phase.WEIGHT_GRADIENT] for order in merged))
    result.validate(shape)
    return result


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(flows(), st.booleans(), st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 4), st.booleans())
def test_the_list_scheduler_orders_any_pipeline_within_its_limit(
    shape: PipelineShape, split: bool, seed: int, patient: bool, group: int, eager: bool
) -> None:
    study = random_study(shape, seed)
    rule = EarliestStart(split, patient, group, eager, 0.25)
    Schedule("free", rule.on(study)).validate(shape)
    limit = activation_limit(study, 2)
    schedule = Schedule("tight", rule.on(study, limit))
    schedule.validate(shape)
    assert schedule.splits_backward == (
        split and any(s.phase is Phase.WEIGHT_GRADIENT for o in schedule.orders for s in o)
    )
    bare = PipelineStudy(shape, study.costs)
    for rank, order in enumerate(schedule.orders):
        level = 0
        for stage in order:
            number = 4 * (bare.arrays.first[stage.chunk] + stage.microbatch) + PHASES.index(stage.phase)
            level += int(study.costs.delta_bytes[number])
            assert level <= limit[rank]


# -- by hand -----------------------------------------------------------------------------------------------------
def test_two_ranks_by_hand() -> None:
    """1F1B with F 1 s, B 2 s, transfers 1/2 s: 0F0 0-1, 1F0 1.5-2.5, 1B0 2.5-4.5, 0B0 5-7; 0F1 1-2, 1F1 4.5-5.5,
    1B1 5.5-7.5, 0B1 8-10."""
    shape = PipelineShape.chain(2, 2)
    study = PipelineStudy.of(shape, transfer_s=0.5, held_bytes=[10, 20])
    found = study.evaluate(Schedule.from_text("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"))
    assert found.start_s.tolist() == [0.0, 1.0, 5.0, 8.0, 1.5, 2.5, 4.5, 5.5]
    assert found.makespan_s == 10.0
    assert found.bubble_ratio == 1 - 12 / 20
    assert found.busy_s.tolist() == [6.0, 6.0]
    assert found.peak_bytes.tolist() == [20, 20]
    assert (found.span_s, found.span_bubble_ratio) == (10.0, 1 - 12 / 20)


def test_a_split_backward_frees_its_activations_in_two_steps() -> None:
    """8 bytes held, 3 of them kept from I to W: 8, 16, 11, 3 + 8 = 11 above 3, ..."""
    study = PipelineStudy.of(PipelineShape.chain(1, 3), held_bytes=8, kept_bytes=3)
    peaks = {
        "0F0 0F1 0F2 0I0 0I1 0I2 0W0 0W1 0W2": 24,
        "0F0 0I0 0F1 0I1 0F2 0I2 0W0 0W1 0W2": 14,
        "0F0 0I0 0W0 0F1 0I1 0W1 0F2 0B2": 8,
    }
    for text, peak in peaks.items():
        assert study.evaluate(Schedule.from_text(text)).peak_bytes.tolist() == [peak]


def test_internal_peaks_stand_on_what_is_there() -> None:
    study = PipelineStudy.of(PipelineShape.chain(1, 2), held_bytes=8, internal_bytes=(9, 5, 0, 0))
    assert study.evaluate(Schedule.from_text("0F0 0F1 0B1 0B0")).peak_bytes.tolist() == [8 + 8 + 5]
    assert study.evaluate(Schedule.from_text("0F0 0B0 0F1 0B1")).peak_bytes.tolist() == [13]


def test_encoders_side_by_side_into_a_backbone_and_a_decoder_after_it() -> None:
    """Two encoders on ranks 0 and 1 in parallel, a backbone over ranks 2 and 3 that cuts its microbatch in two, a
    decoder on rank 0; by hand."""
    modules = (
        FlowModule("vision", (0,), trains=False),
        FlowModule("audio", (1,)),
        FlowModule("llm", (2, 3), ("vision", "audio"), sub_microbatches=2),
        FlowModule("decoder", (0,), ("llm",)),
    )
    shape = stage_flow(4, 1, modules)
    assert shape.sources == ((), (), (0, 1), (2,), (3,))
    assert shape.chunk_slot == (0, 0, 0, 0, 1)
    assert shape.has_backward == (False, True, True, True, True)
    assert shape.chunk_module == ("vision", "audio", "llm", "llm", "decoder")
    times = [2.0, 3.0, 1.0, 1.0, 4.0]
    study = PipelineStudy.of(shape, forward_s=times, input_s=0.0, weight_s=times)
    schedule = ALL_SCHEDULES["greedy"](shape)
    assert schedule.to_text().splitlines() == [
        "0F0 4F0 4B0",
        "1F0 1B0",
        "2F0 2F1 2B0 2B1",
        "3F0 3F1 3B0 3B1",
    ]
    found = study.evaluate(schedule)
    spans = {str(study.arrays.key(n)): (s, e) for n, s, e in zip(found.stages, found.start_s, found.end_s, strict=True)}
    assert spans == {
        "0F0": (0, 2), "1F0": (0, 3), "2F0": (3, 4), "2F1": (4, 5), "3F0": (4, 5), "3F1": (5, 6), "4F0": (6, 10),
        "4B0": (10, 14), "3B0": (14, 15), "3B1": (15, 16), "2B0": (15, 16), "2B1": (16, 17), "1B0": (17, 20),
    }  # fmt: skip
    arrays = study.arrays
    assert arrays.module.tolist() == [0, 1, 2, 2, 2, 2, 3]
    assert arrays.sub_microbatch.tolist() == [0, 0, 0, 1, 0, 1, 0]
    assert arrays.microbatch.tolist() == [0] * 7
    assert arrays.segment.tolist() == [0, 1, 2, 3, 2, 3, 4]


@pytest.mark.parametrize(
    ("modules", "match"),
    [
        ((FlowModule("a", (0,), ("b",)), FlowModule("b", (0,))), "reads modules before it"),
        ((FlowModule("a", (0,)), FlowModule("a", (0,))), "a name of its own"),
        ((FlowModule("a", ()),), "needs chunks"),
        ((FlowModule("a", (2,)),), "no such rank"),
    ],
)
def test_flows_that_cannot_be(modules: tuple[FlowModule, ...], match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        stage_flow(2, 1, modules)


def test_memory_that_does_not_fit_names_the_rank() -> None:
    study = PipelineStudy.of(PipelineShape.chain(3, 6), held_bytes=1 << 30)
    found = study.evaluate(ALL_SCHEDULES["1f1b"](study.shape))
    found.check_memory(3 << 30)
    with pytest.raises(MemoryLimitError, match="rank 0") as caught:
        found.check_memory([2 << 30, 4 << 30, 1 << 30])
    assert (caught.value.exit_code, caught.value.where) == (3, "1f1b: rank 0")
    assert (caught.value.expected, caught.value.got) == ("at most 2.00 GiB", "3.00 GiB")
    with pytest.raises(MemoryLimitError, match="rank 1 has no room for a microbatch") as caught:
        EarliestStart().on(study, [1 << 30, 1000, 1 << 30])
    assert (caught.value.exit_code, caught.value.nearest) == (3, 1 << 30)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), [1.0, 2.0, 3.0]])
def test_costs_that_are_none(bad: object) -> None:
    with pytest.raises(ConfigError) as caught:
        PipelineStudy.of(PipelineShape.chain(2, 4), forward_s=bad)  # type: ignore[arg-type]
    assert caught.value.where == "forward_s"


def test_one_number_per_chunk_or_per_stage() -> None:
    shape = PipelineShape.chain(2, 3)
    by_stage = PipelineStudy.of(shape, forward_s=[1, 1, 1, 2, 2, 2]).costs.latency_s
    assert np.array_equal(by_stage, PipelineStudy.of(shape, forward_s=[1, 2]).costs.latency_s)


# -- passes ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ALL_SCHEDULES.values(), ids=lambda family: family.name)
def test_splitting_and_merging_undo_one_another(family: ScheduleFamily) -> None:
    v = next(v for v in (1, 2) if family.misfit(4, 8, v) is None)
    shape = family.shape(4, 8, v)
    schedule = family(shape)
    split, merged = split_backward(schedule), merge_backward(schedule)
    for made in (split, merged):
        made.validate(shape)
    assert merge_backward(split) == merged
    assert not any(stage.phase is Phase.BACKWARD for order in split.orders for stage in order)
    assert split_backward(merged) == split
    if not family.splits_backward:
        study = PipelineStudy.of(shape)
        assert merged == schedule
        assert study.evaluate(split).makespan_s <= study.evaluate(schedule).makespan_s


def test_split_only_where_asked() -> None:
    schedule = Schedule.from_text("0F0 0B0 0F1 0B1")
    assert split_backward(schedule, lambda stage: stage.microbatch == 1).to_text() == "0F0 0B0 0F1 0I1 0W1"

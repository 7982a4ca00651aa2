"""``compile_plan``: its actions do what the simulated schedule does, and can do nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plan.compiled import check_compiled, check_estimates, check_memory
from plan.reference_actions import actions_of, execute
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.multimodal_jobs import items_of, model_of
from simulation.schedules.test_stage_plan import random_case

import semu
from semu.errors import ConfigError, ScheduleError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.plan.action import ActionKind
from semu.plan.compile import compile_plan
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.rules import verify
from semu.runfile import Overrides, resolve_run
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.stage_plan import StagePlan
from semu.simulation import JobCheckpoint, prepare


def family_job(name: str) -> TrainingJob:
    """A small language model under a schedule of that name."""
    family = ALL_SCHEDULES[name]
    placement = {"v-shape": "v-shape", "bidirectional": "bidirectional"}.get(family.placement.value, "circular")
    vpp = 1 if family.placement.value in ("one-to-one", "bidirectional") else 2
    if name == "optimus":
        return job_of(vlm(layers=4), vlm_items(4, seed=1), Parallel(pp=2, vpp=2), schedule=name)
    parallel = Parallel(pp=2, vpp=vpp, placement=placement)
    return job_of(gpt(5), text_items(4, seed=2), parallel, schedule=name)


@pytest.mark.parametrize("name", ALL_SCHEDULES)
def test_every_schedule_family(name: str) -> None:
    checkpoint = prepare(family_job(name))
    check_compiled(compile_plan(checkpoint), checkpoint)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("frozen", [(), ("vit",)])
def test_frozen_modules_and_sends_that_are_waited_for(overlapped: bool, frozen: tuple[str, ...]) -> None:
    model = vlm(layers=4, frozen=frozen)
    job = job_of(model, vlm_items(6, seed=4, empty=(1,)), Parallel(pp=3), overlap=overlap(pipeline=overlapped))
    checkpoint = prepare(job)
    plan = compile_plan(checkpoint)
    assert any(not chunk.has_backward for chunk in plan.chunks) is bool(frozen)
    check_compiled(plan, checkpoint)


def test_replicas_gathers_and_launches() -> None:
    parallel = Parallel(pp=2, dp=2, zero=1)
    options = {"overlap": overlap(parameters=True, gradients=True, pipeline=True)}
    job = job_of(vlm(layers=4), vlm_items(6, seed=4), parallel, **options)  # type: ignore[arg-type]
    checkpoint = prepare(job)
    assert checkpoint.gathers
    plan = compile_plan(checkpoint)
    assert plan.num_replicas == 2
    assert plan.messages.num_bytes[0].tolist() != plan.messages.num_bytes[1].tolist()
    check_compiled(plan, checkpoint)
    check_memory(plan, checkpoint)
    launched = job_of(gpt(4), text_items(3), Parallel(pp=2), launch=True)
    check_compiled(compile_plan(launched), prepare(launched))


@pytest.mark.parametrize(("tp", "own", "pp"), [(4, 2, 2), (2, 1, 4)])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_other_sharding_at_a_boundary(tp: int, own: int, pp: int, sequence_parallel: bool) -> None:
    """A module with its own tensor parallelism; bytes are the simulator's."""
    modules = {"vit": ModuleParallel(tp=own)}
    parallel = Parallel(tp=tp, pp=pp, sequence_parallel=sequence_parallel, modules=modules)
    checkpoint = prepare(job_of(vlm(layers=4), vlm_items(3, seed=1), parallel))
    check_compiled(compile_plan(checkpoint), checkpoint)


@pytest.mark.parametrize("pp", [2, 3])
def test_several_encoders_of_one_backbone(pp: int) -> None:
    """Images and audio, cut into different parts, where one microbatch has neither and another no audio."""
    items = items_of("omni", 4, seed=2, empty=(1,))
    job = job_of(model_of("omni"), items, Parallel(pp=pp), overlap=overlap(pipeline=True))
    encoders = [module for module in job.model.modules if module.inputs and module.name != "llm"][:2]
    have = {module.name: [len(item.lengths[module.inputs[0].stream]) for item in items] for module in encoders}
    stage_plan = StagePlan(parts={name: [min(2 + k, n) for n in own] for k, (name, own) in enumerate(have.items())})
    assert len(set(stage_plan.parts.values())) == 2
    checkpoint = prepare(job, plan=stage_plan)
    plan = compile_plan(checkpoint)
    sources = {source for chunk in plan.chunks for source in chunk.sources or ()}
    assert any(len(chunk.sources or ()) > 1 for chunk in plan.chunks) and sources
    check_compiled(plan, checkpoint)
    check_items(plan, checkpoint)


def check_case(random: Random) -> None:
    job, stage_plan = random_case(random)
    checkpoint = prepare(job, plan=stage_plan)
    plan = compile_plan(checkpoint)
    check_compiled(plan, checkpoint)
    check_items(plan, checkpoint)
    check_memory(plan, checkpoint)


def check_items(plan: ExecutionPlan, checkpoint: JobCheckpoint) -> None:
    """Of every module, replica and microbatch each item runs once; a message carries what both its stages run."""
    job = checkpoint.job
    modules = {module.name: module for module in job.model.modules}
    dp = job.parallel.dp
    batch = job.batch.microbatches(dp * job.num_microbatches, 1, None)
    for number, chunk in enumerate(plan.chunks):
        stream = modules[chunk.module].inputs[0].stream
        mine = np.flatnonzero(plan.pairs.chunk == number)
        for replica in range(dp):
            for microbatch in range(plan.num_microbatches):
                own = mine[plan.pairs.microbatch[mine] == microbatch]
                runs = [i for pair in own.tolist() for i in range(*plan.pairs.items[replica, pair].tolist())]
                assert runs == list(range(len(batch[microbatch * dp + replica].lengths[stream])))
    for message in range(len(plan.messages)):
        ends = [int(plan.messages.source[message]) // 2, int(plan.messages.target[message]) // 2]
        names = [plan.chunks[int(plan.pairs.chunk[pair])].module for pair in ends]
        for replica in range(dp):
            carried = set(range(*plan.messages.items[replica, message].tolist()))
            runs = [set(range(*plan.pairs.items[replica, pair].tolist())) for pair in ends]
            if names[0] == names[1]:
                assert carried == runs[0] == runs[1]
            else:
                assert carried in (runs[0], runs[1], runs[0] & runs[1])


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**9))
def test_any_plan(seed: int) -> None:
    check_case(Random(seed))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_many_plans(seed: int) -> None:
    check_case(Random(seed))


def many_receives() -> TrainingJob:
    """Ranks get messages while they are busy."""
    items = t2v_items(8, seed=4)
    return job_of(t2v(layers=4), items, Parallel(pp=4), schedule="gpipe", overlap=overlap(pipeline=True))


def check_late(checkpoint: JobCheckpoint, plan: ExecutionPlan) -> None:
    """Receives that are put off make the pipeline no shorter, block nothing, and run as they are estimated to."""
    check_compiled(plan, checkpoint, is_exact=False)
    estimates = plan.estimates
    assert estimates is not None
    spans = {
        (target, kind): (begin, end)
        for rank in range(plan.num_ranks)
        for (kind, target, _), begin, end in zip(
            actions_of(plan, rank), estimates.start_s[rank].tolist(), estimates.end_s[rank].tolist(), strict=True
        )
        if kind.is_stage
    }
    pairs = zip(estimates.transfer_start_s.tolist(), estimates.transfer_end_s.tolist(), strict=True)
    messages = dict(enumerate(pairs))
    took = {message: end - begin for message, (begin, end) in messages.items()}
    found = execute(plan, lambda s: spans[s][1] - spans[s][0], took, rendezvous=True)
    assert found.stages == spans
    assert found.messages == messages
    assert found.makespan == estimates.makespan_s
    check_estimates(plan, spans, messages)


@pytest.mark.parametrize("most", [0, 1])
def test_few_receives_ahead(most: int) -> None:
    checkpoint = prepare(many_receives())
    usual, plan = compile_plan(checkpoint), compile_plan(checkpoint, receives_ahead=most)
    assert usual.estimates is not None and plan.estimates is not None
    late_s = plan.estimates.makespan_s - usual.estimates.makespan_s
    assert (late_s > 0) is (most == 0)
    assert plan.estimates.iteration_time_s == usual.estimates.iteration_time_s + late_s
    check_late(checkpoint, plan)
    assert max(map(max, ahead_of_stages(plan))) == most < max(map(max, ahead_of_stages(usual)))


def ahead_of_stages(plan: ExecutionPlan) -> list[list[int]]:
    """Per rank and stage, messages whose receive is launched just before and which begin during it."""
    assert plan.estimates is not None
    found = []
    for rank in range(plan.num_ranks):
        early, posted = list[int](), list[int]()
        spans = zip(plan.estimates.start_s[rank].tolist(), plan.estimates.end_s[rank].tolist(), strict=True)
        for (kind, target, _), (begin, _) in zip(actions_of(plan, rank), spans, strict=True):
            if kind is ActionKind.IRECV:
                posted.append(target)
            elif kind.is_stage:
                early.append(sum(begin < plan.estimates.transfer_start_s[k] for k in posted))
                posted.clear()
        found.append(early)
    return found


def test_no_memory_left_for_receives() -> None:
    checkpoint = prepare(many_receives())
    peaks = checkpoint.estimate().peak_memory_bytes
    usual = compile_plan(checkpoint, memory_limit_bytes=max(peaks) + (1 << 30))
    tight = compile_plan(checkpoint, memory_limit_bytes=max(peaks))
    fullest = peaks.index(max(peaks))
    assert max(ahead_of_stages(usual)[fullest]) > 0
    assert max(ahead_of_stages(tight)[fullest]) == 0
    check_late(checkpoint, tight)


def test_receives_that_fit_are_not_put_off() -> None:
    """The fullest rank has just the memory that its receives take ahead of any stage, counted one by one; less than
    that by a byte, and one is put off."""
    checkpoint = prepare(many_receives())
    peaks = checkpoint.estimate().peak_memory_bytes
    fullest = peaks.index(max(peaks))
    usual = compile_plan(checkpoint, memory_limit_bytes=max(peaks) + (1 << 30))
    assert usual.estimates is not None
    begins, sizes = usual.estimates.transfer_start_s.tolist(), usual.messages.num_bytes.max(axis=0).tolist()
    ahead, posted = list[list[int]](), list[int]()
    for (kind, target, _), begin in zip(
        actions_of(usual, fullest), usual.estimates.start_s[fullest].tolist(), strict=True
    ):
        if kind is ActionKind.IRECV:
            posted.append(target)
        elif kind.is_stage:
            ahead.append([sizes[message] for message in posted if begin < begins[message]])
            posted.clear()
    most = max(map(sum, ahead))
    assert any(map(sum, ahead[: [sum(one) for one in ahead].index(most)])), "others are ahead of an earlier stage"
    enough, short = (compile_plan(checkpoint, memory_limit_bytes=max(peaks) + left) for left in (most, most - 1))
    for rank in range(usual.num_ranks):
        assert actions_of(enough, rank) == actions_of(usual, rank)
    assert actions_of(short, fullest) != actions_of(usual, fullest)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 2))
@example(843032949, 1)  # a message that was not put off begins later, and its receive is launched later
@example(32842, 1)  # a message is put off twice, and the second time its sender ends after the stage does
def test_any_plan_with_few_receives_ahead(seed: int, most: int) -> None:
    job, stage_plan = random_case(Random(seed))
    checkpoint = prepare(job, plan=stage_plan)
    check_late(checkpoint, compile_plan(checkpoint, receives_ahead=most))


def test_refusals() -> None:
    job = job_of(gpt(4), text_items(3), Parallel(pp=2))
    with pytest.raises(ConfigError, match="not a number of receives"):
        compile_plan(job, receives_ahead=-1)
    with pytest.raises(ConfigError, match="not a size"):
        compile_plan(job, memory_limit_bytes=0)
    with pytest.raises(ScheduleError, match="other parts, chunks or variants"):
        compile_plan(prepare(job), StagePlan(parts={"llm": (1, 1, 1)}))
    with pytest.raises(ConfigError, match="not something to compile"):
        compile_plan(StagePlan())  # type: ignore[arg-type]
    some = replace(job, training=replace(job.training, recompute="full", recompute_layers=1))
    with pytest.raises(ConfigError, match="one memory strategy for each layer"):
        compile_plan(some)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_what_a_search_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semu.searcher.job_search.compared_with", lambda job: [])  # whose cut can be the best
    if kind == "vlm":
        model, items, cut = vlm(layers=4), vlm_items(4, seed=3), {"vit": 3}
    else:
        model, items, cut = t2v(layers=4), t2v_items(4, seed=3), {"dit": 1, "llm": 1}
    job = job_of(model, items, Parallel(pp=2), overlap=overlap(pipeline=True))
    found = semu.search(job, rollouts=20, workers=1, sub_batch=cut)
    plan = semu.compile_plan(found)
    checkpoint = prepare(found.job, plan=found.plan)
    check_compiled(plan, checkpoint)
    check_items(plan, checkpoint)
    assert plan.name == "search"
    assert plan.estimates is not None
    assert plan.estimates.iteration_time_s == found.report.iteration_time_s
    assert plan.estimates.makespan_s == found.report.makespan_s
    assert plan.estimates.peak_memory_bytes.tolist() == list(found.report.peak_memory_bytes)
    assert plan.to_json() == semu.compile_plan(prepare(found.job, plan=found.plan)).to_json()
    parts = found.plan.parts
    assert {chunk.module for chunk in plan.chunks} == set(found.partition.plan().layers or {})
    assert any(len({*map(str, counts)}) > 1 for counts in parts.values())  # unequal sub-microbatches
    words = [its for chunk in found.plan.variants for its in chunk]
    assert [its for chunk in plan.chunks for its in chunk.variants] == words
    heuristic = found.problem.plan_of(found.solution, "again")
    assert semu.compile_plan(found, heuristic).name == "again"


def test_same_bytes_again() -> None:
    job = job_of(vlm(layers=4), vlm_items(6, seed=4), Parallel(pp=2))
    one, two = compile_plan(job), compile_plan(prepare(job))
    assert one.to_json() == two.to_json()
    other = compile_plan(job, "gpipe")
    assert other.model_hash == one.model_hash
    assert other.estimates.inputs_hash != one.estimates.inputs_hash  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vlm-s", "vlm-m", "vlm-l", "t2v-s", "t2v-l", "lm-7b", "vlm-xl-8k"])
def test_shipped_setups(name: str) -> None:
    """No receive is put off, every plan passes, and the verifier's memory is the simulation's within 2 %."""
    checkpoint = prepare(resolve_run(name, Overrides([], None, None, None, None)).job())
    estimate = checkpoint.estimate()
    plan = compile_plan(checkpoint, estimate=estimate)
    assert plan.estimates is not None
    assert plan.estimates.makespan_s == estimate.makespan_s
    peaks = verify(plan).peak_bytes
    assert peaks is not None
    assert np.abs(peaks / np.array(estimate.peak_memory_bytes) - 1).max() < 0.02

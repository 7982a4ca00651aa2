"""Jobs under a ``StagePlan``: sub-microbatches, chunks, variants, orders; against the slow reference, bit for bit."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.shapes import predecessors
from simulation.comparison import assert_all_equal
from simulation.jobs import attention_encoder, gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.multimodal_jobs import items_of, model_of
from simulation.reference.plan import expand_plan

from semu import memo
from semu.compile.recipe.recipe_job import planned_job
from semu.errors import ConfigError, ScheduleError
from semu.graph.operator import Phase
from semu.job import Precision, TrainingJob
from semu.job.kinds import CrossEntropy
from semu.parallel.config import Parallel
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.stage_plan import STRATEGIES, StagePlan
from semu.simulation import prepare, simulate
from semu.simulation.estimate import evaluate
from semu.simulation.memory.reserved import rank_trace
from semu.workload import Microbatch

STREAMS = {"vlm": {"vit": "vision"}, "t2v": {"llm": "text", "dit": "video"}}
LAYERS = {"vlm": ("vit", "llm"), "t2v": ("llm", "dit")}


def counts_of(items: list[Microbatch], stream: str, most: int) -> list[int]:
    """At most so many parts of every microbatch."""
    return [min(most, len(item.lengths[stream])) for item in items]


def any_order(shape: PipelineShape, random: Random) -> Schedule:
    """Some order that can be executed."""
    done: set[StageKey] = set()
    left = [
        [
            StageKey(chunk, phase, part)
            for chunk in shape.chunks_of(rank)
            for i in range(shape.num_microbatches)
            for part in shape.parts(chunk, i)
            for phase in (Phase.FORWARD, Phase.BACKWARD)
            if phase is Phase.FORWARD or shape.has_backward[chunk]
        ]
        for rank in range(shape.num_ranks)
    ]
    orders: list[list[StageKey]] = [[] for _ in left]
    while any(left):
        rank = random.choice([rank for rank, stages in enumerate(left) if stages])
        ready = [stage for stage in left[rank] if done.issuperset(predecessors(shape, stage))]
        if ready:
            stage = random.choice(ready)
            left[rank].remove(stage)
            orders[rank].append(stage)
            done.add(stage)
    return Schedule.build("any", orders)


def random_case(random: Random) -> tuple[TrainingJob, StagePlan]:
    """A small job and a plan for it."""
    kind = random.choice(["vlm", "t2v"])
    dp, tp, pp = random.choice([(1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (1, 1, 3), (1, 2, 4)])
    m, layers = random.randint(1, 3), random.randint(2, 4)
    if kind == "vlm":
        empty = tuple(i for i in range(m * dp) if random.random() < 0.2)
        items, model = vlm_items(m * dp, seed=random.randint(0, 99), empty=empty), vlm(layers=layers)
    else:
        items, model = t2v_items(m * dp, seed=random.randint(0, 99)), t2v(layers=layers)
    if random.random() < 0.2:
        model = model.freeze([LAYERS[kind][0]])
    job = job_of(
        model,
        items,
        Parallel(dp=dp, tp=tp, pp=pp, zero=random.randint(0, 1), sequence_parallel=random.random() < 0.6),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5, gradients=random.random() < 0.5),
        schedule=random.choice(["1f1b", "gpipe"]),
    )
    parts: dict[str, list[int | tuple[int, ...]]] = {}
    for name, stream in STREAMS[kind].items():
        if random.random() < 0.8:
            have = [[len(item.lengths[stream]) for item in items[i * dp : (i + 1) * dp]] for i in range(m)]
            parts[name] = [
                tuple(random.randint(min(1, n), n) for n in own)
                if random.random() < 0.5
                else random.randint(min(1, max(own)), max(own))
                for own in have
            ]
    chunks = None
    if pp == 2 and random.random() < 0.5:  # separated, with the embedding of the second module for itself
        first, second = LAYERS[kind]
        count = {"vit": layers, "dit": layers, "llm": 3}
        chunks = {first: (1, count[first] - 1), second: (1, count[second] - 1)}
    plan = StagePlan(parts=parts, layers=chunks)
    base = prepare(job, plan=plan)
    if random.random() < 0.8:
        words = [[block.is_layer for block in chunk.blocks].count(True) for chunk in base.layout.chunks]
        lists = tuple(
            tuple(tuple(random.choice(STRATEGIES) for _ in range(n)) for _ in range(random.randint(0, 3)))
            for n in words
        )
        shape = base.pipeline_shape
        choice = tuple(
            tuple(random.randrange(max(len(lists[chunk]), 1)) for _ in shape.every_part(chunk))
            for chunk in range(shape.num_chunks)
        )
        plan = replace(plan, variants=lists, choice=choice)
    if chunks is not None or random.random() < 0.5:
        plan = replace(plan, orders=any_order(base.pipeline_shape, random))
    return job, plan


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**9))
def test_any_plan_equals_the_slow_reference(seed: int) -> None:
    compare(Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("third", range(3))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_many_plans_equal_the_slow_reference(third: int, seed: int) -> None:
    compare(Random(3 * seed + third))


def compare(random: Random) -> None:
    """A random job under a random plan."""
    job, plan = random_case(random)
    try:
        report = simulate(job, plan=plan)
    except ConfigError as error:
        assert "keep its result" in str(error)
        return
    expected = expand_plan(planned_job(job, plan), plan)
    assert_all_equal(report, expected)
    if job.parallel.tp == 1:
        stages = [stage for replica in expected.replicas for stage in replica.operators.values()]
        assert report.hardware_flop == sum(operator.flop for stage in stages for operator in stage)
    parts = [sum(v.values()) if isinstance(v, dict) else v for v in report.breakdown_s.values()]
    assert math.isclose(sum(parts), report.iteration_time_s, rel_tol=1e-12)
    assert abs(report.breakdown_s["other"]) < 1e-12  # type: ignore[arg-type]
    found = evaluate(job, plan=plan)
    assert (found.iteration_time_s, found.mfu) == (report.iteration_time_s, report.mfu)
    assert found.peak_memory_bytes == report.peak_memory_bytes


def check(job: TrainingJob, plan: StagePlan) -> None:
    assert_all_equal(simulate(job, plan=plan), expand_plan(job, plan))


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("parts", [{"encoder": 2}, {"backbone": 2}, {"encoder": 3, "backbone": 2}])
def test_a_result_that_its_backward_reads_stays_beside_its_pieces(pp: int, parts: dict[str, int]) -> None:
    items = text_items(3, seed=8)
    job = job_of(attention_encoder(), items, Parallel(pp=pp), overlap=overlap(pipeline=True))
    check(job, StagePlan(parts={name: counts_of(items, "text", most) for name, most in parts.items()}))


def deferring_case(random: Random) -> tuple[TrainingJob, StagePlan]:
    """A small job whose backbone reads parts of the encoder's microbatches, each at its turn or later."""
    dp, tp, pp = random.choice([(1, 1, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 1, 1), (1, 1, 4)])
    m = random.randint(2, 4)
    items = vlm_items(m * dp, seed=random.randint(0, 99))
    job = job_of(
        vlm(layers=random.randint(2, 3)),
        items,
        Parallel(dp=dp, tp=tp, pp=pp, zero=random.randint(0, 1)),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5, gradients=random.random() < 0.5),
    )
    counts = tuple(random.randint(1, 3) for _ in range(m))
    cut: list[list[list[int]]] = []
    reads: list[list[tuple[int, int]]] = [[] for _ in range(m)]
    for i, count in enumerate(counts):
        cut.append([])
        for item in items[i * dp : (i + 1) * dp]:
            have = len(item.lengths["vision"])
            ends = sorted(random.randint(0, have) for _ in range(count - 1))
            cut[-1].append([high - low for low, high in zip([0, *ends], [*ends, have], strict=True)])
        for part in range(count):
            reads[random.randint(i, min(i + 2, m - 1))].append((i, part))
    plan = StagePlan(parts={"vit": counts}, items={"vit": cut}, reads={"vit": reads})  # type: ignore[dict-item]
    shape = prepare(job, plan=plan).pipeline_shape
    return job, replace(plan, orders=any_order(shape, random))


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**9))
def test_deferred_parts_equal_the_slow_reference(seed: int) -> None:
    """Times, bytes and memory, bit for bit, whichever microbatch of the backbone reads which part."""
    job, plan = deferring_case(Random(seed))
    report = simulate(job, plan=plan)
    assert_all_equal(report, expand_plan(planned_job(job, plan), plan))
    assert StagePlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("kind", ["omni", "whisper", "qwen2.5-vl"])
def test_every_encoder_of_a_backbone_cuts_for_itself(kind: str) -> None:
    items, model = items_of(kind, 3, seed=4, empty=(1,) if kind != "whisper" else ()), model_of(kind)
    parts = {module.name: counts_of(items, module.inputs[0].stream, 2) for module in model.modules[:-1]}
    check(job_of(model, items, Parallel(pp=2), overlap=overlap(pipeline=True)), StagePlan(parts=parts))


def test_an_empty_part_casts_no_weights_and_adds_no_gradients() -> None:
    items = vlm_items(4, seed=9)
    have = counts_of(items, "vision", 3)
    plan = StagePlan(parts={"vit": ((1, have[1]), (have[2], 1))})
    for options in ({"precision": "fp8", "fp8_weights": "microbatch"}, {"gradient_accumulation_fusion": False}):
        check(job_of(vlm(), items, Parallel(dp=2, pp=2, zero=1), **options), plan)  # type: ignore[arg-type]


def text_job() -> TrainingJob:
    return job_of(gpt(), text_items(4), Parallel(pp=2), recompute="selective")


def vision_job(**options: object) -> TrainingJob:
    return job_of(vlm(), vlm_items(4, seed=3, empty=(2,)), Parallel(pp=2), **options)  # type: ignore[arg-type]


def video_job(**options: object) -> TrainingJob:
    return job_of(t2v(), t2v_items(4, seed=3), Parallel(pp=2), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [text_job, vision_job, video_job])
def test_an_empty_plan_changes_nothing(make: object) -> None:
    job = make()  # type: ignore[operator]
    plain, planned = simulate(job), simulate(job, plan=StagePlan())
    for report in (plain, planned):
        report.job.pop("plan", None)
    assert planned.to_json() == plain.to_json()
    assert planned.reserved_memory_bytes == plain.reserved_memory_bytes


@pytest.mark.parametrize("strategy", ["full", "selective", "offload"])
@pytest.mark.parametrize("make", [vision_job, video_job])
def test_one_strategy_everywhere_is_the_job_with_it(make: object, strategy: str) -> None:
    plain = make()  # type: ignore[operator]
    options = {"offload": ["activations"]} if strategy == "offload" else {"recompute": strategy}
    asked = simulate(make(**options))  # type: ignore[operator]
    sizes = [sum(block.is_layer for block in chunk.blocks) for chunk in prepare(plain).layout.chunks]
    found = simulate(plain, plan=StagePlan(variants=tuple(((strategy,) * size,) for size in sizes)))
    assert found.iteration_time_s == asked.iteration_time_s
    assert found.peak_memory_bytes == asked.peak_memory_bytes
    assert found.hardware_flop == asked.hardware_flop
    assert found.host_memory_bytes == asked.host_memory_bytes
    assert found.top_operators == asked.top_operators
    assert found.reserved_memory_bytes == asked.reserved_memory_bytes


@pytest.mark.parametrize(("make", "name", "stream"), [(vision_job, "vit", "vision"), (video_job, "dit", "video")])
def test_parts_do_the_work_of_the_whole(make: object, name: str, stream: str) -> None:
    job = make()  # type: ignore[operator]
    items = job.batch.microbatches(4, 1)
    report = simulate(job, plan=StagePlan(parts={name: counts_of(items, stream, 3)}))
    plain = simulate(job)
    assert (report.model_flop, report.hardware_flop, report.tokens) == (
        plain.model_flop,
        plain.hardware_flop,
        plain.tokens,
    )
    assert report.iteration_time_s > plain.iteration_time_s  # more kernels, each with its fixed time
    stages = [stage for rank in report.timeline.ranks for stage in rank.stages if stage.module == name]
    chunks = len({stage.chunk for stage in stages})
    assert len(stages) == 2 * chunks * sum(counts_of(items, stream, 3))
    assert sum(operator.calls for operator in report.top_operators) > 0


ORDER = """
0F0 0F1 0F2 2F0 2B0 0B0 0B1 0B2
1F0 1F1 1F2 3F0 3B0 1B0 1B1 1B2
"""


def separated() -> tuple[TrainingJob, StagePlan]:
    """Encoder chunks 0 and 1, backbone chunks 2 and 3, on ranks 0 and 1; one microbatch in three parts."""
    job = job_of(vlm(), vlm_items(1, seed=3), Parallel(pp=2), overlap=overlap(pipeline=True))
    orders = Schedule.from_text(ORDER, "by hand")
    return job, StagePlan(parts={"vit": (3,)}, layers={"vit": (2, 1), "llm": (1, 2)}, orders=orders)


def test_a_backbone_waits_for_the_last_part_and_parts_for_the_backbone() -> None:
    """Transfers of parts go one after another; the backbone starts behind the last, gradients go out at once."""
    job, plan = separated()
    report = simulate(job, plan=plan)
    stages = {stage.label: stage for rank in report.timeline.ranks for stage in rank.stages}
    sends = [piece for rank in report.timeline.ranks for piece in rank.outer if piece.name.startswith("send")]
    by_name = {piece.name: piece for piece in sends}
    now = 0.0
    for part in range(3):
        piece = by_name[f"send 1F{part} to rank 0"]
        assert piece.start_s == max(stages[f"1F{part}"].end_s, now)
        now = piece.end_s
    assert stages["2F0"].start_s == now > stages["0F2"].end_s
    gradients = sorted((p.start_s, p.end_s, p.net_bytes) for p in sends if p.name == "send 2B0 to rank 1")
    assert len(gradients) == 3
    assert gradients[0][0] == stages["2B0"].end_s
    assert [start for start, *_ in gradients[1:]] == [end for _, end, _ in gradients[:2]]
    count = len(job.batch.microbatches(1, 1)[0].lengths["vision"])
    images = [(part + 1) * count // 3 - part * count // 3 for part in range(3)]
    assert [size for *_, size in gradients] == [2 * 4 * 128 * number for number in images]  # bf16, 4 tokens an image
    assert stages["1B0"].start_s == gradients[0][1]
    assert stages["1B1"].start_s == max(stages["1B0"].end_s, gradients[1][1])
    assert [stage.microbatch for stage in report.timeline.ranks[0].stages] == [0] * 8
    assert_all_equal(report, expand_plan(planned_job(job, plan), plan))


def test_a_replica_without_a_part_spends_no_time_on_it() -> None:
    few, many = (Microbatch({"text": [90, 50], "vision": [16] * n, "vision_tokens": [4] * n}, 2) for n in (1, 7))
    job = job_of(vlm(), [few, many], Parallel(dp=2, pp=2), overlap=overlap(pipeline=True))
    plan = StagePlan(parts={"vit": (3,)})
    checkpoint = prepare(job, plan=plan)
    shape, units = checkpoint.pipeline_shape, checkpoint.units
    assert shape.every_part(0) == [0, 1, 2]
    first = [units.unit(StageKey(0, phase, part)) for phase in (Phase.FORWARD, Phase.BACKWARD) for part in (0, 1, 2)]
    lasts = checkpoint.nodes.latency[:, first]
    alone = next(r for r in range(2) if (lasts[r][[1, 2, 4, 5]] == 0).all())
    assert (lasts[alone][[0, 3]] > 0).all()
    assert (lasts[1 - alone] > 0).all()
    own = simulate(job, plan=replace(plan, parts={"vit": ((1, 3),)}))
    assert own.iteration_time_s == simulate(job, plan=plan).iteration_time_s
    assert_all_equal(own, expand_plan(job, plan))


def test_a_batch_without_items_leaves_the_module_alone() -> None:
    job = job_of(vlm(), vlm_items(4, empty=range(4)), Parallel(dp=2, pp=2))
    plan = StagePlan(parts={"vit": (0, 0)})
    report = simulate(job, plan=plan)
    assert {stage.module for rank in report.timeline.ranks for stage in rank.stages} == {"llm"}
    assert_all_equal(report, expand_plan(job, plan))


@pytest.mark.parametrize("parts", [True, False])
def test_reserved_memory_is_that_of_a_balanced_tape(parts: bool) -> None:
    for make, name, stream in ((vision_job, "vit", "vision"), (video_job, "dit", "video")):
        job = make()
        cut = {name: counts_of(job.batch.microbatches(4, 1), stream, 3)} if parts else {}
        checkpoint = prepare(job, plan=StagePlan(parts=cut))
        timed = checkpoint.timed()
        estimate = checkpoint.estimate()
        for rank in range(2):
            trace = rank_trace(timed, rank, 0)
            live: dict[int, int] = {}
            level = highest = 0
            for slot, size in zip(trace.slot[trace.first :].tolist(), trace.size[trace.first :].tolist(), strict=True):
                assert size == 0 or slot not in live
                level += size or -live.pop(slot)
                if size:
                    live[slot] = size
                highest = max(highest, level)
            assert not live
            dynamic = estimate.peak_memory_bytes[rank] - estimate.static_memory_bytes[rank]
            assert 0.8 * dynamic <= highest <= 1.2 * dynamic


# -- before a schedule -------------------------------------------------------------------------------------------------
def test_costs_of_pairs_are_what_the_simulation_runs() -> None:
    for make, name, stream in ((vision_job, "vit", "vision"), (video_job, "dit", "video")):
        job = make()
        sizes = [sum(block.is_layer for block in chunk.blocks) for chunk in prepare(job).layout.chunks]
        plan = StagePlan(
            parts={name: counts_of(job.batch.microbatches(4, 1), stream, 3)},
            variants=tuple((("full",) * size, ("none",) * size) for size in sizes),
        )
        checkpoint = prepare(job, plan=plan)
        costs = checkpoint.pair_costs()
        assert costs.layers == tuple(sizes)
        assert (costs.held_bytes[:, 0] <= costs.held_bytes[:, 1]).all()
        assert (costs.forward_peak_bytes >= costs.held_bytes).all()
        for variant in (0, 1):
            count = {chunk: int((costs.chunk == chunk).sum()) for chunk in range(len(sizes))}
            chosen = replace(plan, choice=tuple((variant,) * count[chunk] for chunk in range(len(sizes))))
            report = checkpoint.decided(chosen).report()
            anew = simulate(job, plan=chosen)
            assert anew.iteration_time_s == report.iteration_time_s
            assert anew.peak_memory_bytes == report.peak_memory_bytes
            for rank in report.timeline.ranks:
                for stage in rank.stages:
                    part = int(stage.label.split(stage.phase.value)[1])
                    pair = int(np.flatnonzero((costs.chunk == stage.chunk) & (costs.number == part))[0])
                    seconds = costs.forward_s if stage.phase is Phase.FORWARD else costs.backward_s
                    assert stage.end_s - stage.start_s == seconds[pair, variant]
                    assert costs.graph.microbatch[costs.pairs[pair]] == stage.microbatch
                    assert costs.graph.rank[costs.pairs[pair]] == rank.rank
            sent = [p.end_s - p.start_s for rank in report.timeline.ranks for p in rank.outer if "send" in p.name]
            assert sorted(sent) == sorted(costs.transfer_s[costs.transfer_s > 0].tolist())
        assert costs.static_bytes.tolist() == list(anew.static_memory_bytes)
        assert len(costs.graph.pair_edges.ptr) == 2 * len(costs.pairs) + 1


def test_one_pair_alone_peaks_as_its_costs_say() -> None:
    for strategy in STRATEGIES:
        job = job_of(gpt(), text_items(1))
        plan = StagePlan(variants=(((strategy,) * 3,),))
        costs, report = prepare(job, plan=plan).pair_costs(), simulate(job, plan=plan)
        peak = max(costs.forward_peak_bytes[0, 0], costs.held_bytes[0, 0] + costs.backward_peak_bytes[0, 0])
        assert report.peak_memory_bytes[0] == report.static_memory_bytes[0] + peak


@pytest.mark.parametrize(
    "changed",
    [
        {"attention": "unfused"},
        {"recompute": "selective"},
        {"cross_entropy": CrossEntropy.UNFUSED},
        {"precision": Precision.FP8},
        {"parallel": Parallel(tp=2)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_variants_of_other_settings_are_not_those_remembered(changed: dict[str, Any]) -> None:
    """Of one model, one after another, each as it comes out where nothing is remembered. What a variant says of layers
    is not read from the job, what it leaves open is."""
    model, plan = gpt(), StagePlan(variants=((("selective", "none", "full"), ("full",) * 3),))
    first, second = job_of(model, text_items(2)), job_of(model, text_items(2), **changed)
    warm = [evaluate(job, plan=plan) for job in (first, second, first)]
    memo.clear()
    assert warm[1] == evaluate(second, plan=plan)
    memo.clear()
    assert warm[0] == warm[2] == evaluate(first, plan=plan)
    assert (warm[0] == warm[1]) is ("recompute" in changed)


def test_what_is_remembered_of_variants_does_not_keep_the_model() -> None:
    model = gpt()
    simulate(job_of(model, text_items(1)), plan=StagePlan(variants=((("selective",) * 3, ("none",) * 3),)))
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


# -- files and refusals ------------------------------------------------------------------------------------------------
def test_a_plan_in_a_file_is_the_plan(tmp_path: Path) -> None:
    job, plan = separated()
    checkpoint = prepare(job, plan=plan)
    path = tmp_path / "schedule.json"
    whole = replace(plan, problem=checkpoint.described())
    whole.write(path)
    assert StagePlan.read(path) == whole
    by_file = replace(job, training=replace(job.training, schedule_file=str(path)))
    assert simulate(by_file).iteration_time_s == simulate(job, plan=plan).iteration_time_s
    assert evaluate(by_file).peak_memory_bytes == simulate(job, plan=plan).peak_memory_bytes


def test_a_plan_for_another_problem_is_refused_by_its_first_difference(tmp_path: Path) -> None:
    job, plan = separated()
    path = tmp_path / "schedule.json"
    replace(plan, problem=prepare(job, plan=plan).described()).write(path)
    other = job_of(vlm(), vlm_items(1, seed=4), Parallel(pp=2), overlap=overlap(pipeline=True))
    with pytest.raises(ScheduleError, match=r"another problem") as caught:
        prepare(replace(other, training=replace(other.training, schedule_file=str(path))))
    assert "plan.problem.batch[0]" in str(caught.value)
    more = replace(job, cluster=type(job.cluster)("h100", 1, 2))
    with pytest.raises(ScheduleError, match=r"plan\.problem\.device"):
        prepare(more, plan=StagePlan.read(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parts": {"audio": (1, 1, 1, 1)}}, "plan.parts.audio"),
        ({"parts": {"vit": (1, 1)}}, "4 counts"),
        ({"parts": {"vit": (99, 1, 0, 1)}}, r"plan.parts.vit\[0\]"),
        ({"parts": {"vit": (0, 1, 0, 1)}}, r"plan.parts.vit\[0\]"),
        ({"parts": {"vit": (1, 1, 1, 1)}}, "there are no items"),
        ({"parts": {"llm": (2, 1, 1, 1)}}, "other items"),
        ({"variants": ((("full",),),)}, "another number of chunks"),
        ({"variants": ((("full",),), (), ())}, "another number of layers"),
        ({"choice": ((0,), (0,), (0,))}, "not a choice for every"),
        ({"choice": ((1, 0, 0, 0), (0,) * 4, (0,) * 4)}, "no such variant"),
        ({"orders": Schedule.from_text("0F0\n2F0", "short")}, "a stage is missing"),
        ({"layers": {"vit": (3,), "llm": (3,)}}, "as many chunks on every rank"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulate(vision_job(), plan=StagePlan(**change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parts": {"vit": "three"}}, "plan.parts.vit"),
        ({"parts": {"vit": (-1,)}}, "plan.parts.vit"),
        ({"variants": ((("half",),),)}, "unknown memory strategy"),
        ({"variants": (3,)}, "not a list of variants"),
        ({"choice": (3,)}, r"plan.choice\[0\]"),
        ({"layers": {"vit": 3}}, "plan.layers.vit"),
        ({"variants": ((("full",), ("full", "none")),)}, "different numbers of layers"),
        ({"variants": ((("full",),),), "choice": ()}, ""),
    ],
)
def test_what_is_no_plan_is_refused_at_the_door(given: dict[str, object], words: str) -> None:
    if words:
        with pytest.raises(ScheduleError, match=words):
            StagePlan(**given)  # type: ignore[arg-type]
    else:
        assert StagePlan(**given).choice == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["[", "[]", '{"format": "other"}', '{"format": "semu schedule 1", "parts": []}'])
def test_what_is_no_file_of_a_plan_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError):
        StagePlan.from_json(text)


def test_what_does_not_go_with_a_plan_is_refused_by_name() -> None:
    plan = StagePlan(parts={"vit": (1, 2, 0, 1)})
    for job, words in (
        (vision_job(launch=True), "training.launch"),
        (job_of(vlm(), vlm_items(4, seed=3), Parallel(dp=2, zero=2)), "parallel.zero"),
        (vision_job(recompute="full", recompute_layers=1), "training.recompute_layers"),
        (vision_job(offload=["weights"]), "training.offload"),
    ):
        with pytest.raises(ConfigError, match=words):
            prepare(job, plan=plan)
    with pytest.raises(ConfigError, match="contention"):
        simulate(vision_job(), plan=plan, contention=True)
    with pytest.raises(ConfigError, match="split backwards"):
        prepare(vision_job(), plan=plan).report("zb-h1")


@pytest.mark.parametrize(
    ("schedule", "needs"),
    [
        ("zb-v", "whole backwards, or no plan"),
        ("v-half", "whole backwards, or no plan"),
        ("hanayo", "no plan, or a plan with orders"),
        ("1f1b", "expected circular; got v-shape"),
    ],
)
def test_a_schedule_that_a_planned_v_shape_cannot_run_is_named_with_what_it_needs(schedule: str, needs: str) -> None:
    job = job_of(gpt(), text_items(4), Parallel(pp=2, vpp=2, placement="v-shape"), schedule="zb-v")
    job = replace(job, training=replace(job.training, schedule=schedule))
    with pytest.raises(ConfigError, match=f"the schedule '{schedule}'.*{needs}"):
        prepare(job, plan=StagePlan(layers={"llm": (1, 1, 1, 0)})).problem()


def test_jitter_draws_the_stages_of_parts_too() -> None:
    report = simulate(vision_job(jitter=0.1), plan=StagePlan(parts={"vit": (3, 2, 0, 3)}), samples=20)
    assert report.samples is not None
    assert report.samples.p50_s > 0


@pytest.mark.parametrize("strategy", ["none", "full"])
def test_parameters_gathered_before_the_first_forwards_hold_back_the_first_part(strategy: str) -> None:
    items = vlm_items(8, seed=3)
    chosen = overlap(pipeline=True, parameters=True, gradients=True)
    job = job_of(vlm(), items, Parallel(dp=2, pp=2, zero=1), overlap=chosen)
    sizes = [sum(block.is_layer for block in chunk.blocks) for chunk in prepare(job).layout.chunks]
    variants = tuple(((strategy,) * size,) for size in sizes)
    asked = simulate(job_of(vlm(), items, Parallel(dp=2, pp=2, zero=1), overlap=chosen, recompute=strategy))
    assert simulate(job, plan=StagePlan(variants=variants)).to_json()["iteration_time_s"] == asked.iteration_time_s
    report = simulate(job, plan=StagePlan(parts={"vit": (2, 2, 2, 2)}, variants=variants))
    exposed = report.breakdown_s["exposed_communication"]["dp"]  # type: ignore[index]
    assert exposed > 0
    assert abs(report.breakdown_s["other"]) < 1e-12  # type: ignore[arg-type]
    stages = {stage.label: stage for stage in report.timeline.ranks[0].stages}
    slowest = prepare(job, plan=StagePlan(parts={"vit": (2, 2, 2, 2)}, variants=variants))
    alone = slowest.pair_costs(report.slowest_replica).forward_s[:2, 0]
    assert stages["0F0"].end_s - stages["0F0"].start_s > alone[0]
    assert stages["0F1"].end_s - stages["0F1"].start_s == alone[1]


def test_any_orders_of_parts_are_restored_as_estimated() -> None:
    job, plan = separated()
    checkpoint = prepare(job, plan=plan)
    random = Random(5)
    for _ in range(20):
        schedule = any_order(checkpoint.pipeline_shape, random)
        times = checkpoint.restore(checkpoint.edges_of(schedule))
        assert times.end[0].max() == checkpoint.estimate(schedule).makespan_s


def test_megatrons_orders_take_all_parts_of_a_microbatch_together() -> None:
    job = vision_job()
    names = [str(stage) for stage in prepare(job, plan=StagePlan(parts={"vit": (3, 3, 0, 3)})).schedule().orders[0]]
    assert names[:4] == ["0F0", "0F1", "0F2", "1F0"]
    assert "0F6" not in names  # microbatch 2 has no images
    assert names.index("0F9") > names.index("1F2")

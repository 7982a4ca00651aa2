"""``parallel.vocabulary = "pipeline"``: embedding and head split over pipeline ranks, which run them together."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from schedule.gang_shapes import reference_times

import semu
import semu_models
from semu.cli import main
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.nn import Model
from semu.schedule.shape import StageKey
from semu.simulation import prepare
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig


def gpt(vocab: int = 4096, *, tied: bool = False, layers: int = 8, hidden: int = 256) -> Model:
    return decoder_model("gpt", GPT(GPTConfig(layers, hidden, 8, vocab=vocab, positions=128, tied=tied)))


def llama() -> Model:
    return decoder_model("llama", Llama(LlamaConfig(layers=8, hidden=256, ffn=512, heads=8, kv_heads=4, vocab=6144)))


def job(model: Model, sizes: dict[str, Any], schedule: str = "1f1b", **training: Any) -> semu.TrainingJob:
    parallel = semu.Parallel(**{"dp": 2, "pp": 4, "vocabulary": "pipeline", **sizes})
    options = {"global_batch": 16 * parallel.dp, "seq_len": 128, "micro_batch": 2, "schedule": schedule, **training}
    return semu.TrainingJob(
        model,
        semu.Cluster("a800", -(-parallel.num_gpus // 8), min(parallel.num_gpus, 8)),
        parallel,
        semu.Training(**options),
    )


CASES = [
    pytest.param(gpt, {}, "1f1b", id="gpt"),
    pytest.param(lambda: gpt(tied=True), {"zero": 0}, "gpipe", id="tied"),
    pytest.param(llama, {"vpp": 2}, "interleaved", id="llama interleaved"),
    pytest.param(llama, {"vpp": 2, "placement": "v-shape"}, "zb-v", id="llama zb-v"),
    pytest.param(gpt, {"dp": 1, "tp": 2}, "zb-h1", id="tp"),
    pytest.param(gpt, {"dp": 1, "tp": 2, "sequence_parallel": False}, "eager-1f1b", id="tp without sp"),
    pytest.param(llama, {"dp": 1, "cp": 2}, "1f1b", id="cp"),
    pytest.param(gpt, {"rank_order": "tp-cp-pp-dp"}, "greedy", id="other order of ranks"),
]


@pytest.mark.parametrize(("make", "sizes", "schedule"), CASES)
def test_stages_run_as_the_slow_reference(make: Any, sizes: dict[str, Any], schedule: str) -> None:
    overlap = semu.Overlap(param_gather=False, pipeline=True)
    own = job(make(), sizes, schedule, overlap=overlap)
    checkpoint = prepare(own)
    order = checkpoint.schedule()
    run = checkpoint.timed(order).run
    problem, latency = run.problem, run.plain[0]
    seconds = dict(zip(problem.stages, latency[: problem.num_stages].tolist(), strict=True))
    delays = {
        (move.stage.chunk, move.consumer.chunk, move.stage.phase is Phase.FORWARD): lasts
        for move, lasts in zip(problem.transfers, latency[problem.num_stages :].tolist(), strict=True)
    }
    expected = reference_times(
        order,
        problem.shape,
        lambda stage: seconds[stage],
        lambda source, reader, is_forward, m: delays.get((source, reader, is_forward), 0.0),
    )
    found = dict(zip(problem.stages, zip(run.start[0].tolist(), run.end[0].tolist(), strict=False), strict=False))
    for stage, times in expected.items():
        assert found[stage] == pytest.approx(times, abs=1e-12), stage


@pytest.mark.parametrize(("make", "sizes", "schedule"), CASES)
def test_members_begin_together_and_all_ranks_do_the_same_work(make: Any, sizes: dict[str, Any], schedule: str) -> None:
    own = job(make(), sizes, schedule)
    run = prepare(own).timed().run
    start = dict(zip(run.problem.stages, run.start[0].tolist(), strict=False))
    shape = run.problem.shape
    assert len(shape.gangs) == 2
    for members in shape.gangs:
        for m in range(shape.num_microbatches):
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                times = {start[StageKey(chunk, phase, m)] for chunk in members if StageKey(chunk, phase, m) in start}
                assert len(times) == 1
    ends = semu.TrainingJob(
        own.model, own.cluster, semu.Parallel(**{**sizes, "dp": own.parallel.dp, "pp": 4}), own.training
    )
    if own.parallel.placement == "circular":
        split, plain = semu.simulate(own), semu.simulate(ends)
        assert split.model_tflop_per_s_per_gpu * split.iteration_time_s == pytest.approx(
            plain.model_tflop_per_s_per_gpu * plain.iteration_time_s, rel=1e-12
        ), "the model's FLOP do not depend on who computes them"
        assert split.parameters == plain.parameters


@pytest.mark.parametrize(("make", "sizes", "schedule"), CASES)
def test_memory_comes_back_and_peaks_are_those_of_the_curves(make: Any, sizes: dict[str, Any], schedule: str) -> None:
    report = semu.simulate(job(make(), sizes, schedule))
    for row, rank in zip(report.ranks, report.timeline.ranks, strict=True):
        curve = rank.memory
        assert curve.peak_bytes == row.peak_bytes
        assert curve.total[-1] == row.static_bytes, "all is freed"


def test_static_memory_by_hand() -> None:
    """bf16 parameters, fp32 gradients, ZeRO-1 Adam with fp32 masters over dp = 2: 2 + 4 + 12 / 2 bytes a parameter."""
    report = semu.simulate(job(gpt(), {}))
    hidden, vocab = 256, 4096
    layer = 12 * hidden**2 + 13 * hidden
    shards = 2 * vocab * hidden // 4  # a quarter of either table
    whole = 128 * hidden + 2 * hidden  # positions, final norm: on every rank
    for row in report.ranks:
        assert row.parameters == 2 * layer + shards + whole
        assert row.static_bytes == 12 * row.parameters


def test_a_rank_computes_its_part_of_the_logits_and_exchanges_the_statistics() -> None:
    found = prepare(job(gpt(), {}))
    library = found.layout.library
    head = found.layout.chunks[-1]
    operators = [library.operators[row] for row in head.forward.rows.tolist()]
    product = next(op for op in operators if op.path.endswith("projection"))
    assert [str(dim) for dim in product.key[1:]] == ["1024", "256"], "a quarter of 4096 logits"
    moved = [op.path.rpartition(".")[2] for op in operators if op.stream.name == "vocabulary"]
    assert moved == ["broadcast", "all_reduce_maximum", "all_reduce_target", "all_reduce_sum"]
    backward = [library.operators[row] for row in head.backward.rows.tolist()]
    assert [op.kind.value for op in backward if op.stream.name == "vocabulary"] == ["all_reduce"]


def test_ranks_are_balanced_and_a_large_vocabulary_is_faster() -> None:
    """FlexPipe Fig. 1 and 2: with a table that outweighs the layers, the ends of the pipeline are the bottleneck."""
    model = lambda: gpt(262144, hidden=1024)  # noqa: E731
    ends, split = (semu.simulate(job(model(), {"vocabulary": word})) for word in ("ends", "pipeline"))
    assert split.iteration_time_s < 0.7 * ends.iteration_time_s
    peaks = split.peak_memory_bytes
    assert max(peaks) < 1.1 * min(peaks)
    assert max(ends.peak_memory_bytes) > 2 * min(ends.peak_memory_bytes)


@pytest.mark.parametrize(
    ("model", "sizes", "where", "words"),
    [
        (lambda: gpt(4098), {}, "parallel.vocabulary", ("multiple of 4", "4098", "4100")),
        (lambda: gpt(4100), {"dp": 1, "tp": 2}, "parallel.vocabulary", ("multiple of 8", "4100", "4104")),
        (semu_models.vlm_m, {}, "parallel.vocabulary", ("one module", "ends")),
        (gpt, {"placement": "bidirectional"}, "parallel.placement", ("circular",)),
        (gpt, {"zero": 3}, "parallel.zero", ("0 or 1",)),
        (gpt, {"vocabulary": "pipelin"}, "parallel.vocabulary", ("pipeline",)),
    ],
)
def test_refusals(model: Any, sizes: dict[str, Any], where: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        job(model(), sizes)
    assert caught.value.where == where
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("sizes", [{"pp": 3}, {"pp": 6}, {"pp": 16}, {"pp": 3, "tp": 2}, {"pp": 4, "cp": 2}])
def test_any_number_of_ranks(sizes: dict[str, int]) -> None:
    model = gpt(9216, layers=48)
    report = semu.simulate(job(model, {"dp": 1, **sizes}))
    assert len({row.parameters for row in report.ranks}) == 1


def test_one_rank_has_nothing_to_split() -> None:
    split, plain = (semu.simulate(job(gpt(), {"pp": 1, "vocabulary": word})) for word in ("pipeline", "ends"))
    assert split.iteration_time_s == plain.iteration_time_s


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "llama3-8b", "--cluster", "h100:1x8", "--parallel", "pp8", "--json"]
    times = []
    for more in ([], ["--set", "parallel.vocabulary=pipeline"]):
        assert main([*arguments, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        times.append(found["iteration_time_s"])
    assert found["breakdown_s"]["exposed_communication"]["vocabulary"] > 0
    assert np.isfinite(times).all()
    assert main([*arguments, "--set", "parallel.vocabulary=pipeline", "--set", "training.schedule=zb-h1"]) == 0


@pytest.mark.parametrize(("make", "gang", "block"), [(gpt, 0, 0), (gpt, 1, -1), (llama, 1, -1), (llama, 0, 0)])
def test_a_gang_does_what_tensor_parallel_ranks_do(make: Any, gang: int, block: int) -> None:
    """Four pipeline ranks of a gang against four tensor-parallel ranks of one stage, whose rules have a slow reference:
    the same operators, but for the broadcast of what arrives at one of the ranks."""
    split = prepare(job(make(), {"dp": 1})).layout
    whole = semu.TrainingJob(
        make(),
        semu.Cluster("a800", 1, 4),
        semu.Parallel(dp=1, tp=4, sequence_parallel=False),
        semu.Training(global_batch=16, seq_len=128, micro_batch=2),
    )
    wide = prepare(whole).layout
    member = split.chunks[split.pipeline_shape(8).gangs[gang][0]]
    place = len(wide.chunks[0].blocks) - 1 if block else 0

    def value(dim: Any, layout: Any) -> Any:
        """Of a size: 2 sequences of 128 tokens, counted in shards of as many tokens as there are tensor ranks."""
        return eval(str(dim).replace("text.shard", str(256 // layout.job.parallel.tp)))

    def listed(layout: Any, stage: Any, number: int) -> list[tuple[Any, ...]]:
        rows = [layout.library.operators[r] for r, b in zip(stage.rows, stage.block, strict=True) if b == number]
        return [
            (op.path, op.kind, op.phase, *(value(dim, layout) for dim in (op.flop, op.mem_bytes, op.net_bytes, op.key)))
            for op in rows
            if "broadcast" not in op.path
        ]

    for way in ("forward", "backward"):
        mine = listed(split, getattr(member, way), 0)
        assert mine == listed(wide, getattr(wide.chunks[0], way), place)
        assert mine
    parameters = [(held.path, held.shape) for held in member.blocks[0].parameters]
    assert parameters == [(held.path, held.shape) for held in wide.chunks[0].blocks[place].parameters]


def test_rules_are_explored_on_a_split_vocabulary() -> None:
    found = semu.explore_schedules(job(gpt(65536), {"pp": 4, "dp": 1}), top=1)
    rule = next(row for row in found.rows if "priority" in row.name)
    assert found.best is not None
    assert found.best.estimate.iteration_time_s <= rule.estimate.iteration_time_s
    named = semu.simulate(job(gpt(65536), {"pp": 4, "dp": 1}), schedule="1f1b")
    assert found.best.estimate.iteration_time_s < named.iteration_time_s

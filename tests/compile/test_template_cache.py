"""What is remembered between calls: it changes no report, mixes nothing up, keeps no model alive and stays small."""

from __future__ import annotations

import dataclasses
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from simulation import jobs
from simulation.jobs import Distance, chain, gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items

from semu import memo
from semu.compile import tracer
from semu.compile.join import build_stages
from semu.compile.layout import build_layout
from semu.compile.stage import StageProgram
from semu.compile.template_cache import BLOCKS, LIBRARIES, AskedOptions
from semu.compile.tracer import options_key
from semu.errors import GraphError
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.hardware.packed import FrozenWeights
from semu.job import Training, TrainingJob
from semu.nn import Linear, Model, Module, Tensor
from semu.nn import functional as F
from semu.nn.masked_kernel import Masking
from semu.nn.routing import ExpertPlan
from semu.nn.trace.block import CarrySpec, TracedBlock
from semu.nn.trace.eager import Autocast, EagerKernels
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.recompute_plan import RecomputePlan
from semu.nn.trace.sharding import ContextKind, ShardingPlan, ShardingStyle
from semu.parallel.config import Parallel
from semu.schedule.stage_plan import StagePlan
from semu.simulation import simulate
from semu.simulation.estimate import evaluate
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.mixtral import Mixtral, MixtralConfig


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    """Nothing is known before a test, nor after it."""
    memo.clear()
    yield
    memo.clear()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the blocks that are traced from here on."""
    seen: list[str] = []

    def traced(*args: object, **options: object) -> object:
        seen.append(str(options["root"]))
        return original(*args, **options)  # type: ignore[arg-type]

    original = tracer.trace_block
    monkeypatch.setattr(tracer, "trace_block", traced)
    return seen


def small(layers: int = 3, name: str = "llm", heads: int = 4) -> Model:
    return Model.from_module(GPT(GPTConfig(layers, hidden=128, heads=heads, vocab=512, positions=256)), name=name)


def text_job(model: Model, **options: object) -> TrainingJob:
    return job_of(model, text_items(4), Parallel(pp=2, tp=2), **options)  # type: ignore[arg-type]


def layout_of(job: TrainingJob) -> object:
    return build_layout(job, lambda library: [1.0] * len(library.templates))


# -- what is shared ----------------------------------------------------------------------------------------------------
def test_a_job_that_is_simulated_again_traces_nothing(traces: list[str]) -> None:
    first = simulate(text_job(small()))
    assert traces
    traces.clear()
    assert simulate(text_job(small())).to_json() == first.to_json()
    assert not traces


def test_equal_structures_are_recognised_by_another_name_depth_or_schedule(traces: list[str]) -> None:
    simulate(text_job(small()))
    traces.clear()
    simulate(text_job(small(layers=5, name="decoder"), schedule="gpipe"))
    assert not traces


def test_equal_layouts_share_their_stages() -> None:
    first, second = (build_layout(text_job(small(name=name)), lambda _: []) for name in ("a", "b"))
    assert first.library is second.library
    for one, other in zip(first.chunks, second.chunks, strict=True):
        assert one.forward is other.forward
        assert one.backward is other.backward
        assert one.blocks != other.blocks


def test_parameters_are_those_of_the_model_at_hand() -> None:
    for name in ("a", "b"):
        job = text_job(small(name=name))
        layout = build_layout(job, lambda _: [])
        own = {id(parameter): path for path, parameter in job.model.named_parameters()}
        held = [held for chunk in layout.chunks for block in chunk.blocks for held in block.parameters]
        assert {id(h.parameter) for h in held} == own.keys()
        assert all(h.path.startswith(f"{name}.") for h in held)
        tied = [h for h in held if own[id(h.parameter)] == f"{name}.embedding.weight"]
        assert len(tied) == 2


def test_stages_are_told_apart_by_blocks_order_of_work_consumer_and_loans() -> None:
    """Every combination twice, against stages that are joined anew."""
    layout = build_layout(job_of(small(), text_items(2), Parallel(tp=2)), lambda _: [])
    joined = next(iter(LIBRARIES._values.values()))
    numbers = [block.template for block in layout.chunks[0].blocks]
    combinations = [
        (tuple(part), serial, has_consumer, (borrowed,))
        for part in (numbers[1:2], numbers[1:3])
        for serial in (False, True)
        for has_consumer in (False, True)
        for borrowed in (False, True)
    ]
    for part, serial, has_consumer, borrowed in combinations * 2:
        found = joined.stages(part, serial=serial, has_consumer=has_consumer, borrowed=borrowed)
        expected = build_stages(
            joined.library, part, joined.streams, serial=serial, has_consumer=has_consumer, borrowed=borrowed
        )
        for stage, anew in zip(found, expected, strict=True):
            assert arrays_of(stage) == arrays_of(anew)


def arrays_of(stage: StageProgram | None) -> list[object]:
    assert stage is not None
    values = [getattr(stage, item.name) for item in dataclasses.fields(stage)]
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values]


# -- what is told apart ------------------------------------------------------------------------------------------------
def with_options(job: TrainingJob, **options: object) -> TrainingJob:
    own = {field.name: getattr(job.training, field.name) for field in dataclasses.fields(Training)}
    return TrainingJob(job.model, job.cluster, job.parallel, Training(**{**own, **options}), job.batch)


def frozen_layer() -> Model:
    model = small()
    model.freeze(["llm.layers.1"])
    return model


JOBS: dict[str, Callable[[], TrainingJob]] = {
    "plain": lambda: job_of(small(), text_items(4), Parallel(pp=2)),
    "tp": lambda: job_of(small(), text_items(4), Parallel(pp=2, tp=2)),
    "no sequence parallelism": lambda: job_of(small(), text_items(4), Parallel(pp=2, tp=2, sequence_parallel=False)),
    "tp 4": lambda: job_of(small(), text_items(4), Parallel(tp=4)),
    "tp over two nodes": lambda: job_of(small(), text_items(4), Parallel(pp=2, tp=4), gpus_per_node=2),
    "tp over PCIe": lambda: job_of(small(), text_items(4), Parallel(pp=2, tp=2), override={"nvlink_gpus": 1}),
    "tp overlapped": lambda: job_of(small(), text_items(4), Parallel(pp=2, tp=2), overlap=overlap(tensor=True)),
    "recompute": lambda: job_of(small(), text_items(4), Parallel(pp=2), recompute="full"),
    "fp32": lambda: with_options(job_of(small(), text_items(4), Parallel(pp=2)), precision="fp32"),
    "tf32": lambda: with_options(job_of(small(), text_items(4), Parallel(pp=2)), precision="tf32"),
    "fp16": lambda: with_options(job_of(small(), text_items(4), Parallel(pp=2)), precision="fp16"),
    "bf16 gradients": lambda: with_options(job_of(small(), text_items(4), Parallel(pp=2)), grad_dtype="bf16"),
    "replicated": lambda: job_of(
        small(), text_items(4), Parallel(pp=2, tp=2, plan={"*.mlp.*": ShardingStyle.REPLICATED})
    ),
    "one layer replicated": lambda: job_of(
        small(), text_items(4), Parallel(pp=2, tp=2, plan={"*.1.mlp.*": ShardingStyle.REPLICATED})
    ),
    "frozen layer": lambda: job_of(frozen_layer(), text_items(4), Parallel(pp=2)),
    "frozen": lambda: job_of(small().freeze(["llm.embedding"]), text_items(4), Parallel(pp=2)),
    "heads": lambda: job_of(small(heads=8), text_items(4), Parallel(pp=2)),
    "vlm": lambda: job_of(vlm(), vlm_items(4), Parallel(pp=2)),
    "vlm, frozen encoder": lambda: job_of(vlm(frozen=["vit"]), vlm_items(4), Parallel(pp=2)),
    "vlm, frozen backbone": lambda: job_of(vlm(frozen=["llm"]), vlm_items(4), Parallel(pp=2), recompute="full"),
    "t2v": lambda: job_of(t2v(), t2v_items(4), Parallel(pp=2)),
    "t2v, frozen text": lambda: job_of(t2v(frozen=["llm"]), t2v_items(4), Parallel(pp=2)),
    "policy": lambda: job_of(gpt(), text_items(4), recompute="full", recompute_policy="every_second_matmul"),
    "every second layer": lambda: job_of(gpt(), text_items(4), recompute="full", recompute_every=2),
    "offload": lambda: job_of(gpt(), text_items(4), offload="activations"),
    "offload of a layer": lambda: job_of(gpt(), text_items(4), offload="activations", offload_layers=["llm.layers.1"]),
    "weights": lambda: job_of(gpt(), text_items(4), Parallel(pp=2), offload="weights"),
    "weights of a layer": lambda: job_of(gpt(), text_items(4), offload="weights", offload_layers=["llm.layers.1"]),
    "unfused loss": lambda: job_of(gpt(), text_items(4), cross_entropy="unfused"),
    "gradients apart": lambda: job_of(gpt(), text_items(4), gradient_accumulation_fusion=False),
    "own blocks": lambda: job_of(chain(Linear(64, 64), Linear(64, 64), Distance()), text_items(4), Parallel(pp=2)),
}


def result_of(job: TrainingJob) -> str:
    """Everything that a report says of the job, memory and operators included."""
    report = simulate(job)
    operators = [
        (ops.table.paths, ops.start_s.tolist(), ops.flop.tolist())
        for rank in report.timeline.ranks
        for _, ops in rank.stage_operators()
    ]
    memory = [(rank.memory.times_s.tolist(), rank.memory.by_role.tolist()) for rank in report.timeline.ranks]
    return json.dumps([report.to_json(), operators, memory])


@pytest.mark.slow
def test_no_job_is_taken_for_another() -> None:
    fresh = {}
    for name, make in JOBS.items():
        memo.clear()
        fresh[name] = result_of(make())
    assert len(set(fresh.values())) == len(fresh)
    names = [*JOBS, *JOBS]
    Random(0).shuffle(names)
    for name in names:
        assert result_of(JOBS[name]()) == fresh[name], name


def test_a_model_that_is_changed_between_two_calls() -> None:
    model = small()
    before = result_of(text_job(model))
    model.freeze(["llm.layers.0"])
    frozen = result_of(text_job(model))
    for _, parameter in model.named_parameters():
        parameter.requires_grad = True
    model.modules[0].body[2].attention.causal = False  # type: ignore[index]
    uncausal = result_of(text_job(model))
    model.modules[0].body[2].attention.causal = True  # type: ignore[index]
    assert result_of(text_job(model)) == before
    assert len({before, frozen, uncausal}) == 3
    memo.clear()
    assert result_of(text_job(small().freeze(["llm.layers.0"]))) == frozen


OTHER_OPTIONS: dict[str, object] = {
    "tp_group": CommGroup("tp", 4, 2),
    "compute_dtype": DType.TF32,
    "tensor_dtype": DType.FP32,
    "grad_dtype": DType.BF16,
    "overlap_tp": True,
    "fused_attention": False,
    "recompute": RecomputePlan(("mlp",)),
    "cast_weights": True,
    "experts": ExpertPlan(2),
    "cp_group": CommGroup("cp", 4, 2),
    "cp_kind": ContextKind.ALL_GATHER,
    "cp_levels": (CommGroup("cp_group", 2, 1), CommGroup("cp", 2, 2)),
    "keep_products": True,
    "transpose_weights": True,
    "cross_entropy": "fused",
    "fused_accumulation": False,
    "sums_gradients_twice": True,
    "fp8_recipe": Fp8Recipe.BLOCKWISE,
    "fp8_copies": 1,
    "fp8_gates": True,
    "frozen_weights": FrozenWeights.NF4,
    "replica_group": CommGroup("replicas", 4, 2),
    "stop_early": True,
    "gang_group": CommGroup("gang", 2, 1),
    "gang_gathers": True,
    "cp_parts": (CommGroup("cp_part2", 2, 1),),
    "masking": Masking("document"),
    "eager_modules": True,
    "eager_kernels": EagerKernels.FLASH_ATTN,
    "channels_first": True,
    "convolves_patches": True,
    "autocast": Autocast.FP32_NORMS,
    "casts_parameters": True,
    "separate_softmax": True,
    "bias_kernels": True,
    "head_dims": (64, 128),
    "has_dtensor": True,
    "keeps_gathered": True,
}
OTHER_PLAN: dict[str, object] = {"tp": 2, "sequence_parallel": True}


def test_every_option_is_in_the_key() -> None:
    """A new field must be added to the tables here, and thereby proves to be in the key."""
    assert OTHER_OPTIONS.keys() == {item.name for item in dataclasses.fields(TraceOptions)} - {"plan"}
    assert OTHER_PLAN.keys() == {item.name for item in dataclasses.fields(ShardingPlan)} - {"styles", "patterns"}
    keys = [options_key(TraceOptions(), full_recompute=recompute) for recompute in (False, True)]
    for name, value in OTHER_OPTIONS.items():
        keys.append(options_key(dataclasses.replace(TraceOptions(), **{name: value}), full_recompute=False))  # type: ignore[arg-type]
    for name, value in OTHER_PLAN.items():
        plan = dataclasses.replace(ShardingPlan(), **{name: value})  # type: ignore[arg-type]
        keys.append(options_key(TraceOptions(plan), full_recompute=False))
    assert len(set(keys)) == len(keys)


def experts() -> Model:
    config = MixtralConfig(layers=2, hidden=128, ffn=256, heads=4, kv_heads=2, vocab=512, experts=4)
    return decoder_model("llm", Mixtral(config))


@pytest.mark.parametrize("make", [experts, vlm])
def test_options_that_a_trace_does_not_read_change_nothing(
    make: Callable[[], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block is traced again with another value of each option that its trace has not read."""
    unread: list[int] = []

    def traced(body: Module, specs: tuple[CarrySpec, ...], options: AskedOptions, **settings: Any) -> TracedBlock:
        found = original(body, specs, options, **settings)  # type: ignore[arg-type]
        others = sorted(OTHER_OPTIONS.keys() - {*options.names})
        for name in others:
            other = replace(options.options, **{name: OTHER_OPTIONS[name]})  # type: ignore[arg-type]
            assert content(original(body, specs, other, **settings)) == content(found), (settings["root"], name)
        unread.append(len(others))
        return found

    def content(block: TracedBlock) -> str:
        tensors = block.graph.tensors, block.output_specs, block.inputs, block.outputs
        return repr(
            (block.graph.operators, block.groups, block.num_forward, [use.path for use in block.parameters], tensors)
        )

    original = tracer.trace_block
    monkeypatch.setattr(tracer, "trace_block", traced)
    items = vlm_items(2, seed=1) if make is vlm else text_items(2)
    for options in ({},) if make is vlm else ({}, {"recompute": "full"}):
        build_layout(job_of(make(), items, Parallel(tp=2), **options), lambda _: [])  # type: ignore[arg-type]
    assert len(unread) > 4 and min(unread) > 10


def test_a_block_is_traced_again_where_an_option_differs_that_it_reads(traces: list[str]) -> None:
    """The spread of experts changes their layers alone, recomputation what is recomputed."""
    model = experts()
    jobs_of = [
        job_of(model, text_items(4), Parallel(dp=2, ep=ep), recompute=words)
        for ep, words in ((1, "none"), (2, "none"), (2, "full"))
    ]  # type: ignore[arg-type]
    for job, again in zip(
        jobs_of,
        ({"llm.embedding", "llm.layers.0", "llm.head"}, {"llm.layers.0"}, {"llm.layers.0", "llm.head"}),
        strict=True,
    ):
        traces.clear()
        evaluate(job)
        assert set(traces) == again


def test_gradients_that_arrive_are_in_the_key() -> None:
    """The head reads neither caption nor timestep, so that the layer before it gets one gradient, the others three."""
    for layers in (4, 3):
        layout = build_layout(job_of(t2v(layers=layers), t2v_items(2)), lambda _: [])
        blocks = {block.path: layout.library.templates[block.template] for block in layout.chunks[-1].blocks}
        first, last = blocks["dit.layers.0"], blocks[f"dit.layers.{layers - 1}"]
        assert first is blocks[f"dit.layers.{layers - 2}"]
        assert sum(tensor >= 0 for tensor in first.gradient_in) == 3
        assert sum(tensor >= 0 for tensor in last.gradient_in) == 1
        assert len(last.backward.operators) < len(first.backward.operators)


# -- code that nobody can see through ----------------------------------------------------------------------------------
class Global(Module):
    """Reads a number that is not its own."""

    heads = 4

    def __init__(self) -> None:
        super().__init__()
        self.qkv = Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(self.heads, 64 // self.heads) for part in self.qkv(x).split((64, 64, 64)))
        return F.attention(q, k, v, causal=jobs.WIDTH == 64).flatten()


def test_a_module_of_ones_own_is_traced_in_every_call(traces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def job() -> TrainingJob:
        return job_of(chain(Global(), Linear(64, 64), Distance()), text_items(2))

    plain = result_of(job())
    assert len(BLOCKS) == 1  # the linear layer between
    assert len(LIBRARIES) == 0
    traces.clear()
    assert result_of(job()) == plain
    assert set(traces) == {"chain.0", "chain.2"}
    monkeypatch.setattr(Global, "heads", 8)
    eight = result_of(job())
    monkeypatch.setattr(jobs, "WIDTH", 65)
    assert len({plain, eight, result_of(job())}) == 3


def test_a_patched_layer_is_not_taken_for_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = result_of(text_job(small()))
    with monkeypatch.context() as patch:
        patch.setattr(Linear, "forward", lambda self, x: F.gelu(F.linear(x, self.weight, self.bias)))
        assert result_of(text_job(small())) != plain
    assert result_of(text_job(small())) == plain


# -- what is kept ------------------------------------------------------------------------------------------------------
def test_no_model_is_kept_alive() -> None:
    model = gpt()
    body = weakref.ref(model.modules[0].body)
    parameter = weakref.ref(next(model.modules[0].body.named_parameters())[1])
    report = simulate(text_job(model))
    assert report.makespan_s > 0
    assert len(BLOCKS) > 0
    del model, report
    gc.collect()
    assert body() is None
    assert parameter() is None


def test_an_impossible_block_is_refused_every_time_and_by_its_own_path() -> None:
    for name in ("first", "second"):
        with pytest.raises(GraphError) as caught:
            layout_of(job_of(small(name=name, heads=1), text_items(4), Parallel(tp=2)))
        assert str(caught.value.where).startswith(f"{name}.layers.0")


def test_simulations_in_threads_agree() -> None:
    expected = {name: result_of(JOBS[name]()) for name in ("tp", "vlm", "recompute")}
    memo.clear()
    found: list[tuple[str, str]] = []

    def run(name: str) -> None:
        found.append((name, result_of(JOBS[name]())))

    threads = [threading.Thread(target=run, args=(name,)) for name in [*expected] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([*expected.items()] * 2)


def test_nothing_keeps_what_it_is_remembered_of_alive() -> None:
    """A value that holds the object whose value it is would stay for ever; all go with what the process holds."""
    for name in ("tp", "vlm", "recompute", "frozen layer"):
        simulate(JOBS[name]())
    for options in ({"schedule": "zb-h1"}, {"schedule": "zb-auto"}, {"launch": True}):
        simulate(job_of(small(), text_items(8), Parallel(pp=2), **options))  # type: ignore[arg-type]
    for zero in range(4):
        simulate(job_of(small(), text_items(8), Parallel(pp=2, dp=2, zero=zero)))
    simulate(job_of(small(), text_items(8), Parallel(pp=2, dp=2)), contention=True)
    simulate(job_of(vlm(), vlm_items(4), Parallel(pp=2)), plan=StagePlan(parts={"vit": (2, 1, 2, 1)}))
    filled = {row.name for row in memo.statistics() if row.values}
    assert len(filled) > 30
    for table in [*memo._TABLES]:
        if isinstance(table, memo.Table):
            table.clear()
    for function in [*memo._FUNCTIONS]:
        function.cache_clear()
    gc.collect()
    assert {row.name for row in memo.statistics() if row.values} == set()


@pytest.mark.slow
def test_evaluating_many_batches_stays_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees one distinct batch after another remembers no more after many than after some."""
    monkeypatch.setattr(memo, "LARGE_BYTES", 1e5)  # large tables are emptied every dozen batches
    memo.clear()
    model, sizes = small(), []
    for number in range(400):
        evaluate(job_of(model, text_items(2, seed=number), Parallel(pp=2)))
        sizes.append(sum(row.values for row in memo.statistics()))
    assert sum(after < before for before, after in pairwise(sizes[:200])) >= 3
    assert max(sizes[200:]) <= max(sizes[:200]) * 1.02
    assert all(row.values <= row.bound * row.owners for row in memo.statistics())

"""Small jobs for the tests of the grid, and configurations tried one by one: what is legal, what is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from simulation.jobs import LANGUAGE, gpt, valm, valm_items, vlm, vlm_items

from semu.errors import SemuError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import LoRA, Model, add_lora
from semu.parallel.config import Parallel
from semu.present.estimate import Estimate
from semu.searcher.grid.framework import Framework, FrameworkRule, framework_misfits
from semu.searcher.grid.space import Axis, Point
from semu.simulation import prepare
from semu.simulation.estimate import evaluate
from semu.workload.batch import AbstractBatch, Microbatch
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.mixtral import Mixtral, MixtralConfig


class Packed(AbstractBatch):
    """Items of ``items`` in turn; a microbatch packs ``micro_batch`` of them."""

    def __init__(self, items: list[Microbatch]) -> None:
        object.__setattr__(self, "items", items)

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        own: list[Microbatch] = self.items  # type: ignore[attr-defined]
        found = []
        for number in range(count):
            some = [own[k % len(own)] for k in range(number * micro_batch, (number + 1) * micro_batch)]
            names = some[0].streams
            found.append(Microbatch({name: sum((one.streams[name] for one in some), ()) for name in names}, samples=2))
        return found

    @property
    def default_seq_len(self) -> int | None:
        return None

    def describe(self) -> dict[str, object]:
        return {"kind": "packed", "items": len(self.items)}  # type: ignore[attr-defined]


CLUSTER = Cluster("h800", 2, 4)


def dense(layers: int = 6, **training: Any) -> TrainingJob:
    """GPT with four heads and tied embeddings on 8 GPUs."""
    options = {"micro_batch": 1, "global_batch": 16, "seq_len": 256, **training}
    return TrainingJob(gpt(layers), CLUSTER, Parallel(dp=8), Training(**options))


def packed(**training: Any) -> TrainingJob:
    """Frozen weights of four bits, larger than everything else, beside adapters."""
    config = GPTConfig(layers=4, hidden=512, heads=4, vocab=384, positions=256)
    model = add_lora(Model.from_module(GPT(config), name="llm"), LoRA(4, ("q_proj",)))
    options = {"micro_batch": 1, "global_batch": 16, "seq_len": 64, "frozen_weights": "nf4", **training}
    return TrainingJob(model, CLUSTER, Parallel(dp=8, zero=0), Training(**options))


def experts(**training: Any) -> TrainingJob:
    """Four experts in each of four layers, on 8 GPUs."""
    config = MixtralConfig(layers=4, hidden=128, ffn=256, heads=8, kv_heads=4, vocab=384, experts=4)
    options = {"micro_batch": 1, "global_batch": 16, "seq_len": 256, **training}
    return TrainingJob(decoder_model("tiny-moe", Mixtral(config)), CLUSTER, Parallel(dp=8), Training(**options))


def documents(**training: Any) -> TrainingJob:
    """Text of which tokens see their own document, on 8 GPUs; four context ranks need two sequences in a microbatch."""
    options = {"micro_batch": 1, "global_batch": 16, "seq_len": 1024, "attention_mask": "document", **training}
    model = Model.from_module(GPT(GPTConfig(layers=4, hidden=128, heads=4, vocab=512, positions=1024)), name="llm")
    return TrainingJob(model, CLUSTER, Parallel(dp=8, cp_block=512), Training(**options))


def vision(**training: Any) -> TrainingJob:
    """Images and text, of other lengths in each microbatch, on 8 GPUs."""
    assert LANGUAGE.kv_heads == 4
    options = {"micro_batch": 1, "global_batch": 16, **training}
    return TrainingJob(vlm(), CLUSTER, Parallel(dp=8), Training(**options), Packed(vlm_items(16, seed=4)))


def voices(frozen: Sequence[str] = (), **training: Any) -> TrainingJob:
    """Images, sounds and text on 8 GPUs."""
    options = {"micro_batch": 1, "global_batch": 16, **training}
    parallel = Parallel(dp=2, pp=4)
    return TrainingJob(valm(frozen=frozen), CLUSTER, parallel, Training(**options), Packed(valm_items(16, seed=4)))


def on_own_gpus(model: Model, items: Sequence[Microbatch], gpus: int, tp: int, modules: dict[str, Any]) -> TrainingJob:
    """Modules on GPUs of their own."""
    parallel = Parallel(tp=tp, segments="apart", modules=modules)
    batch = Packed([*items])
    return TrainingJob(model, Cluster("h800", 1, gpus), parallel, Training(micro_batch=1, global_batch=16), batch)


def built(job: TrainingJob, point: Point) -> TrainingJob:
    """The job in a configuration, made of the constructors alone."""
    training = job.training
    parallel = Parallel(
        dp=point.dp,
        tp=point.tp,
        pp=point.pp,
        cp=point.cp,
        ep=point.ep,
        vpp=point.vpp,
        zero=point.zero,
        placement=point.placement,
        segments=point.segments,
        cp_block=job.parallel.cp_block,
        cp_balance=point.cp_balance,
        attention_split=point.attention_split,
        partition=point.partition,
        cp_kind=point.cp_kind,
        modules=job.parallel.modules,
        shares=job.parallel.shares if job.parallel.has_own_gpus else {},
    )
    own = replace(
        training,
        micro_batch=point.micro_batch,
        recompute=point.recompute,
        recompute_layers=training.recompute_layers if point.recompute == training.recompute.value else None,
        recompute_method=training.recompute_method if point.recompute == training.recompute.value else None,
        schedule=point.schedule,
    )
    return TrainingJob(job.model, job.cluster, parallel, own, job.batch)


def is_legal(job: TrainingJob, point: Point) -> bool:
    """Whether every constructor and the preparation take it."""
    try:
        prepare(built(job, point)).problem()
    except SemuError:
        return False
    return True


def all_combinations(job: TrainingJob, values: dict[Axis, tuple[Any, ...]]) -> list[Point]:
    """Every combination; tensor-parallel groups within a node, as a grid has them where nobody names values."""
    return [
        Point(*combination)
        for combination in product(*(values[axis] for axis in Axis))
        if job.cluster.gpus_per_node % combination[1] == 0
    ]


def tried(job: TrainingJob, points: list[Point]) -> dict[Point, Estimate]:
    """All of them evaluated, one after another."""
    return {point: evaluate(built(job, point)) for point in points}


def framework_rule(framework: Framework, job: TrainingJob) -> Callable[[Point, int], tuple[FrameworkRule, str] | None]:
    """The first rule of a framework that a configuration with so many microbatches breaks, and how."""
    misfits = framework_misfits(framework, job)

    def broken(point: Point, microbatches: int) -> tuple[FrameworkRule, str] | None:
        said = ((rule, misfit(point, microbatches)) for rule, misfit in misfits)
        return next(((rule, text) for rule, text in said if text is not None), None)

    return broken

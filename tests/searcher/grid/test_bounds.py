"""No configuration is faster or smaller than its bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.grid.cases import built, dense, documents, experts, on_own_gpus, packed, vision, voices
from simulation.jobs import valm, valm_items, vlm, vlm_items

import semu_models
from semu.compile.layout import trace_blocks
from semu.compile.parameter_pools import weight_bytes
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.parallel.modules import ModuleParallel
from semu.searcher.grid.blocks import BlockTable
from semu.searcher.grid.bounds import Floors
from semu.searcher.grid.legal import legal_points
from semu.searcher.grid.space import Point, Space, job_at
from semu.simulation.estimate import evaluate

EVERYTHING = {"tp": None, "pp": None, "vpp": None, "micro_batch": None, "recompute": None, "zero": None, "cp": None}
SCHEDULES = {"schedule": ("1f1b", "gpipe", "zb-h1", "zb-v", "chimera", "eager-1f1b", "v-half"), "pp": None, "vpp": None}
PLACED = {**SCHEDULES, "placement": None, "recompute": None}
CONTEXT = {"cp_balance": None, "attention_split": None, "micro_batch": (1, 2, 4)}
NEAR = ("zigzag", "local", "hybrid")
SEGMENTS = {"segments": None, "pp": (1, 2, 4), "vpp": (1, 2), "placement": None, "micro_batch": (1, 2)}
PLACES = {"segments": ("apart", "colocated", "replicated"), "pp": (3, 4), "micro_batch": (1, 2, 4), "recompute": None}
PLACES |= {"schedule": ("1f1b", "gpipe", "zb-h1", "eager-1f1b")}
OWN = {"micro_batch": None, "recompute": None, "schedule": ("1f1b", "gpipe", "zb-h1"), "zero": (0, 1)}
CUTS = {"partition": ("parameters", "latency", "forward"), "segments": None, "pp": (1, 2, 4), "micro_batch": (1, 2)}
HIDDEN = {"overlap": Overlap(grad_reduce=True, param_gather=True, tensor_parallel=True, pipeline=True)}
COMBINED = {"overlap": Overlap(expert_parallel=True, delayed_weight_gradients=True)}
SHOWN = {"overlap": Overlap(grad_reduce=False, param_gather=False, tensor_parallel=False, pipeline=False)}


def check(job: TrainingJob, vary: Any, count: int, seed: int) -> list[tuple[float, float]]:
    """Bounds over figures, (time, memory), of some configurations drawn at random."""
    space = Space.of(job, vary)
    points = list(legal_points(job, space).points)
    floors = Floors(job, points)
    found = []
    for point in Random(seed).sample(points, min(count, len(points))):
        floor, is_so = floors[point], evaluate(built(job, point))
        assert 0 < floor.time_s <= is_so.iteration_time_s, point
        assert floor.memory_bytes <= max(is_so.peak_memory_bytes), point
        found.append((floor.time_s / is_so.iteration_time_s, floor.memory_bytes / max(is_so.peak_memory_bytes)))
    return found


VIT, AUDIO, LLM = ("vit.embedding", "vit.layers"), ("audio.embedding", "audio.layers"), ModuleParallel(pp=2)
GPUS = {
    "own-narrow": partial(
        on_own_gpus, vlm(), vlm_items(16, seed=4), 8, 2, {"vit": ModuleParallel(gpus=4, tp=1), "llm": LLM}
    ),
    "own-wide": partial(
        on_own_gpus,
        vlm(frozen=VIT),
        vlm_items(16, seed=4),
        8,
        1,
        {"vit": ModuleParallel(gpus=4, tp=4), "llm": ModuleParallel(tp=2, pp=2)},
    ),
    "own-three": partial(
        on_own_gpus,
        valm(frozen=(*VIT, *AUDIO)),
        valm_items(16, seed=4),
        7,
        2,
        {"vit": ModuleParallel(gpus=2, tp=1), "audio": ModuleParallel(gpus=1, tp=1), "llm": LLM},
    ),
}
CASES = {
    "places": (voices, PLACES),
    "places-frozen": (partial(voices, (*VIT, *AUDIO)), PLACES),
    "places-vision": (vision, {**PLACES, "pp": (2, 4), "tp": (1, 2)}),
    "places-hidden": (partial(vision, **HIDDEN), {**PLACES, "pp": (2, 4), "tp": (1, 2)}),
    "places-by-time": (partial(voices, (*VIT, *AUDIO)), {**PLACES, "partition": ("latency",)}),
    **{name: (make, OWN) for name, make in GPUS.items()},
    "dense": (dense, EVERYTHING),
    "hidden": (partial(dense, **HIDDEN), EVERYTHING),
    "shown": (partial(dense, **SHOWN), EVERYTHING),
    "experts": (experts, {**EVERYTHING, "ep": None}),
    "combined": (partial(experts, **COMBINED), {**EVERYTHING, "ep": None, "schedule": ("1f1b", "interleaved")}),
    "vision": (vision, {**EVERYTHING, "cp": (1,)}),
    "vision-hidden": (partial(vision, **HIDDEN), {**EVERYTHING, "cp": (1,)}),
    "context": (documents, {"cp": None, **CONTEXT}),
    "exchanges": (documents, {"cp": (2, 4), "cp_kind": None, "cp_balance": NEAR, "micro_batch": (1, 2)}),
    "segments": (vision, SEGMENTS),
    "cuts": (vision, CUTS),
    "schedules": (dense, PLACED),
    "clipped": (partial(dense, gradient_clipping=True, grad_dtype="bf16", overhead_s=0.1), EVERYTHING),
    "offload": (partial(dense, offload="optimizer"), {"tp": None, "pp": None}),
    "packed": (packed, {"tp": None, "pp": None, "micro_batch": None, "recompute": None}),
    "muon": (partial(dense, optimizer="muon"), {"tp": None, "pp": None, "zero": (0, 1), "micro_batch": None}),
    "torch": (partial(dense, software="torch", master_dtype="bf16"), {"tp": None, "zero": None, "recompute": None}),
    "some-layers": (partial(dense, recompute="full", recompute_layers=1), {"pp": None, "vpp": None, "recompute": None}),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("experts", "shown")])
def test_bounds_are_admissible(name: str) -> None:
    make, vary = CASES[name]
    check(make(), vary, 2, seed=1)


@pytest.mark.parametrize("training", [{}, HIDDEN], ids=["default", "hidden"])
def test_bounds_of_deep_pipelines_are_admissible(training: dict[str, Any]) -> None:
    """zb-h1 sends a gradient on before it computes the weight gradient: backwards of the ranks in front overlap with
    weight gradients of the ranks behind, and do not come on top of their work."""
    vary = {"pp": (8,), "schedule": ("1f1b", "zb-h1"), "recompute": None}
    assert len(check(dense(8, **training), vary, 100, seed=2)) == 6


SHARDED = {"tp": (1, 2), "pp": (1, 2, 4), "vpp": (1, 2), "micro_batch": (1, 2, 4), "recompute": None, "cp": (1, 2)}
SHARDED |= {"zero": (2, 3), "schedule": ("1f1b", "gpipe", "interleaved")}
OVERLAPS = ({}, HIDDEN, SHOWN)


@cache
def sharded(make: Callable[..., TrainingJob]) -> tuple[TrainingJob, list[Point]]:
    """A job and what may be drawn of it."""
    vary = {**SHARDED, "ep": (1, 2)} if make is experts else SHARDED
    return make(), [*legal_points(make(), Space.of(make(), vary)).points]


@settings(max_examples=16, deadline=None, derandomize=True)
@given(st.data())
def test_memory_under_sharded_gradients_and_parameters_is_bounded(data: st.DataObject) -> None:
    """Of dense models and of experts: what forwards keep counts whatever is sharded, and no rank ever has less."""
    job, points = sharded(data.draw(st.sampled_from((dense, experts))))
    point = data.draw(st.sampled_from(points))
    reshards, software = data.draw(st.booleans()), data.draw(st.sampled_from(("megatron", "torch")))
    training = replace(job.training, software=software, **data.draw(st.sampled_from(OVERLAPS)))
    job = replace(job, parallel=replace(job.parallel, reshard_after_forward=reshards), training=training)
    floor, is_so = Floors(job, [point])[point], evaluate(job_at(job, point))
    assert floor.memory_bytes <= max(is_so.peak_memory_bytes), point
    assert floor.time_s <= is_so.iteration_time_s, point


@settings(max_examples=16, deadline=None, derandomize=True)
@given(st.data())
def test_exchanges_inside_stages_are_bounded(data: st.DataObject) -> None:
    """On GPUs that meet over a network alone, or within nodes, exchanges are most of the time, or little of it."""
    job, points = sharded(data.draw(st.sampled_from((dense, experts))))
    point = data.draw(st.sampled_from(points))
    where = data.draw(st.sampled_from(((8, 1), (2, 4), (1, 8))))
    training = replace(job.training, **data.draw(st.sampled_from(OVERLAPS)))
    job = replace(job, cluster=Cluster(data.draw(st.sampled_from(("h100", "a100-80g"))), *where), training=training)
    assert Floors(job, [point])[point].time_s <= evaluate(job_at(job, point)).iteration_time_s, point


@pytest.mark.parametrize(("make", "expert_ranks"), [(semu_models.llama3_8b, 1), (semu_models.mixtral_8x7b, 8)])
def test_times_under_sharded_parameters_are_near(make: Callable[[], Any], expert_ranks: int) -> None:
    """Where gathers take longer than blocks, they are what the bound knows."""
    job = large(make, 32, seq_len=1024, global_batch=64)
    vary = {"tp": (1,), "pp": (1, 2, 4), "ep": (expert_ranks,), "zero": (3,), "vpp": (1, 2)}
    shares = [time for time, _ in check(job, vary, 5, seed=4)]
    assert len(shares) == 5 and min(shares) > 0.8


def test_what_blocks_hold_and_exchange() -> None:
    """Counted parameter by parameter, of blocks that share some and of blocks that do not."""
    for make in (dense, experts, packed, vision):
        job = make()
        blocks = [*chain(*trace_blocks(job).blocks)]
        point = next(iter(legal_points(job, Space.of(job, {"tp": (1,)})).points))
        table = BlockTable.of(job, point, [1])
        seen: set[Any] = set()
        users = Counter(parameter for block in blocks for parameter in {held.parameter for held in block.parameters})
        for number, block in enumerate(blocks):
            elements, trained, gathered, reduced = ([0, 0] for _ in range(4))
            is_own = all(users[held.parameter] == 1 for held in block.parameters)
            for held in block.parameters:
                if held.parameter not in seen:
                    elements[held.is_expert] += held.elements
                    trained[held.is_expert] += held.elements * held.parameter.requires_grad
                seen.add(held.parameter)
                gathered[held.is_expert] += weight_bytes(job, held) * is_own
                reduced[held.is_expert] += (
                    held.elements * job.training.grad_dtype.size_bytes * is_own * bool(held.writers)
                )
            assert np.diff(table.elements)[:, number].tolist() == elements
            assert np.diff(table.trained)[:, number].tolist() == trained
            assert table.exchanged.gathered[:, number].tolist() == gathered
            assert table.exchanged.reduced[:, number].tolist() == reduced


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_bounds_of_many_are_admissible(name: str) -> None:
    make, vary = CASES[name]
    check(make(), vary, 60, seed=10)


@pytest.mark.parametrize("make", [semu_models.llama3_8b, semu_models.mixtral_8x7b])
@pytest.mark.parametrize("zero", [2, 3])
def test_activations_count_under_sharded_gradients_and_parameters(make: Callable[[], Any], zero: int) -> None:
    """Of large models the bound is near what is so, where their activations are most of it."""
    job = large(make, 32, seq_len=8192, recompute="none")
    vary = {"tp": (4,), "pp": (2, 4), "zero": (zero,), "micro_batch": (1, 2), "schedule": ("1f1b", "gpipe")}
    shares = sorted(memory for _, memory in check(job, vary, 4, seed=4))
    assert shares[0] > 0.7 and shares[2] > 0.9


def large(make: Callable[[], Any], gpus: int, **training: Any) -> TrainingJob:
    options = {"micro_batch": 1, "global_batch": 128, "recompute": "full", **training}
    return TrainingJob(make(), Cluster("h100", gpus // 8, 8), Parallel(dp=gpus), Training(**options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "gpus", "vary"),
    [
        (semu_models.gpt3_175b, 128, None),
        (semu_models.llama3_70b, 64, {"tp": None, "pp": None, "micro_batch": (1, 2), "recompute": None, "cp": (1, 2)}),
        (semu_models.mixtral_8x7b, 64, {"tp": None, "pp": None, "ep": None, "recompute": None}),
    ],
)
def test_bounds_of_large_models_are_admissible_and_near(make: Any, gpus: int, vary: Any) -> None:
    found = check(large(make, gpus, seq_len=2048), vary, 40, seed=3)
    times, memories = (sorted(column) for column in zip(*found, strict=True))
    assert times[len(times) // 2] > 0.9 and memories[len(memories) // 2] > 0.6

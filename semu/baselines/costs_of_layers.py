"""What every layer of a job costs on a workload, kept or recomputed: the numbers that a static planner plans with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.compile.join import build_stages
from semu.compile.template import stream_names
from semu.compile.tracer import Block
from semu.costs.layer_times import template_times
from semu.job import Optimizer, Recompute, TrainingJob
from semu.parallel.stage_layers import layer_parts
from semu.records import dataclass
from semu.simulation import JobCheckpoint, prepare
from semu.workload.batch import AbstractBatch


@dataclass(frozen=True)
class LayerCosts:
    """Layers of all modality modules in a row; the first and last of a module with what stands before and behind.

    Attributes:
        module: int64[n], number of the modality module.
        latency_s: float64[2, n] [s], forward plus backward of a microbatch, kept or recomputed; means of the workload.
        held_bytes: float64[2, n, num_replicas, num_microbatches] [bytes], from forward to backward of every microbatch,
            kept or recomputed.
        state_bytes: float64[n] [bytes], weights, gradients and optimizer state of a rank.
    """

    module: NDArray[np.int64]
    latency_s: NDArray[np.float64]
    held_bytes: NDArray[np.float64]
    state_bytes: NDArray[np.float64]

    @property
    def num_layers(self) -> int:
        """Layers of all modules."""
        return len(self.module)

    @property
    def num_modules(self) -> int:
        """How many modality modules there are."""
        return int(self.module.max(initial=-1)) + 1


def layer_costs(job: TrainingJob, workload: AbstractBatch, num_microbatches: int) -> LayerCosts:
    """Costs of every layer of a job.

    Args:
        job: its model, cluster, sizes and options; how it is cut does not matter.
        workload: of which so many microbatches a replica are looked at.
    """
    parts = [layer_parts(module) for module in job.model.modules]
    module = np.repeat(np.arange(len(parts)), [len(own) for own in parts])
    latency = np.zeros((2, len(module)))
    held = np.zeros((2, len(module), job.parallel.replicas, num_microbatches))
    state = np.zeros(len(module))
    for again, mode in enumerate((Recompute.NONE, Recompute.FULL)):
        training = replace(
            job.training,
            **NO_RECOMPUTE,  # type: ignore[arg-type]
            recompute=mode,
            global_batch=num_microbatches * job.parallel.replicas * job.training.micro_batch,
        )
        prepared = prepare(replace(job, training=training, batch=workload))
        blocks: list[list[Block]] = [[] for _ in parts]
        for chunk in prepared.layout.chunks:
            blocks[chunk.chunk.module] += chunk.blocks
        seconds, kept = _by_template(prepared)
        index = prepared.evaluation.shapes.index
        number = 0
        for own, layers in zip(blocks, parts, strict=True):
            for part in layers:
                inside = own[part.first : part.last]
                latency[again, number] = sum(seconds[block.template] for block in inside)
                held[again, number] = np.sum([kept[block.template] for block in inside], axis=0)[index]
                if not again:
                    state[number] = sum(_state_bytes(prepared, block) for block in inside)
                number += 1
    return LayerCosts(module, latency, held, state)


NO_RECOMPUTE = {
    "recompute_modules": None,
    "recompute_layers": None,
    "recompute_method": None,
    "recompute_policy": None,
    "recompute_every": None,
}
"""Options that narrow recomputation."""


def _by_template(prepared: JobCheckpoint) -> tuple[list[float], list[NDArray[np.float64]]]:
    """Per template, forward plus backward, the mean over all microbatches [s], and what stays between them for every
    distinct microbatch: float64[num_shapes] [bytes]."""
    layout, evaluation = prepared.layout, prepared.evaluation
    serial = not layout.job.overlaps_tensor_parallel
    times = template_times(layout.library, evaluation.shapes, evaluation.by_shape, serial=serial)
    streams = stream_names(layout.library)
    kept = [np.zeros(evaluation.num_shapes) for _ in layout.library.templates]
    for number in range(len(kept)):
        _, backward = build_stages(layout.library, [number], streams, serial=serial)
        if backward is None:
            continue
        arriving = np.isin(backward.storage, [s for s in backward.arriving_storage if s >= 0])
        rows = backward.size_row[backward.alive_before & ~arriving].tolist()
        if rows:
            kept[number] += evaluation.by_shape.sizes_of_rows(rows).sum(axis=0)
    return times.weights("latency"), kept


def _state_bytes(prepared: JobCheckpoint, block: Block) -> float:
    """Weights of a block, and for what is trained gradients and optimizer state, sharded as ZeRO says."""
    job = prepared.job
    training, parallel = job.training, job.parallel
    weight = training.precision.tensor_dtype.size_bytes
    gradient = training.grad_dtype.size_bytes
    master = training.master_dtype.size_bytes if training.master_dtype is not training.precision.tensor_dtype else 0
    moment = training.optimizer_state_dtype.size_bytes
    total = 0.0
    for held in block.parameters:
        ranks = parallel.expert_shard_ranks if held.is_expert else parallel.shard_ranks
        shards = [ranks if parallel.zero >= stage else 1 for stage in (3, 2, 1)]
        each = weight / shards[0]
        if held.is_packed and training.frozen_weights is not None:
            each = training.frozen_weights.packed_bytes(held.elements) / held.elements
        if held.parameter.requires_grad:
            is_other = training.optimizer is Optimizer.MUON and not held.is_matrix
            step = master + (2 if is_other else training.optimizer.fewest_moments) * moment
            each += gradient / shards[1] + step / shards[2]
        total += each * held.elements
    return total

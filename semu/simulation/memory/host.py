"""What lives on the host: bytes per GPU, and what of it this version does not model."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.errors import ConfigError
from semu.hardware.device import OFFLOAD
from semu.job import Fp8Weights, Precision, RecomputeMethod, TrainingJob
from semu.simulation.context import TimedJob
from semu.simulation.memory.saved import highest_level
from semu.simulation.memory.static import rank_static
from semu.units import GIB

_SIGNS = np.array([1, -1, -1, 0, 0])
"""Whether a stage copies out (1) or has read what was copied (-1), by its code."""


def check_offload(job: TrainingJob) -> None:
    """Refuse what would be wrong.

    Raises:
        ConfigError: weights on the host beside what does not go with them, patterns that name no layer.
    """
    plan = job.training.offload_plan
    if plan.weights:
        _check_weights(job)
    if not plan.layers:
        return
    paths = [path for module in job.model.modules for path, _ in module.blocks()]
    for pattern in plan.layers:
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ConfigError(
                f"no block of the model is called {pattern!r}",
                where="training.offload_layers",
                expected="paths or patterns of " + ", ".join(paths),
                got=pattern,
            )


def _check_weights(job: TrainingJob) -> None:
    """Refuse what would be wrong with weights on the host.

    Raises:
        ConfigError: fp8 copies of the weights that stay on the device, layers that are traced as one, ZeRO-3 that keeps
            gathered parameters through a pipeline, experts that ZeRO-3 does not shard.
    """
    training = job.training
    if training.precision is Precision.FP8 and job.fp8_weights is not Fp8Weights.MICROBATCH:
        raise ConfigError(
            "fp8 copies of the weights are kept, and offloaded weights leave the device",
            where="training.fp8_weights",
            expected='microbatch, or training.offload without "weights"',
            got=job.fp8_weights.value,
            nearest="microbatch",
        )
    if job.gathers_once:
        raise ConfigError(
            "offload of weights that ZeRO-3 keeps gathered through a pipeline",
            where="parallel.reshard_after_forward",
            expected='true, or training.offload without "weights"',
            got="false",
            nearest="true",
        )
    parallel = job.parallel
    is_spread = parallel.ep > 1 or parallel.expert_tensor_ranks != parallel.tp
    if parallel.zero == 3 and is_spread and parallel.expert_shard_ranks == 1 and parallel.shard_ranks > 1:
        raise ConfigError(
            "offload of weights with ZeRO-3 and experts that no two ranks share is not modelled by this version",
            where="training.offload",
            expected="an offload without weights, or a smaller ep",
            got="weights",
            nearest="optimizer",
        )
    groups = training.recompute_method is not RecomputeMethod.BLOCK and (training.recompute_layers or 1) > 1
    if groups:
        raise ConfigError(
            "offload of weights with layers that are recomputed in groups is not modelled by this version",
            where="training.recompute_layers",
            expected='1, or recompute_method = "block"',
            got=training.recompute_layers,
            nearest=1,
        )


def host_memory(timed: TimedJob) -> tuple[int, ...] | None:
    """Host memory of one GPU of every pipeline rank at its highest [bytes]; None where nothing is offloaded."""
    layout, run, plan = timed.layout, timed.run, timed.job.training.offload_plan
    if not (plan.activations or plan.weights or plan.optimizer or OFFLOAD.name in layout.streams):
        return None
    result = []
    for rank in range(layout.job.parallel.pp):
        static = rank_static(layout, rank)
        size = static.host + static.host_weights
        result.append(size + highest_level(run, rank, lambda kind: np.multiply.outer(_SIGNS, _copied(timed, kind))))
    return tuple(result)


def host_notes(layout: Layout, hosts: Sequence[int] | None) -> list[str]:
    """What a reader should know about the host's memory."""
    if hosts is None:
        return []
    job = layout.job
    have = job.cluster.profile.host.memory_bytes.value
    note = f"offload: up to {max(hosts) / GIB:.2f} GiB of host memory per GPU"
    if job.training.offload_plan.weights:
        weights = max(rank_static(layout, rank).host_weights for rank in range(job.parallel.pp))
        note += f" (weights: {weights / GIB:.2f} GiB)"
    notes = [f"{note}, more than the {have / GIB:.0f} GiB that there is" if max(hosts) > have else note]
    if job.training.offload_plan.weights and not layout.cut.on_host:
        notes.append("offload of weights changes nothing: no layer between data and loss is chosen")
    return notes


def _copied(costed: CostedJob, number: int) -> NDArray[np.int64]:
    """Bytes that a forward stage of a chunk copies out, for every shape: int64[num_shapes]."""
    layout, evaluation = costed.layout, costed.evaluation
    rows = layout.kinds[number].forward.rows
    copies = np.array(
        [layout.library.operators[row].stream.name == OFFLOAD.name for row in rows.tolist()], dtype=np.bool_
    )
    total: NDArray[np.int64] = evaluation.by_shape.columns.net_bytes[rows[copies]].sum(axis=0)
    if evaluation.shapes.idle >= 0:
        total[evaluation.shapes.idle] = 0
    return total

"""Between the reduced gradients and the optimizer step: loss scale, global norm, clipping; all off by default.

Each is a pass over the gradients that the rank will step (its shard under ZeRO), memory-bound, costed as the optimizer
is (the same multi-tensor kernels), and for what must be known everywhere an all-reduce of one fp32 number.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.job import Training
from semu.parallel.axes import DATA
from semu.simulation.transfers import collective, on_device

SCALAR_BYTES = 4
"""One fp32 number: the sum of squares, or whether anything is infinite."""


def gradient_checks(
    costed: CostedJob, begin_s: float, of_ranks: Sequence[CostedJob] | None = None
) -> tuple[list[tuple[OuterSlice, ...]], float]:
    """What happens to the gradients before the step.

    Args:
        begin_s: when every rank's gradients are reduced. of_ranks: where ranks have different numbers of GPUs, the job
            in which each is as it is.
    Returns:
        Operators of each pipeline rank, and when the step may begin [s].
    Source:
        Megatron-LM's mixed-precision optimizer: unscaling reads and writes every gradient and an all-reduce tells of
        infinities; the norm reads every gradient and its square is summed; clipping reads and writes every gradient.
        It clips only where the norm exceeds the limit; here always.
    """
    layout, model = costed.layout, costed.cost_model
    ranks = range(layout.job.parallel.pp)
    sweeps = _sweeps(costed.job.training)
    own = of_ranks or [costed] * len(ranks)
    gradients = [_gradient_bytes(own[rank], rank) for rank in ranks] if sweeps else []
    if not any(gradients):
        return [()] * len(ranks), begin_s
    operators: list[list[OuterSlice]] = [[] for _ in ranks]
    group, now = norm_group(layout), begin_s
    for name, times, agreed in sweeps:
        for rank in ranks:
            if gradients[rank]:
                operators[rank].append(on_device(model, name, OpKind.OPTIMIZER, times * gradients[rank], now))
        now = max([now, *(of_rank[-1].end_s for of_rank in operators if of_rank)])
        if agreed and group.num_ranks > 1:
            piece = collective(model, agreed, OpKind.ALL_REDUCE, group, SCALAR_BYTES, now)
            for of_rank in operators:
                of_rank.append(piece)
            now = piece.end_s
    return [tuple(of_rank) for of_rank in operators], now


def rank_checks(costed: CostedJob, rank: int, begin_s: float) -> tuple[OuterSlice, ...]:
    """What one rank does to its gradients before a step that waits for no other rank (2401.10241 §4): the same sweeps;
    the all-reduces run beside the next iteration.

    Args:
        begin_s: when the rank's gradients are reduced.
    """
    size = _gradient_bytes(costed, rank)
    operators: list[OuterSlice] = []
    for name, times, _ in _sweeps(costed.job.training) if size else ():
        operators.append(on_device(costed.cost_model, name, OpKind.OPTIMIZER, times * size, begin_s))
        begin_s = operators[-1].end_s
    return tuple(operators)


def _sweeps(training: Training) -> list[tuple[str, int, str]]:
    """Kernels over the gradients in order: name, times that every gradient is read or written, and the name of the
    all-reduce behind it; empty: none."""
    sweeps = []
    if training.loss_scaling:
        sweeps.append(("unscale gradients", 2, "infinities"))
    if training.gradient_clipping:
        sweeps += [("gradient norm", 1, "gradient norm"), ("clip gradients", 2, "")]
    return sweeps


def _gradient_bytes(costed: CostedJob, rank: int) -> int:
    """Gradients that a rank steps: of all its parameters, or of its shard [bytes]."""
    return costed.layout.stepped_elements(rank) * costed.job.training.grad_dtype.size_bytes


def norm_group(layout: Layout) -> CommGroup:
    """Ranks that together hold every gradient once: one replica's, or one sharding group's where they are sharded; as
    many replicas as have all experts."""
    parallel, mesh = layout.job.parallel, layout.mesh
    span = 1
    if parallel.has_own_gpus:
        replicas = parallel.replicas if parallel.zero >= 1 else 1
        spans = [(place.first_gpu, place.width * replicas) for place in parallel.rank_places]
        return layout.job.cluster.place_group("world", [first + n for first, count in spans for n in range(count)])
    if any(held.is_expert for rank in range(parallel.pp) for _, _, held in layout.held_by(rank)):
        span = -(-parallel.ep * parallel.expert_tensor_ranks // parallel.tp)
    if span > parallel.cp:
        span = -(-span // parallel.cp) * parallel.cp  # whole replicas
    ranks = parallel.shard_ranks // parallel.copies if parallel.zero >= 1 else span
    halves = parallel.copies if parallel.zero == 0 else 1  # of two copies of the model, half of the ranks hold one
    firsts = (mesh.rank(pp=pp) for pp in range(parallel.pp // halves))
    gpus = [mesh.gpu_of(first + peer) for first in firsts for peer in range(ranks * parallel.stride(DATA[0]))]
    return layout.job.cluster.place_group("world", gpus)

"""Between the reduced gradients and the optimizer step: loss scale, global norm, clipping; all off by default.

Each is a pass over the gradients that the rank will step (its shard under ZeRO), memory-bound, costed as the optimizer
is (the same multi-tensor kernels), and for what must be known everywhere an all-reduce of one fp32 number.
"""

from __future__ import annotations

from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.parallel.axes import DATA
from semu.simulation.transfers import collective, on_device

SCALAR_BYTES = 4
"""One fp32 number: the sum of squares, or whether anything is infinite."""


def gradient_checks(costed: CostedJob, begin_s: float) -> tuple[list[tuple[OuterSlice, ...]], float]:
    """What happens to the gradients before the step.

    Args:
        begin_s: when every rank's gradients are reduced.
    Returns:
        TimedOperators per pipeline rank, and when the step may begin [s].
    Source:
        Megatron-LM's mixed-precision optimizer: unscaling reads and writes every gradient and an all-reduce tells of
        infinities; the norm reads every gradient and its square is summed; clipping reads and writes every gradient.
        It clips only where the norm exceeds the limit; here always.
    """
    layout, model, training = costed.layout, costed.cost_model, costed.job.training
    if not (training.loss_scaling or training.gradient_clipping):
        return [()] * layout.job.parallel.pp, begin_s
    ranks = range(layout.job.parallel.pp)
    slices: list[list[OuterSlice]] = [[] for _ in ranks]
    gradients = [graded_elements(layout, rank) * training.grad_dtype.size_bytes for rank in ranks]
    now = begin_s

    def sweep(name: str, times: int) -> None:
        nonlocal now
        for rank in ranks:
            if gradients[rank]:
                slices[rank].append(on_device(model, name, OpKind.OPTIMIZER, times * gradients[rank], now))
        now = max([now, *(mine[-1].end_s for mine in slices if mine)])

    def agree(name: str) -> None:
        nonlocal now
        group = norm_group(layout)
        if group.num_ranks > 1:
            piece = collective(model, name, OpKind.ALL_REDUCE, group, SCALAR_BYTES, now)
            for rank in ranks:
                slices[rank].append(piece)
            now = piece.end_s

    if training.loss_scaling and any(gradients):
        sweep("unscale gradients", 2)
        agree("infinities")
    if training.gradient_clipping and any(gradients):
        sweep("gradient norm", 1)
        agree("gradient norm")
        sweep("clip gradients", 2)
    return [tuple(mine) for mine in slices], now


def own_checks(costed: CostedJob, rank: int, begin_s: float) -> tuple[OuterSlice, ...]:
    """What one rank does to its own gradients before a step that waits for no other rank (2401.10241 §4): the same
    sweeps; what the ranks tell one another goes beside the next iteration.

    Args:
        begin_s: when the rank's gradients are reduced.
    """
    training = costed.job.training
    size = graded_elements(costed.layout, rank) * training.grad_dtype.size_bytes
    sweeps = [("unscale gradients", 2)] if training.loss_scaling else []
    sweeps += [("gradient norm", 1), ("clip gradients", 2)] if training.gradient_clipping else []
    slices: list[OuterSlice] = []
    for name, times in sweeps if size else ():
        slices.append(on_device(costed.cost_model, name, OpKind.OPTIMIZER, times * size, begin_s))
        begin_s = slices[-1].end_s
    return tuple(slices)


def graded_elements(layout: Layout, rank: int) -> int:
    """Trainable elements whose gradients a rank steps: all of its own, or its shard."""
    return layout.stepped_elements(rank)


def norm_group(layout: Layout) -> CommGroup:
    """Ranks that together hold every gradient once: one replica's, or one sharding group's where they are sharded; as
    many replicas as have all experts."""
    parallel, mesh = layout.job.parallel, layout.mesh
    span = 1
    if any(layout.experts_by(rank) for rank in range(parallel.pp)):
        span = -(-parallel.ep * parallel.expert_tensor_ranks // parallel.tp)
    if span > parallel.cp:
        span = -(-span // parallel.cp) * parallel.cp  # whole replicas
    ranks = parallel.shard_ranks // parallel.copies if parallel.zero >= 1 else span
    halves = parallel.copies if parallel.zero == 0 else 1  # of two copies of the model, half of the ranks hold one
    firsts = (mesh.gpu(pp=pp) for pp in range(parallel.pp // halves))
    gpus = [first + peer for first in firsts for peer in range(ranks * parallel.stride(DATA[0]))]
    return layout.job.cluster.place_group("world", gpus)

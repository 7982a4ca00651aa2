"""What follows the pipeline: gradient reduction, optimizer step, parameter gathers.

The optimizer starts when every rank's gradients are reduced (``reduce``), because the gradient norm is global
(Megatron-LM's clipping); with ``optimizer_post_validation`` when the rank's own are. With ZeRO-1 the gradients are
reduce-scattered (in groups, ``zero_group``, and then all-reduced across them), each rank steps its shard, and the
parameters are gathered: after the step, or (``overlap.param_gather``) during the next iteration's first forwards
(``gathers_before_forwards``). With ZeRO-2 and ZeRO-3 the gradients are reduced inside the stages
(``semu.compile.zero_exchange``), and with ZeRO-3 the parameters are gathered there; where ZeRO-3 gathers once an
iteration, its units are reduced behind the stages like buckets (``fsdp_units``). Weights that live on the host are
written back behind the step and what gathers them (``weights_on_host``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from semu import memo
from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.hardware.device import OFFLOAD, RELOAD
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup
from semu.hardware.number import worst_provenance
from semu.job import Optimizer
from semu.job.kinds import OptimizerKernels, ParameterSync
from semu.nn.rules.optimizer import average_bytes, foreach_bytes, muon_bytes, optimizer_bytes
from semu.nn.trace.offload import HOST_LINK
from semu.records import dataclass
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.clipping import gradient_checks, rank_checks
from semu.simulation.data_parallel.interference import interferences
from semu.simulation.data_parallel.muon import orthogonalization_s, products_provenance
from semu.simulation.data_parallel.reduce import Reduction, Reductions, by_rank
from semu.simulation.data_parallel.timed_operators import TimedOperators
from semu.simulation.memory.static import rank_static
from semu.simulation.memory.weights_on_host import host_weights, trained_on_host
from semu.simulation.transfers import collective, moved, on_device, timed_operator


@dataclass(frozen=True, eq=False)
class RankStep:
    """The optimizer step of a pipeline rank and what follows it.

    Attributes:
        reload, offload: copies of optimizer state and weights from the host and back, where they live there.
        optimizer: the optimizer's step, or None where nothing trains.
        gathers: parameter all-gathers after the step.
        casts: fp8 copies of the weights, made after the step for the whole next iteration.
    """

    optimizer: OuterSlice | None = None
    gathers: tuple[OuterSlice, ...] = ()
    casts: tuple[OuterSlice, ...] = ()
    reload: tuple[OuterSlice, ...] = ()
    offload: tuple[OuterSlice, ...] = ()

    @cached_property
    def end_s(self) -> float:
        """End of the last of them [s]; 0: nothing."""
        step = (self.optimizer,) if self.optimizer else ()
        slices = (*self.reload, *step, *self.offload, *self.casts, *self.gathers)
        return max((s.end_s for s in slices), default=0.0)

    def after(self, time_s: float) -> RankStep:
        """The same, begun at a time and not at 0 [s]."""

        def _later(operators: tuple[OuterSlice, ...]) -> tuple[OuterSlice, ...]:
            return tuple([timed_operator(op, op.start_s + time_s, op.end_s + time_s) for op in operators])

        step = _later((self.optimizer,))[0] if self.optimizer else None
        return RankStep(step, _later(self.gathers), _later(self.casts), _later(self.reload), _later(self.offload))


@dataclass(frozen=True, eq=False)
class RankTail:
    """What one pipeline rank does after its last stage.

    Attributes:
        reductions: gradient collectives, in order. step: the optimizer step and what follows it.
        checks: what the gradients go through before the step: unscaling, their norm, scaling (``gradient_checks``).
        interference: what kernels lost to hidden collectives, before the checks.
    """

    reductions: TimedOperators
    step: RankStep
    checks: tuple[OuterSlice, ...] = ()
    interference: OuterSlice | None = None

    @property
    def gathers(self) -> tuple[OuterSlice, ...]:
        """Parameter all-gathers after the step."""
        return self.step.gathers

    @property
    def steps(self) -> tuple[OuterSlice, ...]:
        """The optimizer step with what surrounds it."""
        of_step = self.step
        lost = (self.interference,) if self.interference else ()
        step = (of_step.optimizer,) if of_step.optimizer else ()
        return (*lost, *self.checks, *of_step.reload, *step, *of_step.offload, *of_step.casts)

    @property
    def end_s(self) -> float:
        """End of the last of them [s]."""
        before = (self.interference, *self.checks) if self.interference else self.checks
        return max([self.step.end_s, *self.reductions.end_s, *(piece.end_s for piece in before)])


def rank_tails(
    timed: TimedJob, collectives: Reductions | Sequence[Reduction], of_ranks: Sequence[CostedJob] | None = None
) -> list[RankTail]:
    """Reductions, optimizer and gathers of every pipeline rank.

    Args:
        timed: the job under a schedule. collectives: its reductions. of_ranks: as ``gradient_checks``.
    """
    reductions = by_rank(timed.layout, collectives)
    losses = interferences(timed, reductions)
    if timed.job.training.optimizer_post_validation:
        return _steps_apart(timed, reductions, losses)
    barrier = max(
        [float(timed.run.makespan().max()), 0.0, *(slices.end_s[-1] for slices in reductions if slices.end_s)]
    )
    barrier = max([barrier, *(loss.end_s for loss in losses if loss is not None)])
    checks, barrier = gradient_checks(timed, barrier, of_ranks)
    steps = rank_steps(timed)
    if of_ranks is not None:
        steps = [rank_steps(own)[rank] for rank, own in enumerate(of_ranks)]
    begun = {key: step.after(barrier) for key, step in {id(step): step for step in steps}.items()}
    return [
        RankTail(slices, begun[id(step)], checks[rank], losses[rank])
        for rank, (slices, step) in enumerate(zip(reductions, steps, strict=True))
    ]


def _steps_apart(
    timed: TimedJob, reductions: Sequence[TimedOperators], losses: Sequence[OuterSlice | None]
) -> list[RankTail]:
    """The tails of ranks that step as soon as their own gradients are reduced."""
    tails = []
    for rank, (slices, step, loss) in enumerate(zip(reductions, rank_steps(timed), losses, strict=True)):
        begin = max([timed.run.rank_ends[rank], *slices.end_s, *([loss.end_s] if loss is not None else [])])
        checks = rank_checks(timed, rank, begin)
        begin = checks[-1].end_s if checks else begin
        tails.append(RankTail(slices, step.after(begin) if step.optimizer is not None else step, checks, loss))
    return tails


def rank_steps(costed: CostedJob) -> list[RankStep]:
    """The optimizer step of every pipeline rank as if it began at time 0; remembered, equal ones are one."""

    layout, model = costed.layout, costed.cost_model

    def _find() -> list[RankStep]:
        distinct: dict[tuple[object, ...], RankStep] = {}
        every = range(layout.job.parallel.pp)
        likeness = [layout.likeness(rank) for rank in every]
        first = dict(zip(reversed(likeness), reversed(every), strict=True))
        steps = {own: _find_step(costed, rank) for own, rank in first.items()}
        return [distinct.setdefault(tuple(vars(steps[own]).values()), steps[own]) for own in likeness]

    return _find() if model.rules else _STEPS.get(layout.place, model, _find)


_STEPS = memo.ScopedTable[list[RankStep]]("optimizer steps of every rank in a place, by cost model", 64)


def _find_step(costed: CostedJob, rank: int) -> RankStep:
    layout, model, job = costed.layout, costed.cost_model, costed.job
    if not layout.cut.trainable[rank]:
        return RankStep()
    dtype = job.training.precision.tensor_dtype
    narrower = sum(layout.narrower_bytes(pool) for pool in layout.pools(rank))
    if not _writes_copies(costed) and job.training.optimizer_kernels is OptimizerKernels.FUSED:
        narrower += layout.stepped_elements(rank) * dtype.size_bytes
    traffic = _step_bytes(costed, rank) - narrower
    reload, offload = _state_copies(costed, rank)
    begin = reload[0].end_s if reload else 0.0
    away = host_weights(layout, rank)
    if away.read:
        reload += (collective(model, "weights in", OpKind.P2P, HOST_LINK[RELOAD], away.read, begin),)
        begin = reload[-1].end_s
    optimizer = job.training.optimizer
    step = replace(on_device(model, optimizer.value, OpKind.OPTIMIZER, traffic, begin), name=f"{optimizer.title} step")
    if optimizer is Optimizer.MUON:
        provenance = worst_provenance(step.provenance, products_provenance(costed))
        step = replace(step, end_s=step.end_s + orthogonalization_s(costed, rank), provenance=provenance)
    offload = tuple(moved(piece, step.end_s) for piece in offload)
    done = offload[0].end_s if offload else step.end_s
    gathers: list[OuterSlice] = []
    if job.parallel.zero in (1, 2):
        for pool in layout.pools(rank):
            size = layout.trained_bytes(pool)
            if job.hides_gathers:  # all else hides behind the next first forwards
                size = trained_on_host(layout, pool) * dtype.size_bytes
            if size and pool.ranks > 1:
                gathers += _from_owners(costed, pool.shard_group(rank), size, done)
                done = gathers[-1].end_s
    if away.written:
        offload += (collective(model, "weights out", OpKind.P2P, HOST_LINK[OFFLOAD], away.written, done),)
        done = offload[-1].end_s
    casts = _weight_casts(costed, rank, done)
    return RankStep(step, tuple(gathers), casts, reload, offload)


def _from_owners(costed: CostedJob, group: CommGroup, size: int, begin_s: float) -> list[OuterSlice]:
    """What brings stepped parameters of ``size`` bytes in all to every rank of a group: an all-gather, or a broadcast
    from each of them, which sends a rank's share once along the ring (nccl-tests' factor of a broadcast is 1) and is
    costed by the coefficients of an all-gather of as many wire bytes."""
    model = costed.cost_model
    if costed.job.training.parameter_sync is ParameterSync.ALL_GATHER:
        return [collective(model, "parameters", OpKind.ALL_GATHER, group, size, begin_s)]
    share = -(-size // group.num_ranks)
    lasts = float(model.outer_latency(OpKind.ALL_GATHER, "broadcast", group=group, net_bytes=share)[0])
    provenance, pieces = model.outer_provenance(OpKind.ALL_GATHER, group), []
    for owner in range(group.num_ranks):
        name, ends = f"parameters of {owner}", (begin_s + lasts * owner, begin_s + lasts * (owner + 1))
        pieces.append(
            OuterSlice(name, OpKind.ALL_GATHER, group.name, *ends, share, group.num_ranks, provenance, group.port)
        )
    return pieces


def _step_bytes(costed: CostedJob, rank: int) -> int:
    """Memory traffic of a rank's step [bytes], and of the moving average behind it."""
    training = costed.job.training
    dtypes = {
        "tensor_dtype": training.precision.tensor_dtype,
        "grad_dtype": training.grad_dtype,
        "master_dtype": training.master_dtype,
        "state_dtype": training.optimizer_state_dtype,
    }
    shares = costed.layout.optimizer_shares(rank)
    elements = sum(share.elements for share in shares)
    by_muon = sum(share.single_moments for share in shares) if training.optimizer is Optimizer.MUON else 0
    average = average_bytes(elements, training.master_dtype) if training.weight_average else 0
    moments = 2 if training.optimizer is Optimizer.MUON else training.optimizer.fewest_moments
    if training.optimizer_kernels is OptimizerKernels.FOREACH:
        others = foreach_bytes(elements - by_muon, moments, is_copied=_writes_copies(costed), **dtypes)
    else:
        others = optimizer_bytes(elements - by_muon, moments, **dtypes)
    return average + others + (muon_bytes(by_muon, **dtypes) if by_muon else 0)


def _writes_copies(costed: CostedJob) -> bool:
    """Whether the step writes 16-bit parameters: not where gathers or autocast make them of the masters."""
    return not costed.job.shards_are_masters and costed.job.training.autocast is None


def _state_copies(costed: CostedJob, rank: int) -> tuple[tuple[OuterSlice, ...], tuple[OuterSlice, ...]]:
    """The rank's optimizer state, from the host before the step and back behind it; it is not hidden behind the step.

    Bucket by bucket, so that only one is on the device; the times of all buckets are added up.
    """
    state, model = rank_static(costed.layout, rank).host, costed.cost_model
    if not state:
        return (), ()
    group, back = HOST_LINK[RELOAD], HOST_LINK[OFFLOAD]
    into = collective(model, "optimizer state in", OpKind.P2P, group, state, 0.0)
    return (into,), (collective(model, "optimizer state out", OpKind.P2P, back, state, 0.0),)


def _weight_casts(costed: CostedJob, rank: int, begin_s: float) -> tuple[OuterSlice, ...]:
    """The rank's fp8 weights, cast for the next iteration: read in the parameters' type, fp8 copies written; of primary
    fp8 weights that are gathered as such, only transposed."""
    layout = costed.layout
    elements, job = layout.kept_fp8_elements(rank), layout.job
    copies = job.fp8_copies * (elements * DType.FP8.size_bytes + layout.kept_fp8_scale_bytes(rank))
    traffic = elements * job.training.precision.tensor_dtype.size_bytes + copies
    if job.moves_fp8_weights:
        traffic = copies if job.fp8_copies > 1 else 0  # one read, the other written
    if not elements or not traffic:
        return ()
    return (on_device(costed.cost_model, "fp8 weights", OpKind.CAST, traffic, begin_s),)

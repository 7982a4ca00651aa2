"""What one rank steps of the parameters that it holds: everything, an equal shard, or, under Muon, whole matrices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from semu.compile.parameter_pools import ParameterPool
from semu.compile.tracer import HeldParameter
from semu.job import Optimizer, TrainingJob
from semu.records import dataclass


@dataclass(frozen=True)
class Matrix:
    """A matrix that Muon makes orthogonal, as a rank holds it.

    Attributes:
        rows, columns: local sizes. split: the axis that tensor-parallel ranks share, 0 or 1; None: the rank has all.
    """

    rows: int
    columns: int
    split: int | None = None

    @property
    def flop(self) -> int:
        """Floating-point operations of one Newton-Schulz step at least."""
        short, long = sorted((self.rows, self.columns))
        return 4 * short * short * long + 2 * short**3


@dataclass(frozen=True)
class OptimizerShare:
    """What a rank steps.

    Attributes:
        elements: parameters. moments: elements of all moments of them. matrices: those that Muon makes orthogonal, and
            how often each.
    """

    elements: int
    moments: int
    matrices: tuple[tuple[Matrix, int], ...] = ()

    @property
    def single_moments(self) -> int:
        """Elements with one moment; all others have two."""
        return 2 * self.elements - self.moments

    @property
    def flop(self) -> int:
        """Of one Newton-Schulz step of every matrix, at least."""
        return sum(count * matrix.flop for matrix, count in self.matrices)


def share_of_pool(job: TrainingJob, pool: ParameterPool) -> OptimizerShare:
    """What the busiest rank of a pool steps.

    Muon needs whole matrices, so ZeRO-1 deals whole parameters to the ranks, the smallest first and every other round
    backwards (Megatron-LM's layer-wise distributed optimizer, ``--optimizer dist_muon``); where one rank is the
    busiest and another the fullest, the result has the products of the first and the elements of the second.
    """
    shards = pool.shards if job.parallel.zero >= 1 else 1
    if job.training.optimizer is not Optimizer.MUON:
        elements = -(-pool.trained_elements // shards)
        return OptimizerShare(elements, elements * job.training.optimizer.fewest_moments)
    trained = pool.trained
    if shards > 1:
        shares = [_share_of(mine) for mine in dealt([one for held in trained for one in _apart(held)], shards)]
        training = job.training
        has_master = training.master_dtype is not training.precision.tensor_dtype
        each = training.master_dtype.size_bytes if has_master else 0, training.optimizer_state_dtype.size_bytes
        busiest = max(shares, key=lambda share: share.flop)
        fullest = max(shares, key=lambda share: share.elements * each[0] + share.moments * each[1])
        return OptimizerShare(fullest.elements, fullest.moments, busiest.matrices)
    return _share_of(trained)


def _apart(held: HeldParameter) -> list[HeldParameter]:
    """Experts' weights and biases one by one, as frameworks keep them; any other parameter as it is."""
    several = held.shape[0] if len(held.shape) == 3 or (len(held.shape) == 2 and not held.is_matrix) else 1
    if several == 1 or not held.in_layer:
        return [held]
    return [replace(held, shape=(1, *held.shape[1:]), elements=held.elements // several)] * several


def dealt(trained: Sequence[HeldParameter], ranks: int) -> list[list[HeldParameter]]:
    """Whole parameters dealt to ranks, the smallest first, every other round backwards."""
    hands: list[list[HeldParameter]] = [[] for _ in range(ranks)]
    ordered = sorted(trained, key=lambda held: held.elements)
    for first in range(0, len(ordered), ranks):
        turn = hands if first // ranks % 2 == 0 else reversed(hands)
        for hand, held in zip(turn, ordered[first : first + ranks], strict=False):
            hand.append(held)
    return hands


def _share_of(trained: Iterable[HeldParameter]) -> OptimizerShare:
    elements = moments = 0
    matrices: Counter[Matrix] = Counter()
    for held in trained:
        elements += held.elements
        moments += held.elements * (1 if held.is_matrix else 2)
        if held.is_matrix:
            matrices.update(matrices_of(held))
    return OptimizerShare(elements, moments, tuple(matrices.items()))


def matrices_of(held: HeldParameter) -> list[Matrix]:
    """The matrices of a parameter as one rank holds them: every expert's, and of fused queries, keys and values each;
    gate and up projection are one (Megatron-LM, ``TensorParallelMuon`` and its default of ``--muon-split-qkv``)."""
    *several, rows, columns = held.shape
    whole_rows, whole_columns = held.parameter.shape[-2:]
    split = 0 if rows < whole_rows else 1 if columns < whole_columns else None
    parts = [max(1, part * rows // sum(held.parts)) for part in held.parts] if len(held.parts) > 2 else [rows]
    return [Matrix(part, columns, split) for part in parts] * math.prod(several)

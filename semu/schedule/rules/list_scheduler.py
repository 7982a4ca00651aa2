"""``list_schedule``: a schedule by earliest start on a pipeline's own numbers; ``search_policies``: the best of some.

After the automatic scheduler of zero bubble (2401.10241 §3.1): forwards as long as memory allows, then one backward,
one forward; weight gradients in gaps that are long enough, or where memory is short; a handful of such policies, of
which the best is kept. Written for stages on any ranks, so that it also serves V-shapes, waves and modality modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.errors import MemoryLimitError
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy, StudyResult
from semu.units import format_bytes

I64 = NDArray[np.int64]
_MOST = 2**61


@dataclass(frozen=True)
class Policy:
    """Choices that the list scheduler leaves open.

    Attributes:
        patient: a forward does not start where it would delay a backward that is on its way.
        group: microbatches that go through a chunk of a rank before they go through the next, as in interleaved 1F1B.
        eager_weights: weight gradients fill every gap, however short.
        slack: by how much of its own time a weight gradient may overrun a gap.
    """

    patient: bool = False
    group: int = 1
    eager_weights: bool = False
    slack: float = 0.0


POLICIES = tuple(
    Policy(patient, eager_weights=eager, slack=slack)
    for patient in (False, True)
    for eager, slack in ((False, 0.0), (False, 0.5), (True, 0.0))
)
"""What ``search_policies`` tries."""


def list_schedule(
    study: PipelineStudy,
    name: str,
    *,
    limit_bytes: ArrayLike | None = None,
    split: bool = False,
    policy: Policy | None = None,
) -> Schedule:
    """One schedule by earliest start.

    Args:
        study: the pipeline with its costs. name: of the schedule.
        limit_bytes: of what forwards leave, one number or one per rank [bytes]; by default none.
        split: whether backwards are split. policy: the rest.
    Raises:
        MemoryLimitError: a rank has no room for a microbatch.
    """
    ptr, stages = _ordered(study, _limits(study, name, limit_bytes), split, policy or Policy(), name)
    return study.arrays.to_schedule(name, ptr, stages)


def search_policies(
    study: PipelineStudy,
    name: str,
    *,
    limit_bytes: ArrayLike | None = None,
    split: bool = True,
    policies: Iterable[Policy] = POLICIES,
) -> Schedule:
    """The schedule of shortest makespan that any policy finds, of equals the best by ``merit``. Arguments as
    ``list_schedule``."""
    limit = _limits(study, name, limit_bytes)
    best_score, best = (np.inf, np.inf, 0), None
    for policy in policies:
        ptr, stages = _ordered(study, limit, split, policy, name)
        score = merit(study.evaluate_orders(ptr, stages, name))
        if score < best_score:
            best_score, best = score, (ptr, stages)
    assert best is not None
    return study.arrays.to_schedule(name, *best)


def merit(evaluation: StudyResult) -> tuple[float, float, int]:
    """Makespan [s], then the longest span of a rank [s], then the highest memory of one [bytes]: lower is better."""
    return evaluation.makespan_s, evaluation.span_s, int(evaluation.peak_bytes.max(initial=0))


def activation_limit(study: PipelineStudy, microbatches: int) -> I64:
    """The memory of so many of its largest microbatches on each rank: int64[num_ranks] [bytes]."""
    return np.asarray(microbatches * held_bytes(study).max(axis=0, initial=0), dtype=np.int64)


def _limits(study: PipelineStudy, name: str, limit_bytes: ArrayLike | None) -> I64:
    num_ranks = study.shape.num_ranks
    limit = np.asarray(_MOST if limit_bytes is None else limit_bytes, dtype=np.int64)
    limit = np.ascontiguousarray(np.broadcast_to(limit, (num_ranks,)))
    need = held_bytes(study)
    for rank in range(num_ranks):
        most = int(need[:, rank].max(initial=0))
        if most > limit[rank]:
            raise MemoryLimitError(
                f"rank {rank} has no room for a microbatch",
                where=f"{name}: rank {rank}",
                expected=f"at least {format_bytes(most)}",
                got=format_bytes(int(limit[rank])),
                nearest=most,
            )
    return limit


def held_bytes(study: PipelineStudy) -> I64:
    """int64[num_microbatches, num_ranks] [bytes], what each microbatch leaves on each rank before its backward."""
    arrays, shape = study.arrays, study.shape
    held = np.zeros((shape.num_microbatches, shape.num_ranks), dtype=np.int64)
    pairs = np.flatnonzero(arrays.exists)
    np.add.at(held, (arrays.microbatch[pairs], arrays.rank[pairs]), study.costs.delta_bytes[4 * pairs])
    return held


def _ordered(study: PipelineStudy, limit: I64, split: bool, policy: Policy, name: str) -> tuple[I64, NDArray[np.int32]]:
    from semu.schedule import kernels

    arrays, shape, costs = study.arrays, study.shape, study.costs
    held = [shape.chunks_of(rank) for rank in range(shape.num_ranks)]
    need = held_bytes(study)
    drains = all(len(chunks) <= 1 for chunks in held) and not shape.part_counts
    if drains or np.all(limit >= _MOST):
        need = np.zeros_like(need)  # a chain of single chunks always drains
    order = np.zeros(arrays.num_stages, dtype=np.int32)
    chunks = np.array([chunk for own in held for chunk in own], dtype=np.int64)
    pairs = (arrays.first, arrays.exists, arrays.has_backward, arrays.rank, arrays.microbatch)
    way = (split, policy.patient, policy.group, policy.eager_weights, policy.slack, bool(shape.part_counts))
    count = kernels.list_schedule(
        (np.cumsum([0, *map(len, held)], dtype=np.int64), chunks, *pairs, arrays.pred_ptr, arrays.pred),
        (costs.latency_s, study.delay_s, costs.delta_bytes),
        limit,
        need,
        way,
        order,
    )
    chosen = order[:count]
    total = int(arrays.exists.sum() + (arrays.exists & arrays.has_backward).sum() * (2 if split else 1))
    if count < total:
        raise MemoryLimitError("no order of this pipeline fits in the memory", where=name, expected="a higher limit")
    rank = arrays.rank[chosen // 4]
    by_rank = np.argsort(rank, kind="stable")
    sizes = np.bincount(rank, minlength=shape.num_ranks)
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64), chosen[by_rank]

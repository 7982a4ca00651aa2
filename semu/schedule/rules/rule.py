"""``Rule``: how a pipeline is to be scheduled, as data; called with a pipeline's shape, the order of each rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.schedule.graph import PipelineGraph
from semu.schedule.rules.expressions import Number, Size, value_of
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

I64 = NDArray[np.int64]


class Rule(ABC):
    """How a pipeline is to be scheduled (FlexPipe §4.2); each kind is a frozen dataclass."""

    @property
    def splits(self) -> bool:
        """Whether its orders have input and weight gradients of their own."""
        return False

    @property
    def runs(self) -> bool:
        """Whether it runs the pipeline, so that costs matter to the order."""
        return type(self).on is not Rule.on

    def waiting(self, study: PipelineStudy) -> PipelineStudy:
        """The pipeline with what the rule holds back beside the flow of data."""
        return study

    @abstractmethod
    def __call__(self, shape: PipelineShape) -> StageColumns:
        """The order of each rank; a rule that runs the pipeline takes a second for each F, I and W.

        Raises:
            ConfigError: a number of the rule that is none there. ScheduleError: the pipeline cannot be ordered so.
        """

    def on(self, study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> StageColumns:
        """The order of a pipeline with its costs, by them where the rule runs the pipeline.

        Args:
            limit_bytes: of what forwards leave, one number or one per rank [bytes]; for rules that run the pipeline.
        Raises:
            as a call. MemoryLimitError: a rank has no room for a microbatch.
        """
        return self(study.shape)


def ranks_values(number: Number, shape: PipelineShape, where: str, least: int = 0) -> I64:
    """A number of a rule on every rank, whose r is the rank's place in the data flow (``PipelineShape.chain_places``):
    int64[num_ranks].

    Raises:
        ConfigError: as ``value_of``.
    """
    p, v, m = shape.num_ranks, shape.num_slots, shape.num_microbatches
    if isinstance(number, int):
        return np.full(p, value_of(number, Size(p, 0, v, m), where, least), dtype=np.int64)
    places = [Size(p, rank, v, m) for rank in shape.chain_places]
    return np.array([value_of(number, place, where, least) for place in places], dtype=np.int64)


def one_value(number: Number, shape: PipelineShape, where: str, least: int = 0) -> int:
    """A number of a rule that does not depend on the rank. Raises as ``value_of``."""
    return value_of(number, Size(shape.num_ranks, 0, shape.num_slots, shape.num_microbatches), where, least)


def by_rank(arrays: PipelineGraph, chosen: NDArray[np.integer]) -> StageColumns:
    """Stages in the order in which they were chosen, as the order of each rank. ``chosen``: int[n], stage numbers."""
    rank = arrays.rank[chosen // 4]
    sizes = np.bincount(rank, minlength=arrays.shape.num_ranks)
    stages = chosen[np.argsort(rank, kind="stable")]
    return arrays.to_schedule("rule", np.concatenate(([0], np.cumsum(sizes))), stages).columns


def joined(parts: Iterable[StageColumns]) -> StageColumns:
    """Orders one after another on every rank."""
    parts = list(parts)
    rank = np.concatenate([np.repeat(np.arange(len(part.ptr) - 1), np.diff(part.ptr)) for part in parts])
    by_rank = np.argsort(rank, kind="stable")
    ptr = np.sum([part.ptr for part in parts], axis=0)
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("chunk", "phase", "microbatch")]
    return StageColumns(ptr, *(column[by_rank] for column in columns))

"""``EarliestStart``: of all stages that could run next, the one that could start first.

After the automatic scheduler of zero bubble (2401.10241 §3.1): forwards as long as memory allows, then one backward,
one forward; weight gradients in gaps that are long enough, or where memory is short. Written for stages on any ranks,
so that it also serves V-shapes, waves and modality modules.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import MemoryLimitError
from semu.records import dataclass
from semu.schedule.rules.limits import NO_LIMIT, checked_limits
from semu.schedule.rules.rule import Rule, by_rank
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy


@dataclass(frozen=True)
class EarliestStart(Rule):
    """A list scheduler; a rank's microbatches enter where all ranks have room for them.

    Attributes:
        split: backwards are split.
        patient: a forward does not start where it would delay a backward that is on its way.
        group: microbatches that go through a chunk of a rank before they go through the next, as in interleaved 1F1B.
        eager_weights: weight gradients fill every gap, however short.
        slack: by how much of its own time a weight gradient may overrun a gap.
    """

    split: bool = False
    patient: bool = False
    group: int = 1
    eager_weights: bool = False
    slack: float = 0.0

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return self.split

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        return self.on(PipelineStudy.of(shape))

    def on(self, study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> StageColumns:
        """See ``Rule``."""
        limit = checked_limits(study, limit_bytes)
        from semu.schedule import kernels

        arrays, shape, costs = study.arrays, study.shape, study.costs
        held = [shape.chunks_of(rank) for rank in range(shape.num_ranks)]
        need = study.held_bytes
        drains = all(len(chunks) <= 1 for chunks in held) and not shape.part_counts
        if drains or np.all(limit >= NO_LIMIT):
            need = np.zeros_like(need)  # a chain of single chunks always drains
        order = np.zeros(arrays.num_stages, dtype=np.int32)
        chunks = np.array([chunk for own in held for chunk in own], dtype=np.int64)
        pairs = (arrays.first, arrays.exists, arrays.has_backward, arrays.rank, arrays.microbatch)
        way = (self.split, self.patient, self.group, self.eager_weights, self.slack, bool(shape.part_counts))
        count = kernels.list_schedule(
            (np.cumsum([0, *map(len, held)], dtype=np.int64), chunks, *pairs, arrays.pred_ptr, arrays.pred),
            (costs.latency_s, study.delay_s, costs.delta_bytes),
            limit,
            need,
            way,
            order,
        )
        chosen = order[:count]
        total = int(arrays.exists.sum() + (arrays.exists & arrays.has_backward).sum() * (2 if self.split else 1))
        if count < total:
            raise MemoryLimitError(
                "no order of this pipeline fits in the memory", where="rule", expected="a higher limit"
            )
        return by_rank(arrays, chosen)

"""``Separated``: gradient separation of the order of another rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from semu.schedule.rules.expressions import Number
from semu.schedule.rules.limits import activation_limit
from semu.schedule.rules.rule import Rule, one_value
from semu.schedule.rules.separation import separate
from semu.schedule.schedule import Schedule, StageColumns
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy


@dataclass(frozen=True)
class Separated(Rule):
    """The order of a rule, its weight gradients in its bubbles (FlexPipe Fig. 10).

    Attributes:
        inner: the rule. activations: a rank may hold the activations of so many microbatches, or as much as the rule's
            own order needs where that is more; None: as much as that.
    """

    inner: Rule
    activations: Number | None = None

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return True

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        return self.on(PipelineStudy.of(shape))

    def on(self, study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> StageColumns:
        """See ``Rule``."""
        given = Schedule("separated", self.inner.on(study, limit_bytes))
        held = study.evaluate(given).peak_bytes
        if limit_bytes is None and self.activations is not None:
            limit_bytes = activation_limit(study, one_value(self.activations, study.shape, "activations", 1))
        return separate(given, study, held if limit_bytes is None else np.maximum(limit_bytes, held)).columns

"""``BestOf``: of the orders of several rules, the one whose pipeline ends first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.records import dataclass
from semu.schedule.rules.expressions import Number
from semu.schedule.rules.limits import activation_limit
from semu.schedule.rules.rule import Rule, one_value
from semu.schedule.schedule import Schedule, StageColumns
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy, StudyResult


@dataclass(frozen=True)
class BestOf(Rule):
    """The order of shortest makespan, of equals that of the shortest span of a rank, then of the lowest memory, then
    of the first rule.

    Attributes:
        rules: candidates. activations: the activations of so many microbatches is the limit of what forwards leave on
            a rank, where no other limit is given; None: no limit. Orders that need more are left out.
    """

    rules: tuple[Rule, ...]
    activations: Number | None = None

    def __post_init__(self) -> None:
        if not self.rules:
            raise ConfigError("no rules to choose from", where="rules", expected="at least one rule", got="none")

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return any(rule.splits for rule in self.rules)

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        return self.on(PipelineStudy.of(shape))

    def on(
        self,
        study: PipelineStudy,
        limit_bytes: ArrayLike | None = None,
        *,
        score: Callable[[StudyResult], tuple[float, ...]] | None = None,
    ) -> StageColumns:
        """See ``Rule``.

        Args:
            study, limit_bytes: as there. score: of an order, lower is better; by default ``merit``.
        Raises:
            MemoryLimitError: also, no order fits.
        """
        if limit_bytes is None and self.activations is not None:
            limit_bytes = activation_limit(study, one_value(self.activations, study.shape, "activations"))
        best: tuple[tuple[float, ...], StageColumns] | None = None
        for rule in self.rules:
            columns = rule.on(study, limit_bytes)
            try:
                found = study.evaluate(Schedule("rule", columns))
            except ScheduleError:
                continue  # written down for another pipeline
            if limit_bytes is not None and not rule.runs and not np.all(found.peak_bytes <= np.asarray(limit_bytes)):
                continue  # rules that run the pipeline keep the limit themselves
            reached = (score or merit)(found)
            if best is None or reached < best[0]:
                best = reached, columns
        if best is None:
            raise MemoryLimitError("no order of these rules fits in the memory", where="rules", expected="more memory")
        return best[1]


def merit(evaluation: StudyResult) -> tuple[float, float, int]:
    """Makespan [s], then the longest span of a rank [s], then the highest memory of one [bytes]: lower is better."""
    return evaluation.makespan_s, evaluation.span_s, int(evaluation.peak_bytes.max(initial=0))

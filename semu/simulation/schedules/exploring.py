"""``explore_schedules``: the rules of every placement on a job's own stage costs; the best are simulated.

On every cut, all rules order the job as plain numbers (``pipeline_study``), within the memory that a simulation of the
cut leaves for activations. The best orders of every cut, and every schedule that ships, are simulated in full and
ranked by iteration time within memory, so that the best is never worse than the best shipped schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_integer
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.job import TrainingJob
from semu.records import dataclass
from semu.schedule.exploration.plain import Explored, Refusals, explore_study
from semu.schedule.exploration.space import Cut, cuts_of, rules_of
from semu.schedule.placement import Placement
from semu.schedule.registry import REGISTRY
from semu.schedule.rules.program import program_text
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy
from semu.simulation.preparation import prepare
from semu.simulation.schedules.comparing import compare_schedules
from semu.simulation.schedules.comparison import ComparedSchedule, ScheduleComparison
from semu.simulation.schedules.cuts import job_for
from semu.simulation.schedules.named import pipeline_study
from semu.simulation.schedules.studies_under_plans import activation_room
from semu.simulation.schedules.woven import layers_study, with_gangs
from semu.units import GIB, fit_columns, fit_lines, format_time

MOST_WOVEN = 24
"""Orders of a cut into which gangs are woven, the best of the layers."""


@dataclass(frozen=True, eq=False, repr=False)
class Exploration:
    """A job under the best rules of every placement, and under the schedules that ship.

    Attributes:
        comparison: what was simulated. num_rules, num_orders: rules tried, different orders that they made.
        refused: why rules have no order. top: rows that are shown.
    """

    comparison: ScheduleComparison
    num_rules: int
    num_orders: int
    refused: Refusals = field(repr=False)
    top: int = 10

    @property
    def rows(self) -> list[ComparedSchedule]:
        """Those that fit in memory by iteration time, then those that do not."""
        return sorted(self.comparison.rows, key=lambda row: (not row.estimate.fits, row.estimate.iteration_time_s))

    @property
    def best(self) -> ComparedSchedule | None:
        """The fastest that fits in memory, a shipped or a found one; None: none fits."""
        return self.comparison.best

    @property
    def best_shipped(self) -> ComparedSchedule | None:
        """The fastest shipped schedule that fits in memory; None: none fits."""
        return next((row for row in self.rows if row.name in REGISTRY and row.estimate.fits), None)

    def __repr__(self) -> str:
        heads = ("iteration", "bubble", "peak GiB", "fits", "schedule")
        rows = [
            (
                format_time(row.estimate.iteration_time_s),
                f"{row.estimate.bubble_ratio:.1%}",
                f"{row.peak_bytes / GIB:.2f}",
                "yes" if row.estimate.fits else "no",
                row.name if row.vpp == 1 or "/" in row.name else f"{row.name} (vpp {row.vpp}, {row.placement})",
            )
            for row in self.rows[: self.top]
        ]
        lines = fit_columns([heads, *rows], (True, True, True, False, False))
        return fit_lines("\n".join([self.comparison.title, "", *lines, "", *self._notes()]))

    def _notes(self) -> Iterator[str]:
        yield f"{self.num_rules} rules made {self.num_orders} different orders; {len(self.rows)} schedules simulated"
        best, shipped = self.best, self.best_shipped
        if best is None:
            yield "none of them fits in memory"
            return
        if shipped is not None and best is not shipped:
            gain = shipped.estimate.iteration_time_s / best.estimate.iteration_time_s - 1
            yield f"the best rule is {gain:.1%} faster than the best shipped schedule, {shipped.name}"
        elif shipped is not None:
            yield f"no rule is faster than {shipped.name}, which ships"
        yield f"run it: --set 'training.schedule=\"{best.name}\"'"
        yield from self.refused.lines()

    def to_json(self) -> dict[str, object]:
        """The comparison as JSON, best first, with what was tried."""
        found = self.comparison.to_json()
        order = {id(row): place for place, row in enumerate(self.rows)}
        places = [order[id(row)] for row in self.comparison.rows]
        listed: Any = found["schedules"]
        ranked = [row for _, row in sorted(zip(places, listed, strict=True), key=lambda pair: pair[0])]
        refused = [{"rule": words, "count": n, "first": one} for words, (n, one) in self.refused.found.items()]
        tried = {"rules": self.num_rules, "orders": self.num_orders, "refused_rules": refused}
        return {**found, "schedules": ranked, **tried}


def explore_schedules(
    job: TrainingJob,
    *,
    top: int = 10,
    split: bool = False,
    latency_rules: LatencyRules | None = None,
    progress: Callable[[str], None] | None = None,
    cache: ResultCache | None = None,
) -> Exploration:
    """Explore pipeline schedules of a job over placements and rules (FlexPipe §6).

    Args:
        job: the run; its schedule and all that ship are part of the result.
        top: so many rules are simulated. split: with their gradients separated, too.
        latency_rules, progress, cache: as ``simulate``.
    Raises:
        ConfigError, ScheduleError: as ``simulate``, of the job's own schedule.
    """
    check_integer(top, "top", "a count")
    refused, found, tried = Refusals(), list[Explored](), 0
    for cut in cuts_of(job.parallel.pp, job.num_microbatches) if job.parallel.pp > 1 else []:
        if progress is not None:
            progress(f"exploring {cut.placement.value}, {cut.num_slots} chunks per rank")
        tried += sum(1 for _ in rules_of(cut))
        try:
            found += _on_cut(job, cut, refused, split, latency_rules, cache)
        except (ConfigError, ScheduleError, MemoryLimitError) as error:
            refused.add(f"all of {cut}", error)
    found.sort(key=lambda one: one.time_s)
    chosen = dict.fromkeys(one.name for one in found[:top])
    for cut in {
        one.cut: None for one in found
    }:  # of every cut its best, too: the numbers are means, simulation decides
        chosen |= dict.fromkeys([one.name for one in found if one.cut == cut][:2])
    names = [*REGISTRY, *chosen]
    comparison = compare_schedules(job, names, latency_rules=latency_rules, progress=progress, cache=cache)
    return Exploration(comparison, tried, len(found), refused, top)


def _on_cut(
    job: TrainingJob,
    cut: Cut,
    refused: Refusals,
    split: bool,
    latency_rules: LatencyRules | None,
    cache: ResultCache | None,
) -> list[Explored]:
    """Orders of a cut that fit in memory, and are not those of a schedule that ships; the shortest first."""
    first = next(rules_of(cut))
    variant = job_for(job, program_text(first, cut.placement, cut.num_slots))
    checkpoint = prepare(variant, latency_rules=latency_rules, cache=cache)
    splits = split
    try:
        study = pipeline_study(checkpoint, splits=splits)
    except ConfigError as error:
        if not split:
            raise
        refused.add(f"gradients on {cut}", error)
        splits = False
        study = pipeline_study(checkpoint, splits=False)
    limit = activation_room(checkpoint, study)
    layers = layers_study(study) if study.shape.chunk_gang else study
    made = explore_study(layers, cut, refused, split=splits, limit_bytes=limit)
    shipped = set[Schedule]()
    for family in REGISTRY.values():
        if family.placement is cut.placement or family.placement is Placement.ONE_TO_ONE:
            try:
                shipped.add(Schedule("", family(layers.shape).columns))
            except (ConfigError, ScheduleError, MemoryLimitError):
                continue
    new = [one for one in made if one.schedule not in shipped]
    return new if layers is study else _with_gangs(new, study, limit, refused)


def _with_gangs(
    made: Sequence[Explored], study: PipelineStudy, limit: NDArray[np.int64], refused: Refusals
) -> list[Explored]:
    """The best orders of the layers with the gangs between them, where they fit in memory; the shortest first."""
    found = []
    for one in made[:MOST_WOVEN]:
        schedule = with_gangs(one.schedule, study)
        evaluation = study.evaluate(schedule)
        try:
            evaluation.check_memory(limit)
        except MemoryLimitError as error:
            refused.add(one.name, error)
            continue
        found.append(replace(one, study=study, schedule=schedule, evaluation=evaluation))
    return sorted(found, key=lambda one: one.time_s)

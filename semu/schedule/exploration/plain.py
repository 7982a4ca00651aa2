"""``explore_study``: what rules make of a pipeline; ``explore``: of all pipelines of so many ranks, plain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.records import dataclass
from semu.schedule.compare import compare_schedules
from semu.schedule.exploration.space import Cut, cuts_of, rules_of
from semu.schedule.rules.program import program_text
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.separation import Separated
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy, StudyResult
from semu.units import fit_columns

HELD = (None, "p", "2*p")
"""Activations within which gradients are separated."""
MOST_SEPARATED = 8
"""Rules of a cut whose orders are separated, the best."""


@dataclass(frozen=True, eq=False)
class Explored:
    """A rule on a pipeline.

    Attributes:
        name: text of the rule with its cut, or name of a schedule that ships. cut: where the chunks lie.
        study, schedule, evaluation: the pipeline, the order, what comes of it.
    """

    name: str
    cut: Cut
    study: PipelineStudy = field(repr=False)
    schedule: Schedule = field(repr=False)
    evaluation: StudyResult = field(repr=False)

    @property
    def time_s(self) -> float:
        """Makespan [s]."""
        return self.evaluation.makespan_s


@dataclass
class Refusals:
    """Rules that have no order for a pipeline: the error's words -> how many, and the first of them."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, name: str, error: Exception) -> None:
        """Count a rule that was refused."""
        words = str(getattr(error, "message", error)).split(":")[0]
        count, first = self.found.get(words, (0, name))
        self.found[words] = count + 1, first

    def lines(self) -> Iterator[str]:
        """A line per reason."""
        for words, (count, first) in self.found.items():
            yield f"not run: {count} rules: {words}, the first: {first}"


def explore_study(
    study: PipelineStudy,
    cut: Cut,
    refused: Refusals,
    *,
    rules: Iterable[Rule] | None = None,
    split: bool = False,
    limit_bytes: ArrayLike | None = None,
) -> list[Explored]:
    """The orders that rules make of a pipeline, each once, the shortest first.

    Args:
        study: a pipeline cut as ``cut``. refused: written. rules: by default those of the cut.
        split: the best orders with their gradients separated, too.
        limit_bytes: of activations, one number or one per rank [bytes]: orders that need more are left out.
    """
    seen: dict[Schedule, Explored] = {}

    def _try(rule: Rule) -> Schedule | None:
        name = program_text(rule, cut.placement, cut.num_slots)
        try:
            schedule = Schedule("", rule.on(study))
            if schedule in seen:
                return None
            found = study.evaluate(schedule)
            if limit_bytes is not None:
                found.check_memory(limit_bytes)
        except (ConfigError, ScheduleError, MemoryLimitError) as error:
            refused.add(name, error)
            return None
        seen[schedule] = Explored(name, cut, study, schedule, found)
        return schedule

    made = {order: rule for rule in (rules_of(cut) if rules is None else rules) if (order := _try(rule)) is not None}
    if split:
        best = sorted(made, key=lambda order: seen[order].time_s)[:MOST_SEPARATED]
        for order in best:
            for held in HELD:
                _try(Separated(made[order], held))
    return sorted(seen.values(), key=_rank)


def _rank(one: Explored) -> tuple[float, int, int]:
    return one.time_s, int(one.evaluation.peak_bytes.max(initial=0)), len(one.name)


@dataclass(frozen=True, eq=False)
class Exploration:
    """Rules and shipped schedules on pipelines of so many ranks, the shortest first.

    Attributes:
        rows: one per order. num_rules: rules that were tried. refused: why others have no order.
        held_bytes: activations of a microbatch on one p-th of the model [bytes].
    """

    rows: tuple[Explored, ...]
    num_rules: int
    refused: Refusals
    held_bytes: int

    def table(self, top: int = 10) -> str:
        """The best of them, and below, why others have no order."""
        rows: list[tuple[str, ...]] = [("makespan", "bubble", "mb held", "schedule")]
        for one in self.rows[:top]:
            held = int(one.evaluation.peak_bytes.max(initial=0)) / self.held_bytes
            bubble = f"{one.evaluation.bubble_ratio:.2%}"
            rows.append((f"{one.time_s:.6g} s", bubble, f"{held:.4g}", one.name))
        lines = fit_columns(rows, (True, True, True, False))
        said = f"{self.num_rules} rules and every shipped schedule, {len(self.rows)} different orders"
        return "\n".join([*lines, "", said, *self.refused.lines()])

    def to_json(self, top: int = 10) -> dict[str, object]:
        """The same for programs."""
        return {
            "rules": self.num_rules,
            "orders": len(self.rows),
            "schedules": [
                {
                    "name": one.name,
                    "placement": one.cut.placement.value,
                    "vpp": one.cut.num_slots,
                    "makespan_s": one.time_s,
                    "bubble_ratio": one.evaluation.bubble_ratio,
                    "peak_microbatches": int(one.evaluation.peak_bytes.max(initial=0)) / self.held_bytes,
                }
                for one in self.rows[:top]
            ],
            "refused": [
                {"rule": words, "count": count, "first": first} for words, (count, first) in self.refused.found.items()
            ],
        }


def explore(
    num_ranks: int,
    num_microbatches: int,
    *,
    split: bool = False,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    transfer_s: float = 0.0,
    held_bytes: int = 1 << 20,
    limit_microbatches: float | None = None,
) -> Exploration:
    """Explore the rules of all placements on a model whose layers are dealt evenly; shipped schedules seed it, so that
    it is never worse than the best of them.

    Args:
        num_ranks, num_microbatches: of the pipeline. split: separate gradients, too.
        forward_s, input_s, weight_s: of one microbatch on one p-th of the model [s].
        transfer_s: a result's way to the next rank [s]. held_bytes: activations of one microbatch on one p-th of the
            model [bytes]. limit_microbatches: of so many microbatches a rank may hold the activations.
    Raises:
        ConfigError: a size that is none.
    """
    limit = None if limit_microbatches is None else round(limit_microbatches * held_bytes)
    named, _ = compare_schedules(
        num_ranks,
        num_microbatches,
        forward_s=forward_s,
        input_s=input_s,
        weight_s=weight_s,
        held_bytes=held_bytes,
        transfer_s=transfer_s,
    )
    refused, found, tried = Refusals(), list[Explored](), 0
    for row in named:
        if limit is None or np.all(row.evaluation.peak_bytes <= limit):
            cut = Cut(row.family.placement, row.num_slots)
            found.append(Explored(row.family.name, cut, row.study, row.schedule, row.evaluation))
    for cut in cuts_of(num_ranks, num_microbatches):
        shape = cut.placement.shape(num_ranks, num_microbatches, cut.num_slots)
        part = num_ranks * (max(shape.chunk_flow) + 1) / shape.num_chunks
        study = PipelineStudy.of(
            shape,
            forward_s=forward_s * part,
            input_s=input_s * part,
            weight_s=weight_s * part,
            held_bytes=held_bytes * part,
            transfer_s=transfer_s,
        )
        tried += sum(1 for _ in rules_of(cut))
        found += explore_study(study, cut, refused, split=split, limit_bytes=limit)
    return Exploration(tuple(_different(found)), tried, refused, held_bytes)


def _different(found: Iterable[Explored]) -> list[Explored]:
    """Each order once, under a shipped name where it has one; the shortest first."""
    seen = dict[tuple[object, int], Explored]()
    for one in found:
        seen.setdefault((one.study.shape.chunk_rank, hash(Schedule("", one.schedule.columns))), one)
    return sorted(seen.values(), key=_rank)

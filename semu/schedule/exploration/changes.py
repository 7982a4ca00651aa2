"""``explain``: which stage caused each bubble of a rule's order, and which change of the rule removes most of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.records import dataclass
from semu.schedule.exploration.bubbles import Bubble, find_bubbles
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.separation import Separated
from semu.schedule.rules.text import rule_text
from semu.schedule.rules.traversal import Breadth, Depth, Oldest
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy, StudyResult


@dataclass(frozen=True, eq=False)
class Change:
    """A rule that differs from another one in one field.

    Attributes:
        text: of the changed rule. makespan_s: with it [s]. removed: bubbles of the first order, gone or shorter.
    """

    text: str
    makespan_s: float
    removed: int


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a schedule idles.

    Attributes:
        result: the schedule's times. bubbles: the longest first. changes: of the rule, the shortest order first; those
            that are no shorter are left out.
    """

    result: StudyResult = field(repr=False)
    bubbles: tuple[Bubble, ...]
    changes: tuple[Change, ...]

    def lines(self, most: int = 8) -> Iterator[str]:
        """For people: the bubbles and the changes."""
        total = self.result.makespan_s * len(self.result.busy_s) or 1.0
        inside = sum(bubble.lasts_s for bubble in self.bubbles)
        yield f"{len(self.bubbles)} bubbles between stages, {inside / total:.1%} of all ranks' time"
        for bubble in self.bubbles[:most]:
            yield f"{bubble.lasts_s / self.result.makespan_s:6.1%} of the makespan: {bubble}"
        if not self.changes:
            yield "no change of one field of the rule makes it shorter"
        for change in self.changes[:most]:
            gain = 1 - change.makespan_s / self.result.makespan_s
            yield f"{gain:.1%} shorter, {change.removed} bubbles less or shorter: {change.text}"


def explain(study: PipelineStudy, schedule: Schedule, rule: Rule | None = None) -> Explanation:
    """The bubbles of a schedule, and what changes of its rule do about them.

    Args:
        study: the pipeline with its costs. schedule: legal. rule: that made it; None: only separation is tried.
    """
    result = study.evaluate(schedule)
    bubbles = find_bubbles(study, result)
    before = {(bubble.rank, bubble.before): bubble.lasts_s for bubble in bubbles}
    changes = []
    for text, other in _neighbours(rule):
        try:
            made = Schedule("changed", other.on(study))
            found = study.evaluate(made)
        except (ConfigError, ScheduleError, MemoryLimitError):
            continue
        if found.makespan_s < result.makespan_s:
            after = {(bubble.rank, bubble.before): bubble.lasts_s for bubble in find_bubbles(study, found)}
            removed = sum(after.get(key, 0.0) < lasts for key, lasts in before.items())
            changes.append(Change(text, found.makespan_s, removed))
    return Explanation(result, tuple(bubbles), tuple(sorted(changes, key=lambda change: change.makespan_s)))


def _neighbours(rule: Rule | None) -> Iterator[tuple[str, Rule]]:
    """Rules that differ in one field."""
    if rule is None:
        return
    others: list[Rule] = []
    if isinstance(rule, Priority):
        ways = (Breadth(), Depth(), Oldest(), Breadth("p"), Depth("p"))
        others += [replace(rule, prefer=word) for word in ("backward", "alternate", "forward") if word != rule.prefer]
        others += [replace(rule, forward=way) for way in ways if way != rule.forward]
        others += [replace(rule, backward=way) for way in ways if way != rule.backward]
        others += [replace(rule, in_flight=most) for most in ("p*v", "2*(p-r)-1", "2*p*v", None)]
        others += [replace(rule, admission="stage" if rule.admission == "microbatch" else "microbatch")]
        others += [replace(rule, when_blocked="wait" if rule.when_blocked == "yield" else "yield")]
        others += [replace(rule, checks=() if rule.checks else ("patient",))]
    if not isinstance(rule, Separated):
        others += [Separated(rule, held) for held in (None, "p", "2*p")]
    for other in others:
        yield rule_text(other), other

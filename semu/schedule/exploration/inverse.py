"""``find_rule``: the rule that reproduces an order which another program made."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.records import dataclass
from semu.schedule.exploration.space import Cut, rules_of
from semu.schedule.passes import merge_backward
from semu.schedule.phases import BACKWARD, FORWARD, WEIGHT
from semu.schedule.placement import Placement
from semu.schedule.registry import REGISTRY
from semu.schedule.rules.priority import PREFER, Priority
from semu.schedule.rules.program import program_text
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.separation import Separated
from semu.schedule.rules.traversal import Breadth, Depth, Oldest
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy

COSTS = ((1.0, 1.0), (0.5, 0.5))
"""Input and weight gradients of a stage [s], beside a forward of a second, for rules that run the pipeline."""


@dataclass(frozen=True)
class Reproduced:
    """The rule nearest to an order.

    Attributes:
        name: of the schedule that ships, or text of the rule. differs: so many positions hold another stage; 0: it
            reproduces the order. stages: of the order. shape: of the pipeline, read off the order.
    """

    name: str
    differs: int
    stages: int
    shape: PipelineShape


def find_rule(schedule: Schedule) -> Reproduced:
    """The rule that makes an order, or the one that comes nearest; a shipped schedule before others.

    Args:
        schedule: an order of a chain of chunks, one per rank and virtual stage, in one of the placements.
    Raises:
        ScheduleError: its chunks lie in no placement that semu knows.
    """
    cut, shape = read_cut(schedule)
    best: Reproduced | None = None
    for name, made in _candidates(schedule, cut, shape):
        differs = _differences(schedule, made)
        if best is None or differs < best.differs:
            best = Reproduced(name, differs, len(schedule.columns.chunk), shape)
        if best.differs == 0:
            break
    assert best is not None
    return best


def read_cut(schedule: Schedule) -> tuple[Cut, PipelineShape]:
    """The placement that an order's chunks lie in, and its pipeline.

    Raises:
        ScheduleError: none.
    """
    columns = schedule.columns
    p, m = len(columns.ptr) - 1, int(columns.microbatch.max(initial=-1)) + 1
    num_chunks = int(columns.chunk.max(initial=-1)) + 1
    rank = np.repeat(np.arange(p), np.diff(columns.ptr))
    for placement in Placement:
        v = num_chunks // max(p, 1)
        if v * p != num_chunks or v < 1 or (placement is Placement.ONE_TO_ONE) != (v == 1):
            continue
        if placement.copies == 2 and (v % 2 or p % 2 or v < placement.fewest_slots):
            continue
        shape = placement.shape(p, m, v)
        if np.array_equal(np.array(shape.chunk_rank)[columns.chunk], rank):
            try:
                schedule.validate(shape)
            except ScheduleError:
                continue
            return Cut(placement, v), shape
    raise ScheduleError(
        "an order of chunks in no known placement",
        where=schedule.name,
        expected="a complete order of a chain in one of " + ", ".join(each.value for each in Placement),
        got=f"{num_chunks} chunks on {p} ranks",
    )


def _candidates(schedule: Schedule, cut: Cut, shape: PipelineShape) -> Iterator[tuple[str, Schedule]]:
    """Shipped schedules, then the rules of the cut and those with the order's own limit, their gradients separated."""
    for name, family in REGISTRY.items():
        try:
            yield name, family(shape)
        except (ConfigError, ScheduleError, MemoryLimitError):
            continue
    for costs in COSTS:
        study = PipelineStudy.of(shape, input_s=costs[0], weight_s=costs[1])
        for rule in (*rules_of(cut), *_limited(schedule, cut)):
            for other in (rule, *(Separated(rule, held) for held in (None, "p", "2*p"))):
                made = _made(other, study)
                if made is not None:
                    yield program_text(other, cut.placement, cut.num_slots), made


def _limited(schedule: Schedule, cut: Cut) -> Iterator[Rule]:
    """Rules under the most stages in flight of any rank of the order."""
    columns = schedule.columns
    change = np.where(
        columns.phase == FORWARD, 1, np.where((columns.phase == BACKWARD) | (columns.phase == WEIGHT), -1, 0)
    )
    held = [int(np.cumsum(change[a:b]).max(initial=1)) for a, b in pairwise(columns.ptr)]
    ways = (Depth(), Breadth(), Oldest()) if cut.num_slots > 1 else (Breadth(),)
    for prefer, forward, backward in product(PREFER, ways, ways):
        yield Priority(prefer, forward=forward, backward=backward, in_flight=max(held))  # type: ignore[arg-type]
    yield Priority("forward", backward=Depth(is_last=True))


def _made(rule: Rule, study: PipelineStudy) -> Schedule | None:
    try:
        return Schedule("rule", rule.on(study))
    except (ConfigError, ScheduleError, MemoryLimitError):
        return None


def _differences(wanted: Schedule, made: Schedule) -> int:
    """Positions with another stage; a backward in two parts in a row is a whole one."""
    count = 0
    for one, other in zip(merge_backward(wanted).orders, merge_backward(made).orders, strict=True):
        count += sum(mine != theirs for mine, theirs in zip(one, other, strict=False)) + abs(len(one) - len(other))
    return count

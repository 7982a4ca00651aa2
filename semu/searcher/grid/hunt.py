"""``Hunt``: a grid under way: which configurations are evaluated, and what becomes of them.

Branch and bound, best bound first: a configuration is evaluated unless it surely does not fit, or the best ``top`` that
were found already are better than it can be. What comes out does not depend on the order of evaluation, nor on who
evaluates: the rows are all configurations whose bound is not worse than row number ``top``, and each of these was
evaluated.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from semu.collector import without_collector
from semu.job import TrainingJob
from semu.present.report import FittingChange
from semu.records import dataclass
from semu.searcher.engines import Engine
from semu.searcher.grid.bounds import Floors
from semu.searcher.grid.columns import F64, I64, Points
from semu.searcher.grid.evaluate_points import Outcome, alike, evaluate_chunk, in_chunks
from semu.searcher.grid.legal import Legal
from semu.searcher.grid.result import SHOWN_MISFITS, GridResult
from semu.searcher.grid.rows import Row, smallest_of
from semu.searcher.grid.space import Axis, Point, RankBy, Space, Value, job_at
from semu.simulation.memory.reserved import device_room
from semu.simulation.results.estimated import Metrics

CHUNK, LONG_CHUNK = 4, 24
"""Configurations of a task: few while their results decide what comes next, many where all are evaluated."""
TRIES = 8
"""Configurations that are evaluated, at most, to find what makes another one fit."""
TELL_S = 0.25


@dataclass
class Hunt:
    """A grid under way; ``outcomes``: results so far."""

    job: TrainingJob
    space: Space
    order: RankBy
    top: int
    price: float | None
    engine: Engine
    tell: Callable[[str], None]
    begin: float
    outcomes: dict[Point, Outcome] = field(default_factory=dict)
    reused: int = 0
    evaluated: int = 0
    keep: Callable[[Sequence[Outcome]], None] | None = None
    ended_by: str = "end"
    _tokens: dict[int, int] = field(default_factory=dict)
    _waiting: dict[Point, list[Point]] = field(default_factory=dict)
    """Configurations that wait for the figures of one that is alike, by what stands for these; it is under way."""
    _told: float = 0.0

    # -- what is wanted ------------------------------------------------------------------------------------------
    @property
    def capacity(self) -> int:
        """Memory of a device [bytes]."""
        return int(self.job.profile.memory_bytes.value)

    def tokens(self, micro_batch: int) -> int:
        """Tokens of an iteration: of the last module's first stream, as reports count them."""
        if micro_batch not in self._tokens:
            fed = [module.inputs[0].stream for module in self.job.model.modules if module.inputs]
            training = self.job.training
            count = training.global_batch // micro_batch
            items = self.job.batch.microbatches(count, micro_batch, training.seq_len)
            one = {id(item): item.tokens(fed[-1] if fed else "") for item in items}
            self._tokens[micro_batch] = sum(one[id(item)] for item in items)
        return self._tokens[micro_batch]

    def objective(self, point: Point, time_s: float, peak_bytes: int, order: RankBy) -> float:
        """Less is better."""
        if order is RankBy.HEADROOM:
            return float(peak_bytes)
        if order is RankBy.TIME:
            return time_s
        return time_s / max(1, self.tokens(point.micro_batch))

    def of(self, outcome: Outcome, order: RankBy) -> float:
        """Objective of what was evaluated."""
        assert outcome.figures is not None
        return self.objective(outcome.point, outcome.figures.iteration_time_s, outcome.figures.peak_memory_bytes, order)

    # -- the hunt ------------------------------------------------------------------------------------------------
    def run(self, legal: Legal, *, is_exhaustive: bool) -> GridResult:
        """Of the configurations that may fit, every one, or those that can be among the best; where nothing fits, the
        smallest."""
        self.tell(f"bounding {len(legal.points):,} configurations")
        with without_collector():
            floors = Floors(self.job, legal.points)
        order, rows = self.order, np.arange(len(legal.points))
        if order is not RankBy.HEADROOM:
            rows = np.flatnonzero(floors.memory_bytes <= self.capacity)
        while True:
            chosen = self._every(legal.points.take(rows)) if is_exhaustive else self._best_of(floors, rows, order)
            fits = any(self._holds(own) for own in chosen)
            if order is RankBy.HEADROOM or fits or self.ended_by != "end":
                cut_by_memory = len(legal.points) - len(rows)
                return self._result(legal, chosen, floors, cut_by_memory, order, is_exhaustive=is_exhaustive)
            self.tell("nothing fits: looking for the smallest")
            order, rows = RankBy.HEADROOM, np.arange(len(legal.points))

    def _every(self, some: Points) -> list[Outcome]:
        """Evaluate all of some configurations."""
        points = [*some]
        best: list[float] = []
        for point in points:
            if point in self.outcomes:
                self._note(self.outcomes[point], best, self.order)
        left = [point for point in points if self._is_wanted(point, best, self.order)]
        tasks = in_chunks(self.job, left, LONG_CHUNK, 2 * LONG_CHUNK)
        self._run(tasks, best, self.order, len(points))
        return [self.outcomes[point] for point in points if point in self.outcomes]

    def _best_of(self, floors: Floors, rows: I64, order: RankBy) -> list[Outcome]:
        """Evaluate what can be among the best of some configurations, rows of those that are bounded; all that can
        be."""
        points = floors.points.take(rows)
        bound = self._bounds(points, floors.time_s[rows], floors.memory_bytes[rows], order)
        best: list[float] = []  # the best objectives so far, the worst of them first, negative
        for point in points if self.outcomes else ():
            if point in self.outcomes:
                self._note(self.outcomes[point], best, order)

        def _tasks() -> Iterator[Sequence[Point]]:
            chunk: list[Point] = []
            for row, point in points.in_turn(bound):
                if bound[row] > self._limit(best):
                    break
                if self._is_wanted(point, best, order):
                    chunk.append(point)
                if len(chunk) == CHUNK:
                    yield chunk
                    chunk = []
            if chunk:
                yield chunk

        self._run(_tasks(), best, order, len(points))
        if self.ended_by != "end":
            return [self.outcomes[point] for _, point in points.in_turn(bound) if point in self.outcomes]
        limit = self._limit(best)
        can_be = itertools.takewhile(lambda own: bound[own[0]] <= limit, points.in_turn(bound))
        return [self.outcomes[point] for _, point in can_be]

    def _bounds(self, points: Points, time_s: F64, memory_bytes: I64, order: RankBy) -> F64:
        """What configurations' objectives are at least."""
        if order is RankBy.HEADROOM:
            return memory_bytes.astype(np.float64)
        if order is RankBy.TIME:
            return time_s
        sizes, place = np.unique(points.column("micro_batch"), return_inverse=True)
        tokens = np.array([max(1, self.tokens(size)) for size in sizes.tolist()])
        per_token: F64 = time_s / tokens[place.reshape(-1)]
        return per_token

    def _limit(self, best: Sequence[float]) -> float:
        """What a configuration must not be worse than."""
        return -best[0] if len(best) == self.top else float("inf")

    def _holds(self, outcome: Outcome) -> bool:
        """Whether a configuration fits, with what the allocator keeps."""
        figures = outcome.figures
        if figures is None:
            return False
        needed = figures.peak_memory_bytes if outcome.held_bytes is None else outcome.held_bytes
        return needed <= device_room(self.job, outcome.point).usable_bytes

    def _note(self, outcome: Outcome, best: list[float], order: RankBy) -> None:
        """Count a configuration among the best, if it is; where memory decides, whether or not it fits."""
        if outcome.figures is None or (len(best) == self.top and self.of(outcome, order) >= -best[0]):
            return
        if order is not RankBy.HEADROOM and not self._holds(outcome):
            return
        push = heapq.heappush if len(best) < self.top else heapq.heappushpop
        push(best, -self.of(outcome, order))

    def _is_wanted(self, point: Point, best: list[float], order: RankBy) -> bool:
        """Whether a configuration has to be evaluated: its figures are not there, and none that is alike is under
        way."""
        if point in self.outcomes:
            return False
        own = alike(point)
        for other in own:
            known = self.outcomes.get(other)
            if known is not None and known.figures is not None:
                self._take([known._replace(point=point)], best, order)
                return False
        if own[0] in self._waiting:
            self._waiting[own[0]].append(point)
            return False
        self._waiting[own[0]] = []
        return True

    def _take(self, outcomes: Sequence[Outcome], best: list[float], order: RankBy) -> None:
        """Keep what configurations come to."""
        for outcome in outcomes:
            self.outcomes[outcome.point] = outcome
            self._note(outcome, best, order)
        if self.keep is not None:
            self.keep(outcomes)

    def _with_alike(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """What was evaluated, and those that waited for it; where it was refused each is asked, since refusals name
        schedules."""
        for outcome in outcomes:
            self.evaluated += 1
            yield outcome
            for point in self._waiting.pop(alike(outcome.point)[0], ()):
                if outcome.figures is not None:
                    yield outcome._replace(point=point)
                else:
                    self.evaluated += 1
                    yield from evaluate_chunk(self.job, [point])

    def _run(self, tasks: Iterable[Sequence[Point]], best: list[float], order: RankBy, count: int) -> None:
        """Run tasks; Ctrl-C ends them, and what was done is kept."""
        began, done = time.monotonic(), 0
        stream = self.engine.run(partial(evaluate_chunk, self.job), tasks)
        try:
            with without_collector():  # a configuration leaves some ten objects in cycles, and thousands in tables
                for _, outcomes in stream:
                    found = [*self._with_alike(outcomes)]
                    self._take(found, best, order)
                    done += len(found)
                    self._say(done / max(time.monotonic() - began, 1e-9), best, order, count)
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
        finally:
            close: Any = getattr(stream, "close", None)
            if close is not None:
                close()

    def _say(self, rate: float, best: Sequence[float], order: RankBy, count: int) -> None:
        now = time.monotonic()
        if now - self._told < TELL_S:
            return
        self._told = now
        done = len(self.outcomes)
        said = f"{done:,} of at most {count:,} simulated, {rate:,.0f}/s"
        if best and order is RankBy.TIME:
            said += f", best {-max(best):.4f} s"
        self.tell(said)

    # -- the table -----------------------------------------------------------------------------------------------
    def _result(
        self,
        legal: Legal,
        chosen: Sequence[Outcome],
        floors: Floors,
        cut_by_memory: int,
        order: RankBy,
        *,
        is_exhaustive: bool,
    ) -> GridResult:
        found = [own for own in chosen if own.figures is not None]
        found.sort(key=lambda own: (not self._holds(own), self.of(own, order), own.point))
        rows = [self._row(own.point, own.figures, own.held_bytes) for own in found if own.figures is not None]
        misfits = [row.point for row in rows if not row.fits][:SHOWN_MISFITS]
        has_fit = any(row.fits for row in rows)
        changes = {}
        if has_fit and self.ended_by == "end":
            self.tell("looking for what makes faster configurations fit")
            changes = {point: self._change(point, legal, floors) for point in misfits}
        rows = [replace(row, change=changes.get(row.point)) for row in rows]
        nearest = None if has_fit or not rows or self.ended_by != "end" else self._nearest_fit(rows)
        return GridResult(
            job=self.job,
            rank_by=self.order,
            top=self.top,
            varied=self.space.varied,
            rows=tuple(rows),
            total=legal.total,
            cuts=legal.cuts,
            num_legal=len(legal.points),
            cut_by_memory=cut_by_memory,
            cut_by_bound=len(legal.points) - cut_by_memory - len(chosen) if self.ended_by == "end" else 0,
            refused={own.point: own.refusal for own in chosen if own.figures is None},
            floors=floors,
            capacity_bytes=self.capacity,
            is_exhaustive=is_exhaustive,
            ended_by=self.ended_by,
            nearest_fit=nearest,
            evaluated=self.evaluated,
            reused=self.reused,
            time_s=time.monotonic() - self.begin,
        )

    def _nearest_fit(self, rows: Sequence[Row]) -> tuple[FittingChange, ...] | None:
        """Changes beyond the axes after which the smallest configuration fits, the fastest first."""
        from semu.simulation import simulate
        from semu.simulation.memory.changes_that_fit import nearest_fit

        own = job_at(self.job, smallest_of(rows).point)
        try:
            return nearest_fit(own, simulate(own), simulate, self.tell)
        except KeyboardInterrupt:
            self.ended_by = "interrupt"
            return None

    def _row(self, point: Point, figures: Metrics, reserved_bytes: int | None) -> Row:
        gpus, tokens = self.job.cluster.num_gpus, self.tokens(point.micro_batch)
        seconds = figures.iteration_time_s
        cost = None
        if self.price is not None:
            cost = seconds * gpus * self.price / 3600 / max(1, tokens) * 1e6
        usable = device_room(self.job, point).usable_bytes
        return Row(point, figures, tokens / seconds / gpus, cost, usable, reserved_bytes)

    def _change(self, point: Point, legal: Legal, floors: Floors) -> Mapping[str, Value] | None:
        """What to change about a configuration that does not fit: the fewest axes, of these the fastest at best; dp
        follows the other sizes and does not count."""

        tries = TRIES
        is_roomy = floors.memory_bytes <= self.capacity
        roomy = legal.points.take(is_roomy)
        axes = roomy.differences(point)
        for _, other in roomy.in_turn(axes, floors.time_s[is_roomy]):
            if other not in self.outcomes:
                if not tries:
                    break
                tries -= 1
                self.outcomes.update({own.point: own for own in evaluate_chunk(self.job, [other])})
                self.evaluated += 1
            if self._holds(self.outcomes[other]):
                return {
                    axis.value: getattr(other, axis) for axis in Axis if getattr(other, axis) != getattr(point, axis)
                }
        return None

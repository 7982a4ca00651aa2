"""``weave``: a schedule of all other chunks, with the stages of gangs put in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.records import dataclass
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey

Seconds = Callable[[StageKey], float]
AHEAD = 4
"""So many stages of a rank are looked at, when ranks meet anyway, for what they read of gangs that read nothing."""


def without_gangs(shape: PipelineShape) -> tuple[PipelineShape, tuple[int, ...]]:
    """The chunks that are in no gang as a pipeline of their own, and their numbers in the whole one."""
    kept = tuple(chunk for chunk in range(shape.num_chunks) if not shape.chunk_gang or shape.chunk_gang[chunk] < 0)
    number = {chunk: place for place, chunk in enumerate(kept)}

    def _of(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[chunk] for chunk in kept)

    inner = replace(
        shape,
        chunk_rank=_of(shape.chunk_rank),
        sources=tuple(tuple(number[s] for s in shape.sources[chunk] if s in number) for chunk in kept),
        has_backward=tuple(shape.has_backward[chunk] for chunk in kept),
        chunk_slot=_of(shape.chunk_slot),
        chunk_module=tuple(shape.chunk_module[chunk] for chunk in kept),
        chunk_split=_of(shape.chunk_split),
        chunk_flow=_of(shape.chunk_flow),
        chunk_gang=(),
    )
    return inner, kept


@dataclass(frozen=True, order=True)
class _Wanted:
    """A gang's stage that may run. ``at``: since when [s]; ``late``: 0 backward, 1 forward behind layers, 2 before."""

    at: float
    late: int
    microbatch: int
    gang: int
    phase: Phase


class _Weaver:
    """Runs the orders of the other chunks and puts gangs in between, as time goes on.

    A gang's stage is wanted as soon as what it reads is there; one that reads nothing (an embedding) when the stage
    that reads it is the next of its rank; the backward that nothing waits for runs behind the next gang's stage, or at
    the end. From then on ranks begin nothing else: they end what they run, and meet. So all run gangs in one order.
    """

    def __init__(self, schedule: Schedule, shape: PipelineShape, seconds: Seconds, sends: Seconds, every: int) -> None:
        _, kept = without_gangs(shape)
        self.shape, self.seconds, self.sends, self.name = shape, seconds, sends, schedule.name
        self.orders = [[StageKey(kept[s.chunk], s.phase, s.microbatch) for s in order] for order in schedule.orders]
        self.at = [0] * len(self.orders)
        self.free = [0.0] * len(self.orders)
        self.last_start = [0.0] * len(self.orders)
        self.end: dict[tuple[int, Phase, int], float] = {}
        self.made: list[list[StageKey]] = [[] for _ in self.orders]
        self.readers: list[list[int]] = [[] for _ in shape.sources]
        for chunk, sources in enumerate(shape.sources):
            for source in sources:
                self.readers[source].append(chunk)
        self.touching: list[set[int]] = [set() for _ in shape.sources]
        for number, members in enumerate(shape.gangs):
            for chunk in members:
                for other in (chunk, *shape.sources[chunk], *self.readers[chunk]):
                    self.touching[other].add(number)
        self.wanted: list[_Wanted] = []
        self.deferred: list[_Wanted] = []
        self.asked: set[tuple[int, Phase, int]] = set()
        self.every = every
        self.held: dict[tuple[int, Phase, int], list[_Wanted]] = {}

    def run(self) -> Schedule:
        """The woven schedule."""
        while True:
            self._ask()
            begun = self._next_stage()
            due = min(self.wanted, default=None)
            if due is not None and (begun is None or due.at <= begun[0]):
                self.wanted.remove(due)
                self._run_gang(due)
                self._ask(AHEAD)
                for one in sorted([*self.deferred, *(w for w in self.wanted if w.late == 2)]):
                    self._run_gang(one)
                self.wanted, self.deferred = [w for w in self.wanted if w.late < 2], []
            elif begun is not None:
                self._run_stage(*begun)
            elif self.deferred:
                self.wanted, self.deferred = self.deferred, []
            else:
                break
        left = [rank for rank, order in enumerate(self.orders) if self.at[rank] < len(order)]
        if left:
            raise ScheduleError(
                "an order that waits for gangs which wait for it",
                where=f"{self.name}: rank {left[0]}",
                expected="an order that runs without gangs",
                got=str(self.orders[left[0]][self.at[left[0]]]),
            )
        return Schedule.build(self.name, self.made)

    def _ready(self, stage: StageKey) -> float | None:
        """When what a stage needs is there; None: not yet."""
        chunk, m, late = stage.chunk, stage.microbatch, 0.0
        if stage.phase is Phase.WEIGHT_GRADIENT:
            needs = [(chunk, Phase.BACKWARD, m)]
        elif stage.phase is Phase.FORWARD:
            needs = [(source, Phase.FORWARD, m) for source in self.shape.sources[chunk]]
            apart = [source for source in self.shape.sources[chunk] if not self.shape.gives_back(chunk, source)]
            late = max((self.sends(StageKey(source, Phase.FORWARD, m)) for source in apart), default=0.0)
        else:
            needs = [(chunk, Phase.FORWARD, m)]
            readers = [r for r in self.readers[chunk] if self.shape.gives_back(r, chunk)]
            needs += [(r, Phase.BACKWARD, m) for r in readers if self.shape.has_backward[r]]
        ends = [self.end.get(need) for need in needs]
        known = [end for end in ends if end is not None]
        return max(known, default=0.0) + late if len(known) == len(ends) else None

    def _next_stage(self) -> tuple[float, int, StageKey] | None:
        found = None
        for rank, order in enumerate(self.orders):
            if self.at[rank] == len(order):
                continue
            stage = order[self.at[rank]]
            ready = self._ready(stage)
            if ready is not None and (found is None or max(ready, self.free[rank]) < found[0]):
                found = max(ready, self.free[rank]), rank, stage
        return found

    def _run_stage(self, start: float, rank: int, stage: StageKey) -> None:
        self.last_start[rank] = start
        self.free[rank] = start + self.seconds(stage)
        self.at[rank] += 1
        self._note(stage, self.free[rank])
        self.made[rank].append(stage)

    def _note(self, stage: StageKey, end: float) -> None:
        phase = Phase.BACKWARD if stage.phase is Phase.INPUT_GRADIENT else stage.phase
        self.end[stage.chunk, phase, stage.microbatch] = end
        for number in self.touching[stage.chunk]:
            self._ask_of(number, stage.microbatch)

    def _ask(self, ahead: int = 1) -> None:
        """Find the gangs' stages that the next stages of a rank read.

        Args:
            ahead: how many.
        """
        for rank, order in enumerate(self.orders):
            for stage in order[self.at[rank] : self.at[rank] + ahead]:
                if stage.phase is not Phase.FORWARD:
                    continue
                for source in self.shape.sources[stage.chunk]:
                    if self.shape.chunk_gang[source] >= 0:
                        self._want(
                            self.shape.chunk_gang[source], Phase.FORWARD, stage.microbatch, self.last_start[rank]
                        )

    def _ask_of(self, number: int, m: int) -> None:
        """Ask for a gang's stages that have what they read."""
        members = self.shape.gangs[number]
        for phase, is_possible in (
            (Phase.FORWARD, any(self.shape.sources[c] for c in members)),
            (Phase.BACKWARD, self.shape.has_backward[members[0]]),
        ):
            if is_possible and (number, phase, m) not in self.asked:
                times = [self._ready(StageKey(c, phase, m)) for c in members]
                if None not in times:
                    self._want(number, phase, m, max(time for time in times if time is not None))

    def _want(self, gang: int, phase: Phase, microbatch: int, at: float) -> None:
        key = gang, phase, microbatch
        if key in self.asked:
            return
        self.asked.add(key)
        members = self.shape.gangs[gang]
        is_awaited = phase is Phase.FORWARD or any(self.shape.sources[c] for c in members)
        reads = any(self.shape.sources[c] for c in members)
        late = 0 if phase is Phase.BACKWARD else 1 if reads else 2
        wanted = _Wanted(at, late, microbatch, gang, phase)
        if not reads or self.every == 1:
            (self.wanted if is_awaited else self.deferred).append(wanted)
            return
        group = microbatch // self.every
        held = self.held.setdefault((gang, phase, group), [])
        held.append(wanted)
        if len(held) == min(self.every, self.shape.num_microbatches - group * self.every):
            last = max(one.at for one in held)
            self.wanted += [replace(one, at=last) for one in held]

    def _run_gang(self, one: _Wanted) -> None:
        members = self.shape.gangs[one.gang]
        ranks = [self.shape.chunk_rank[chunk] for chunk in members]
        stages = [StageKey(chunk, one.phase, one.microbatch) for chunk in members]
        ends = [max(one.at, self.free[rank]) + self.seconds(stage) for rank, stage in zip(ranks, stages, strict=True)]
        if self.shape.meeting[members[0]] >= 0:
            start = max([one.at, *(self.free[rank] for rank in ranks)])
            ends = [start + max(self.seconds(stage) for stage in stages)] * len(stages)
        for rank, stage, end in zip(ranks, stages, ends, strict=True):
            self.free[rank] = end
            self._note(stage, end)
            self.made[rank].append(stage)


def weave(
    schedule: Schedule, shape: PipelineShape, seconds: Seconds, *, sends: Seconds = lambda _: 0.0, every: int = 1
) -> Schedule:
    """Put the stages of gangs into an order of the other chunks.

    Args:
        schedule: an order of ``without_gangs(shape)``. shape: the whole pipeline.
        seconds: what a stage takes [s]; other transfers than ``sends`` count as nothing.
        sends: how long a stage's result is on its way to a gang that does not meet [s].
        every: gangs that read something run so many microbatches one behind the other, all forwards, then all
            backwards.
    Returns:
        An order in which the gangs' backwards are whole.
    Raises:
        ScheduleError: the order does not run.
    """
    return _Weaver(schedule, shape, seconds, sends, every).run() if shape.chunk_gang else schedule

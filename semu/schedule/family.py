"""``ScheduleFamily``: a generator with what it needs of a pipeline, where it is from, and what it reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from semu.errors import ScheduleError
from semu.schedule.contracted import Contracted
from semu.schedule.placement import Placement
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy


@dataclass(frozen=True)
class Misfit:
    """The rule that p, m or v break.

    Attributes:
        rule: as a sentence. expected, got, nearest: as in ``SemuError``.
    """

    rule: str
    expected: str
    got: int
    nearest: int | None = None


Rule = Callable[[int, int, int], Misfit | None]
"""Ranks, microbatches, slots -> what does not fit."""

Makespan = Callable[[int, int, int, float, float, float], float | None]
"""Ranks, microbatches, slots; times of F, I, W of a stage (B takes I + W) -> makespan; None: no closed form there."""

Activations = Callable[[int, int, int], list[int] | int | None]
"""Ranks, microbatches, slots -> the most stages whose activations are held at once, from F to B or W: of every rank, or
of the rank that holds most; None: no closed form there."""


@dataclass(frozen=True)
class ScheduleFamily:
    """A generator of schedules; called with a shape, it makes one.

    Attributes:
        name: as in run.toml and on the command line.
        orders: shape -> per rank, its stages in order.
        source: paper and section.
        placement: where the chunks lie.
        splits_backward: whether it has input and weight gradients of their own.
        rules: what it asks of p, m and v.
        makespan, activations: closed forms at equal stages without transfer time.
        is_fixed: it is drawn for one chunk per rank and slot, in its placement, all with a backward; where a slot holds
            the end of one module and the beginning of the next, they run in a row.
        adapt: a pipeline with its costs -> the schedule made for these; None: costs do not matter to the order.
    """

    name: str
    orders: Callable[[PipelineShape], Iterable[Iterable[StageKey]]]
    source: str
    placement: Placement = Placement.ONE_TO_ONE
    splits_backward: bool = False
    rules: tuple[Rule, ...] = ()
    makespan: Makespan = lambda p, m, v, f, i, w: None
    activations: Activations = lambda p, m, v: None
    is_fixed: bool = False
    adapt: Callable[[PipelineStudy], Schedule] | None = None

    def misfit(self, num_ranks: int, num_microbatches: int, num_slots: int = 1) -> Misfit | None:
        """The first rule that a pipeline's size breaks, if any."""
        found = (rule(num_ranks, num_microbatches, num_slots) for rule in self.rules)
        return next((misfit for misfit in found if misfit is not None), None)

    def check(self, num_ranks: int, num_microbatches: int, num_slots: int = 1) -> None:
        """Raise the first rule that a pipeline's size breaks.

        Raises:
            ScheduleError: the rule, what it expects, what came.
        """
        misfit = self.misfit(num_ranks, num_microbatches, num_slots)
        if misfit is not None:
            raise ScheduleError(
                misfit.rule, where=self.name, expected=misfit.expected, got=misfit.got, nearest=misfit.nearest
            )

    def shape(self, num_ranks: int, num_microbatches: int, num_slots: int = 1) -> PipelineShape:
        """A chain of equal chunks in this family's placement.

        Raises:
            ScheduleError: the size does not fit.
        """
        self.check(num_ranks, num_microbatches, num_slots)
        return self.placement.shape(num_ranks, num_microbatches, num_slots)

    def __call__(self, shape: PipelineShape) -> Schedule:
        """The schedule of a pipeline; one that depends on costs takes equal ones.

        Raises:
            ScheduleError: its size, the placement of its chunks, or a chunk without backward does not fit.
        """
        self.check_shape(shape)
        contracted = Contracted.of(shape) if self.is_fixed and self.adapt is None else None
        if contracted is None or contracted.is_whole:
            return Schedule.build(self.name, self.orders(shape))
        return Schedule.build(self.name, contracted.write_out(self.orders(contracted.shape)))

    def on(self, study: PipelineStudy) -> Schedule:
        """The schedule of a pipeline, made for its costs where the family can.

        Raises:
            ScheduleError: as a call. MemoryLimitError: a rank has no room for a microbatch.
        """
        if self.adapt is None:
            return self(study.shape)
        self.check_shape(study.shape)
        return self.adapt(study)

    def check_shape(self, shape: PipelineShape) -> None:
        """Raise what does not fit about a pipeline; see ``__call__``."""
        p, m, v = shape.num_ranks, shape.num_microbatches, shape.num_slots
        self.check(p, m, v)
        if self.is_fixed:
            self._check_chunks(shape, Contracted.of(shape).shape, self.placement.shape(p, m, v))

    def _check_chunks(self, shape: PipelineShape, chain: PipelineShape, wanted: PipelineShape) -> None:
        frozen = [chunk for chunk, back in enumerate(shape.has_backward) if not back]
        if frozen:
            raise ScheduleError(
                f"{self.name} needs a backward of every chunk",
                where=self.name,
                expected="no frozen beginning, or a schedule that runs frozen chunks forward only, like zb-h1",
                got=f"chunk {frozen[0]} without backward",
            )
        places = (chain.chunk_rank, chain.chunk_slot, chain.sources, chain.chunk_flow, chain.microbatch_flow)
        if places != (wanted.chunk_rank, wanted.chunk_slot, wanted.sources, wanted.chunk_flow, wanted.microbatch_flow):
            raise ScheduleError(
                f"{self.name} needs a chain of chunks, one per rank and slot, in the placement {self.placement.value}",
                where=self.name,
                expected=f"chunks on ranks {list(wanted.chunk_rank)}",
                got=list(shape.chunk_rank),
            )


def one_slot(p: int, m: int, v: int) -> Misfit | None:
    """One chunk per rank."""
    return Misfit("one model chunk per rank", "1 virtual stage per rank", v, 1) if v != 1 else None


def two_slots(p: int, m: int, v: int) -> Misfit | None:
    """Two chunks per rank."""
    return Misfit("two model chunks per rank", "2 virtual stages per rank", v, 2) if v != 2 else None

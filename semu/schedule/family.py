"""``ScheduleFamily``: a schedule's generator, and everything that the rest of semu asks about the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from semu.errors import ScheduleError
from semu.records import dataclass
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

Orders = Iterable[Iterable[StageKey]]
"""Per rank, its stages in order; what a rule gives is that as well (``StageColumns``)."""

Activations = Callable[[int, int, int], list[int] | int | None]
"""Ranks, microbatches, slots -> the most stages whose activations are held at once, from F to B or W: of every rank, or
of the rank that holds most; None: no closed form there."""


@dataclass(frozen=True)
class ScheduleFamily:
    """A generator of schedules; called with a shape, it makes one. Defaults are those of most schedules.

    Attributes:
        name: as in run.toml and on the command line.
        orders: shape -> per rank, its stages in order: a rule (``semu.schedule.rules``), or any function.
        source: paper and section.
        placement: where the chunks lie.
        doc: the docstring of its file, which begins with a paragraph for people.
        is_placed: it runs in its placement alone; else in that of the job.
        splits_backward: whether it has input and weight gradients of their own.
        rules: what it asks of p, m and v.
        makespan, activations: closed forms at equal stages without transfer time.
        is_fixed: it is drawn for one chunk per rank and slot, in its placement, all with a backward; where a slot holds
            the end of one module and the beginning of the next, they run in a row.
        adapt: a pipeline with its costs -> the orders made for these; None: costs do not matter to the order.
        adapt_within: the same in a job: pipeline, limit in multiples of p microbatches' activations, whether ranks end
            an iteration apart -> orders; None: ``adapt``.
        activation_limit: that limit where ``training.activation_limit`` is not set; None: the schedule takes no limit.
        generate: Megatron-LM's schedules (``SCHEDULES``): the generator that a job calls in any circular placement,
            whatever ``rules`` say of the virtual stages; None: a job calls the family.
        alternates: one forward, one backward in turn; a rank's virtual stages take turns too, p microbatches each.
        overlaps_sends: sends run beside the sender's compute where ``overlap.pipeline`` is not set and vpp = 1.
        runs_two_copies: it runs bidirectional pipelines.
        needs_encoder: it needs a modality module that is an encoder.
        is_bounded: lower bounds of the grid may count on whole backwards, each rank's first one behind exactly
            ``activations`` forwards (a list), and its last one followed by those of all ranks in front.
        compared: place among the schedules that ``semu.compare_schedules`` compares by default, equal ones in the order
            of the registry; None: compared where asked for.
        is_tried: ``semu.what_if`` tries it by default.
    """

    name: str
    orders: Callable[[PipelineShape], Orders]
    source: str
    placement: Placement = Placement.ONE_TO_ONE
    doc: str | None = None
    is_placed: bool = True
    splits_backward: bool = False
    rules: tuple[Rule, ...] = ()
    makespan: Makespan = lambda p, m, v, f, i, w: None
    activations: Activations = lambda p, m, v: None
    is_fixed: bool = False
    adapt: Callable[[PipelineStudy], Orders] | None = None
    adapt_within: Callable[[PipelineStudy, float, bool], Orders] | None = None
    activation_limit: float | None = None
    generate: Callable[[PipelineShape], Schedule] | None = None
    alternates: bool = False
    overlaps_sends: bool = True
    runs_two_copies: bool = False
    needs_encoder: bool = False
    is_bounded: bool = False
    compared: int | None = None
    is_tried: bool = False

    @property
    def description(self) -> str:
        """A paragraph for people: the generator's first line, or how ``doc`` begins."""
        if self.generate is not None:
            return (self.generate.__doc__ or "").strip().split("\n")[0]
        text = " ".join((self.doc or "").split("\n\n")[0].split())
        if self.activation_limit is None:
            return text
        return f"{text} Within {'' if self.activation_limit == 1 else f'{self.activation_limit:g} '}p microbatches."

    @property
    def fewest_slots(self) -> int:
        """Virtual stages per rank from which on it is more than a simpler schedule; made for costs, it takes any."""
        is_circular = self.placement is Placement.CIRCULAR and self.is_placed
        return 2 if is_circular and self.adapt is None else 1

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
        return Schedule.build(self.name, map(contracted.write_out, self.orders(contracted.shape)))

    def on(self, study: PipelineStudy) -> Schedule:
        """The schedule of a pipeline, made for its costs where the family can.

        Raises:
            ScheduleError: as a call. MemoryLimitError: a rank has no room for a microbatch.
        """
        if self.adapt is None:
            return self(study.shape)
        self.check_shape(study.shape)
        return Schedule(self.name, self.adapt(study))

    def on_job(self, study: PipelineStudy, limit: float | None, *, ends_apart: bool) -> Schedule:
        """The schedule of a job's pipeline, made for its costs where the family can.

        Args:
            study: the job's stages. limit: ``training.activation_limit``. ends_apart: ranks step apart.
        Raises:
            ScheduleError, MemoryLimitError: as ``on``.
        """
        if self.adapt_within is None or self.activation_limit is None:
            return self.on(study)
        self.check_shape(study.shape)
        within = self.activation_limit if limit is None else limit
        return Schedule(self.name, self.adapt_within(study, within, ends_apart))

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

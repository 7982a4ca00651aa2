"""Which configurations exist: every combination of a space is kept or cut by the first rule that it breaks.

What the constructor of a job and ``prepare`` refuse is not written down a second time where it can be asked once for
many combinations: sizes are tried on a job with a batch that fits any of them, sharding on one configuration of every
(tp, cp, ep, zero). Only the arithmetic of the batch and of the blocks, which every combination needs, stands here too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from enum import StrEnum
from itertools import product

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, SemuError
from semu.job import Training, TrainingJob
from semu.parallel.context import Balance
from semu.parallel.segments import OWN_RANKS
from semu.records import dataclass
from semu.schedule.registry import ALL_SCHEDULES, SCHEDULES
from semu.searcher.grid.columns import I64, Points, answers
from semu.searcher.grid.framework import NAMES, Framework, FrameworkRule, framework_misfits
from semu.searcher.grid.space import (
    LAID_OUT,
    OPTIONS,
    SPLIT,
    Axis,
    Point,
    Space,
    Value,
    job_at,
    layout_of,
    num_blocks,
    parallel_of,
)
from semu.searcher.grid.splits import Splits, takes_shares, total_sizes, widths_of

INNER = (Axis.MICRO_BATCH, Axis.RECOMPUTE, Axis.SCHEDULE)
"""Axes that no size depends on."""
ROWS = 1 << 18
"""Combinations that are looked at together, about."""


class Rule(StrEnum):
    """Why a combination is no configuration, in the order in which it is asked."""

    NODE = "node"
    GPUS = "gpus"
    BLOCKS = "blocks"
    SIZES = "sizes"
    SHARES = "shares"
    LAYOUT = "layout"
    CONTEXT = "context"
    PIPELINE = "pipeline"
    BATCH = "batch"
    FRAMEWORK = "framework"
    GROUPS = "groups"
    RECOMPUTE = "recompute"
    SCHEDULE = "schedule"
    SHARDING = "sharding"


SENTENCES = {
    Rule.GPUS: "dp x tp x pp x cp is not the number of GPUs",
    Rule.NODE: "a tensor-parallel group does not lie within a node",
    Rule.BLOCKS: "pp x vpp is more than the model has blocks, or vpp > 1 without a pipeline",
    Rule.SIZES: "the sizes do not go together",
    Rule.SHARES: "the shares of modules do not make the pipeline's ranks, or its virtual segments",
    Rule.LAYOUT: "the layout does not fit under 1F1B, or is slower without bubbles than the best rule tried",
    Rule.CONTEXT: "without context ranks all their policies are one",
    Rule.PIPELINE: "without a pipeline all cuts into stages are one",
    Rule.BATCH: "the global batch does not divide by dp x micro_batch",
    Rule.FRAMEWORK: "the framework cannot run it",
    Rule.GROUPS: "interleaving needs a multiple of pp microbatches",
    Rule.RECOMPUTE: "the recomputation does not go with the job",
    Rule.SCHEDULE: "the schedule cannot run the pipeline",
    Rule.SHARDING: "the model cannot be spread like this",
}


@dataclass(frozen=True)
class Cut:
    """What a rule cut.

    Attributes:
        rule: which. count: combinations. example: what was wrong with one of them, "" where the rule says it all.
        asked: of ``Rule.FRAMEWORK``: what the framework asks.
    """

    rule: Rule
    count: int
    example: str = ""
    asked: FrameworkRule | None = None

    @property
    def says(self) -> str:
        """The rule as a sentence."""
        if self.asked is None:
            return SENTENCES[self.rule]
        return f"{NAMES[self.asked.framework]} asks that {self.asked.asks}"

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        found: dict[str, object] = {
            "rule": self.rule.value,
            "count": self.count,
            "says": self.says,
            "example": self.example,
        }
        return found | ({} if self.asked is None else {"source": self.asked.source})


@dataclass(frozen=True)
class Legal:
    """The configurations of a space.

    Attributes:
        points: all legal ones, in the order of the axes. cuts: what every rule cut, in the order in which they are
            asked. total: combinations, dp left out where it follows from the other sizes.
    """

    points: Points
    cuts: tuple[Cut, ...]
    total: int


@dataclass
class _Cuts:
    counts: Counter[tuple[Rule, FrameworkRule | None]] = field(default_factory=Counter)
    examples: dict[tuple[Rule, FrameworkRule | None], str] = field(default_factory=dict)

    def add(
        self, rule: Rule, count: int, error: SemuError | str | None = None, asked: FrameworkRule | None = None
    ) -> None:
        """Count configurations that a rule leaves out; its first error is the example."""
        key = (rule, asked)
        self.counts[key] += count
        if error is not None and not self.examples.get(key):
            self.examples[key] = str(error)

    def all(self) -> tuple[Cut, ...]:
        """The rules that left out something, with counts and an example each."""
        order = list(Rule)
        found = [Cut(key[0], count, self.examples.get(key, ""), key[1]) for key, count in self.counts.items() if count]
        return tuple(sorted(found, key=lambda cut: order.index(cut.rule)))


def legal_points(
    job: TrainingJob,
    space: Space,
    progress: Callable[[str], None] | None = None,
    framework: Framework = Framework.ANY,
) -> Legal:
    """All legal configurations of a space.

    Args:
        job: the base; its own configuration need not be legal. space: the axes. progress: called with a line at times.
        framework: which has to be able to cut the model.
    Raises:
        ConfigError: a job with a schedule of its own (``schedule_file``), or too many combinations.
    """
    if job.training.schedule_file is not None:
        raise ConfigError(
            "a schedule from a file orders one pipeline only",
            where="training.schedule_file",
            expected="no schedule_file",
            got=job.training.schedule_file,
        )
    v = space.values
    follows = Axis.DP in space.varied and len(v[Axis.DP]) > 1
    cuts = _Cuts()
    inner = math.prod(len(v[axis]) for axis in INNER)
    every = [*_sizes(job, space, inner, cuts, follows=follows)]
    sizes = Points.of(every, {axis.value: v[axis] for axis in INNER})
    found, some = [sizes.take(np.arange(0))], max(1, ROWS // inner)
    for first in range(0, len(every), some):
        found.append(
            _runnable(job, space, sizes.take(np.arange(first, min(first + some, len(every)))), framework, cuts)
        )
        if progress is not None:
            progress(f"looking for legal configurations: {sum(map(len, found)):,}")
    points = Points(sizes.values, np.concatenate([own.codes for own in found], axis=1))
    points = _shardable(job, _trainable(job, points, cuts), cuts)
    return Legal(points, cuts.all(), _total(space, follows=follows))


def _runnable(job: TrainingJob, space: Space, sizes: Points, framework: Framework, cuts: _Cuts) -> Points:
    """Those with some sizes that batch, framework and schedule allow, with all of the other axes."""
    v, batch = space.values, job.training.global_batch
    micro, recompute, schedule = (np.array([*map(sizes.values_of(axis.value).index, v[axis])]) for axis in INNER)
    step = sizes.column("dp")[:, np.newaxis] * np.array(_ints(v[Axis.MICRO_BATCH]))
    divides = batch % step == 0
    cuts.add(Rule.BATCH, int((~divides).sum()) * len(recompute) * len(schedule))
    place, size = np.nonzero(divides)
    counts = np.repeat((batch // step)[place, size], len(schedule))
    runs = sizes.take(np.repeat(place, len(schedule))).with_codes(
        micro_batch=np.repeat(micro[size], len(schedule)), schedule=np.tile(schedule, len(place))
    )  # whatever is recomputed
    kept = _framed(framework, job, runs, counts, cuts, len(recompute))
    alternates = runs.mapped("schedule", lambda name: ALL_SCHEDULES[name].alternates)
    broken = kept & alternates & (runs.column("vpp") > 1) & (counts % runs.column("pp") != 0)
    cuts.add(Rule.GROUPS, int(broken.sum()) * len(recompute))
    shape = len(place), len(recompute), len(schedule)
    which, what, how = np.nonzero(np.broadcast_to((kept & ~broken).reshape(shape[0], 1, shape[2]), shape))
    points = runs.take(which * len(schedule) + how).with_codes(recompute=recompute[what])
    return _schedulable(job, space, points, cuts)


def _framed(
    framework: Framework, job: TrainingJob, points: Points, counts: I64, cuts: _Cuts, each: int
) -> NDArray[np.bool_]:
    """Whether the framework can run configurations with so many microbatches; ``each``: combinations that one is."""
    kept, broken = np.ones(len(points), dtype=np.bool_), []
    for rule, misfit in framework_misfits(framework, job):
        rows = np.flatnonzero(kept)
        said, place = answers(misfit, points.take(rows), counts[rows])
        wrong = np.flatnonzero(np.array([own is not None for own in said], dtype=np.bool_)[place])
        if len(wrong):
            kept[rows[wrong]] = False
            broken.append((int(rows[wrong[0]]), len(wrong) * each, said[place[wrong[0]]], rule))
    for _, count, example, rule in sorted(broken, key=lambda own: own[0]):
        cuts.add(Rule.FRAMEWORK, count, example, rule)
    return kept


def _schedulable(job: TrainingJob, space: Space, points: Points, cuts: _Cuts) -> Points:
    """Those whose layout may be the best, and whose schedule runs their pipeline; schedules that run every pipeline
    are not asked."""
    if space.layouts is not None:
        firsts, place = points.groups(*LAID_OUT)
        is_wanted = np.array([layout_of(points[row]) in space.layouts for row in firsts.tolist()], dtype=np.bool_)[
            place
        ]
        cuts.add(Rule.LAYOUT, int((~is_wanted).sum()))
        points = points.take(is_wanted)
    asked = points.mapped("schedule", lambda name: not _is_usual(job, name))
    asked |= points.mapped("placement", lambda name: name != "circular")
    asked |= points.mapped("segments", lambda name: name == "apart") & (points.column("vpp") > 1)
    kept = np.ones(len(points), dtype=np.bool_)
    for row in np.flatnonzero(asked).tolist():
        if (error := _refusal(job, points[row])) is not None:
            cuts.add(Rule.SCHEDULE, 1, error)
            kept[row] = False
    return points.take(kept)


_Options = list[tuple[Value, ...]]


def _total(space: Space, *, follows: bool) -> int:
    """Combinations; ``dp`` left out where it follows from the other sizes."""
    v = space.values
    shared, split = _options(space)
    left_out = {*OPTIONS, *SPLIT, *((Axis.DP,) if follows else ()), *((Axis.TP, Axis.PP, Axis.CP) * space.splits)}
    return math.prod(len(v[axis]) for axis in Axis if axis not in left_out) * len(split if space.splits else shared)


def _options(space: Space) -> tuple[_Options, _Options]:
    """Values on the axes of ``OPTIONS`` and ``SPLIT``: with shares, and with sizes of modules. Modules that cannot have
    shares are placed once, those that cannot have GPUs of their own never."""
    v, place = space.values, OPTIONS.index(Axis.SEGMENTS)
    shared: dict[tuple[Value, ...], None] = {}
    split: dict[tuple[Value, ...], None] = {}
    for chosen in product(*(v[axis] for axis in OPTIONS)):
        segments = str(chosen[place])
        for shares in v[Axis.SHARES]:
            shared[*chosen, shares if takes_shares(segments) else "", ""] = None
        for modules in v[Axis.MODULES] if segments in OWN_RANKS else ():
            split[*chosen, "", modules] = None
    return [*shared], [*split]


def _sizes(job: TrainingJob, space: Space, inner: int, cuts: _Cuts, *, follows: bool) -> Iterator[Point]:
    """Legal values on all axes but those of ``INNER``, on which they have the first."""
    if space.splits:
        yield from _split_sizes(job, space, inner, cuts, follows=follows)
        return
    v, gpus = space.values, job.cluster.num_gpus
    options, words, first = _options(space)[0], Splits(job, ()), [v[axis][0] for axis in INNER]
    known: dict[int, Training] = {}
    rest = len(v[Axis.EP]) * len(v[Axis.VPP]) * len(options) * inner
    blocks = num_blocks(job)
    counts_blocks = job.parallel.stage_layout is None
    for tp, pp, cp in product(_ints(v[Axis.TP]), _ints(v[Axis.PP]), _ints(v[Axis.CP])):
        width = tp * pp * cp
        own = job.parallel
        if space.within_node and job.cluster.gpus_per_node % tp and not own.has_own_gpus:
            cuts.add(Rule.NODE, rest * (1 if follows else len(v[Axis.DP])))
            continue
        if own.has_own_gpus:  # the modules' GPUs make these sizes, and no others
            dps = [own.dp] if (tp, pp, cp) == (own.tp, own.pp, own.cp) else []
            cuts.add(Rule.GPUS, 0 if dps else rest)
        elif follows:
            dps = [gpus // width] if gpus % width == 0 else []
            cuts.add(Rule.GPUS, 0 if dps else rest)
        else:
            dps = [dp for dp in _ints(v[Axis.DP]) if dp * width == gpus]
            cuts.add(Rule.GPUS, rest * (len(v[Axis.DP]) - len(dps)))
        for dp, ep, vpp in product(dps, _ints(v[Axis.EP]), _ints(v[Axis.VPP])):
            if (counts_blocks and pp * vpp > blocks) or (vpp > 1 and pp == 1):
                cuts.add(Rule.BLOCKS, len(options) * inner)
                continue
            for chosen in options:
                sizes = Point(dp, tp, pp, cp, ep, vpp, *first, *chosen)  # type: ignore[arg-type]
                if cp == 1 and (sizes.cp_balance, sizes.cp_kind) != (v[Axis.CP_BALANCE][0], v[Axis.CP_KIND][0]):
                    cuts.add(Rule.CONTEXT, inner)
                    continue
                if pp == 1 and sizes.partition != v[Axis.PARTITION][0]:
                    cuts.add(Rule.PIPELINE, inner)
                    continue
                if sizes.shares and not words.fits(sizes.shares, sizes.segments, pp, vpp):
                    cuts.add(Rule.SHARES, inner)
                    continue
                error = _misfit(job, sizes, known)
                if error is not None:
                    cuts.add(Rule.SIZES, inner, error)
                    continue
                yield sizes


def _split_sizes(job: TrainingJob, space: Space, inner: int, cuts: _Cuts, *, follows: bool) -> Iterator[Point]:
    """``_sizes`` of modules on GPUs of their own, whose sizes say tp, cp and pp of the job."""
    v, gpus = space.values, job.cluster.num_gpus
    words, place, first = Splits(job, ()), OPTIONS.index(Axis.SEGMENTS), [v[axis][0] for axis in INNER]
    known: dict[int, Training] = {}
    each = len(v[Axis.EP]) * len(v[Axis.VPP]) * inner
    for chosen in _options(space)[1]:
        modules = str(chosen[-1])
        width = words.width(modules, str(chosen[place]))
        dps = [gpus // width] if gpus % width == 0 else []
        dps = [dp for dp in dps if dp in v[Axis.DP]]
        cuts.add(Rule.GPUS, each * ((1 if follows else len(v[Axis.DP])) - len(dps)))
        tp, cp, pp = total_sizes(modules)
        for dp, ep, vpp in product(dps, _ints(v[Axis.EP]), _ints(v[Axis.VPP])):
            sizes = Point(dp, tp, pp, cp, ep, vpp, *first, *chosen)  # type: ignore[arg-type]
            error = _misfit(job, sizes, known)
            if error is None:
                yield sizes
            else:
                cuts.add(Rule.SIZES, inner, error)


def _ints(values: tuple[int | str, ...]) -> list[int]:
    return [int(value) for value in values]


def _misfit(job: TrainingJob, sizes: Point, known: dict[int, Training]) -> SemuError | None:
    """What is wrong with sizes whatever the batch: they are tried with two microbatches for each pipeline rank.

    Args:
        known: filled, the job's settings by the size of a batch.
    """
    try:
        parallel, batch = replace(job.parallel, **parallel_of(sizes)), 2 * sizes.dp * sizes.pp
        if batch not in known:
            known[batch] = replace(job.training, micro_batch=1, global_batch=batch)
        TrainingJob(job.model, job.cluster, parallel, known[batch], job.batch)
    except ConfigError as error:
        return error
    return None


def _is_usual(job: TrainingJob, schedule: str) -> bool:
    """Whether a schedule runs every pipeline in a circular placement."""
    training = job.training
    return schedule in SCHEDULES and training.activation_limit is None and not training.optimizer_post_validation


def _refusal(job: TrainingJob, point: Point) -> SemuError | None:
    """Why a job cannot be prepared, with its schedule; None: it can."""
    from semu.simulation import prepare

    try:
        prepare(job_at(job, point)).problem()
    except SemuError as error:
        return error
    return None


def _refusals(job: TrainingJob, points: Sequence[Point]) -> list[SemuError | None]:
    """``_refusal`` of each. What else is sharded of a job that can be prepared adds exchanges to its stages, which are
    never refused: all that is asked of it then is whether its blocks can be traced."""
    from semu.compile.layout import trace_blocks
    from semu.simulation.checks.unmodelled import refuse_unmodelled

    found: list[SemuError | None] = []
    runs: set[Point] = set()
    is_plain = job.training.offload is None and (job.parallel.vocabulary, job.parallel.loss) == ("ends", "head")
    for point in points:
        if point._replace(zero=0) not in runs:
            found.append(_refusal(job, point))
            if found[-1] is None and is_plain and point.zero <= 1 and _is_usual(job, point.schedule):
                runs.add(point._replace(zero=0))
            continue
        try:
            own = job_at(job, point)
            refuse_unmodelled(own)
            trace_blocks(own)
        except SemuError as error:
            found.append(error)
        else:
            found.append(None)
    return found


def _trainable(job: TrainingJob, points: Points, cuts: _Cuts) -> Points:
    """Without settings of recomputation that the job refuses; each is asked once."""
    firsts, place = points.groups("recompute")
    kept = np.ones(len(points), dtype=np.bool_)
    for number, row in enumerate(firsts.tolist()):
        try:
            job_at(job, points[row])
        except ConfigError as error:
            cuts.add(Rule.RECOMPUTE, int((place == number).sum()), error)
            kept &= place != number
    return points if kept.all() else points.take(kept)


def _shardable(job: TrainingJob, points: Points, cuts: _Cuts) -> Points:
    """Without those that ``prepare`` refuses: one of all that are spread alike is asked, the smallest pipeline.

    A policy that deals blocks needs enough of them in a microbatch; else its size does not count.
    """
    deals = points.mapped("cp_balance", lambda word: Balance(word).is_by_block) & (points.column("cp") > 1)
    every = [widths_of(word) for word in points.values_of("modules")]
    widths = np.array([*map(every.index, every)] or [0])[points.codes_of("modules")]
    size = np.where(deals, points.column("micro_batch"), 0)
    firsts, place = points.groups("tp", "cp", "ep", "zero", "cp_balance", "attention_split", "cp_kind", size, widths)
    pp, vpp = points.column("pp"), points.column("vpp")
    work = pp**2 * vpp * points.column("tp") * points.column("cp")  # stages of a pipeline, but for a factor
    order = np.lexsort((-points.column("micro_batch"), vpp, work, place))  # of equals, the first stays the first
    least = order[np.searchsorted(place[order], np.arange(len(firsts)))]
    errors = _refusals(job, [points[row] for row in least.tolist()])
    wrong = np.array([error is not None for error in errors], dtype=np.bool_)[place] if errors else np.zeros(0, bool)
    if not wrong.any():
        return points
    cuts.add(Rule.SHARDING, int(wrong.sum()), errors[place[np.flatnonzero(wrong)[0]]])
    return points.take(~wrong)

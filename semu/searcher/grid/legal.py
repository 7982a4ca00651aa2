"""Which configurations exist: every combination of a space is kept or cut by the first rule that it breaks.

What the constructor of a job and ``prepare`` refuse is not written down a second time where it can be asked once for
many combinations: sizes are tried on a job with a batch that fits any of them, sharding on one configuration of every
(tp, cp, ep, zero). Only the arithmetic of the batch and of the blocks, which every combination needs, stands here too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from enum import StrEnum
from itertools import product

from semu.errors import ConfigError, SemuError
from semu.job import TrainingJob
from semu.parallel.context import Balance
from semu.parallel.segments import OWN_RANKS
from semu.records import dataclass
from semu.schedule.registry import ALL_SCHEDULES, SCHEDULES
from semu.searcher.grid.framework import NAMES, Framework, FrameworkRule, framework_rule
from semu.searcher.grid.space import (
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
from semu.searcher.grid.splits import Splits, sizes_of, takes_shares, total_sizes


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

    points: tuple[Point, ...]
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
    total = _total(space, follows=follows)
    cuts, found = _Cuts(), list[Point]()
    inner = len(v[Axis.MICRO_BATCH]) * len(v[Axis.RECOMPUTE]) * len(v[Axis.SCHEDULE])
    grouped = {name for name, family in ALL_SCHEDULES.items() if family.alternates}
    cannot_cut = framework_rule(framework, job)
    is_odd = {str(name): not _is_usual(job, str(name)) for name in v[Axis.SCHEDULE]}
    for sizes, count in _sizes(job, space, inner, cuts, follows=follows):
        if progress is not None and len(found) // 5000 != (len(found) + inner) // 5000:
            progress(f"looking for legal configurations: {len(found):,}")
        pp, vpp = sizes.pp, sizes.vpp
        for micro_batch in v[Axis.MICRO_BATCH]:
            step = sizes.dp * int(micro_batch)
            if job.training.global_batch % step:
                cuts.add(Rule.BATCH, count // len(v[Axis.MICRO_BATCH]))
                continue
            microbatches = job.training.global_batch // step
            odd = microbatches % pp != 0
            broken = {}
            for name in map(str, v[Axis.SCHEDULE]):
                point = sizes._replace(micro_batch=int(micro_batch), schedule=name)
                broken[name] = cannot_cut(point, microbatches)
            for recompute, schedule in product(v[Axis.RECOMPUTE], v[Axis.SCHEDULE]):
                if (uncut := broken[str(schedule)]) is not None:
                    cuts.add(Rule.FRAMEWORK, 1, uncut[1], uncut[0])
                    continue
                if odd and vpp > 1 and schedule in grouped:
                    cuts.add(Rule.GROUPS, 1)
                    continue
                point = sizes._replace(micro_batch=int(micro_batch), recompute=str(recompute), schedule=str(schedule))
                if space.layouts is not None and layout_of(point) not in space.layouts:
                    cuts.add(Rule.LAYOUT, 1)
                    continue
                if is_odd[point.schedule] or sizes.placement != "circular" or (vpp > 1 and sizes.segments == "apart"):
                    error = _refusal(job, point)
                    if error is not None:
                        cuts.add(Rule.SCHEDULE, 1, error)
                        continue
                found.append(point)
    points = _shardable(job, _trainable(job, found, cuts), cuts)
    return Legal(tuple(points), cuts.all(), total)


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


def _sizes(job: TrainingJob, space: Space, inner: int, cuts: _Cuts, *, follows: bool) -> Iterator[tuple[Point, int]]:
    """Legal values on all axes but micro_batch, recompute and schedule, with the combinations that each stands for."""
    if space.splits:
        yield from _split_sizes(job, space, inner, cuts, follows=follows)
        return
    v, gpus = space.values, job.cluster.num_gpus
    options, words = _options(space)[0], Splits(job, ())
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
                sizes = Point(dp, tp, pp, cp, ep, vpp, 1, "", "", *chosen)  # type: ignore[arg-type]
                if cp == 1 and (sizes.cp_balance, sizes.cp_kind) != (v[Axis.CP_BALANCE][0], v[Axis.CP_KIND][0]):
                    cuts.add(Rule.CONTEXT, inner)
                    continue
                if pp == 1 and sizes.partition != v[Axis.PARTITION][0]:
                    cuts.add(Rule.PIPELINE, inner)
                    continue
                if sizes.shares and not words.fits(sizes.shares, sizes.segments, pp, vpp):
                    cuts.add(Rule.SHARES, inner)
                    continue
                error = _misfit(job, sizes)
                if error is not None:
                    cuts.add(Rule.SIZES, inner, error)
                    continue
                yield sizes, inner


def _split_sizes(
    job: TrainingJob, space: Space, inner: int, cuts: _Cuts, *, follows: bool
) -> Iterator[tuple[Point, int]]:
    """``_sizes`` of modules on GPUs of their own, whose sizes say tp, cp and pp of the job."""
    v, gpus = space.values, job.cluster.num_gpus
    words, place = Splits(job, ()), OPTIONS.index(Axis.SEGMENTS)
    each = len(v[Axis.EP]) * len(v[Axis.VPP]) * inner
    for chosen in _options(space)[1]:
        modules = str(chosen[-1])
        width = words.width(modules, str(chosen[place]))
        dps = [gpus // width] if gpus % width == 0 else []
        dps = [dp for dp in dps if dp in v[Axis.DP]]
        cuts.add(Rule.GPUS, each * ((1 if follows else len(v[Axis.DP])) - len(dps)))
        tp, cp, pp = total_sizes(modules)
        for dp, ep, vpp in product(dps, _ints(v[Axis.EP]), _ints(v[Axis.VPP])):
            sizes = Point(dp, tp, pp, cp, ep, vpp, 1, "", "", *chosen)  # type: ignore[arg-type]
            error = _misfit(job, sizes)
            if error is None:
                yield sizes, inner
            else:
                cuts.add(Rule.SIZES, inner, error)


def _ints(values: tuple[int | str, ...]) -> list[int]:
    return [int(value) for value in values]


def _misfit(job: TrainingJob, sizes: Point) -> SemuError | None:
    """What is wrong with sizes whatever the batch: they are tried with two microbatches for each pipeline rank."""
    try:
        parallel = replace(job.parallel, **parallel_of(sizes))
        training = replace(job.training, micro_batch=1, global_batch=2 * sizes.dp * sizes.pp)
        replace(job, parallel=parallel, training=training)
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


def _trainable(job: TrainingJob, points: list[Point], cuts: _Cuts) -> list[Point]:
    """Without settings of recomputation that the job refuses; each is asked once."""
    wrong: dict[str, SemuError | None] = {}
    for point in points:
        if point.recompute not in wrong:
            try:
                job_at(job, point)
                wrong[point.recompute] = None
            except ConfigError as error:
                wrong[point.recompute] = error
    for word, refusal in wrong.items():
        if refusal is not None:
            cuts.add(Rule.RECOMPUTE, sum(point.recompute == word for point in points), refusal)
    return [point for point in points if wrong[point.recompute] is None]


def _shardable(job: TrainingJob, points: list[Point], cuts: _Cuts) -> list[Point]:
    """Without those that ``prepare`` refuses: one of every ``_sharding`` is asked, the smallest pipeline."""
    first: dict[tuple[object, ...], Point] = {}
    for point in points:
        key = _sharding(point)
        if key not in first or _work(point) < _work(first[key]):
            first[key] = point
    wrong = {key: error for key, point in first.items() if (error := _refusal(job, point)) is not None}
    if not wrong:
        return points
    kept = []
    for point in points:
        error = wrong.get(_sharding(point))
        if error is None:
            kept.append(point)
        else:
            cuts.add(Rule.SHARDING, 1, error)
    return kept


def _sharding(point: Point) -> tuple[object, ...]:
    """On what it depends whether a model can be spread; a policy that deals blocks needs enough in a microbatch."""
    deals = point.cp > 1 and Balance(point.cp_balance).is_by_block
    policy = point.cp_balance, point.attention_split, point.cp_kind, point.micro_batch if deals else 0
    widths = tuple((own["tp"], own["cp"]) for own in sizes_of(point.modules).values())
    return point.tp, point.cp, point.ep, point.zero, *policy, widths


def _work(point: Point) -> tuple[int, ...]:
    """Stages of a pipeline, but for a factor."""
    return point.pp**2 * point.vpp * point.tp * point.cp, point.vpp, -point.micro_batch

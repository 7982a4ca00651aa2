"""``Space``: the axes of a grid and the values on each; ``Point``: one configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum, StrEnum
from typing import Any, NamedTuple, TypeAlias

from semu.checks import check_integer, is_integer
from semu.errors import ConfigError, unknown_name
from semu.hardware.cluster import Cluster
from semu.job import Recompute, TrainingJob
from semu.job.experts import mixtures
from semu.nn import Model
from semu.nn.masked_kernel import TILE_EDGE
from semu.nn.trace.sharding import ContextKind
from semu.parallel.axes import AXES, MESH
from semu.parallel.config import PLACEMENTS
from semu.parallel.context import Balance
from semu.parallel.pipeline import PARTITIONS
from semu.parallel.segments import OWN_RANKS, SEGMENTS
from semu.records import dataclass
from semu.searcher.grid.splits import Splits, shares_of, sizes_of

Value: TypeAlias = int | str


class Axis(StrEnum):
    """What a grid may vary; the names are those of run.toml."""

    DP = "dp"
    TP = "tp"
    PP = "pp"
    CP = "cp"
    EP = "ep"
    VPP = "vpp"
    MICRO_BATCH = "micro_batch"
    RECOMPUTE = "recompute"
    SCHEDULE = "schedule"
    ZERO = "zero"
    PLACEMENT = "placement"
    SEGMENTS = "segments"
    CP_BALANCE = "cp_balance"
    ATTENTION_SPLIT = "attention_split"
    PARTITION = "partition"
    CP_KIND = "cp_kind"
    SHARES = "shares"
    MODULES = "modules"


class RankBy(StrEnum):
    """What decides the order of configurations: the time of an iteration, tokens/s per GPU, dollars per token, or the
    memory that is left over."""

    TIME = "time"
    TOKENS = "tokens"
    COST = "cost"
    HEADROOM = "headroom"


class Point(NamedTuple):
    """One configuration; ``recompute``: none, selective or full; ``shares``, ``modules``: words of ``splits``."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    vpp: int
    micro_batch: int
    recompute: str
    schedule: str
    zero: int
    placement: str
    segments: str
    cp_balance: str
    attention_split: int
    partition: str
    cp_kind: str
    shares: str = ""
    modules: str = ""

    def label(self, axes: Iterable[Axis]) -> str:
        """``dp8 tp2 pp4 micro_batch1 full``: the values on some axes."""
        words = [getattr(self, axis) for axis in axes]
        return " ".join(word if isinstance(word, str) else f"{axis}{word}" for axis, word in zip(axes, words))  # noqa: B905


LAID_OUT = tuple(name for name in Point._fields if name not in ("vpp", "schedule", "placement"))
"""Fields of a layout: what is left of a configuration without virtual stages, schedule and placement."""


def layout_of(point: Point) -> Point:
    """A configuration without what is none of ``LAID_OUT``."""
    return point._replace(vpp=1, schedule="", placement="")


USUAL = (Axis.DP, Axis.TP, Axis.PP, Axis.VPP, Axis.MICRO_BATCH, Axis.RECOMPUTE)
"""Axes that vary by default; with experts ``ep`` too."""
OPTIONS = (
    Axis.ZERO,
    Axis.PLACEMENT,
    Axis.SEGMENTS,
    Axis.CP_BALANCE,
    Axis.ATTENTION_SPLIT,
    Axis.PARTITION,
    Axis.CP_KIND,
)
"""Of ``Parallel`` beside its sizes: fields of a ``Point`` behind the schedule."""
SPLIT = (Axis.SHARES, Axis.MODULES)
"""How GPUs are split over modules: the last fields of a ``Point``, words of ``splits``."""
_PARALLEL = tuple(axis for axis in Axis if axis in (*AXES, *OPTIONS))


@dataclass(frozen=True)
class Space:
    """What a grid looks at.

    Attributes:
        values: per axis, its values in order; one value: the axis is fixed.
        varied: axes that were asked to vary, in the order of ``Axis``.
        within_node: tensor-parallel groups lie within a node; values of tp that were named are taken as they are.
        layouts: those that are legal, as ``layout_of``; None: all.
    """

    values: Mapping[Axis, tuple[Value, ...]]
    varied: tuple[Axis, ...]
    within_node: bool = True
    layouts: frozenset[Point] | None = None

    @classmethod
    def of(
        cls,
        job: TrainingJob,
        vary: Sequence[str] | Mapping[str, Sequence[Value] | None] | None = None,
        fix: Mapping[str, Value] | None = None,
        follow: Mapping[Axis, Value] | None = None,
    ) -> Space:
        """The space around a job.

        Args:
            job: what it says holds on every axis that does not vary. vary: names of axes, or axis -> values (None:
                all that could be legal); None: ``USUAL``. ``dp`` follows from the other sizes unless it is fixed.
            fix: axis -> its value. follow: the same of axes that are neither varied nor fixed, in the place of the
            job's; they are shown like those that vary.
        Raises:
            ConfigError: an unknown axis, one that is fixed and varied, a value that cannot be.
        """
        wanted = _usual(job, fix or {}) if vary is None else vary
        named = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
        fixed = {_axis(name, "fix"): value for name, value in (fix or {}).items()}
        asked = {_axis(name, "vary"): own for name, own in named.items()}
        follows = follow or {}
        for axis in asked:
            if axis in fixed:
                raise ConfigError(
                    f"the axis {axis.value!r} is fixed and varied",
                    where="fix",
                    expected=f"{axis.value} in one of vary and fix",
                    got=f"{axis.value}={fixed[axis]}",
                )
        values: dict[Axis, tuple[Value, ...]] = {}
        for axis in Axis:
            if axis in fixed:
                values[axis] = (fixed[axis],) if axis in SPLIT else _checked(axis, (fixed[axis],), "fix")
            elif axis in SPLIT and axis in asked:  # they depend on the others
                values[axis] = tuple(asked[axis] or ())
            elif axis in asked and asked[axis] is not None:
                values[axis] = _checked(axis, tuple(asked[axis] or ()), "vary")
            elif axis in asked or axis is Axis.DP:
                values[axis] = every_value(axis, job)
            else:
                values[axis] = (follows.get(axis, own_value(axis, job)),)
        shown = {*asked, Axis.DP, *follows, *_split(job, values, asked, fixed)} - {*fixed}
        varied = tuple(axis for axis in Axis if axis in shown)
        return cls(values, varied, within_node=asked.get(Axis.TP) is None and Axis.TP not in fixed)

    @property
    def splits(self) -> bool:
        """Whether modules have GPUs of their own, by the words of an axis."""
        return self.values[Axis.MODULES] != ("",)

    @property
    def size(self) -> int:
        """Combinations, with all values of dp."""
        return math.prod(map(len, self.values.values()))


def _split(
    job: TrainingJob,
    values: dict[Axis, tuple[Value, ...]],
    asked: Mapping[Axis, Sequence[Value] | None],
    fixed: Mapping[Axis, Value],
) -> tuple[Axis, ...]:
    """Fill in the words of ``SPLIT`` that are asked for, of other axes' values; the axes that follow from them: modules
    are apart where nobody says how they lie.

    Raises:
        ConfigError: no words of the job's modules.
    """
    named = [axis for axis in SPLIT if axis in asked or axis in fixed]
    if not named:
        return ()
    if len(job.model.modules) == 1:
        raise ConfigError(
            "one module has all GPUs", where=named[0].value, expected="a model of several modules", got=job.model.name
        )
    follows = Axis.SEGMENTS not in asked and Axis.SEGMENTS not in fixed
    legal = [str(own) for own in values[Axis.SEGMENTS] if own in OWN_RANKS or (own == "separated" and len(named) == 1)]
    if follows and not legal:
        values[Axis.SEGMENTS], legal = ("apart",), ["apart"]
    elif Axis.MODULES in named and not any(own in OWN_RANKS for own in legal):
        raise ConfigError(
            "modules have GPUs of their own only on ranks of their own",
            where=Axis.MODULES.value,
            expected=f"segments {' or '.join(OWN_RANKS)} beside it",
            got=", ".join(map(str, values[Axis.SEGMENTS])),
            nearest="segments=apart",
        )
    splits = Splits(job, legal)
    for axis in named:
        where = f"{'fix' if axis in fixed else 'vary'} {axis.value}"
        read = splits.read_shares if axis is Axis.SHARES else splits.read_sizes
        words = tuple(dict.fromkeys(read(word, where) for word in values[axis]))
        if not words and asked.get(axis) is not None:
            raise ConfigError(f"no value on the axis {axis.value!r}", where="vary", expected="one or more")
        values[axis] = words or _every_split(job, splits, axis, values, {*asked, *fixed})
    return (Axis.SEGMENTS,) if follows and values[Axis.SEGMENTS] != (own_value(Axis.SEGMENTS, job),) else ()


def _every_split(
    job: TrainingJob, splits: Splits, axis: Axis, values: Mapping[Axis, tuple[Value, ...]], named: set[Axis]
) -> tuple[Value, ...]:
    """All words of an axis of ``SPLIT`` beside the values of the others."""
    if axis is Axis.SHARES:
        return splits.every_shares([*map(int, values[Axis.PP]), *map(int, values[Axis.VPP])])
    own = {kind: [*map(int, values[kind])] for kind in (Axis.DP, Axis.TP, Axis.CP)}
    tps = own[Axis.TP] if Axis.TP in named else [*map(int, _divisors(job.cluster.gpus_per_node))]
    step = job.training.global_batch
    return splits.every_sizes([dp for dp in own[Axis.DP] if step % dp == 0], tps, own[Axis.CP])


def _usual(job: TrainingJob, fix: Mapping[str, Value]) -> list[str]:
    return [name for name in usual_axes(job.model) if name not in fix]


def usual_axes(model: Model) -> list[str]:
    """Axes that vary where none is named."""
    return [axis.value for axis in (*USUAL, *([Axis.EP] if mixtures(model) else []))]


def _axis(name: str, where: str) -> Axis:
    if name not in [axis.value for axis in Axis]:
        raise unknown_name("axis", str(name), [axis.value for axis in Axis], where=where)
    return Axis(name)


def _checked(axis: Axis, values: tuple[Value, ...], where: str) -> tuple[Value, ...]:
    """Values of the right type; whether they suit the job is checked later."""
    if not values:
        raise ConfigError(f"no value on the axis {axis.value!r}", where=where, expected="one or more")
    legal, least = _words(axis), 0 if axis in (Axis.ZERO, Axis.ATTENTION_SPLIT) else 1
    for value in values:
        if legal is not None:
            if value not in legal and not _is_rule(axis, value):
                raise unknown_name(axis.value, str(value), legal, where=f"{where} {axis.value}")
        elif not is_integer(value) or value < least:
            raise ConfigError(
                f"not a value of {axis.value}",
                where=f"{where} {axis.value}",
                expected=f"an integer >= {least}",
                got=value,
            )
    if axis is Axis.ZERO and any(value not in (0, 1, 2, 3) for value in values):
        raise ConfigError("unknown ZeRO stage", where=f"{where} zero", expected="0, 1, 2 or 3", got=values[0])
    return tuple(dict.fromkeys(values))


def _is_rule(axis: Axis, value: Value) -> bool:
    """Whether a value is the text of a schedule's rule."""
    from semu.schedule.registry import ALL_SCHEDULES

    return axis is Axis.SCHEDULE and str(value) in ALL_SCHEDULES


def with_rules(
    job: TrainingJob, vary: Mapping[str, Sequence[Value] | None] | None
) -> dict[str, Sequence[Value] | None]:
    """Axes with the rules of an exploration: named schedules and rules in every placement (FlexPipe §6).

    Args:
        vary: axes as ``Space.of`` takes them; a schedule, a placement or virtual stages that are given stay, others are
            those that are explored.
    """
    from semu.schedule.exploration.space import GRID_RULES, MOST_SLOTS

    found: dict[str, Sequence[Value] | None] = dict(dict.fromkeys(_usual(job, {})) if vary is None else vary)
    found.setdefault(Axis.SCHEDULE.value, ("1f1b", "interleaved", *GRID_RULES))
    found.setdefault(Axis.PLACEMENT.value, tuple(PLACEMENTS))
    if Axis.VPP.value in found and found[Axis.VPP.value] is None:
        found[Axis.VPP.value] = range(1, MOST_SLOTS + 1)
    return found


def _words(axis: Axis) -> list[str] | None:
    """Values of an axis of words; None: it has numbers."""
    if axis is Axis.RECOMPUTE:
        return [item.value for item in Recompute]
    if axis is Axis.PLACEMENT:
        return [*PLACEMENTS]
    if axis is Axis.SEGMENTS:
        return [*SEGMENTS]
    if axis is Axis.CP_BALANCE:
        return [item.value for item in Balance]
    if axis is Axis.PARTITION:
        return [*PARTITIONS]
    if axis is Axis.CP_KIND:
        return [item.value for item in ContextKind]
    if axis is Axis.SCHEDULE:
        from semu.schedule.registry import ALL_SCHEDULES

        return [*ALL_SCHEDULES]
    return None


def own_value(axis: Axis, job: TrainingJob) -> Value:
    """What a job has on an axis."""
    if axis in SPLIT:  # the empty word: as the job has it
        return ""
    value = getattr(job.parallel if axis in _PARALLEL else job.training, axis.value)
    found: Value = value.value if isinstance(value, Enum) else value
    return found


def every_value(axis: Axis, job: TrainingJob) -> tuple[Value, ...]:
    """All values of an axis that a job on its cluster could have; legal combinations are chosen later."""
    words = _words(axis)
    if axis is Axis.SEGMENTS and len(job.model.modules) == 1:
        return (own_value(axis, job),)
    if axis is Axis.SEGMENTS:  # encoders that share ranks with one another, or with the others
        fewest = {"colocated": 2, "replicated": 1}
        return tuple(word for word in SEGMENTS if len(job.model.encoders) >= fewest.get(word, 0))
    if words is not None:
        return tuple(words)
    if axis is Axis.ATTENTION_SPLIT:
        tiles = -(-(job.batch.context_length(job.training.seq_len) or 0) // TILE_EDGE)  # a part has one at least
        return (0, *(2**power for power in range(1, tiles.bit_length())))
    if axis in MESH:
        return _divisors(job.cluster.num_gpus)
    if axis is Axis.EP:
        found = mixtures(job.model)
        return _divisors(math.gcd(*(item.num_experts for _, item in found))) if found else (1,)
    if axis is Axis.VPP:
        return tuple(range(1, max(2, num_blocks(job) // 2 + 1)))
    if axis is Axis.MICRO_BATCH:
        return _divisors(job.training.global_batch)
    return (0, 1, 2, 3)


def num_blocks(job: TrainingJob) -> int:
    """Blocks that a pipeline may cut apart."""
    return sum(len(module.blocks()) for module in job.model.modules)


def _divisors(number: int) -> tuple[int, ...]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(dict.fromkeys([*low, *(number // n for n in reversed(low))]))


def parallel_of(point: Point) -> dict[str, Any]:
    """What a configuration sets of ``Parallel``."""
    found = {axis.value: getattr(point, axis.value) for axis in _PARALLEL}
    if point.modules:
        sizes = sizes_of(point.modules)
        tables = {name: {**own, "gpus": point.dp * math.prod(own.values())} for name, own in sizes.items()}
        return {**found, "shares": {}, "modules": tables}
    return found if not point.shares else {**found, "shares": shares_of(point.shares)}


def job_at(job: TrainingJob, point: Point) -> TrainingJob:
    """The job in another configuration; a layout, sharding groups and the like stay as they are.

    Raises:
        ConfigError: the configuration does not exist.
    """
    parallel = replace(job.parallel, **parallel_of(point))
    changes: dict[str, Any] = {"micro_batch": point.micro_batch, "schedule": point.schedule}
    training = job.training
    if point.recompute != training.recompute.value:
        changes |= {"recompute": point.recompute, "recompute_modules": None, "recompute_layers": None}
        changes |= {"recompute_method": None, "recompute_policy": None, "recompute_every": None}
    return replace(job, parallel=parallel, training=replace(training, **changes))


def with_gpus(job: TrainingJob, gpus: int) -> TrainingJob:
    """The job on a number of GPUs: more or fewer nodes of the same kind, or part of one node.

    Raises:
        ConfigError: no whole number of nodes.
    """
    check_integer(gpus, "gpus", "a number of GPUs")
    each = job.cluster.gpus_per_node
    if gpus > each and gpus % each:
        raise ConfigError(
            f"{gpus} GPUs are no whole number of nodes with {each} GPUs",
            where="gpus",
            expected=f"a multiple of {each}, or less than {each}",
            got=gpus,
            nearest=gpus // each * each,
        )
    return on_cluster(job, replace(job.cluster, nodes=max(1, gpus // each), gpus_per_node=min(each, gpus)))


def on_cluster(job: TrainingJob, cluster: Cluster) -> TrainingJob:
    """The job on another cluster, as a base of configurations: each of them is checked, this is not."""
    return changed(job, cluster=cluster)


def changed(job: TrainingJob, **values: object) -> TrainingJob:
    """The job with other attributes, which nobody checks."""
    new = object.__new__(TrainingJob)
    new.__dict__.update({name: getattr(job, name) for name in (own.name for own in fields(job))} | values)
    return new

"""``Change``: one thing about a job that is different, named as in a run file, e.g. NVLink at half its rate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Any

from semu.checks import check_number, is_number
from semu.errors import ConfigError, unknown_name
from semu.hardware.cluster import Cluster
from semu.job import TrainingJob
from semu.records import dataclass

_FACTOR = re.compile(r"x(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
TABLES = ("cluster", "parallel", "training", "overlap")
"""Tables of a run file whose keys can be changed; a change of ``model`` or ``batch`` is another run."""
_OVERRIDE = "override."
_OWN = frozenset(item.name for item in fields(Cluster) if item.name != "override")
"""Keys of ``[cluster]`` that are no numbers of the device's profile."""


@dataclass(frozen=True)
class Factor:
    """A value in multiples of the job's value, > 0."""

    value: float

    def __post_init__(self) -> None:
        check_number(self.value, "factor", "a factor", is_above=True)

    def __str__(self) -> str:
        return f"x{self.value:g}"


def read_value(value: object) -> object:
    """``x0.5`` as a ``Factor``; everything else as it is."""
    match = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    return value if match is None else Factor(float(match[1]))


@dataclass(frozen=True)
class Change:
    """Assignments that are made together.

    Attributes:
        assignments: (dotted key, value) each; keys of ``[cluster]`` (numbers of the device's profile among them, with
            or without ``override.``), ``[parallel]``, ``[training]`` and ``[overlap]``; values as there, or a
            ``Factor``.
    Raises:
        ConfigError: none, or a key twice.
    """

    assignments: tuple[tuple[str, object], ...]

    def __post_init__(self) -> None:
        found = tuple((_plain(str(key)), read_value(value)) for key, value in self.assignments)
        object.__setattr__(self, "assignments", found)
        keys = [key for key, _ in found]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError("a key twice in one change", where=key, expected="a key once")
        if not keys:
            raise ConfigError("a change without assignments", where="changes", expected="at least one key and value")

    @classmethod
    def of(cls, **values: object) -> Change:
        """Keys with ``__`` for the dot: ``Change.of(training__recompute="none")``."""
        return cls(tuple((key.replace("__", "."), value) for key, value in values.items()))

    @property
    def key(self) -> str:
        """What is changed: its keys."""
        return " ".join(key for key, _ in self.assignments)

    @property
    def label(self) -> str:
        """To what: its values."""
        return " ".join(_word(value) for _, value in self.assignments)

    def __str__(self) -> str:
        return " ".join(f"{key}={_word(value)}" for key, value in self.assignments)

    def apply(self, job: TrainingJob) -> TrainingJob:
        """The job with the change.

        Raises:
            ConfigError: an unknown key, a factor of something that is no number, a value out of range, sizes that do
                not fit together.
        """
        tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
        for key, value in self.assignments:
            table, _, name = key.partition(".")
            _current(job, key)
            tables[table][name] = value
        cluster = job.cluster
        if tables["cluster"]:
            cluster = _cluster(job, tables["cluster"])
        parallel = replace(job.parallel, **_values(job.parallel, tables["parallel"], "parallel"))
        training = job.training
        told = _values(training, tables["training"], "training")
        if tables["overlap"]:
            told["overlap"] = replace(training.overlap, **_values(training.overlap, tables["overlap"], "overlap"))
        if told:
            training = replace(training, **told)
        return TrainingJob(job.model, cluster, parallel, training, job.batch)

    def before(self, job: TrainingJob) -> str:
        """What the job says of the same keys, for people."""
        return " ".join(_word(_current(job, key)) for key, _ in self.assignments)


def parse_change(text: str, parse_value: Any = None) -> Change:
    """``training.recompute=none`` or several assignments with spaces between them, made together.

    Args:
        text: as on the command line. parse_value: text of a value -> value; None: as it stands.
    Raises:
        ConfigError: no assignment.
    """
    found = []
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or not key or not value:
            expected = "KEY=VALUE or KEY=xFACTOR, several with spaces between them"
            raise ConfigError("not a change", where="--set", expected=expected, got=word)
        is_factor = _FACTOR.fullmatch(value) is not None
        found.append((key, value if is_factor or parse_value is None else parse_value(key, value)))
    if not found:
        raise ConfigError("an empty change", where="--set", expected="KEY=VALUE or KEY=xFACTOR")
    return Change(tuple(found))


def _plain(key: str) -> str:
    table, _, name = key.partition(".")
    return f"{table}.{name.removeprefix(_OVERRIDE)}" if table == "cluster" else key


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Enum):
        return str(value.value)
    if value is None:
        return "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(_word, value)) + "]"
    return str(value)


def _legal(data: Any) -> list[str]:
    return [item.name for item in fields(data) if item.name != "overlap"]


def _current(job: TrainingJob, key: str) -> object:
    table, _, name = key.partition(".")
    if table == "cluster":
        if name == "device":
            return job.cluster.profile.name
        if name in _OWN:
            return _own(job.cluster, name)
        return job.cluster.profile.number(name, where=key).value
    if table not in TABLES:
        expected = ", ".join(f"{one}.KEY" for one in TABLES)
        raise ConfigError("another table is another run", where=key, expected=expected, got=key)
    data: Any = {"parallel": job.parallel, "training": job.training, "overlap": job.training.overlap}[table]
    if name not in _legal(data):
        raise unknown_name("key", key, [f"{table}.{one}" for one in _legal(data)], where="changes")
    if key == "overlap.pipeline":
        return job.overlaps_sends
    return job.overlaps_tensor_parallel if key == "overlap.tensor_parallel" else getattr(data, name)


def _values(data: Any, told: dict[str, Any], table: str) -> dict[str, Any]:
    return {
        name: _times(getattr(data, name), value, f"{table}.{name}") if isinstance(value, Factor) else value
        for name, value in told.items()
    }


def _times(current: object, factor: Factor, where: str) -> float | int:
    """A number in multiples; whole numbers stay whole."""
    if not is_number(current):
        raise ConfigError("a factor of what is no number", where=where, expected="a value", got=f"{_word(current)}")
    scaled = current * factor.value
    if isinstance(current, int):
        if scaled != int(scaled):
            raise ConfigError(
                "not a whole number",
                where=where,
                expected="a factor that gives one",
                got=f"{current} x {factor.value:g}",
            )
        return int(scaled)
    return scaled


def _own(cluster: Cluster, name: str) -> object:
    """What a cluster has under one of its own keys; where no number of cards is told, every GPU has one."""
    value: object = getattr(cluster, name)
    return cluster.gpus_per_node if name == "nics_per_node" and value is None else value


def _cluster(job: TrainingJob, told: dict[str, Any]) -> Any:
    cluster = job.cluster
    direct: dict[str, Any] = {}
    for name in sorted(_OWN & {*told}):
        value = told.pop(name)
        is_factor = isinstance(value, Factor)
        direct[name] = _times(_own(cluster, name), value, f"cluster.{name}") if is_factor else value
    cluster = replace(cluster, **direct)
    profile = cluster.profile
    override: dict[str, object] = {}
    for name, value in told.items():
        own = profile.number(name, where=f"cluster.{name}").value
        override[name] = own * value.value if isinstance(value, Factor) else value
    return replace(cluster, override={**cluster.override, **override}) if override else cluster

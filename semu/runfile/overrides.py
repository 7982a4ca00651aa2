"""What the command line changes in a run: ``--cluster``, ``--parallel``, ``--profile``, ``--seed`` and ``--set``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from typing import Any, TypeAlias

from semu.errors import ConfigError
from semu.hardware.cluster import DEFAULT_DEVICE, Cluster, said_of_cluster
from semu.imports.kinds import ReadOptions
from semu.parallel.axes import AXES, COUNTS, Following
from semu.parallel.config import Parallel
from semu.records import dataclass
from semu.runfile.places import Places
from semu.runfile.sources import options_table, plain

Changes: TypeAlias = Sequence[str] | Mapping[str, object]
"""Changes of a run: ``["training.seq_len=4096"]`` or ``{"training.seq_len": 4096}``."""
SaidCluster: TypeAlias = str | Cluster
"""``"h100:2x8"`` or a part of it, or a cluster."""
SaidParallel: TypeAlias = str | Parallel | Mapping[str, object]
"""``"dp8-tp2-pp4"``, keys of ``[parallel]`` with their values, or all of them."""

_BARE_WORD = re.compile(r"[\w~./][\w~./:+-]*")


@dataclass(frozen=True)
class Overrides:
    """Changes to a run, as the command line gives them.

    Attributes:
        assignments: ``key=value``, dotted keys of the run file; values in TOML, simple words also without quotes; or
            key -> value, None: the default.
        cluster: ``DEVICE:NODESxGPUS``, or a part of it (``said_of_cluster``); replaces device, nodes and
            gpus_per_node as far as it says them, keeps ``[cluster.override]``. Or a ``Cluster``, which replaces all.
        parallel: ``dp8-tp2-pp4``; sizes that are not named become 1, the other keys of ``[parallel]`` stay. Or a
            ``Parallel``, which replaces all; or keys of ``[parallel]`` with their values.
        profile: device name or profile file; replaces the device.
        seed: of the batch.
        defined: variables that a file of another program takes from outside.
        allow_unmodelled: leave out what makes another model or arithmetic in such a file, instead of refusing it.
    """

    assignments: Changes = ()
    cluster: SaidCluster | None = None
    parallel: SaidParallel | None = None
    profile: str | None = None
    seed: int | None = None
    defined: Mapping[str, str] = field(default_factory=dict)
    allow_unmodelled: bool = False

    @property
    def reading(self) -> ReadOptions:
        """How a file of another program is read."""
        texts = self.assignments
        keys = [f"{key}={texts[key]}" for key in texts] if isinstance(texts, Mapping) else texts
        said = [text.partition("=") for text in keys]
        models = [value.strip(" \"'") for key, _, value in said if key.strip() in ("model.name", "model.hf_config")]
        sizes = [value.strip() for key, _, value in said if key.strip() == "model.transformer.vocab"]
        model, vocab = models[-1] if models else None, sizes[-1] if sizes else None
        cluster = self.cluster
        if isinstance(cluster, Cluster):
            cluster = f"{_device_of(cluster)}:{cluster.nodes}x{cluster.gpus_per_node}"
        return ReadOptions(cluster, self.defined, self.allow_unmodelled, model, vocab)

    def apply(self, config: dict[str, Any], places: Places) -> None:
        """Write the changes into the tables, and where they came from into ``places``; ``assignments`` come last.

        Raises:
            ConfigError: a text that cannot be read, an unknown device.
        """
        for flag, keys, setting in self._flags():
            _assign(config, keys, setting, flag, places)
        for path, value in self._assigned():
            _assign(config, path, value, "--set", places)

    def _assigned(self) -> Iterator[tuple[tuple[str, ...], object]]:
        """(path of the key, value) of each assignment."""
        if isinstance(self.assignments, str):
            raise ConfigError(
                "not a list of assignments",
                where="overrides",
                expected='["training.seq_len=4096"] or {"training.seq_len": 4096}',
                got=repr(self.assignments),
                nearest=f"[{self.assignments!r}]",
            )
        if isinstance(self.assignments, Mapping):
            for key, given in self.assignments.items():
                yield _path_of(key, "overrides", "a key of a run file, e.g. training.seq_len"), plain(given)
            return
        for text in self.assignments:
            key, equals, value = (part.strip() for part in text.partition("="))
            path = _path_of(key if equals else "", "--set", "key=value, e.g. training.seq_len=4096", text)
            yield path, parse_value(key, value)

    def _flags(self) -> Iterator[tuple[str, tuple[str, ...], object]]:
        """(flag, path of the key, value) of each change that a flag makes."""
        yield from _cluster_keys(self.cluster)
        yield from _parallel_keys(self.parallel)
        if self.profile is not None:
            yield "--profile", ("cluster", "device"), self.profile
        if self.seed is not None:
            yield "--seed", ("batch", "seed"), self.seed


def _cluster_keys(cluster: SaidCluster | None) -> Iterator[tuple[str, tuple[str, ...], object]]:
    """(flag, path of the key, value) of what is said of the cluster."""
    if isinstance(cluster, Cluster):
        for item in fields(Cluster):
            value = _device_of(cluster) if item.name == "device" else getattr(cluster, item.name)
            yield "cluster", ("cluster", item.name), None if value == {} else value
    elif isinstance(cluster, str):
        flag = "--gpus" if cluster.startswith(":") else "--cluster"
        with _blamed(flag):
            said = said_of_cluster(cluster)
            whole = Cluster(**{"device": DEFAULT_DEVICE, **said})
        for name in said:
            yield flag, ("cluster", name), getattr(whole, name)
    elif cluster is not None:
        raise ConfigError("no cluster", where="cluster", expected='"h100:2x8" or a semu.Cluster', got=repr(cluster))


def _device_of(cluster: Cluster) -> str:
    if isinstance(cluster.device, str):
        return cluster.device
    raise ConfigError(
        "a device that has no name in a run file",
        where="cluster.device",
        expected="a shipped device's name or a profile's path; or a semu.TrainingJob",
        got=f"a profile, {cluster.device.name}",
    )


def _parallel_keys(
    parallel: SaidParallel | None,
) -> Iterator[tuple[str, tuple[str, ...], object]]:
    """(flag, path of the key, value) of what is said of the parallelism."""
    if isinstance(parallel, Parallel):
        table = options_table(parallel, "parallel")
        yield from (("parallel", ("parallel", name), table.get(name)) for name in (*AXES, *table))
    elif isinstance(parallel, Mapping):
        sizes = {**dict.fromkeys(COUNTS, 1), "dp": None}
        yield from (("parallel", ("parallel", name), plain(value)) for name, value in {**sizes, **parallel}.items())
    elif isinstance(parallel, str):
        with _blamed("--parallel"):
            read = Parallel.parse(parallel)
        for name, size in read.sizes.items():
            yield "--parallel", ("parallel", name), None if isinstance(size, Following) else size
    elif parallel is not None:
        expected = '"tp2-pp4", {"tp": 2} or a semu.Parallel'
        raise ConfigError("no parallel configuration", where="parallel", expected=expected, got=repr(parallel))


@contextmanager
def _blamed(flag: str) -> Iterator[None]:
    """A block whose errors name a flag instead of a key; a file that they name is kept."""
    try:
        yield
    except ConfigError as error:
        is_file = error.where is not None and ".toml" in error.where
        error.where = f"{flag} {error.where}" if is_file else flag
        raise


def parse_value(key: str, value: str) -> object:
    """The text of a value: TOML, or a simple word without quotes.

    Args:
        key: whose it is, for the error.
    Raises:
        ConfigError: neither.
    """
    try:
        parsed = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError) as error:
        if not _BARE_WORD.fullmatch(value):
            raise ConfigError(
                "not a TOML value",
                where=f"--set {key}",
                expected='a number, true, false, a word, "text" or [a list]',
                got=value or "nothing",
            ) from error
        return value
    if list(parsed) != ["value"]:
        raise ConfigError("more than one value", where=f"--set {key}", expected="one value", got=repr(value))
    found: object = parsed["value"]
    return found


def _path_of(key: object, where: str, expected: str, text: str | None = None) -> tuple[str, ...]:
    path = _parse_key(key) if isinstance(key, str) else None
    if path is None:
        raise ConfigError("not an assignment", where=where, expected=expected, got=repr(key) if text is None else text)
    return path


def _parse_key(key: str) -> tuple[str, ...] | None:
    """Path of a dotted TOML key; None where it is none."""
    try:
        table: Any = tomllib.loads(f"{key} = 0")
    except (ValueError, RecursionError):
        return None
    path: list[str] = []
    while isinstance(table, dict):
        if len(table) != 1:
            return None
        ((name, table),) = table.items()
        path.append(name)
    return tuple(path)


def _assign(config: dict[str, Any], path: tuple[str, ...], value: object, flag: str, places: Places) -> None:
    table = config
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError("not a table", where=f"{flag} {'.'.join(path)}", expected="a key of a table", got=part)
    places.flags[".".join(path)] = flag
    if value is None:  # what follows from the rest
        table.pop(path[-1], None)
    else:
        table[path[-1]] = value

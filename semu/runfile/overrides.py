"""What the command line changes in a run: ``--cluster``, ``--parallel``, ``--profile``, ``--seed`` and ``--set``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeAlias

from semu.errors import ConfigError
from semu.hardware.cluster import DEFAULT_DEVICE, Cluster, said_of_cluster
from semu.imports.kinds import ReadOptions
from semu.parallel.axes import Following
from semu.parallel.config import Parallel
from semu.records import dataclass
from semu.runfile.places import Places
from semu.runfile.sources import plain

Changes: TypeAlias = Sequence[str] | Mapping[str, object]
"""Changes of a run: ``["training.seq_len=4096"]`` or ``{"training.seq_len": 4096}``."""

_BARE_WORD = re.compile(r"[\w~./][\w~./:+-]*")


@dataclass(frozen=True)
class Overrides:
    """Changes to a run, as the command line gives them.

    Attributes:
        assignments: ``key=value``, dotted keys of the run file; values in TOML, simple words also without quotes; or
            key -> value, None: the default.
        cluster: ``DEVICE:NODESxGPUS``, or a part of it (``said_of_cluster``); replaces device, nodes and
            gpus_per_node as far as it says them, keeps ``[cluster.override]``.
        parallel: ``dp8-tp2-pp4``; sizes that are not named become 1, the other keys of ``[parallel]`` stay.
        profile: device name or profile file; replaces the device.
        seed: of the batch.
        defined: variables that a file of another program takes from outside.
        allow_unmodelled: leave out what makes another model or arithmetic in such a file, instead of refusing it.
    """

    assignments: Changes = ()
    cluster: str | None = None
    parallel: str | None = None
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
        return ReadOptions(self.cluster, self.defined, self.allow_unmodelled, model, vocab)

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
        if self.cluster is not None:
            flag = "--gpus" if self.cluster.startswith(":") else "--cluster"
            with _blamed(flag):
                said = said_of_cluster(self.cluster)
                cluster = Cluster(**{"device": DEFAULT_DEVICE, **said})
            for name in said:
                yield flag, ("cluster", name), getattr(cluster, name)
        if self.parallel is not None:
            with _blamed("--parallel"):
                sizes = Parallel.parse(self.parallel)
            for name, size in sizes.sizes.items():
                yield "--parallel", ("parallel", name), None if isinstance(size, Following) else size
        if self.profile is not None:
            yield "--profile", ("cluster", "device"), self.profile
        if self.seed is not None:
            yield "--seed", ("batch", "seed"), self.seed


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

"""Where a run's tables come from: a TOML file, a shipped name, or a file of another program."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from semu.checks import known_spelling
from semu.errors import ConfigError, unknown_name
from semu.files import read_bounded
from semu.hardware.cluster import Cluster
from semu.imports.kinds import PROGRAMS, ReadOptions, program_of
from semu.job import Training
from semu.job.declare import ValueKind
from semu.parallel.axes import Following
from semu.parallel.config import Overlap, Parallel
from semu.parallel.layout import PipelineLayout
from semu.parallel.modules import ModuleParallel
from semu.runfile.multimodal import PARTS
from semu.runfile.places import Places, parse_toml
from semu.runfile.schema import SCHEMA
from semu_models import MODELS, SETUPS, Setup
from semu_models.names import shipped_name

LARGEST_TEXT = 64 << 20
"""Bytes of a run file, or of another program's script or log."""
HF_NAME = "config.json"
"""What transformers calls a model's configuration."""


FOLLOWS = frozenset({"parallel.dp", "training.global_batch"})
"""What most programs' files leave to the number of GPUs."""


class Source(NamedTuple):
    """Where a run comes from.

    Attributes:
        tables: as they are written. places: theirs. setup: which one it is; None: none.
        is_open: what they do not say, a cluster for example, is decided by rules (``complete_run``).
        follows: keys of ``FOLLOWS`` that the file does not say: they come from its other sizes.
    """

    tables: dict[str, Any]
    places: Places
    setup: Setup | None = None
    is_open: bool = False
    follows: frozenset[str] = frozenset()


def read_source(run: str, options: ReadOptions | None = None) -> Source:
    """Read a run.

    Relative paths in a file become relative to the current folder.

    Args:
        run: a name of ``semu_models.SETUPS`` or ``semu_models.MODELS`` in any spelling, an id of the HuggingFace hub
            with such a shape (``semu_models.names``), a TOML file, a config.json of HuggingFace transformers (or a
            folder with one), or a file of one of ``PROGRAMS``.
        options: how a file of another program is read.
    Raises:
        ConfigError: none of these; or a file that cannot be read.
    """
    options = options if options is not None else ReadOptions()
    if (setup := _named(run, SETUPS)) is not None:
        follows = frozenset({"parallel.dp"})
        return Source(_setup_tables(SETUPS[setup]), Places(f"setup {setup}"), SETUPS[setup], follows=follows)
    if not os.path.exists(run) and (model := shipped_name(run, MODELS)) is not None:
        return Source({"model": {"name": model}}, Places(f"model {model}"), is_open=True)
    if os.path.isfile(os.path.join(run, HF_NAME)):
        return Source({"model": {"hf_config": os.path.join(run, HF_NAME)}}, Places(run), is_open=True)
    if not is_path(run) and not os.path.isfile(run) and not os.path.islink(run):
        raise _unknown_run(run)
    text = _read_text(run)
    if (program := program_of(run, text)) is not None:
        read = program.read(text, run, options)
        places = Places(run, flags=dict(read.places), notes=(*read.reading.notes, *read.reading.warnings))
        follows = FOLLOWS - read.places.keys()
        return Source(read.tables, places, is_open="cluster" not in read.tables, follows=follows)
    if run.endswith(".json"):
        return Source({"model": {"hf_config": run}}, Places(run), is_open=True)
    config = parse_toml(text, run)
    move_paths(config, lambda path: os.path.join(os.path.dirname(run), path))
    return Source(config, Places(run, text))


def names_run(word: str) -> bool:
    """Whether a word is a run: the name of a setup or model, or a file."""
    is_named = _named(word, SETUPS) is not None or shipped_name(word, MODELS) is not None
    return is_named or os.path.isfile(word) or os.path.isfile(os.path.join(word, HF_NAME))


def leaves_cluster_open(run: str, options: ReadOptions | None = None) -> bool:
    """Whether a run says nothing of its cluster, so that rules choose one; errors as ``read_source``."""
    source = read_source(run, options)
    return source.is_open and "cluster" not in source.tables


def hf_file(run: str) -> str | None:
    """The config.json that ``run`` means: the file itself, or the one in a folder; None: it means something else."""
    if _named(run, SETUPS) is not None:
        return None
    inside = os.path.join(run, HF_NAME)
    if os.path.isfile(inside):
        return inside
    return run if run.endswith(".json") else None


def _named(run: str, names: Collection[str]) -> str | None:
    """The name that ``run`` means, in any spelling; None: it is a file, or no such name."""
    return run if run in names else None if os.path.exists(run) else known_spelling(run, names)


def options_table(options: Parallel | Training | Overlap, table: str) -> dict[str, Any]:
    """The run file's keys of an options object; what is None without being ``auto``, or follows from the cluster, is
    left out."""
    values = {item.name: getattr(options, item.name) for item in fields(options) if item.name in SCHEMA[table]}
    values |= {
        name: "auto"
        for name, kind in SCHEMA[table].items()
        if kind is ValueKind.AUTO_SWITCH and values.get(name, "") is None
    }
    given = {name: value for name, value in values.items() if value is not None and not isinstance(value, Following)}
    words = {name: plain(value) for name, value in given.items()}
    return {name: value for name, value in words.items() if value != {}}


def plain(value: object) -> Any:
    """A value in the words of a run file."""
    if isinstance(value, PipelineLayout | ModuleParallel):
        return value.to_table()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return value.value if isinstance(value, Enum) else value


def is_path(text: str) -> bool:
    """Whether a device or a run is meant as a file, not as a name."""
    return text.endswith((".toml", ".json")) or "/" in text or os.sep in text


def move_paths(config: dict[str, Any], move: Callable[[str], str]) -> None:
    """Apply ``move`` to every path that tables hold: a profile, metadata, a config.json, a schedule."""
    paths = (("cluster", "device"), ("batch", "path"), ("model", "hf_config"), ("training", "schedule_file"))
    files = (*paths, ("assignment", "samples"), ("assignment", "costs"))
    for table, key in (*files, *(("model", part) for part in PARTS)):
        own = config.get(table)
        is_name = key in ("device", *PARTS)
        if isinstance(own, dict) and isinstance(own.get(key), str) and (not is_name or is_path(own[key])):
            own[key] = move(own[key])


def _unknown_run(run: str) -> ConfigError:
    error = unknown_name("setup or model", run, [*SETUPS, *MODELS], where="RUN")
    files = f"a TOML file, a config.json or {' or '.join(program.example for program in PROGRAMS)}"
    error.expected = f"a setup ({', '.join(SETUPS)}), a model (see semu list models), {files}"
    return error


def _read_text(path: str) -> str:
    try:
        data = read_bounded(path, "a run file, or a file of another program", LARGEST_TEXT)
    except ValueError as error:  # a null character
        raise ConfigError("not a path", where=repr(path), expected="a TOML file, or a setup") from error
    except OSError as error:
        siblings = [other.name for other in Path(path).parent.glob("*.toml") if other.is_file()]
        nearest = get_close_matches(Path(path).name, siblings, n=1, cutoff=0.75)
        raise ConfigError(
            f"cannot read the run file: {error.strerror}",
            where=path,
            expected="a TOML file, or a setup: " + ", ".join(SETUPS),
            nearest=nearest[0] if nearest else None,
        ) from error
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8 text", where=f"{path}:{line}", expected="a TOML file", got=error.reason) from error


def _setup_tables(setup: Setup) -> dict[str, Any]:
    cluster = Cluster.parse(setup.cluster)
    return {
        "model": {"name": setup.model},
        "cluster": {"device": cluster.device, "nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node},
        "parallel": options_table(setup.parallel, "parallel"),
        "training": options_table(setup.training, "training"),
        "overlap": options_table(setup.training.overlap, "overlap"),
        "batch": deepcopy(dict(setup.batch)),
    }

"""``read_megatron``: a script, a log or a file of arguments of Megatron-LM becomes the tables of a run file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.imports.megatron.arguments import Argument, Given
from semu.imports.megatron.flags import FLAGS
from semu.imports.megatron.from_script import read_script
from semu.imports.megatron.from_text import is_config, is_log, read_config, read_log
from semu.imports.megatron.model_tables import transformer_table
from semu.imports.megatron.parallel_tables import cluster_table, overlap_table, parallel_table
from semu.imports.megatron.settings import Settings
from semu.imports.megatron.training_tables import training_table
from semu.imports.megatron.vision_tables import add_vision
from semu_models.hf.reading import Reading, ReadingRow

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class MegatronRun:
    """What was read. tables: of a run file. reading: the report. places: key of a run file -> what decided it."""

    tables: Tables
    reading: Reading
    places: Mapping[str, str]


def read_megatron(
    path_or_text: str | os.PathLike[str],
    cluster: str | None = None,
    *,
    defined: Mapping[str, str] | None = None,
    allow_unmodelled: bool = False,
) -> MegatronRun:
    """Read arguments of Megatron-LM from a file.

    Args:
        path_or_text: a file, or its contents (anything with a line break). Others: as ``read_arguments``.
    Raises:
        ConfigError: a file that cannot be read, and as ``read_arguments``.
    """
    text, source = _contents(path_or_text)
    return read_arguments(text, source, cluster, defined=defined, allow_unmodelled=allow_unmodelled)


def read_arguments(
    text: str,
    source: str,
    cluster: str | None = None,
    *,
    defined: Mapping[str, str] | None = None,
    allow_unmodelled: bool = False,
) -> MegatronRun:
    """Read arguments of Megatron-LM: a script, a log, or a YAML file with ``MODEL_ARGS``.

    Args:
        text: contents of the file. source: its name, for messages.
        cluster: ``DEVICE:NODESxGPUS``; None: as many GPUs as the file says, on ``DEFAULT_DEVICE``.
        defined: variables that a script takes from outside; ``"1"`` is its first parameter.
        allow_unmodelled: list what changes time or memory and is not modelled instead of refusing it.
    Raises:
        ConfigError: sizes that are missing or contradict one another, text that is no script, arguments that change
            time or memory and are not modelled, all of them at once.
    """
    settings = Settings(read_given(text, source, defined))
    tables = _tables(settings, cluster)
    add_vision(settings, tables)
    if settings.problems and not allow_unmodelled:
        raise _refusal(settings)
    return MegatronRun(tables, _reading(settings, tables, cluster), _places(settings, tables))


def is_megatron(path: str, text: str) -> bool:
    """Whether a file may hold arguments of Megatron-LM."""
    is_script = path.endswith((".sh", ".bash", ".slurm", ".sbatch")) or text.startswith("#!")
    return is_log(text) or is_config(text) or is_script or "--num-layers" in text


def read_given(text: str, source: str, defined: Mapping[str, str] | None = None) -> Given:
    """The arguments of a log, a YAML file or a script; the content says which it is."""
    if is_log(text):
        return read_log(text, source)
    return read_config(text, source) if is_config(text) else read_script(text, source, defined)


def _contents(path_or_text: str | os.PathLike[str]) -> tuple[str, str]:
    name = os.fspath(path_or_text)
    if "\n" in name:
        return name.replace("\r\n", "\n"), "arguments"
    try:
        return Path(name).read_bytes().decode("utf-8-sig").replace("\r\n", "\n"), name
    except OSError as error:
        raise ConfigError(
            f"cannot read the file: {error.strerror}",
            where=name,
            expected="a script, a log or a YAML file with arguments of Megatron-LM",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8 text", where=name, expected="a script or a log", got=error.reason) from error


def _tables(settings: Settings, cluster: str | None) -> Tables:
    model = transformer_table(settings)
    own = cluster_table(settings, None if cluster is None else Cluster.parse(cluster))
    has_experts = "experts" in model
    given = settings.given
    where = f"--cluster {cluster}" if cluster is not None else given.where(given.cluster_line)
    parallel = parallel_table(settings, own["nodes"] * own["gpus_per_node"], where, has_experts=has_experts)
    training = training_table(settings, parallel, model["layers"], has_experts=has_experts)
    return {
        "model": {"transformer": model},
        "cluster": own,
        "parallel": parallel,
        "training": training,
        "overlap": overlap_table(settings, parallel["vpp"], parallel["pp"]),
    }


def _places(settings: Settings, tables: Tables) -> dict[str, str]:
    """The argument that decided a key; of several the last that the file gives."""
    places: dict[str, str] = {}
    for dest in settings.asked:
        if settings.is_told(dest) and FLAGS.understood[dest].to:
            places |= dict.fromkeys(_keys(FLAGS.understood[dest].to, tables), settings.where(dest))
    given = settings.given
    if given.nodes is not None:
        places |= dict.fromkeys(("cluster.nodes", "cluster.gpus_per_node"), given.where(given.cluster_line))
    return places


def _refusal(settings: Settings) -> ConfigError:
    problems, given = settings.problems, settings.given
    count = f"{len(problems)} arguments" if len(problems) > 1 else "an argument"
    verb = "are" if len(problems) > 1 else "is"
    nearest = [FLAGS.nearest(p.name) for p in problems if p.why.startswith("unknown")]
    return ConfigError(
        f"{count} that may change time or memory {verb} not modelled by this version: {'; '.join(map(str, problems))}",
        where=given.where(min((problem.line for problem in problems if problem.line), default=0)),
        expected="none of them, or --allow-unmodelled, which leaves them out and lists them",
        got=" ".join(problem.name for problem in problems),
        nearest=next((name for name in nearest if name is not None), None),
    )


def _reading(settings: Settings, tables: Tables, cluster: str | None) -> Reading:
    refused = {(problem.name, problem.line) for problem in settings.problems}
    understood, ignored = [], [_row(argument, why) for argument, why in settings.ignored]
    for dest, argument in settings.told.items():
        if (argument.written, argument.line) in refused:
            continue
        if dest not in settings.asked:
            ignored.append(_row(argument, "without effect beside the other arguments"))
        elif argument.is_printed and settings.is_default(dest):
            ignored.append(_row(argument, "Megatron-LM's own value"))
        else:
            understood.append(_row(argument, _shown(FLAGS.understood[dest].to, tables), settings.asked[dest]))
    given = settings.given
    if given.cluster_line and given.nodes is not None and cluster is None:
        size = f"{given.nodes} x {given.gpus_per_node}"
        understood.append(ReadingRow("launcher", size, _shown("cluster.nodes, cluster.gpus_per_node", tables)))
    defaulted = [
        ReadingRow(f"--{flag.name}", False if flag.is_switch else _plain(value), flag.to or "what semu models")
        for dest, value in settings.asked.items()
        if not settings.is_told(dest) and (flag := FLAGS.understood[dest]) and value is not None
    ]
    if cluster is None:
        defaulted.append(ReadingRow("cluster.device", tables["cluster"]["device"], "cluster.device"))
    return Reading(
        given.source,
        given.kind,
        None,
        tuple(understood),
        tuple(defaulted),
        tuple(ignored),
        tuple(settings.notes),
        tuple(
            ReadingRow(problem.name, problem.value, problem.why, problem.line or None) for problem in settings.problems
        ),
    )


def _row(argument: Argument, meaning: str, value: object = None) -> ReadingRow:
    is_switch = argument.flag is not None and argument.flag.is_switch and not argument.is_printed
    told = True if is_switch and not argument.values else argument.shown if value is None else _plain(value)
    return ReadingRow(argument.written, told, meaning, argument.line or None)


def _shown(keys: str, tables: Tables) -> str:
    """``model.transformer.layers = 32``; a key that is not written stands alone."""
    if not keys:
        return "what semu models"
    words = []
    for key in _keys(keys, tables):
        value: Any = tables
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        words.append(key if value is None or isinstance(value, Mapping) else f"{key} = {shown}")
    return ", ".join(words)


def _keys(keys: str, tables: Tables) -> list[str]:
    """Keys of a run file one by one; beside an encoder, the language model's table is ``[model.llm]``."""
    table = "model.llm" if "llm" in tables["model"] else "model.transformer"
    return keys.replace("model.transformer", table).split(", ")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value

"""``read_megatron``: a script, a log or a file of arguments of Megatron-LM becomes the tables of a run file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from semu.errors import ConfigError
from semu.imports.arguments import Argument, Given
from semu.imports.megatron.flags import FLAGS
from semu.imports.megatron.from_script import MODEL_ALONE, read_script
from semu.imports.megatron.from_text import is_config, is_log, read_config, read_log
from semu.imports.megatron.model_tables import transformer_table
from semu.imports.megatron.parallel_tables import cluster_table, overlap_table, parallel_table
from semu.imports.megatron.training_tables import training_table
from semu.imports.megatron.vision_tables import add_vision
from semu.imports.reading import ImportedTables, Tables, finish
from semu.imports.settings import Settings
from semu.imports.sizes import says_size


def read_megatron(
    path_or_text: str | os.PathLike[str],
    cluster: str | None = None,
    *,
    defined: Mapping[str, str] | None = None,
    allow_unmodelled: bool = False,
) -> ImportedTables:
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
    vocab: str | None = None,
    allow_unmodelled: bool = False,
) -> ImportedTables:
    """Read arguments of Megatron-LM: a script, a log, or a YAML file with ``MODEL_ARGS``.

    Args:
        text: contents of the file. source: its name, for messages.
        cluster: ``DEVICE:NODESxGPUS``; None: as many GPUs as the file says, on ``DEFAULT_DEVICE``.
        defined: variables that a script takes from outside; ``"1"`` is its first parameter.
        vocab: entries of the vocabulary as the caller has them; None: as the file says.
        allow_unmodelled: leave out what makes another model or arithmetic, and list it, instead of refusing it.
    Raises:
        ConfigError: sizes that are missing or contradict one another, text that is no script, arguments that make
            another model or arithmetic, all of them at once.
    """
    settings = Settings(with_vocabulary(read_given(text, source, defined), vocab))
    tables = tables_of(settings, cluster)
    return finish(settings, tables, allow_unmodelled=allow_unmodelled, cluster=cluster)


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


_OF_A_RUN = frozenset({"micro_batch_size", "global_batch_size", "world_size"})
"""Arguments of which a file that is more than a model has one."""


def with_vocabulary(given: Given, vocab: str | None) -> Given:
    """What a file says, with the caller's vocabulary in place of its own; None: as it is."""
    if vocab is None:
        return given
    own = Argument(FLAGS.printed("vocab_size"), "--set model.transformer.vocab", (vocab,), 0)
    return replace(given, arguments=(*given.arguments, own))


def tables_of(settings: Settings, cluster: str | None) -> Tables:
    """Tables of a run file, from the arguments of Megatron-LM.

    Args:
        cluster: ``DEVICE:NODESxGPUS``; None: as the settings say, else the fewest whole nodes.
    Raises:
        ConfigError: sizes that are missing or contradict one another.
    """
    tables = _tables(settings, cluster)
    add_vision(settings, tables)
    return tables


def _tables(settings: Settings, cluster: str | None) -> Tables:
    model = transformer_table(settings)
    is_alone = settings.given.kind == MODEL_ALONE
    if is_alone or (settings.given.nodes is None and not settings.told.keys() & _OF_A_RUN):
        settings.notes += [] if is_alone else ["no batch, no launcher: taken as the sizes of a model"]
        return {"model": {"transformer": model}, "training": {"software": "megatron"}}
    has_experts = "experts" in model
    own = dict(cluster_table(settings, cluster, has_experts=has_experts))
    given = settings.given
    where = f"--cluster {cluster}" if says_size(cluster) else given.where(given.cluster_line)
    parallel = parallel_table(settings, own["nodes"] * own["gpus_per_node"], where, has_experts=has_experts)
    training = training_table(settings, parallel, model["layers"], has_experts=has_experts)
    return {
        "model": {"transformer": model},
        "cluster": own,
        "parallel": parallel,
        "training": training,
        "overlap": overlap_table(settings, parallel["vpp"], parallel["pp"]),
    }

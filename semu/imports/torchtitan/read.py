"""``read_torchtitan``: a TOML configuration of torchtitan becomes the tables of a run file."""

from __future__ import annotations

import re

from semu.imports.documents import read_document
from semu.imports.flags import FlagTable, read_table
from semu.imports.reading import ImportedTables, finish
from semu.imports.settings import Settings
from semu.imports.torchtitan.registry import read_registry
from semu.imports.torchtitan.tables import MODELS, UNMODELLED, tables_of

FLAGS = FlagTable(read_table("semu.imports.torchtitan"), "torchtitan")
_OWN = re.compile(r"^\s*\[(job|parallelism|activation_checkpoint|lr_scheduler|metrics|profiling)\]", re.MULTILINE)
_FLAVOR = re.compile(r"^\s*flavor\s*=", re.MULTILINE)


def is_torchtitan(path: str, text: str) -> bool:
    """Whether a file is a TOML configuration of torchtitan, or a Python registry of them."""
    if path.endswith(".py"):
        return "Trainer.Config" in text and "torchtitan" in text
    return path.endswith(".toml") and (_FLAVOR.search(text) is not None or len(_OWN.findall(text)) >= 2)


def read_torchtitan(
    text: str, source: str, cluster: str | None = None, *, name: str | None = None, allow_unmodelled: bool = False
) -> ImportedTables:
    """Read a TOML configuration, or a function of a Python registry.

    Args:
        text: contents of the file. source: its name, for messages.
        cluster: ``DEVICE:NODESxGPUS``; None: the fewest whole nodes that the degrees of parallelism need.
        name: of the function; None: the file has one, or is TOML.
        allow_unmodelled: leave out what makes another model or arithmetic, and list it, instead of refusing it.
    Raises:
        ConfigError: text that is no TOML, an unknown model, sizes that contradict one another, keys that make another
            model or arithmetic.
    """
    if source.endswith(".py"):
        given = read_registry(text, source, name, FLAGS, {*MODELS, *UNMODELLED})
    else:
        given = read_document(text, source).given("configuration of torchtitan", FLAGS)
    settings = Settings(given)
    tables = tables_of(settings, cluster)
    return finish(settings, tables, allow_unmodelled=allow_unmodelled, cluster=cluster)

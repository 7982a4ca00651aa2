"""The reference of the site names all that there is: made from the parser, the schema and ``semu.__all__``."""

from __future__ import annotations

import re
from functools import cache

import pytest

import semu
from docs.make import reference
from semu.cli.options.every import COMMANDS, build_parser
from semu.errors import ConfigError
from semu.job.training import OPTIONS
from semu.runfile.schema import SCHEMA


@cache
def pages() -> dict[str, str]:
    return reference.pages()


@pytest.mark.slow
def test_the_reference_explains_every_public_name() -> None:
    assert reference.documented() == set(semu.__all__)
    explained = set(re.findall(r"(?m)^(?:::: |## `|# )(semu\.\w+)", "\n".join(pages().values())))
    assert {f"semu.{name}" for name in semu.__all__} <= explained


def test_every_command_and_option_is_listed() -> None:
    text = pages()["reference/command-line.md"]
    for name, command in build_parser()[1].items():
        section = text.partition(f"\n## semu {name}\n")[2].partition("\n## ")[0]
        words = {word for action in command._actions for word in action.option_strings if word.startswith("--")}
        words -= {"--help", "--json", "--quiet", "--debug"}
        assert [word for word in sorted(words) if f"{word}" not in section] == [], name
    assert len(COMMANDS) == text.count("\n## semu ")


def test_every_table_key_and_option_of_a_run_file_is_listed() -> None:
    text = pages()["reference/run-file.md"]
    for table, kinds in SCHEMA.items():
        section = text.partition(f"\n## [{table}]\n")[2].partition("\n## ")[0]
        assert [key for key in kinds if f"| `{key}` |" not in section] == [], table
    options = {row.name: row for row in OPTIONS if row.value.kind is not None}
    assert all(row.doc for row in options.values())
    assert len(re.findall(r"(?m)^\| `\w+` \|", text)) == sum(map(len, SCHEMA.values()))


def test_keys_of_shared_entries_are_told_apart() -> None:
    said = reference.attributes(reference._CLASSES["resilience.failures"])
    assert said["repair"].startswith("until a node is back") and "rack_share" not in said["rack_nodes"]
    silent = {
        f"{table}.{key}"
        for table, kind in reference._CLASSES.items()
        for key in SCHEMA[table]
        if key not in reference.attributes(kind) and f"{table}.{key}" not in reference._SAYS
    }
    assert {key for key in silent if not key.startswith(NETWORKS)} == set()


NETWORKS = tuple(f"model.{name}" for name in ("vit", "dit", "unet", "dual"))
"""Their classes say several sizes in one sentence."""


def test_exit_codes_are_those_of_the_errors() -> None:
    text = pages()["reference/exit-codes.md"]
    assert f"| {ConfigError.exit_code} | `semu.errors.ConfigError` |" in text
    assert {int(code) for code in re.findall(r"(?m)^\| (\d+) \|", text)} == {0, 2, 3, 4, 5, 6, 7, 70, 130}

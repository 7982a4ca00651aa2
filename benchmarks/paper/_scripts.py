"""``SCRIPTS``: every script, in the order of the papers; ``find_script``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol, cast

from benchmarks.paper._results import PaperResult
from benchmarks.paper.choices import Choices
from semu.errors import unknown_name

SCRIPTS: tuple[str, ...] = (
    "worked_example",
    "table1",
    "fig04",
    "fig05",
    "table4",
    "fig08a",
    "fig08b",
    "table5",
    "fig09",
    "fig10",
    "fig11",
    "fig12",
    "fig13",
    "fig14",
    "flexpipe_tables",
    "flexpipe_fig02",
    "flexpipe_fig12",
    "flexpipe_fig16",
    "flexpipe_table5",
    "cornstarch_frozen",
    "cornstarch_end_to_end",
    "cornstarch_balance",
    "cornstarch_dcp",
    "entrain_algorithms",
    "entrain_profiling",
    "entrain_training",
    "oobleck_throughput",
    "oobleck_planning",
)
"""Modules of this package that have ``run``."""


class Script(Protocol):
    """A table or figure: a module with this function."""

    def run(self, choices: Choices, *, quick: bool, out: Path) -> PaperResult:
        """Make it.

        Args:
            choices: of all open inputs. quick: small sizes, some seconds; what comes out is no result.
            out: folder for pictures, which is there.
        """
        ...


def find_script(name: str) -> Script:
    """A script by name; imported only now, so that one that cannot be does not hinder others.

    Raises:
        ConfigError: there is none.
    """
    if name not in SCRIPTS:
        raise unknown_name("script", name, list(SCRIPTS), where="NAME")
    return cast(Script, importlib.import_module(f"benchmarks.paper.{name}"))

"""What the commands' options share: the record of a command, and the options that several commands have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NamedTuple

AS_SIMULATE = "as for semu simulate"
REPEATED: dict[str, Any] = {"action": "append", "default": []}
"""Of an option that may be repeated."""


class CommandOptions(NamedTuple):
    """A command of semu.

    Attributes:
        help: its line in ``semu --help``. description, epilog: what ``semu COMMAND --help`` says around the
            options; without an epilog the description is wrapped. add: adds its options to a parser.
    """

    help: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]
    epilog: str | None = None


def add_run(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """Add the argument RUN."""
    parser.add_argument(
        "run", metavar="RUN", nargs=nargs, help="a TOML file, a config.json, a file of another program, or a setup"
    )


def add_set(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add ``--set``."""
    group.add_argument("--set", **REPEATED, metavar="KEY=VALUE", dest="assignments", help=AS_SIMULATE)


def number_of_gpus(text: str) -> int:
    """``1024`` or ``1,024``.

    Raises:
        ArgumentTypeError: no integer.
    """
    if re.fullmatch(r"-?\d+|\d{1,3}(,\d{3})+", text.strip()) is None:
        raise argparse.ArgumentTypeError(f"a number of GPUs like 1024, not {text!r}")
    return int(text.replace(",", ""))


def add_gpus(group: argparse._ArgumentGroup) -> None:
    """Add ``--gpus``."""
    group.add_argument(
        "--gpus",
        type=number_of_gpus,
        metavar="N",
        dest="cluster_gpus",
        help="so many GPUs, in nodes of 8: --cluster DEVICE:N",
    )


def add_changes(
    parser: argparse.ArgumentParser,
    *,
    seed: str | None = None,
    parallel: str = AS_SIMULATE,
    has_gpus: bool = True,
) -> None:
    """Add the options that change a run.

    Args:
        seed: help of ``--seed``; None: the command has it elsewhere. parallel: help of ``--parallel``.
        has_gpus: whether ``--gpus`` is one of them; False: the command has its own.
    """
    group = parser.add_argument_group("changes to the run")
    group.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help=AS_SIMULATE)
    if has_gpus:
        add_gpus(group)
    group.add_argument("--parallel", metavar="SIZES", help=parallel)
    group.add_argument("--profile", metavar="FILE|NAME", help=AS_SIMULATE)
    if seed is not None:
        group.add_argument("--seed", type=int, metavar="N", help=seed)
    add_set(group)
    add_reading(group)


def add_reading(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add ``--define`` and ``--allow-unmodelled``."""
    group.add_argument(
        "--define",
        **REPEATED,
        metavar="NAME=VALUE",
        help="a variable that a script takes from outside, 1 for its first parameter; may be repeated",
    )
    group.add_argument(
        "--allow-unmodelled",
        action="store_true",
        help="leave out settings of another program that make another model or arithmetic, instead of refusing them",
    )


def add_search_budget(group: argparse._ArgumentGroup) -> None:
    """Add how long to search, and with which seed."""
    group.add_argument("--time", type=float, metavar="S", help="seconds for a search; 0: the heuristic's schedule")
    group.add_argument("--rollouts", type=int, metavar="N", help="sequences to try (1024 without --time)")
    group.add_argument("--seed", type=int, metavar="N", help="seed of the batch and of the search (default 0)")
    group.add_argument("--workers", type=int, metavar="N", help="threads of a search (default: half the cores)")


def add_strict(group: argparse._ArgumentGroup) -> None:
    """Add ``--strict`` and ``--dump-config``."""
    group.add_argument("--strict", action="store_true", help="refuse coefficients that are mere defaults (exit 5)")
    add_dump(group)


def add_html(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add ``--html``."""
    group.add_argument("--html", metavar="FILE", help="write the result as one page to open in a browser, offline too")


def add_dump(group: argparse._ArgumentGroup) -> None:
    """Add ``--dump-config``."""
    group.add_argument("--dump-config", action="store_true", help="print the resolved run as TOML and stop")

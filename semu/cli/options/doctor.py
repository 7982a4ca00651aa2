"""Options of ``semu doctor``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--warm", action="store_true", help="compile all kernels with small runs, and say how long")


DOCTOR = CommandOptions(
    "show versions, extras and the kernel cache",
    "Show versions, which extras are installed, and where compiled kernels are kept.",
    _add,
)

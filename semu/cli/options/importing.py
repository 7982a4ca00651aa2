"""Options of ``semu import``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_reading, add_set


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="config.json of HuggingFace transformers, or a folder with one; a script, log or configuration of another "
        "program",
    )
    parser.add_argument("-o", "--output", metavar="RUN", help="the run file; without it, it goes to stdout")
    parser.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help="without it, the fewest H100 that do")
    parser.add_argument("--parallel", metavar="SIZES", help="without it, the first layout that fits in memory")
    add_set(parser)
    add_reading(parser)


IMPORT = CommandOptions(
    "turn a file of another program into run.toml, and say what was understood",
    "Turn a file of another program into run.toml, and say what was understood of it.",
    _add,
)

"""Options of ``semu import``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import REPEATED, CommandOptions, add_set


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="config.json of HuggingFace transformers, or a folder with one; a script or a log of Megatron-LM",
    )
    parser.add_argument("-o", "--output", metavar="RUN", help="the run file; without it, it goes to stdout")
    parser.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help="without it, the fewest H100 that do")
    parser.add_argument("--parallel", metavar="SIZES", help="without it, the first layout that fits in memory")
    add_set(parser)
    parser.add_argument(
        "--define",
        **REPEATED,
        metavar="NAME=VALUE",
        help="a variable that a script takes from outside, 1 for its first parameter; may be repeated",
    )
    parser.add_argument(
        "--allow-unmodelled",
        action="store_true",
        help="list arguments of Megatron-LM that change time or memory and are not modelled, instead of refusing them",
    )


IMPORT = CommandOptions(
    "turn a file of another program into run.toml, and say what was understood",
    "Turn a file of another program into run.toml, and say what was understood of it.",
    _add,
)

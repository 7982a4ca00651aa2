"""Options of ``semu export``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_changes, add_run

_DESCRIPTION = """\
Write a run as arguments or as a configuration of another program. What that program cannot say is found by reading the
file back, and listed.
"""
_EPILOG = """\
examples:
  semu export llama3-70b --cluster h100:16x8 --parallel tp8-pp4 --to megatron -o run.sh
  semu export pretrain.sh --to megatron --set training.recompute=full --diff    # your script, with that changed

exit codes: 0 ok, 2 bad input
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--to", metavar="PROGRAM", required=True, help="megatron, torchtitan, nemo or deepspeed")
    parser.add_argument("-o", "--output", metavar="FILE", help="the file; without it, it goes to stdout")
    parser.add_argument(
        "--diff",
        action="store_true",
        help="RUN is a file of that program: keep it as it is but for what changes, and print the difference",
    )
    add_changes(parser, seed="seed of the batch")


def add_export(group: argparse._ArgumentGroup) -> None:
    """Add ``--export``."""
    group.add_argument(
        "--export", metavar="PROGRAM[:FILE]", help="write what was found as a file of another program (semu export)"
    )


EXPORT = CommandOptions("write a run as a file of another program", _DESCRIPTION, _add, _EPILOG)

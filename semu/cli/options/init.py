"""Options of ``semu init``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_changes

_EPILOG = """\
examples:
  semu init > run.toml                              # a dense transformer whose sizes are spelt out
  semu init mistral-7b -o run.toml                  # a shipped model, on the fewest H100 that hold it
  semu init vlm-m --cluster h100:8x8 -o run.toml    # a shipped setup, changed

exit codes: 0 ok, 2 bad input, also a file that is there
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="NAME", nargs="?", help="a shipped model or setup, or another RUN; without it a generic run"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the new run file; without it, it goes to stdout")
    add_changes(parser, seed="seed of the batch")


INIT = CommandOptions(
    "write a commented run file to start from", "Write a run file with a comment on every key.", _add, _EPILOG
)

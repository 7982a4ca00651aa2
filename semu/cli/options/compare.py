"""Options of ``semu compare``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_changes, add_html

_DESCRIPTION = """\
Put runs, results (result.json, or a folder with one) and training logs side by side: which settings differ, how long an
iteration takes and where the time goes, and the memory of every pipeline rank. The first is what the others are beside.
"""
_EPILOG = """\
examples:
  semu compare qwen3-8b qwen3-4b --cluster h100:1x8
  semu compare pretrain.sh best.sh --picture compared.png
  semu compare run.toml training.log --tolerance 10        # exit code 7 beyond 10 %

exit codes: 0 ok, 2 bad input, 7 a time beyond the tolerance
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sides", metavar="RUN|RESULT|LOG", nargs="+", help="two or more")
    parser.add_argument(
        "--tolerance", type=float, metavar="PERCENT", help="exit with 7 where a time differs by more from the first"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw a PNG: where the time goes, and memory")
    add_html(parser)
    add_changes(parser, seed="seed of the batch, of all runs")


COMPARE = CommandOptions("runs, results and logs side by side", _DESCRIPTION, _add, _EPILOG)

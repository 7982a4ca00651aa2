"""Options of ``semu what-if``."""

from __future__ import annotations

import argparse

DESCRIPTION = "Simulate a run under changes, one at a time: which of them would help most."

EPILOG = """\
A change is KEY=VALUE in the words of a run file, or KEY=xFACTOR for a multiple of what the run has. Keys are those of
[parallel], [training], [overlap] and [cluster]; numbers of the device's profile (semu list devices) are keys of
[cluster]. Several assignments in one --set, with spaces between them, are made together. Without --set: the hardware
numbers that the run can feel, divided and multiplied by --factor, what may overlap, and other strategies.

examples:
  semu what-if vlm-m
  semu what-if gpt3.toml --set cluster.nvlink_bytes_per_s=x0.5 --set cluster.nic_bytes_per_s=x2
  semu what-if vlm-l --set training.recompute=selective --set "parallel.vpp=2 training.schedule=interleaved" --out out

exit codes: 0 ok (changes with which the run cannot run are listed with the reason), 2 bad input, 70 a defect in semu,
130 interrupted (the answers so far are printed and written)
"""


def add_what_if(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.add_argument("run", metavar="RUN", help="a TOML file, a config.json, or a shipped setup")
    asked = parser.add_argument_group("changes to look at")
    asked.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE|KEY=xFACTOR",
        dest="changes",
        help="a change; may be repeated",
    )
    asked.add_argument("--factor", type=float, metavar="F", help="without --set: of hardware numbers (default 2)")
    change = parser.add_argument_group("the run itself")
    change.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help="as for semu simulate")
    change.add_argument("--parallel", metavar="SIZES", help="as for semu simulate")
    change.add_argument("--profile", metavar="FILE|NAME", help="as for semu simulate")
    change.add_argument("--seed", type=int, metavar="N", help="of the batch")
    change.add_argument(
        "--base",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="changes the run before anything is asked, as --set does for semu simulate",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write what_if.json and what_if.png")
    output.add_argument("--dump-config", action="store_true", help="print the resolved run as TOML and stop")

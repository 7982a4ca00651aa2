"""Options of ``semu what-if``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import (
    AS_SIMULATE,
    REPEATED,
    CommandOptions,
    add_dump,
    add_gpus,
    add_html,
    add_reading,
    add_run,
)

_DESCRIPTION = "Simulate a run under changes, one at a time: which of them would help most."

_EPILOG = """\
A change is KEY=VALUE in the words of a run file, or KEY=xFACTOR for a multiple of what the run has. Keys are those of
[parallel], [training], [overlap] and [cluster] (nodes, network cards, ...); numbers of the device's profile (semu list
devices) are keys of [cluster], too. Several assignments in one --set, with spaces between them, are made together.
Without --set: the hardware numbers that the run can feel, divided and multiplied by --factor, what may overlap, and
other strategies.

examples:
  semu what-if vlm-m
  semu what-if gpt3.toml --set cluster.nvlink_bytes_per_s=x0.5 --set cluster.nic_bytes_per_s=x2
  semu what-if vlm-l --set training.recompute=selective --set "parallel.vpp=2 training.schedule=interleaved" --out out

exit codes: 0 ok (changes with which the run cannot run are listed with the reason), 2 bad input, 70 a defect in semu,
130 interrupted (the answers so far are printed and written)
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    asked = parser.add_argument_group("changes to look at")
    asked.add_argument(
        "--set",
        **REPEATED,
        metavar="KEY=VALUE|KEY=xFACTOR",
        dest="changes",
        help="a change; may be repeated",
    )
    asked.add_argument("--factor", type=float, metavar="F", help="without --set: of hardware numbers (default 2)")
    change = parser.add_argument_group("the run itself")
    change.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help=AS_SIMULATE)
    add_gpus(change)
    change.add_argument("--parallel", metavar="SIZES", help=AS_SIMULATE)
    change.add_argument("--profile", metavar="FILE|NAME", help=AS_SIMULATE)
    change.add_argument("--seed", type=int, metavar="N", help="of the batch")
    change.add_argument(
        "--base",
        **REPEATED,
        metavar="KEY=VALUE",
        dest="assignments",
        help="changes the run before anything is asked, as --set does for semu simulate",
    )
    add_reading(change)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write what_if.json, what_if.png and report.html")
    add_html(output)
    add_dump(output)


WHAT_IF = CommandOptions("which change to a run would help most", _DESCRIPTION, _add, _EPILOG)

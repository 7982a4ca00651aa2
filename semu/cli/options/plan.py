"""Options of ``semu plan``."""

from __future__ import annotations

import argparse

from semu.cli.options.plan_stream import EPILOG as STREAM_EPILOG
from semu.cli.options.plan_stream import add_stream_options
from semu.cli.options.shared import CommandOptions, add_changes, add_html, add_run, add_search_budget, add_strict

_DESCRIPTION = (
    "Compile a schedule into an execution plan: what every rank does, one action after another. With --iterations or "
    "--stream, plan a run's iterations one after another, each while the one before it trains."
)

_EPILOG = (
    """\
A plan holds, for every pipeline rank, its stages in the schedule's order, the launches and waits of its sends and
receives, placed from the simulated timeline, and the memory strategy of every stage; estimates lie in a block of their
own. semu run executes it.

examples:
  semu plan vlm-s -o plan.json                                the run's own schedule
  semu plan vlm-s --search --time 10 --seed 1 -o plan.json    one made for its batch
  semu plan vlm-s --schedule out/schedule.json -o plan.json   one that semu search wrote
  semu plan lm-7b --schedule zb-h1 --rank 0
  semu plan --show plan.json --rank 2
  semu plan --show plan.json --picture plan.png --html plan.html
  semu plan --verify plan.json
  semu plan lm-7b --schedule zb-h1 --torch-csv zb-h1.csv

--schedule takes schedule.json of semu search, an order as text or .csv, or a name (semu list schedules). --search may
be left out where --time or --rollouts says how long to search; with --rollouts the same plan comes again.

exit codes: 0 ok, 2 bad input, 3 no strategy fits in memory, 4 an illegal schedule or plan, 5 a default coefficient
under --strict, 70 a defect in semu, 130 interrupted

"""
    + STREAM_EPILOG
)


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "?")
    which = parser.add_argument_group("which schedule")
    which.add_argument("--schedule", metavar="FILE|NAME", help="without it and a search, the run's own")
    which.add_argument("--search", action="store_true", help="search one for the run's batch")
    add_search_budget(which)
    add_stream_options(parser)
    add_changes(parser)
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help="write the plan (plan.json)")
    output.add_argument("--show", metavar="FILE", help="a plan that is there, in place of RUN")
    output.add_argument(
        "--verify", metavar="FILE", help="check a plan that is there, and say what it needs; nothing else is printed"
    )
    output.add_argument("--rank", type=int, metavar="N", help="print the actions of this rank (--show: all ranks)")
    output.add_argument("--picture", metavar="FILE", help="draw its actions over time, a PNG")
    output.add_argument(
        "--torch-csv",
        metavar="FILE",
        help="write its order of stages as torch.distributed.pipelining reads it, where it fits its rules",
    )
    output.add_argument(
        "--out",
        metavar="DIR",
        help="write plan.json, result.json and report.html; of --show report.html; of a loop result.json, "
        "iterations.png, report.html and state.json",
    )
    add_html(output)
    add_strict(output)


PLAN = CommandOptions(
    "compile a schedule into what every rank does, or plan a training loop", _DESCRIPTION, _add, _EPILOG
)

"""Options of ``semu run``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions

_DESCRIPTION = "Execute a plan: every rank's stages, sends and receives, over torch."

_EPILOG = """\
With --demo, local processes execute the plan on small layers that stand for those of its model: same modules, chunks,
sub-microbatches, actions and memory strategies, real data dependence. Loss and every gradient are compared with those
of the same small model in one piece; the time that the pipeline took is printed beside the time that semu simulates for
the plan's order with stage times calibrated on this machine.

A plan runs with layers of your own through semu.executor (run_plan, split_model): see semu/executor/README.md.
Needs torch: pip install '.[executor]' in a checkout of semu, or pip install torch

examples:
  semu plan vlm-s -o plan.json
  semu run plan.json --demo --out out
  semu run plan.json --demo --backend fake --iterations 10 --json

exit codes: 0 ok, 2 bad input, 4 an illegal plan, 6 a rank has failed or gradients differ, 70 a defect in semu,
130 interrupted
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", help="a plan.json of semu plan")
    parser.add_argument("--demo", action="store_true", help="on this machine, with small layers")
    parser.add_argument(
        "--backend",
        default="gloo",
        metavar="NAME",
        help="gloo: a process per rank (default); fake: a thread per rank, no network",
    )
    parser.add_argument("--iterations", type=int, default=3, metavar="N", help="to measure (default 3)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="how long a rank waits for another (default 60)"
    )
    parser.add_argument(
        "--fewer-layers", type=int, default=8, metavar="N", help="one small layer stands for N of the plan (default 8)"
    )
    parser.add_argument(
        "--shards",
        action="store_true",
        help="a process for each GPU of a stage, with its shard of the layers (plans of semu templates say them)",
    )
    parser.add_argument("--out", metavar="DIR", help="write result.json and timeline.png, simulated beside measured")


RUN = CommandOptions("execute a plan over torch, on small layers on this machine", _DESCRIPTION, _add, _EPILOG)

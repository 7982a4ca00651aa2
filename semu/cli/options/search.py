"""Options of ``semu search``."""

from __future__ import annotations

import argparse

from semu.cli.options.exporting import add_export
from semu.cli.options.samples import add_assigned
from semu.cli.options.shared import (
    REPEATED,
    CommandOptions,
    add_changes,
    add_html,
    add_run,
    add_search_budget,
    add_strict,
)

_DESCRIPTION = "Look for the schedule that is best for a run's batch: chunks, sub-microbatches, order and memory."

_EPILOG = """\
Every modality module gets chunks of its own and cuts its items into sub-microbatches; then the search tries orders of
the stages, and a memory strategy for each layer of each of them, within the memory of every rank. The table shows the
schedule found beside that of Megatron-LM (interleaved 1F1B where it can be, the run's recomputation) and beside the
heuristic's, which the search begins with.

examples:
  semu search vlm-s --out out
  semu simulate vlm-s --set training.schedule_file=out/schedule.json
  semu search vlm-m --rollouts 2000 --seed 1
  semu search vlm-s --batches 8 --rollouts 300 --engine local
  semu search t2v-s --time 5 --memory-limit 40GiB --sub-batch dit=2 --segments dit=4
  semu search vlm-s --samples metadata.jsonl --assign entrain --out out

A number of rollouts gives the same files again, byte for byte, with the same seed and as many workers; --time does not.
Ctrl-C ends the search: what was found so far is simulated and written.

exit codes: 0 ok, 2 bad input, 3 no strategy fits in memory (the rank and what is missing are named), 4 sub-microbatches
of a module that cannot be cut, 5 a default coefficient under --strict, 70 a defect in semu, 130 interrupted
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    budget = parser.add_argument_group("search")
    add_search_budget(budget)
    budget.add_argument(
        "--strategy", default="mixed", metavar="NAME", help="mixed (default), mcts, local, dfs or random"
    )
    budget.add_argument("--objective", default="min", metavar="min|max", help="max looks for the longest schedule")
    budget.add_argument(
        "--exact", action="store_true", help="afterwards let OR-Tools' CP-SAT go on for as long (60 s without --time)"
    )
    budget.add_argument(
        "--explore",
        action="store_true",
        help="also begin with the fastest order by rule (semu schedules RUN --explore) of those with whole backwards",
    )
    what = parser.add_argument_group("what may be decided")
    what.add_argument(
        "--sub-batch",
        **REPEATED,
        metavar="MODULE=N",
        help="items of a sub-microbatch, 0: whole microbatches; may be repeated",
    )
    what.add_argument("--segments", **REPEATED, metavar="MODULE=N", help="chunks per rank; may be repeated")
    what.add_argument(
        "--strategies",
        metavar="NAMES",
        help="memory strategies of layers, with commas between: none, selective, full, offload (default: all)",
    )
    what.add_argument("--candidates", type=int, default=10, metavar="N", help="ways to run a stage pair, at most")
    what.add_argument("--memory-limit", metavar="SIZE", help="of every rank, e.g. 64GiB (default: the device's memory)")
    add_assigned(parser.add_argument_group("samples in place of the run's batch"))
    many = parser.add_argument_group("many batches")
    many.add_argument(
        "--batches", type=int, metavar="N", help="search N batches, of seeds --seed and up, and print a table of them"
    )
    many.add_argument("--engine", default="serial", metavar="NAME", help="runs them: serial (default), local or ray")
    many.add_argument(
        "--processes", type=int, metavar="N", help="of the engine local (default: one per core); CPUs of ray"
    )
    many.add_argument("--address", metavar="HOST:PORT", help="of a Ray cluster that runs already")
    add_changes(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        metavar="DIR",
        help="write schedule.json, result.json, timeline.png (before and after), memory.png, curve.png, report.html; "
        "of samples also assignment.json, .csv, .jsonl and .png",
    )
    add_html(output)
    add_export(output)
    add_strict(output)


SEARCH = CommandOptions("look for the schedule that is best for a run's batch", _DESCRIPTION, _add, _EPILOG)

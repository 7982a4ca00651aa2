"""Options of ``semu schedules``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import AS_SIMULATE, CommandOptions, add_changes, add_html, add_run, add_strict

_DESCRIPTION = (
    "Compare pipeline schedules on a run: time, bubble and memory of each; or, without a run, on plain numbers."
)

_EPILOG = """\
The run's own schedule comes first. Every other one runs on its own placement, with the run's vpp where it allows that,
else with the fewest chunks that it needs; what cannot run is listed with the rule that it breaks.

examples:
  semu schedules vlm-l
  semu schedules vlm-l --compare all --out out
  semu schedules vlm-m --compare zb-v --csv zb-v.csv
  semu schedules lm-7b --compare 1f1b,zb-v --picture schedules.png
  semu schedules --ranks 4 --microbatches 8
  semu schedules vlm-m --explore --split --out out
  semu schedules --ranks 4 --microbatches 8 --explore --split --explain
  semu schedules lm-7b --program rules.toml
  semu schedules --rule-of zb-v.csv

The CSV has a line per stage of the schedules that --compare names (of all, without it), for the slowest replica:
schedule, rank, position (in the rank's order), chunk (of the model), phase (F, B, I input gradient, W weight gradient),
microbatch, start_s, end_s, bytes (the most that the rank has allocated meanwhile). With one schedule it can be the
training.schedule_file of another run.

With --explore, --out has result.json, torch.csv (the fastest that torch.distributed.pipelining can run) and
separation.png, the best before and after its weight gradients were put off.

exit codes: 0 ok, 2 bad input, 3 the run's own schedule, or every one that --compare names, does not fit in memory, 4 an
illegal schedule; the table is printed where some schedule runs
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "?")
    parser.add_argument(
        "--compare", metavar="NAMES", help="schedules, with commas between, or all (see semu list schedules)"
    )
    parser.add_argument("--program", metavar="FILE", help="a TOML file with [schedule.NAME]: compare these rules")
    exploring = parser.add_argument_group("exploration: rules of all placements, on the run or on plain numbers")
    exploring.add_argument(
        "--explore", action="store_true", help="look for the best rule; all shipped schedules seed it"
    )
    exploring.add_argument("--top", type=int, metavar="N", help="so many rules are simulated and shown (default 10)")
    exploring.add_argument("--split", action="store_true", help="with weight gradients put off into bubbles, too")
    exploring.add_argument(
        "--explain", action="store_true", help="which stage caused each bubble of the best, and what change removes it"
    )
    exploring.add_argument("--rule-of", metavar="FILE", help="the rule that reproduces a schedule in a file")
    add_changes(parser, seed="seed of the batch")
    plain = parser.add_argument_group("without a run: every stage takes a second for F, I and W each")
    plain.add_argument("--ranks", type=int, metavar="P", help="pipeline ranks")
    plain.add_argument("--microbatches", type=int, metavar="M", help="microbatches")
    speed = parser.add_argument_group("speed")
    speed.add_argument("--cache", metavar="DIR|FILE", help=AS_SIMULATE)
    output = parser.add_argument_group("output")
    output.add_argument("--csv", metavar="FILE", help="write a line per stage")
    output.add_argument("--picture", metavar="FILE", help="draw the schedules below one another, as a PNG")
    output.add_argument(
        "--out", metavar="DIR", help="write result.json, schedules.png, report.html and NAME.csv of every schedule"
    )
    add_html(output)
    add_strict(output)


SCHEDULES = CommandOptions("compare pipeline schedules on a run: time, bubble and memory", _DESCRIPTION, _add, _EPILOG)

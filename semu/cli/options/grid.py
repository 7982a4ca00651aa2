"""Options of ``semu grid``."""

from __future__ import annotations

import argparse

from semu.cli.options.exporting import add_export
from semu.cli.options.shared import (
    AS_SIMULATE,
    REPEATED,
    CommandOptions,
    add_changes,
    add_html,
    add_run,
    add_strict,
    number_of_gpus,
)

_DESCRIPTION = (
    "Find the best configurations of a run within memory: parallel sizes, microbatch, recomputation and more."
)

_EPILOG = """\
Every legal combination of the axes is simulated, or cut because it surely does not fit or surely is not among the best
--top (branch and bound: the same optimum as with --exhaustive). The table shows these, and faster ones that do not fit
with the nearest change that would; then comes the full report of the best. Rows whose times lie within 0.5 % of one
above them are counted there ("and 9 like it"; mb: micro_batch); --csv, --json and --out have each of them.

axes: dp tp pp cp ep vpp micro_batch recompute schedule zero placement segments cp_balance attention_split partition
cp_kind, and of several modules shares (vit=1/llm=3: pipeline ranks of each) and modules (vit=tp2-pp1/llm=tp4-cp2-pp3:
sizes of each on GPUs of its own, in the place of tp, pp and cp); names may be left out. Without --vary: dp, tp, pp,
vpp, micro_batch and recompute, with experts also ep, but what the command line says of them (--tp 8, --parallel tp8) is
fixed; --tp 4,8 varies tp between these. dp follows from the others unless it is fixed; tp stays in a node
unless its values are named.

examples:
  semu grid gpt3-175b --out out
  semu grid vlm-m --gpus 64 --vary tp,pp --fix micro_batch=1 --top 5
  semu grid vlm-s --vary modules,cp=1:2 --framework any
  semu grid run.toml --vary tp=2:4:8,pp,recompute --rank-by cost --price 2.5
  semu grid gpt3-175b --exhaustive --workers 2 --results grid.sqlite     # goes on where it was interrupted

exit codes: 0 ok, 2 bad input, also no legal configuration, 3 nothing fits in memory (the smallest are printed),
5 a default coefficient under --strict, 6 the engine's workers are lost, 70 a defect in semu, 130 interrupted (the table
of what was done is printed, --results keeps it)
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    what = parser.add_argument_group("configurations")
    what.add_argument(
        "--gpus",
        type=number_of_gpus,
        metavar="N",
        help="so many GPUs, in nodes like the run's, whatever their number there",
    )
    what.add_argument(
        "--framework",
        metavar="NAME",
        help="only what it can cut: megatron (pp x vpp divides the layers), torchtitan (tp divides the heads), any; "
        "default: megatron where training.software says so, else any",
    )
    what.add_argument("--vary", metavar="AXES", help="axes with commas between, each with values or without: tp=2:4,pp")
    what.add_argument("--fix", **REPEATED, metavar="AXIS=VALUE", help="may be repeated: tp=8")
    what.add_argument(
        "--explore", action="store_true", help="vary rules of pipeline schedules and placements, too (--framework any)"
    )
    what.add_argument(
        "--exhaustive", action="store_true", help="simulate all that may fit, whatever their bounds of time"
    )
    rank = parser.add_argument_group("ranking")
    rank.add_argument("--top", type=int, default=10, metavar="N", help="so many of the best for sure (default 10)")
    rank.add_argument(
        "--rank-by", default="time", metavar="WHAT", help="time (default), tokens (per s and GPU), cost or headroom"
    )
    rank.add_argument("--price", type=float, metavar="USD", help="of a GPU for an hour: adds the cost per token")
    work = parser.add_argument_group("work")
    work.add_argument("--workers", type=int, metavar="N", help="processes (default 1; with --engine all cores)")
    work.add_argument("--engine", metavar="NAME", help="local (default): processes; ray: a Ray cluster")
    work.add_argument("--results", metavar="FILE", help="SQLite file: keeps results, and takes from it what is there")
    add_changes(parser, seed="seed of the batch", parallel=f"{AS_SIMULATE}; of axes that do not vary", has_gpus=False)
    output = parser.add_argument_group("output")
    output.add_argument("--csv", metavar="FILE", help="write a line per configuration")
    output.add_argument(
        "--out",
        metavar="DIR",
        help="write grid.csv, grid.json, pareto.png, heatmap.png, report.html, and in best/ what semu simulate writes",
    )
    output.add_argument("--axes", metavar="AXIS,AXIS", help="of the heat map, up and across (default tp,pp)")
    add_html(output)
    add_export(output)
    add_strict(output)


GRID = CommandOptions("find the best parallel configurations of a run within memory", _DESCRIPTION, _add, _EPILOG)

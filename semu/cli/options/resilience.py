"""Options of the commands about long runs: ``semu goodput``, ``semu templates``, ``semu drill``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_changes, add_dump, add_html, add_run

_DESCRIPTION = (
    "How much of a long run is useful work under failures? Every strategy through the same failures: goodput, where "
    "every GPU-second goes, the best interval between training checkpoints, spares, what would help most."
)

_EPILOG = """\
Strategies: checkpoint, async, in-memory, tiered, spares, varuna, bamboo, oobleck, oobleck-checkpoint, or all. Oobleck
needs parallel.zero=0. Times are seconds or texts like 10s, 30min, 3h, 54d. What is not given follows from the run:
saves and loads from its state and links.
Keys of the run file: resilience.checkpoint.*, resilience.failures.*, resilience.price.*.

examples:
  semu goodput llama3.1-405b --cluster h100:2048x8 --failures 419/54d
  semu goodput run.toml --mtbf 3h --strategy checkpoint,spares --save 10s --restart 10min --tokens 15T
  semu goodput run.toml --trace events.csv --out out

exit codes: 0 ok (no progress at all is a result, with its reason), 2 bad input, 70 a defect in semu
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    failures = parser.add_argument_group("failures (default: as often per GPU as in Llama 3's training)")
    failures.add_argument("--mtbf", metavar="TIME", help="between failures of the job's nodes together")
    failures.add_argument("--failures", metavar="N/TIME", help="a rate, e.g. 419/54d")
    failures.add_argument("--failures-gpus", type=int, metavar="N", help="GPUs that the rate was counted on")
    failures.add_argument(
        "--trace", metavar="FILE", help="events: time_s,node,event,notice_s; timestamp,count; hours,count; sacct -P"
    )
    failures.add_argument("--repair", metavar="TIME", help="until a node is back (default 0: replaced; or never)")
    asked = parser.add_argument_group("what to run")
    asked.add_argument("--strategy", metavar="A,B,...", help="some strategies (default: all)")
    asked.add_argument("--days", type=float, metavar="D", help="length of a run (default 54)")
    asked.add_argument("--seeds", type=int, metavar="N", help="runs to draw (default 16)")
    asked.add_argument("--spares", type=int, metavar="N", help="spare nodes (default: enough for 99 of 100 moments)")
    asked.add_argument("--every", metavar="TIME", help="work between two saves (default: best)")
    asked.add_argument("--save", metavar="TIME", help="a save to storage")
    asked.add_argument("--restart", metavar="TIME", help="from a failure until training goes on")
    asked.add_argument("--tokens", metavar="N", help="days and cost of training on N tokens, e.g. 15T")
    asked.add_argument("--gpu-hour-usd", type=float, metavar="USD", help="price of a GPU for an hour")
    add_changes(parser, seed="of the batch and of the failures")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write goodput.json, goodput.png, goodput_mtbf.png, report.html")
    add_html(output)
    add_dump(output)


GOODPUT = CommandOptions("how much of a long run is useful work under failures", _DESCRIPTION, _add, _EPILOG)


_TEMPLATES = (
    "Pipeline templates (Oobleck): the fastest pipeline of every size from the smallest that fits, so that any number "
    "of nodes that failures leave is used by at least faults + 1 pipelines; and what some nodes are composed into."
)

_TEMPLATES_EPILOG = """\
Optimizer state must not be sharded across pipelines (parallel.zero=0): it would be there once.

examples:
  semu templates run.toml --faults 1 --nodes 13 --out out
  semu templates qwen3-8b --cluster h100:8x8 --set parallel.zero=0
  semu templates run.toml --nodes 13 --plan plan.json && semu run plan.json --demo

exit codes: 0 ok, 2 bad input, too few nodes among it, 3 no template fits, 70 a defect in semu
"""


def _add_templates(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    asked = parser.add_argument_group("what to plan")
    asked.add_argument("--faults", type=int, metavar="F", help="failures at once to survive (default 1)")
    asked.add_argument("--nodes", type=int, metavar="N", help="compose so many nodes into pipelines")
    add_changes(parser, seed="of the batch")
    output = parser.add_argument_group("output")
    output.add_argument("--plan", metavar="FILE", help="with --nodes: write the pipelines' execution plan, verified")
    output.add_argument(
        "--out", metavar="DIR", help="write templates.json, pictures, report.html, with --nodes trace.json.gz"
    )
    add_html(output)
    add_dump(output)


TEMPLATES = CommandOptions(
    "pipelines that cover any number of surviving nodes", _TEMPLATES, _add_templates, _TEMPLATES_EPILOG
)


_DRILL = (
    "A drill of Oobleck's recovery: a process for each node trains small layers in the pipelines that the templates "
    "compose; nodes are killed, the others notice, compose themselves anew, copy missing layers with their optimizer "
    "state from nodes that hold them, and go on. Losses, parameters and optimizer state are compared with those of the "
    "model in one piece that nothing interrupts."
)

_DRILL_EPILOG = """\
A node dies by SIGKILL in the middle of an iteration (ITERATION:NODE, from 0 on), or at another moment: commit (all have
their gradients, it has not stepped), copy (while layers are copied), hang (it stops without dying, and is killed when
others have waited for --timeout). Below (faults + 1) x n0 nodes it ends with exit code 6, and the nodes write their
state into --out. Nodes have one GPU each. Needs torch: pip install '.[executor]' in a checkout.

examples:
  semu drill lm-7b --cluster h100:5x1 --parallel pp5 --set parallel.zero=0 --set training.global_batch=8 --kill 2:1
  semu drill run.toml --kill 2:1,4:3:copy --join 6:1 --iterations 9 --out out

exit codes: 0 ok, 2 bad input, 3 no template fits, 6 too few nodes are left, or the state differs, 70 a defect in semu
"""


def _add_drill(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    asked = parser.add_argument_group("what happens")
    asked.add_argument("--faults", type=int, metavar="F", help="failures at once to survive (default 1)")
    asked.add_argument("--iterations", type=int, default=6, metavar="N", help="to train (default 6)")
    asked.add_argument(
        "--kill", metavar="I:N[:MOMENT],...", help="kill node N in iteration I: stage (default), commit, copy, hang"
    )
    asked.add_argument("--join", metavar="I:N,...", help="node N comes back behind iteration I")
    asked.add_argument(
        "--backend", default="gloo", metavar="NAME", help="gloo: a process per node (default); fake: threads"
    )
    asked.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="how long a node waits for another (default 60)"
    )
    add_changes(parser, seed="of the batch")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write drill.json; the state of all nodes where it cannot go on")
    add_dump(output)


DRILL = CommandOptions("kill ranks of pipelines while they train, and go on", _DRILL, _add_drill, _DRILL_EPILOG)

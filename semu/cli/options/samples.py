"""Options of the commands that look at samples: ``semu assign``, ``semu workload``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions, add_changes, add_dump, add_html, add_run

_DESCRIPTION = (
    "Which sample goes to which replica and microbatch? Real samples' metadata, assigned by one method or by all, each "
    "simulated: iteration time, heaviest microbatch over the mean of every module, and bounds."
)

_EPILOG = """\
A line of FILE is a sample: {"id": "a7", "text_tokens": 120, "images": [{"patches": 1024, "tokens": 64}]} or
{"text_tokens": 800}. An iteration takes as many samples, in the order of the file, as the run's packed sequences hold;
--count says another number.

examples:
  semu assign vlm-s --cluster h800:2x8 --parallel dp2-tp2-pp4 --samples metadata.jsonl --method all
  semu assign vlm-s --cluster h800:2x8 --parallel dp2-tp2-pp4 --samples metadata.jsonl --count 16 \\
    --set training.global_batch=8 --method all --exact
  semu assign qwen3-8b --cluster h100:4x8 --parallel tp2-pp4 --samples documents.jsonl --out out

In a run file: [assignment] with samples, method, count, iteration, window, seed, speeds, costs. semu simulate, search
and plan of such a file train these samples, assigned by one method, in place of [batch].

exit codes: 0 ok, 2 bad input, 3 the assigned iteration does not fit in memory, 70 a defect in semu
"""


def _add_iteration(asked: argparse._ArgumentGroup) -> None:
    asked.add_argument("--count", type=int, metavar="N", help="samples of an iteration (default: as many as it packs)")
    asked.add_argument("--iteration", type=int, metavar="I", help="which iteration of the file (default: 0)")


def add_assigned(asked: argparse._ArgumentGroup) -> None:
    """Add the options of a command that looks at an iteration of assigned samples beside other things."""
    asked.add_argument(
        "--samples", metavar="FILE", help="JSONL, a sample a line: assigned, then looked at (semu assign)"
    )
    asked.add_argument("--assign", metavar="METHOD", help="how they are assigned (default: entrain)")
    _add_iteration(asked)


def _add(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    asked = parser.add_argument_group("what to assign")
    asked.add_argument("--samples", metavar="FILE", help="JSONL, a sample a line (semu.workload.metadata)")
    asked.add_argument(
        "--method", metavar="NAME|all", help="one method, several with commas, or all (default: entrain)"
    )
    _add_iteration(asked)
    asked.add_argument(
        "--window", type=int, metavar="M", help="samples may change places among M iterations (default: 1)"
    )
    asked.add_argument(
        "--speeds", metavar="X,X,...", help="of replicas: 0.8 takes 1 / 0.8 as long as 1, and gets less (default: 1)"
    )
    asked.add_argument("--costs", metavar="FILE", help="of samples, that semu validate --costs wrote (default: fitted)")
    asked.add_argument(
        "--exact",
        type=float,
        nargs="?",
        const=20.0,
        metavar="SECONDS",
        help="ask an exact solver too, for a dozen or two samples: how far is each method from the optimum? Seconds "
        "(default: 20) are the solver's own, which count its steps",
    )
    add_changes(parser, seed="of the random order, and of the packs that costs are fitted on")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        metavar="DIR",
        help="write assignment.json, .csv, .jsonl (for data loaders) and .png of the best, and report.html",
    )
    add_html(output)
    add_dump(output)


ASSIGN = CommandOptions("which sample goes to which replica and microbatch", _DESCRIPTION, _add, _EPILOG)


_OF_WORKLOAD = (
    "What do samples ask of a model's modules? Each module's share of the work, the GPUs of a replica in proportion, "
    "the smallest batch that tells it (b_min) with its confidence, and how far the next allocation is."
)

_WORKLOAD_EPILOG = """\
examples:
  semu workload vlm-s --cluster h800:2x8 --parallel dp2-tp2-pp4 --samples metadata.jsonl --out out

exit codes: 0 ok (a batch below b_min, and no convergence, are warnings), 2 bad input, 70 a defect in semu
"""


def _add_workload(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    asked = parser.add_argument_group("what to look at")
    asked.add_argument("--samples", metavar="FILE", help="JSONL, a sample a line (semu.workload.metadata)")
    asked.add_argument("--count", type=int, metavar="N", help="samples of an iteration (default: as many as it packs)")
    asked.add_argument("--alpha", type=float, metavar="A", default=0.05, help="1 - confidence (default: 0.05)")
    asked.add_argument(
        "--error", type=float, metavar="P", default=0.05, help="share of batches that may differ (default: 0.05)"
    )
    add_changes(parser, seed="of the draws, and of the packs that costs are fitted on")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write workload.json, workload.png and report.html")
    add_html(output)
    add_dump(output)


WORKLOAD = CommandOptions("what samples ask of a model's modules", _OF_WORKLOAD, _add_workload, _WORKLOAD_EPILOG)

"""Options of ``semu validate``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import AS_SIMULATE, REPEATED, CommandOptions, add_html, add_reading, add_set


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="FILE", help="runs as JSON; without it, a small set that ships with semu")
    parser.add_argument("--group", **REPEATED, metavar="NAME", help="only the rows of this group; may be repeated")
    parser.add_argument(
        "--profile",
        metavar="FILE|NAME|spec",
        help="a profile TOML or a shipped name for the rows of the device of that name, or, where no row names it, for "
        "all rows; spec: every row on its own device as the data sheet has it, alpha = 1; with --run its device",
    )
    parser.add_argument(
        "--compare",
        metavar="FILE|NAME|spec",
        help="run all rows under another profile too, and show the errors of both",
    )
    parser.add_argument(
        "--site",
        type=int,
        metavar="N",
        help="site calibration: fit a factor or two to the first N rows of each group, and score the others",
    )
    parser.add_argument(
        "--pass-times",
        action="store_true",
        help="only rows that say what a forward, an input gradient and a weight gradient took, with these times on "
        "every rank: what is left is the schedule",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: every core for 48 rows or more)")
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="PERCENT",
        help="exit 7 where the mean absolute error of a group of at least 4 rows is beyond it; with --log, that of the "
        "median iteration time or of a peak; with --trace, that of the iteration or of a kind with 5 %% of the work",
    )
    own = parser.add_argument_group("a run of your own, against its log or its trace")
    own.add_argument("--run", metavar="RUN", help="a TOML file or a shipped setup, as for semu simulate")
    own.add_argument(
        "--log",
        metavar="FILE",
        help="training log of Megatron-LM, torchtitan or another program (docs/guides/programs.md), plain or gzip",
    )
    own.add_argument(
        "--trace",
        metavar="FILE",
        help="trace of torch.profiler (Kineto), JSON, or of Nsight Systems, CSV of nsys stats: cuda_gpu_trace or "
        "cuda_gpu_kern_sum; plain or gzip",
    )
    own.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help=AS_SIMULATE)
    own.add_argument("--parallel", metavar="SIZES", help=AS_SIMULATE)
    add_set(own)
    own.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="leave out the log's first N iterations; without it the first fifth, at least 1 and at most 10",
    )
    own.add_argument(
        "--rank",
        type=int,
        metavar="N",
        help="pipeline rank of the trace; without it what the trace says of its global rank, else 0",
    )
    own.add_argument(
        "--step", type=int, metavar="N", help="ProfilerStep of the trace; without it the one of median length"
    )
    own.add_argument(
        "--iterations",
        type=int,
        metavar="N",
        help="whole iterations in a trace that does not mark them, or in a sum of kernels; their mean is compared",
    )
    own.add_argument("--gpu", type=int, metavar="N", help="number of the GPU in a trace of several")
    own.add_argument(
        "--costs",
        metavar="OUT",
        help="with --trace: refit costs of samples to its stages, and write them for semu assign",
    )
    own.add_argument("--samples", metavar="FILE", help="with --costs: the samples, JSONL, as for semu assign")
    own.add_argument("--assignment", metavar="FILE", help="with --costs: assignment.jsonl of the iteration")
    own.add_argument("--replica", type=int, metavar="D", help="with --costs: of the trace (default: 0)")
    own.add_argument("--gpus", type=int, metavar="N", help="GPUs whose kernels a sum of kernels adds up")
    add_reading(own)
    output = parser.add_argument_group("output")
    output.add_argument("--csv", metavar="FILE", help="write a line per row, quantity or kind")
    output.add_argument("--picture", metavar="FILE", help="draw a PNG: predicted over measured, or bars of both")
    output.add_argument("--out", metavar="DIR", help="write validation.json, .csv, .png and report.html")
    add_html(output)


VALIDATE = CommandOptions(
    "compare predictions with published runs",
    "Compare predictions with published runs: time and memory, per group and beside a null model.",
    _add,
)

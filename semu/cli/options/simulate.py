"""Options of ``semu simulate``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import REPEATED, CommandOptions, add_gpus, add_html, add_reading, add_strict

_EPILOG = """\
RUN is a TOML file or the name of a shipped setup (semu list setups), which brings its cluster, parallelism and batch;
or the config.json of a HuggingFace model (or a folder with one), to which --cluster and --parallel give the rest; or a
launch script, log or configuration of another program (semu import --help).

examples:
  semu simulate vlm-m
  semu simulate vlm-m --cluster h800:8x8 --parallel dp8-tp2-pp4 --out out
  semu simulate run.toml --set training.recompute=none --json
  semu simulate qwen3-8b --gpus 64 --seq-len 4096 --global-batch 512

Every key of [training] is an option too, as --seq-len 4096 for --set training.seq_len=4096, and so are the sizes of
[parallel]: --tp 4. What other programs call them is understood too: --device, --nodes (of 8 GPUs), --batch-size,
--seq-length, --tensor-model-parallel-size, --lora RANK and the like.

model.frozen lists modality modules, roles and module paths. What it names is frozen whole: "encoder" also freezes the
adapter at the encoder's end, which keeps training under

  semu simulate vlm-m --set 'model.frozen=["vit.embedding", "vit.layers"]'

exit codes: 0 ok, 2 bad input, 3 does not fit in memory (the result is still printed), 4 an illegal
schedule or plan, 5 a default coefficient under --strict, 6 a rank of semu run has failed, 7 a validation out of
tolerance, 70 a defect in semu, 130 interrupted
"""


def _draws(text: str) -> int:
    """A number of draws.

    Raises:
        ArgumentTypeError: no integer.
    """
    try:
        return int(text)
    except ValueError as error:
        said = f"a number of drawn iterations, not {text!r} (semu assign simulates the samples of a file)"
        raise argparse.ArgumentTypeError(said) from error


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a TOML file, a config.json, a file of another program, or a shipped setup"
    )
    change = parser.add_argument_group("changes to the run")
    change.add_argument(
        "--cluster",
        metavar="DEVICE:NODESxGPUS",
        help="e.g. h800:8x8, or h800:64 for as many GPUs in nodes of 8, or the device alone; see semu list devices",
    )
    add_gpus(change)
    change.add_argument("--parallel", metavar="SIZES", help="e.g. dp8-tp2-pp4; others become 1, dp what is left")
    change.add_argument("--profile", metavar="FILE|NAME", help="another device: a profile TOML or a shipped name")
    change.add_argument("--seed", type=int, metavar="N", help="seed of the batch and of --samples")
    change.add_argument(
        "--samples", type=_draws, default=0, metavar="N", help="draw N iterations with training.jitter: p50 and p95"
    )
    change.add_argument(
        "--set",
        **REPEATED,
        metavar="KEY=VALUE",
        dest="assignments",
        help="set any key of the run file, e.g. training.micro_batch=2; may be repeated, wins over the others",
    )
    add_reading(change)
    change.add_argument(
        "--baseline",
        metavar="NAME",
        help="what another system makes of the run: megatron, megatron-1f1b, nnscaler, optimus, fsdp, "
        "greedy, t-1f1b, tessel, tessel-fast, distmm, cornstarch, cornstarch-unaware, entrain or entrain-literal; with "
        "--dump-config: as a file",
    )
    change.add_argument(
        "--contention",
        action="store_true",
        help="transfers that use the same port of a GPU at the same time share it; without it each runs as if alone",
    )
    speed = parser.add_argument_group("speed")
    speed.add_argument(
        "--cache",
        metavar="DIR|FILE",
        help="keep results of model blocks in a file, and take from it what another run has computed; runs may share "
        "it and it may be deleted at any moment, no result depends on it (without the option: $SEMU_CACHE)",
    )
    budget = parser.add_argument_group("a long run")
    budget.add_argument("--tokens", metavar="N", help="days, GPU-hours and cost of training on N tokens, e.g. 15T")
    budget.add_argument("--gpu-hour-usd", type=float, metavar="USD", help="price of a GPU for an hour")
    output = parser.add_argument_group("output")
    output.add_argument("--details", action="store_true", help="print every table: memory of all ranks, operators")
    output.add_argument("--provenance", action="store_true", help="print where the coefficients come from")
    output.add_argument(
        "--out", metavar="DIR", help="write result.json, trace.json.gz, timeline.png, memory.png and report.html"
    )
    add_html(output)
    output.add_argument(
        "--trace",
        metavar="WHAT",
        default="full",
        help="with --out, for Perfetto: full (default), ranks (stages alone), json (full as trace.json) or none",
    )
    output.add_argument(
        "--memory-snapshot",
        type=int,
        **REPEATED,
        metavar="RANK",
        help="with --out: memory-rankN.pickle, a pipeline rank's memory as a snapshot of PyTorch, which its viewer "
        "(pytorch.org/memory_viz) shows; may be repeated",
    )
    add_strict(output)
    output.add_argument(
        "--strict-interval",
        type=float,
        metavar="PERCENT",
        help="refuse a time whose 90 %% interval goes further than this from it (exit 5)",
    )


SIMULATE = CommandOptions(
    "predict the time and memory of one training iteration",
    "Predict the time and memory of one training iteration.",
    _add,
    _EPILOG,
)

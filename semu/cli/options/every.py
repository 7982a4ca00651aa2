"""Options of every command, and what ``--help`` says."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NoReturn

from semu.cli.options.grid import DESCRIPTION as GRID_DESCRIPTION
from semu.cli.options.grid import EPILOG as GRID_EPILOG
from semu.cli.options.grid import add_grid
from semu.cli.options.plan import DESCRIPTION as PLAN_DESCRIPTION
from semu.cli.options.plan import EPILOG as PLAN_EPILOG
from semu.cli.options.plan import add_plan
from semu.cli.options.run import DESCRIPTION as RUN_DESCRIPTION
from semu.cli.options.run import EPILOG as RUN_EPILOG
from semu.cli.options.run import add_run
from semu.cli.options.schedules import DESCRIPTION, EPILOG, add_schedules
from semu.cli.options.search import DESCRIPTION as SEARCH_DESCRIPTION
from semu.cli.options.search import EPILOG as SEARCH_EPILOG
from semu.cli.options.search import add_search
from semu.cli.options.what_if import DESCRIPTION as WHAT_IF_DESCRIPTION
from semu.cli.options.what_if import EPILOG as WHAT_IF_EPILOG
from semu.cli.options.what_if import add_what_if
from semu.errors import ConfigError, unknown_name


class Command(StrEnum):
    """Commands that this version has."""

    SIMULATE = "simulate"
    SCHEDULES = "schedules"
    SEARCH = "search"
    GRID = "grid"
    WHAT_IF = "what-if"
    PLAN = "plan"
    RUN = "run"
    VALIDATE = "validate"
    CALIBRATE = "calibrate"
    LIST = "list"
    IMPORT = "import"


LISTS: Mapping[str, str] = {
    "models": "models by name, with their parameters",
    "setups": "published runs: model, cluster, parallelism and batch",
    "devices": "device profiles and their peaks",
    "schedules": "pipeline schedules",
}
"""What ``semu list`` knows, and what each list holds."""

_EPILOG = """\
RUN is a TOML file or the name of a shipped setup (semu list setups), which brings its cluster, parallelism and batch;
or the config.json of a HuggingFace model (or a folder with one), to which --cluster and --parallel give the rest.

examples:
  semu simulate vlm-m
  semu simulate vlm-m --cluster h800:8x8 --parallel dp8-tp2-pp4 --out out
  semu simulate run.toml --set training.recompute=none --json

model.frozen lists modality modules, roles and module paths. What it names is frozen whole: "encoder" also freezes the
adapter at the encoder's end, which keeps training under

  semu simulate vlm-m --set 'model.frozen=["vit.embedding", "vit.layers"]'

exit codes: 0 ok, 2 bad input, 3 does not fit in memory (the result is still printed), 4 an illegal
schedule or plan, 5 a default coefficient under --strict, 6 a rank of semu run has failed, 7 a validation out of
tolerance, 70 a defect in semu, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ConfigErrors, so that they obey ``--json``."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        raise ConfigError(message, where=self.prog, expected=f"see {self.prog} --help")


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Args:
        words: without the program's name; ``--json`` and ``--debug`` may also stand before the command.
    Returns:
        The options; ``version`` is true, and ``command`` None, where only the version is asked for.
    Raises:
        ConfigError: an unknown command or option, a missing argument.
        SystemExit: after ``--help``.
    """
    position = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    command = words[position : position + 1]
    if command and command[0] not in list(Command):
        raise unknown_name("command", command[0], list(Command), where="command line")
    early = [word for word in words[:position] if word in ("--json", "--debug")]
    others = [word for word in words[:position] if word not in early]
    words = [*others, *command, *(early if command else ()), *words[position + 1 :]]
    parser, commands = _build()
    arguments, extra = parser.parse_known_args(words)
    for word in extra:
        used = commands.get(arguments.command, parser)
        if word.startswith("--"):
            options = set(re.findall(r"--[a-z-]+", used.format_usage()))
            raise unknown_name("option", word.partition("=")[0], options, where=used.prog)
        raise ConfigError(
            "an argument too many", where=used.prog, expected=" ".join(used.format_usage().split()), got=word
        )
    if arguments.command is None and not arguments.version:
        raise ConfigError("no command", where="command line", expected="one of " + ", ".join(Command))
    return arguments


def _build() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser(
        prog="semu",
        description="Simulates the distributed training of large multimodal models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and stop")
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document, also for errors")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    def add(command: Command, help_line: str, description: str, epilog: str) -> _Parser:
        """A command whose help has paragraphs."""
        return commands.add_parser(
            command,
            parents=[common],
            help=help_line,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    simulate = add(
        Command.SIMULATE,
        "predict the time and memory of one training iteration",
        "Predict the time and memory of one training iteration.",
        _EPILOG,
    )
    _add_simulate(simulate)
    schedules = add(
        Command.SCHEDULES, "compare pipeline schedules on a run: time, bubble and memory", DESCRIPTION, EPILOG
    )
    add_schedules(schedules)
    search = add(
        Command.SEARCH, "look for the schedule that is best for a run's batch", SEARCH_DESCRIPTION, SEARCH_EPILOG
    )
    add_search(search)
    grid = add(
        Command.GRID, "find the best parallel configurations of a run within memory", GRID_DESCRIPTION, GRID_EPILOG
    )
    add_grid(grid)
    what_if = add(Command.WHAT_IF, "which change to a run would help most", WHAT_IF_DESCRIPTION, WHAT_IF_EPILOG)
    add_what_if(what_if)
    plan = add(
        Command.PLAN,
        "compile a schedule into what every rank does, or plan a training loop",
        PLAN_DESCRIPTION,
        PLAN_EPILOG,
    )
    add_plan(plan)
    run = add(Command.RUN, "execute a plan over torch, on small layers on this machine", RUN_DESCRIPTION, RUN_EPILOG)
    add_run(run)
    validate = commands.add_parser(
        Command.VALIDATE,
        parents=[common],
        help="compare predictions with published runs",
        description="Compare predictions with published runs: time and memory, per group and beside a null model.",
        allow_abbrev=False,
    )
    _add_validate(validate)
    calibrate = commands.add_parser(
        Command.CALIBRATE,
        parents=[common],
        help="make a device profile from measurements, or score one against them",
        description="Fit a device's coefficients on measurements of kernels and collectives, and write a profile; or, "
        "with --score, compare a profile with measurements.",
        allow_abbrev=False,
    )
    _add_calibrate(calibrate)
    listing = commands.add_parser(
        Command.LIST,
        parents=[common],
        help="list " + ", ".join(LISTS),
        description="List what semu ships.",
        allow_abbrev=False,
    )
    listing.add_argument(
        "what", metavar="WHAT", nargs="?", help="one of " + ", ".join(LISTS) + "; without it, what each of them holds"
    )
    importing = commands.add_parser(
        Command.IMPORT,
        parents=[common],
        help="turn a file of another program into run.toml, and say what was understood",
        description="Turn a file of another program into run.toml, and say what was understood of it.",
        allow_abbrev=False,
    )
    _add_import(importing)
    return parser, {
        Command.SIMULATE: simulate,
        Command.SCHEDULES: schedules,
        Command.SEARCH: search,
        Command.GRID: grid,
        Command.WHAT_IF: what_if,
        Command.PLAN: plan,
        Command.RUN: run,
        Command.VALIDATE: validate,
        Command.CALIBRATE: calibrate,
        Command.LIST: listing,
        Command.IMPORT: importing,
    }


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="config.json of HuggingFace transformers, or a folder with one; a script or a log of Megatron-LM",
    )
    parser.add_argument("-o", "--output", metavar="RUN", help="the run file; without it, it goes to stdout")
    parser.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help="without it, the fewest H100 nodes that do")
    parser.add_argument("--parallel", metavar="SIZES", help="without it, the first layout that fits in memory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="as for semu simulate"
    )
    parser.add_argument(
        "--define",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable that a script takes from outside, 1 for its first parameter; may be repeated",
    )
    parser.add_argument(
        "--allow-unmodelled",
        action="store_true",
        help="list arguments of Megatron-LM that change time or memory and are not modelled, instead of refusing them",
    )


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a TOML file, a config.json, or a shipped setup: see semu list setups"
    )
    change = parser.add_argument_group("changes to the run")
    change.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help="e.g. h800:8x8; devices: see semu list devices")
    change.add_argument("--parallel", metavar="SIZES", help="e.g. dp8-tp2-pp4; sizes that are not named become 1")
    change.add_argument("--profile", metavar="FILE|NAME", help="another device: a profile TOML or a shipped name")
    change.add_argument("--seed", type=int, metavar="N", help="seed of the batch and of --samples")
    change.add_argument(
        "--samples", type=int, default=0, metavar="N", help="draw N iterations with training.jitter: p50 and p95"
    )
    change.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="set any key of the run file, e.g. training.micro_batch=2; may be repeated, wins over the others",
    )
    change.add_argument(
        "--baseline",
        metavar="NAME",
        help="what another system makes of the run: megatron, megatron-1f1b, nnscaler, optimus, fsdp or greedy; with "
        "--dump-config as a run file",
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
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", help="write result.json, trace.json, timeline.png and memory.png")
    output.add_argument(
        "--memory-snapshot",
        type=int,
        action="append",
        default=[],
        metavar="RANK",
        help="with --out: memory-rankN.pickle, a pipeline rank's memory as a snapshot of PyTorch, which its viewer "
        "(pytorch.org/memory_viz) shows; may be repeated",
    )
    output.add_argument("--strict", action="store_true", help="refuse coefficients that are mere defaults (exit 5)")
    output.add_argument("--dump-config", action="store_true", help="print the resolved run as TOML and stop")


def _add_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="FILE", help="runs as JSON; without it, a small set that ships with semu")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="only the rows of this group; may be repeated"
    )
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
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="PERCENT",
        help="exit 7 where the mean absolute error of a group of at least 4 rows is beyond it; with --log, that of the "
        "median iteration time or of a peak; with --trace, that of the iteration or of a kind with 5 %% of the work",
    )
    own = parser.add_argument_group("a run of your own, against its log or its trace")
    own.add_argument("--run", metavar="RUN", help="a TOML file or a shipped setup, as for semu simulate")
    own.add_argument("--log", metavar="FILE", help="training log of Megatron-LM or torchtitan, plain or gzip")
    own.add_argument("--trace", metavar="FILE", help="trace of torch.profiler (Kineto), JSON, plain or gzip")
    own.add_argument("--cluster", metavar="DEVICE:NODESxGPUS", help="as for semu simulate")
    own.add_argument("--parallel", metavar="SIZES", help="as for semu simulate")
    own.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="as for semu simulate"
    )
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
    output = parser.add_argument_group("output")
    output.add_argument("--csv", metavar="FILE", help="write a line per row, quantity or kind")
    output.add_argument("--picture", metavar="FILE", help="draw a PNG: predicted over measured, or bars of both")
    output.add_argument("--out", metavar="DIR", help="write validation.json, validation.csv and validation.png")


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILES",
        nargs="+",
        help="CSV tables of microbenchmarks, outputs of nccl-tests, traces of torch.profiler, or one JSON file of "
        "training runs (formats: semu/fitting/README.md)",
    )
    parser.add_argument(
        "--nodes", type=int, default=1, metavar="N", help="nodes of nccl-tests' outputs that name no hosts (default 1)"
    )
    fit = parser.add_argument_group("fitting")
    fit.add_argument(
        "--device", metavar="NAME", help="which device: a profile's name, another name (H100-SXM), or a profile TOML"
    )
    fit.add_argument("-o", dest="output", metavar="PROFILE.toml", help="write a profile on top of the device's own")
    fit.add_argument("--update", metavar="PROFILE.toml", help="put the fitted sections into a profile that is there")
    fit.add_argument(
        "--without", action="append", default=[], metavar="SOURCE", help="leave a source out; may be repeated"
    )
    fit.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="SOURCE",
        help="find how a source differs, but let it not make the coefficients; may be repeated",
    )
    fit.add_argument("--date", metavar="YYYY-MM-DD", help="of the profile (default: $SOURCE_DATE_EPOCH, else today)")
    fit.add_argument("--picture", metavar="DIR", help="draw every section: fit against points, and residuals")
    score = parser.add_argument_group("scoring")
    score.add_argument("--score", action="store_true", help="compare --profile with the files, fit nothing")
    score.add_argument("--profile", metavar="FILE|NAME", help="the profile to score")
    score.add_argument(
        "--held-out", action="store_true", help="score only the shapes that the rule of the profile holds out"
    )

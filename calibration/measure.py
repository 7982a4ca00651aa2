"""Measure a CUDA machine: kernels, copies, launches, clocks, collectives, whole steps.

    python calibration/measure.py --out calibration/measurements/NAME
    torchrun --nproc-per-node 8 calibration/measure.py --out calibration/measurements/NAME
    python calibration/measure.py --out DRY --device cpu --quick

One process measures kernels and steps, several (torchrun) measure collectives, into the same folder. Rows that are
there already are not measured again, so an interrupted run goes on where it stopped. Progress is on stderr; on stdout,
at the end, how many rows each table has.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from calibration.attention import attention_cases
from calibration.case import Case
from calibration.device.clock import clock_cases
from calibration.device.convolution import convolution_cases
from calibration.device.launches import launch_cases
from calibration.device.tile_masks import mask_cases
from calibration.gemm import gemm_cases
from calibration.memory import memory_cases
from calibration.options import Options
from calibration.steps import step_cases
from semu.errors import ConfigError, SemuError, unknown_name

KERNELS = ("gemm", "attention", "memory", "convolutions")
FAMILIES = (*KERNELS, "steps", "launches", "clocks", "masks", "collectives")


def parse(arguments: Sequence[str], *, num_processes: int = 1) -> Options:
    """Read the command line.

    Args:
        arguments: without the program's name. num_processes: that torchrun started.
    Raises:
        ConfigError: an unknown family, one that does not fit the number of processes, a time below 0.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the measurement; made, or gone on with")
    parser.add_argument("--only", default="", help=f"comma-separated: {', '.join(FAMILIES)}")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (with --quick: a dry run)")
    parser.add_argument("--device-name", help="for the tables, e.g. H100-SXM; default: from the driver's name")
    parser.add_argument("--source", help="for the tables' column; default: the folder's name")
    parser.add_argument("--topology", help="for collectives, e.g. nvswitch_8x_900GBps; default: nodes and GPUs of each")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, figures that mean nothing")
    parser.add_argument("--compiled", action="store_true", help="element-wise kernels of torch.compile, too")
    parser.add_argument("--settle", type=float, default=60.0, help="most seconds of heating up at first; default 60")
    parser.add_argument("--budget", type=float, help="seconds for all families together; fewer rounds a row")
    parser.add_argument("--match", default="", help="only rows whose printed label has this regular expression")
    parsed = parser.parse_args(arguments)
    possible = FAMILIES[:-1] if num_processes == 1 else ("collectives",)
    named = tuple(word.strip() for word in parsed.only.split(",") if word.strip())
    for word in named:
        if word not in FAMILIES:
            raise unknown_name("family", word, FAMILIES, where="--only")
        if word not in possible:
            wanted = "torchrun with two or more processes" if num_processes == 1 else "one process, no torchrun"
            raise ConfigError(
                f"{word} is not for {num_processes} processes", where="--only", expected=wanted, got=num_processes
            )
    if parsed.settle < 0:
        raise ConfigError("out of range", where="--settle", expected="seconds >= 0", got=parsed.settle, nearest=0)
    try:
        re.compile(parsed.match)
    except re.error as error:
        raise ConfigError(f"no regular expression: {error}", where="--match", got=parsed.match) from error
    if parsed.budget is not None and not parsed.budget > 0:
        raise ConfigError("out of range", where="--budget", expected="seconds > 0", got=parsed.budget)
    if parsed.device == "cpu" and not parsed.quick:
        raise ConfigError(
            "the suite's sizes are a GPU's",
            where="--device",
            expected="cuda, or cpu with --quick for a dry run",
            got="cpu",
            nearest="--device cpu --quick",
        )
    return Options(
        parsed.out,
        named or possible,
        parsed.device,
        parsed.device_name,
        parsed.source or parsed.out.resolve().name,
        parsed.topology,
        parsed.quick,
        parsed.compiled,
        parsed.settle,
        parsed.budget,
        parsed.match,
    )


def kernel_cases(options: Options) -> list[Case]:
    """All rows of kernels that are asked for."""
    return [case for cases in _kernel_families(options).values() for case in cases]


def _kernel_families(options: Options) -> dict[str, list[Case]]:
    quick = options.quick
    grids = {
        "gemm": gemm_cases(quick=quick),
        "attention": attention_cases(quick=quick),
        "memory": memory_cases(quick=quick, compiled=options.compiled),
        "convolutions": convolution_cases(quick=quick),
    }
    return {name: grids[name] for name in KERNELS if name in options.only}


def families(options: Options) -> dict[str, list[Any]]:
    """What is asked for, by family and in the order of ``--only``."""
    quick = options.quick
    others: dict[str, list[Any]] = {
        "steps": step_cases(quick=quick),
        "launches": launch_cases(quick=quick),
        "masks": mask_cases(quick=quick),
        "clocks": clock_cases(quick=quick),
    }
    grids: dict[str, list[Any]] = {**_kernel_families(options), **others}
    found = {name: grids[name] for name in options.only if name in grids}
    return {name: [case for case in cases if re.search(options.match, case.label())] for name, cases in found.items()}


def say(text: str) -> None:
    """One line of progress on stderr."""
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


def run(options: Options, progress: Callable[[str], None]) -> dict[str, int]:
    """Measure; needs torch.

    Returns:
        Rows by table.
    Raises:
        ConfigError: no such device, a folder of another machine.
    """
    from calibration import session  # torch

    date = datetime.now(UTC).isoformat(timespec="seconds")
    return session.measure_all(options, families(options), date, progress)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is as the ``semu`` command's."""
    import os

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parse(given, num_processes=int(os.environ.get("WORLD_SIZE", "1")))
        counts = run(options, say)
    except SemuError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(
            "torch is needed to measure: pip install '.[executor]' in a checkout of semu, or pip install torch",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        return 130
    for name, count in counts.items():
        print(f"{name}.csv: {count} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())

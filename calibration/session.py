"""One run of the suite: opens the folder, heats the device, measures the rows that the tables lack."""

from __future__ import annotations

import gc
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from calibration.attention import attention_flop, build_attention
from calibration.bench import Bench, pick_device, settle
from calibration.case import Case
from calibration.collectives import World, measure_collectives
from calibration.device.clock import measure_clock
from calibration.device.convolution import build_convolution, convolution_flop
from calibration.device.launches import measure_launches
from calibration.device.tile_masks import measure_mask
from calibration.gemm import build_gemm
from calibration.machine import describe, record_run, table_name
from calibration.memory_calls import build_memory
from calibration.options import Options
from calibration.step.model_step import measure_step
from calibration.table import SCHEMAS, Table, Value, with_remarks
from calibration.timing import BRIEF, QUICK, SUSTAINED, Policy, Timing
from semu.errors import ConfigError
from semu.files import make_folder, write_text

Progress = Callable[[str], None]
BUILDERS = {
    "gemm": build_gemm,
    "attention": build_attention,
    "memory_ops": build_memory,
    "convolutions": build_convolution,
}
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ConfigError)
"""What torch raises where it has no kernel or no memory; the row is skipped, with its reason."""


def measure_kernel(bench: Bench, case: Case) -> dict[str, Value]:
    """A row of gemm.csv, attention.csv, memory_ops.csv or convolutions.csv, without ``source``."""
    timing, remarks = bench.time(lambda: BUILDERS[case.table](bench, case), case.set_bytes, case.options.get("sets"))
    row: dict[str, Value] = {"device": bench.name, **case.row, "time_us": timing.median_s * 1e6}
    row["note"] = with_remarks(str(case.row["note"]), bench.policy.label, remarks)
    row.update(_figures(case, timing))
    return row


def _figures(case: Case, timing: Timing) -> dict[str, Value]:
    """The other columns of results."""
    if case.table == "gemm":
        return {"time_us_min": timing.min_s * 1e6, "time_us_max": timing.max_s * 1e6, "n_src": 1}
    if case.table == "convolutions":
        return {"tflops": convolution_flop(dict(case.row)) / timing.median_s / 1e12}
    if case.table == "attention":
        return {"tflops": attention_flop(dict(case.row)) / timing.median_s / 1e12}
    return {"gbps": float(str(case.row["bytes"])) / timing.median_s / 1e9}


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


MEASURE: dict[str, tuple[str, Callable[[Bench, Any], list[dict[str, Value]]]]] = {
    "steps": ("model_steps", lambda bench, case: [measure_step(bench, case)]),
    "launches": ("launches", lambda bench, case: [measure_launches(bench, case)]),
    "masks": ("mask_tiles", lambda bench, case: [measure_mask(bench, case)]),
    "clocks": ("clocks", measure_clock),
}
"""Family -> its table, and the rows of a case; kernels: ``measure_kernel``."""
SHARES = {"steps": 3.0, "masks": 2.0, "clocks": 1.0}
"""Of a budget; other families one and a half each."""


def _key(family: str, case: Any) -> tuple[str, dict[str, Value]]:
    """Table and key columns of a case's first row."""
    if family not in MEASURE:
        return case.table, dict(case.row)
    if family == "steps":
        return "model_steps", {**case.row(), "note": case.note}
    return MEASURE[family][0], case.row("sustained") if family == "clocks" else case.row()


def _measure_family(
    bench: Bench, tables: dict[str, Table], family: str, cases: list[Any], progress: Progress, until: float
) -> list[str]:
    """Measure what the tables lack, until a time of ``time.monotonic``; returns the others with the reason."""
    skipped = []
    todo = [case for case in cases if not _has(bench, tables, family, case)]
    for number, case in enumerate(todo, start=1):
        name, _ = _key(family, case)
        if time.monotonic() >= until:
            skipped += [f"{name}: {late.label()}: not reached within the budget" for late in todo[number - 1 :]]
            break
        try:
            measured = MEASURE[family][1](bench, case) if family in MEASURE else [measure_kernel(bench, case)]
        except REFUSALS as error:
            skipped.append(f"{name}: {case.label()}: {_reason(error)}")
            progress(f"skipped {skipped[-1]}")
        else:
            for row in measured:
                tables[name].append(row)
            main = measured[-1]
            elapsed = float(str(main["step_us"] if family == "steps" else main["time_us"]))
            progress(f"{name} {number}/{len(todo)} {case.label()}: {elapsed:.4g} us")
        bench.clean()
    return skipped


def _has(bench: Bench, tables: dict[str, Table], family: str, case: Any) -> bool:
    name, row = _key(family, case)
    return tables[name].has({"device": bench.name, **row})


def _measure_families(
    bench: Bench, tables: dict[str, Table], grids: Mapping[str, list[Any]], progress: Progress, budget_s: float | None
) -> list[str]:
    """All families; of a budget each has its share of what is left, so that what one leaves is the next ones'."""
    end = math.inf if budget_s is None else time.monotonic() + budget_s
    skipped, names = [], list(grids)
    for number, name in enumerate(names):
        left = [SHARES.get(other, 1.5) for other in names[number:]]
        now = time.monotonic()
        until = end if budget_s is None else now + max(0.0, end - now) * left[0] / sum(left)
        skipped += _measure_family(bench, tables, name, grids[name], progress, until)
    return skipped


@contextmanager
def _processes(options: Options, world: World) -> Iterator[None]:
    """torch.distributed, where there are several processes."""
    if world.size == 1:
        yield
        return
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _versions(device: torch.device) -> dict[str, object]:
    versions: dict[str, object] = {"torch": str(torch.__version__), "cuda": torch.version.cuda}
    if device.type == "cuda":
        versions["cudnn"] = torch.backends.cudnn.version()
        if dist.is_nccl_available():
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def measure_all(
    options: Options,
    grids: Mapping[str, list[Any]],
    date: str,
    progress: Progress,
) -> dict[str, int]:
    """Run the suite.

    Args:
        options: of the command line. grids: what to measure, by family. date: today's, ISO 8601.
        progress: called with a line per row.
    Returns:
        Rows by table, of the files that this run could write.
    Raises:
        ConfigError: no such device, a folder of another machine.
    """
    world = World.of_environment()
    device = pick_device(options.device)
    with _processes(options, world):
        if world.size > 1 and device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        driver_name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        name = options.device_name or table_name(driver_name)
        bench = Bench(device, name, _policy(options), options.compiled)
        tables: dict[str, Table] = {}
        if world.rank == 0:
            make_folder(options.out)
            asked = {key: value for key, value in vars(options).items() if key != "out"}
            record_run(options.out, describe(name, driver_name, {**_versions(device), "options": asked}, date))
            tables = {name: Table(options.out, schema, options.source) for name, schema in SCHEMAS.items()}
        say = progress if world.rank == 0 else _silent
        settle(bench, say, 0.0 if options.quick else options.settle_s)
        gc.freeze()  # collecting after every row looks only at what rows made
        skipped = []
        if world.size > 1:
            nodes = world.size // world.ranks_per_node
            topology = options.topology or f"{nodes}x{world.ranks_per_node}"
            table = tables.get("collectives")
            skipped += measure_collectives(bench, world, table, topology, say, quick=options.quick)
        else:
            skipped += _measure_families(bench, tables, grids, say, options.budget_s)
        if world.rank == 0:
            write_text(options.out / "skipped.json", json.dumps(skipped, indent=1) + "\n")
    return {name: len(table) for name, table in tables.items() if len(table)}


def _policy(options: Options) -> Policy:
    if options.quick:
        return QUICK
    return SUSTAINED if options.budget_s is None else BRIEF


def _silent(_: str) -> None:
    """Ranks other than the first say nothing."""

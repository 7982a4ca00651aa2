"""One run of the suite: opens the folder, heats the device, measures the rows that the tables lack."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from calibration.attention import attention_flop, build_attention
from calibration.bench import Bench, pick_device, settle
from calibration.case import Case
from calibration.collectives import World, measure_collectives
from calibration.gemm import build_gemm
from calibration.machine import describe, record_run, table_name
from calibration.memory_calls import build_memory
from calibration.model_step import measure_step
from calibration.options import Options
from calibration.steps import StepCase
from calibration.table import SCHEMAS, Table, Value, with_remarks
from calibration.timing import QUICK, SUSTAINED, Timing
from semu.errors import ConfigError
from semu.files import make_folder, write_text

Progress = Callable[[str], None]
BUILDERS = {"gemm": build_gemm, "attention": build_attention, "memory_ops": build_memory}
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ConfigError)
"""What torch raises where it has no kernel or no memory; the row is skipped, with its reason."""


def measure_kernel(bench: Bench, case: Case) -> dict[str, Value]:
    """A row of gemm.csv, attention.csv or memory_ops.csv, without ``source``."""
    timing, remarks = bench.time(lambda: BUILDERS[case.table](bench, case), case.set_bytes)
    row: dict[str, Value] = {"device": bench.name, **case.row, "time_us": timing.median_s * 1e6}
    row["note"] = with_remarks(str(case.row["note"]), bench.policy.label, remarks)
    row.update(_figures(case, timing))
    return row


def _figures(case: Case, timing: Timing) -> dict[str, Value]:
    """The other columns of results."""
    if case.table == "gemm":
        return {"time_us_min": timing.min_s * 1e6, "time_us_max": timing.max_s * 1e6, "n_src": 1}
    if case.table == "attention":
        return {"tflops": attention_flop(dict(case.row)) / timing.median_s / 1e12}
    return {"gbps": float(str(case.row["bytes"])) / timing.median_s / 1e9}


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _measure_kernels(bench: Bench, tables: dict[str, Table], cases: list[Case], progress: Progress) -> list[str]:
    """Measure the cases that the tables lack; returns the skipped ones with the reason."""
    skipped = []
    todo = [case for case in cases if not tables[case.table].has({"device": bench.name, **case.row})]
    for number, case in enumerate(todo, start=1):
        try:
            row = measure_kernel(bench, case)
        except REFUSALS as error:
            skipped.append(f"{case.table}: {case.label()}: {_reason(error)}")
            progress(f"skipped {skipped[-1]}")
        else:
            tables[case.table].append(row)
            progress(f"{case.table} {number}/{len(todo)} {case.label()}: {row['time_us']:.4g} us")
        bench.clean()
    return skipped


def _measure_steps(bench: Bench, table: Table, cases: list[StepCase], progress: Progress) -> list[str]:
    skipped = []
    for case in cases:
        if table.has({"device": bench.name, **case.row(), "note": "torch eager"}):
            continue
        try:
            row = measure_step(bench, case)
        except REFUSALS as error:
            skipped.append(f"{table.schema.name}: {case.label()}: {_reason(error)}")
            progress(f"skipped {skipped[-1]}")
        else:
            table.append(row)
            progress(f"{table.schema.name} {case.label()}: {float(str(row['step_us'])) / 1e3:.4g} ms")
        bench.clean()
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
    kernels: list[Case],
    steps: list[StepCase],
    date: str,
    progress: Progress,
) -> dict[str, int]:
    """Run the suite.

    Args:
        options: of the command line. kernels, steps: to measure. date: today's, ISO 8601.
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
        bench = Bench(device, name, QUICK if options.quick else SUSTAINED, options.compiled)
        tables: dict[str, Table] = {}
        if world.rank == 0:
            make_folder(options.out)
            asked = {key: value for key, value in vars(options).items() if key != "out"}
            record_run(options.out, describe(name, driver_name, {**_versions(device), "options": asked}, date))
            tables = {name: Table(options.out, schema, options.source) for name, schema in SCHEMAS.items()}
        say = progress if world.rank == 0 else _silent
        settle(bench, say, 0.0 if options.quick else options.settle_s)
        skipped = []
        if world.size > 1:
            nodes = world.size // world.ranks_per_node
            topology = options.topology or f"{nodes}x{world.ranks_per_node}"
            table = tables.get("collectives")
            skipped += measure_collectives(bench, world, table, topology, say, quick=options.quick)
        else:
            skipped += _measure_kernels(bench, tables, kernels, say)
            if "steps" in options.only:
                skipped += _measure_steps(bench, tables["model_steps"], steps, say)
        if world.rank == 0:
            write_text(options.out / "skipped.json", json.dumps(skipped, indent=1) + "\n")
    return {name: len(table) for name, table in tables.items() if len(table)}


def _silent(_: str) -> None:
    """Ranks other than the first say nothing."""

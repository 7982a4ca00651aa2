"""``semu run``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from semu.cli.console import Progress, emit_result, say_written
from semu.errors import ConfigError
from semu.files import make_folder


def run_command(arguments: argparse.Namespace) -> int:
    """Execute a plan; returns the exit code.

    Raises:
        ConfigError: a file that cannot be read, without ``--demo``. ScheduleError: no plan, or an illegal one.
        ExecutorError: torch is not installed, a rank has failed, or gradients differ.
    """
    from semu.plan.plan import ExecutionPlan
    from semu.plan.verification.rules import verify

    plan = ExecutionPlan.read(arguments.plan)
    if not arguments.demo:
        raise ConfigError(
            "a plan runs with layers of yours, from Python",
            where="semu run",
            expected="semu.executor.run_plan(plan, model, communicator) in your program, or --demo for small layers",
        )
    verify(plan)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of lost connections semu tells by itself
    from semu.executor import require_torch

    require_torch()
    from semu.executor.demo import run_demo

    if arguments.out is not None:
        make_folder(Path(arguments.out))
    with Progress() as progress:
        report = run_demo(
            plan,
            backend=arguments.backend,
            iterations=arguments.iterations,
            timeout_s=arguments.timeout,
            fewer_layers=arguments.fewer_layers,
            is_sharded=arguments.shards,
            progress=progress,
        )
        if arguments.out is not None:
            progress("drawing")
            say_written(*report.save(arguments.out))
    emit_result(report, is_json=arguments.json, file=arguments.plan)
    return 0

"""``semu plan --verify``, and ``--torch-csv``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from semu.cli.console import emit, emit_json, say

if TYPE_CHECKING:
    from semu.plan.plan import ExecutionPlan


def verify_plan(arguments: argparse.Namespace) -> int:
    """Check a plan and print what it needs; returns the exit code.

    Raises:
        ConfigError: the file cannot be read.
        ScheduleError: it is no plan. PlanError: the plan cannot run; fault, rank and action are named.
    """
    from semu.plan.plan import ExecutionPlan
    from semu.plan.verification.rules import verify

    plan = ExecutionPlan.read(arguments.verify)
    verified = verify(plan)
    write_torch_csv(plan, arguments.torch_csv)
    if arguments.json:
        emit_json({"name": plan.name, "model_hash": plan.model_hash, "verified": verified.to_json()})
    else:
        emit(f"{plan.name} can run\n{verified.to_text()}")
    return 0


def write_torch_csv(plan: ExecutionPlan, path: str | None) -> None:
    """Write a plan's order as torch.distributed.pipelining reads it; None: nothing.

    Raises:
        ScheduleError: it breaks a rule of torch's, which is named. ConfigError: the file cannot be written.
    """
    if path is None:
        return
    from semu.files import write_text
    from semu.plan.torch_schedule import plan_to_torch_csv

    write_text(path, plan_to_torch_csv(plan))
    say(f"wrote {path}")

"""``context_plan``: how a job masks its text and spreads it over context ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semu.hardware.kinds import OpKind
from semu.parallel.context import Balance
from semu.parallel.mesh import Mesh
from semu.workload.masked import ContextPlan

if TYPE_CHECKING:
    from semu.job.training_job import TrainingJob


def context_plan(job: TrainingJob) -> ContextPlan:
    """How a job masks its text and spreads it over context ranks."""
    parallel, kind = job.parallel, job.parallel.context_kind
    nodes = Mesh(parallel, job.cluster).worst_cp_group.num_nodes if kind.sends_tiles else 1
    return ContextPlan(
        mask=job.training.attention_mask,
        cp=parallel.cp,
        balance=Balance(parallel.cp_balance),
        block=parallel.cp_block,
        machines=int(job.profile.efficiency(OpKind.ATTENTION_FORWARD).tiles_at_once),
        token_multiple=parallel.token_divisor // parallel.cp,
        kind=kind,
        nodes=nodes,
        slack=parallel.cp_slack,
    )

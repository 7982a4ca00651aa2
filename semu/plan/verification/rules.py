"""``verify``: checks, without a GPU, whether an execution plan can run; a plan that cannot is refused.

That numbers name something is checked where a plan is made. Checks, in this order, each with its ``Fault``: that every
part of a microbatch runs each layer once and items belong to one part; that messages join stages that read each other,
none too few or too many, with the right peers, tags, sizes and items; that every stage runs once, on its rank, in an
order that its results allow; that every message is launched and waited for once at both ends, after it is computed,
before it is used (so that every buffer is freed); that the ranks of a gang meet before each of its stages; that sends
and receives of two ranks pair up by order alone; that pipelines that share a batch sum the gradients of every layer
among all its holders, weighted by samples; that nothing deadlocks under rendezvous sends (``dry_run`` tells why
one run shows it); that memory suffices. Sources: PipeWeaver §7.3, DIP §6.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.plan.columns import ActionColumns
from semu.plan.flow import PlanFlow
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.actions import check_batches, check_communication, check_exchanges, check_stages
from semu.plan.verification.dry_runs import DryRun, Streams, dry_run
from semu.plan.verification.memory import check_memory
from semu.plan.verification.messages import check_messages
from semu.plan.verification.reductions import check_reductions
from semu.plan.verification.tables import check_pairs
from semu.plan.verification.wait_cycle import deadlock_of
from semu.records import dataclass
from semu.units import fit_lines, format_bytes


@dataclass(frozen=True, eq=False)
class Verified:
    """What a plan that can run needs.

    Attributes:
        num_stages, num_messages, num_batches, num_actions: counts over all ranks; a lone launch is a batch.
        streams: the fewest streams of communication with which it does not deadlock.
        buffer_bytes: int64[num_ranks], the most in buffers of messages at once.
        peak_bytes: int64[num_ranks], the most in all; None: the plan does not say what stages hold.
    """

    num_stages: int
    num_messages: int
    num_batches: int
    num_actions: int
    streams: Streams
    buffer_bytes: NDArray[np.int64]
    peak_bytes: NDArray[np.int64] | None

    def to_text(self) -> str:
        """One line, then one per rank."""
        words = {
            Streams.RANK: "one for each rank",
            Streams.PAIR: "one for each peer",
            Streams.DIRECTION: "two per peer",
        }
        lines = [
            f"{self.num_actions} actions: {self.num_stages} stages, {self.num_messages} messages in {self.num_batches} "
            f"launches; streams of communication: {words[self.streams]}"
        ]
        for rank, size in enumerate(self.buffer_bytes.tolist()):
            peak = "" if self.peak_bytes is None else f", {format_bytes(int(self.peak_bytes[rank]))} in all"
            lines.append(f"  rank {rank}: at most {format_bytes(size)} in buffers{peak}")
        return fit_lines("\n".join(lines))

    def to_json(self) -> dict[str, object]:
        """The same as a table."""
        return {
            "num_actions": self.num_actions,
            "num_stages": self.num_stages,
            "num_messages": self.num_messages,
            "num_batches": self.num_batches,
            "streams": self.streams.value,
            "buffer_bytes": self.buffer_bytes.tolist(),
            "peak_bytes": None if self.peak_bytes is None else self.peak_bytes.tolist(),
        }


def verify(plan: ExecutionPlan, *, streams: Streams = Streams.DIRECTION) -> Verified:
    """Check a plan.

    Args:
        plan: of any origin. streams: what the runtime's communication has at least; it must not deadlock with these.
    Returns:
        What it needs.
    Raises:
        PlanError: it cannot run; fault, rank and action are named, of a deadlock the cycle of waits.
    """
    check_pairs(plan)
    flow = PlanFlow.of(plan)
    check_messages(plan, flow)
    columns = ActionColumns.of(plan)
    check_stages(columns, flow)
    check_communication(columns)
    check_exchanges(columns, flow)
    check_batches(columns)
    check_reductions(plan)
    run = _runs(columns, streams)
    peaks = check_memory(columns)
    return Verified(
        num_stages=int(np.count_nonzero(columns.is_stage)),
        num_messages=len(plan.messages.source),
        num_batches=run.num_batches,
        num_actions=len(columns.kind),
        streams=run.streams,
        buffer_bytes=peaks.buffer_bytes,
        peak_bytes=peaks.peak_bytes,
    )


def _runs(columns: ActionColumns, streams: Streams) -> DryRun:
    """The dry run with the fewest streams that gets through. What runs with fewer runs with more: these only take
    away what waits for what.

    Raises:
        PlanError: with those that there are it does not.
    """
    order = list(Streams)
    for fewer in order[: order.index(streams) + 1]:
        run = dry_run(columns, fewer)
        if not run.is_stuck:
            return run
    raise deadlock_of(run)

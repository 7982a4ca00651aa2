"""How long ``verify`` takes, beside the dry run alone in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from _rows import Row

if TYPE_CHECKING:
    from semu.plan.plan import ExecutionPlan

GOAL_MS = 50.0


def measure_verifier(plan: ExecutionPlan, verify_ms: float, label: str, clock: Callable[..., float]) -> Iterable[Row]:
    """Rows of the verifier.

    Args:
        plan: that was verified. verify_ms: in how much time [ms]. label: of the plan.
        clock: call, repeats -> the least time of its runs [ms].
    """
    yield Row("  verify", verify_ms, "ms of CPU", label, f"<= {GOAL_MS:g}", verify_ms <= GOAL_MS)
    yield Row("  verify, per action", 1e3 * verify_ms / plan.num_actions, "us of CPU", label)
    plain_ms = clock(lambda: walk(plan), 3)
    text = "all checks, times the speed of the dry run alone in plain Python"
    yield Row("  verify, against Python", plain_ms / verify_ms, "x", text)


def walk(plan: ExecutionPlan) -> bool:
    """Whether a plan runs to its end, one action after another, each message by itself."""
    actions = [list(zip(own.kind.tolist(), own.target.tolist(), strict=True)) for own in plan.actions]
    cursor = [0] * len(actions)
    launched = [0] * len(plan.messages)
    progress = True
    while progress:
        progress = False
        for rank, own in enumerate(actions):
            at = cursor[rank]
            while at < len(own):
                kind, target = own[at]
                if kind in (4, 6):
                    launched[target] += 1
                elif kind >= 4 and launched[target] < 2:
                    break
                at += 1
            progress |= at > cursor[rank]
            cursor[rank] = at
    return cursor == [len(own) for own in actions]

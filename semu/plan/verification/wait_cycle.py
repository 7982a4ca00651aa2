"""``deadlock_of``: a plan that gets stuck as text: a line per rank with an arrow, and the cycle of waits."""

from __future__ import annotations

import numpy as np

from semu.errors import PlanError
from semu.plan.columns import message_name
from semu.plan.verification.dry_runs import DryRun
from semu.plan.verification.fault import Fault

_SHOWN = 3
"""Actions of each rank before the one at which it is stuck."""


def deadlock_of(run: DryRun) -> PlanError:
    """The error for a dry run that is stuck.

    Its text has a line per rank, its last actions, then an arrow and the action at which it waits; then the cycle,
    from wait to wait, until the first one comes again.
    """
    columns, lines = run.columns, []
    stuck = np.flatnonzero(run.cursor < np.diff(columns.ptr)).tolist()
    for rank in range(columns.plan.num_ranks):
        here = int(columns.ptr[rank] + run.cursor[rank])
        before = [columns.words(action) for action in range(max(int(columns.ptr[rank]), here - _SHOWN), here)]
        shown = "; ".join(before) or "nothing yet"
        if rank not in stuck:
            lines.append(f"  rank {rank}: {shown} (finished)")
            continue
        absent = _absent(run, here)
        reason = f"rank {absent} has yet to come" if absent is not None else _why(run, _awaited(run, here))[1]
        lines.append(f"  rank {rank}: {shown} -> {columns.words(here)} waits: {reason}")
    cycle, rank = _cycle(run, stuck[0])
    place = int(run.cursor[rank])
    lines.append("  cycle: " + "; ".join(cycle))
    return PlanError(
        "the plan deadlocks\n" + "\n".join(lines),
        fault=Fault.DEADLOCK,
        rank=rank,
        action=place,
        where=f"{columns.plan.name}: rank {rank}, action {place}",
        expected="actions with which every rank can go on",
        got=columns.words(int(columns.ptr[rank]) + place),
    )


def _absent(run: DryRun, action: int) -> int | None:
    """A rank that has yet to come to the exchange at which another is; None: it is at no exchange."""
    columns = run.columns
    if not columns.is_exchange[action]:
        return None
    plan, pairs = columns.plan, columns.plan.pairs
    pair = int(columns.target[action])
    fellows = next(gang for gang in plan.gangs if int(pairs.chunk[pair]) in gang)
    for rank, other in sorted((plan.chunks[fellow].rank, fellow) for fellow in fellows):
        here = int(columns.ptr[rank] + run.cursor[rank])
        is_end = here == columns.ptr[rank + 1]
        target = -1 if is_end else int(columns.target[here])
        is_there = not is_end and columns.kind[here] == columns.kind[action] and pairs.chunk[target] == other
        if not (is_there and pairs.microbatch[target] == pairs.microbatch[pair]):
            return rank
    raise AssertionError(action)


def _awaited(run: DryRun, action: int) -> int:
    """The first message that a stuck action waits for and that has yet to move."""
    side = int(run.columns.is_receive[action])
    batch = run.batch_of[side, run.columns.target[action]]
    return int(np.flatnonzero((run.batch_of[side] == batch) & ~run.is_done)[0])


def _why(run: DryRun, message: int) -> tuple[int | None, str, int | None]:
    """What a message waits for: the rank that has yet to launch it, in words, or the message before it on a stream."""
    columns, messages = run.columns, run.columns.plan.messages
    name = message_name(columns.plan, message)
    for side, ranks in enumerate((messages.source_rank, messages.target_rank)):
        rank = int(ranks[message])
        if not run.is_posted[run.batch_of[side, message]]:
            launch = "irecv" if side else "isend"
            return rank, f"rank {rank} has yet to launch {launch} {name}", None
    for side, ranks in enumerate((messages.source_rank, messages.target_rank)):
        lane = run.lane_of[side, message]
        if not run.is_first[lane]:
            ahead = _ahead(run, int(lane))
            words = f"{name} is behind {message_name(columns.plan, ahead)} on a stream of rank {int(ranks[message])}"
            return None, words, ahead
    raise AssertionError(message)


def _ahead(run: DryRun, lane: int) -> int:
    """A message that has yet to move of the first lane that is not done in a lane's stream."""
    first = np.flatnonzero((run.lane_stream == run.lane_stream[lane]) & run.is_first)
    held = np.isin(run.lane_of, first) & ~run.is_done
    return int(np.nonzero(held)[1][0])


def _cycle(run: DryRun, rank: int) -> tuple[list[str], int]:
    """From a stuck rank to what it waits for, until one comes again; and a rank of the cycle."""
    columns = run.columns
    at: tuple[str, int] = ("rank", rank)
    seen: list[tuple[str, int]] = []
    words: list[str] = []
    while at not in seen:
        seen.append(at)
        kind, number = at
        if kind == "rank":
            action = int(columns.ptr[number] + run.cursor[number])
            words.append(f"rank {number} is at {columns.words(action)}")
            absent = _absent(run, action)
            at = ("rank", absent) if absent is not None else ("message", _awaited(run, action))
            continue
        holder, reason, ahead = _why(run, number)
        words.append(reason)
        at = ("message", ahead) if ahead is not None else ("rank", int(holder or 0))
    first = seen.index(at)
    ranks = [number for kind, number in seen[first:] if kind == "rank"]
    return words[first:], ranks[0] if ranks else rank

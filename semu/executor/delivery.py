"""``publish_plans`` and ``received_plans``: a new plan for every iteration, without a restart.

A planner, a thread or a process of its own, writes plans to a store of torch.distributed (``TCPStore``); ranks read
them. Both are ahead of the iteration that runs: the planner has the next plan in the store, and every rank has read it,
before the present iteration ends. A reader and the planner each need a connection of their own to the store, because
waiting blocks a connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from semu.errors import ExecutorError, SemuError
from semu.plan.plan import ExecutionPlan
from semu.prefetch import Prefetcher

AHEAD = 2
"""Plans in the store at most: of the present iteration and of the next one."""
_PLAN, _END, _ERROR = b"p", b"e", b"!"


def publish_plans(
    store: Any,
    plans: Iterable[ExecutionPlan],
    num_readers: int,
    *,
    timeout_s: float = 24 * 3600.0,
    name: str = "semu/plans",
) -> int:
    """Write plans to a store as ranks take them; an error of the iterator reaches all ranks.

    Args:
        store: ``torch.distributed.Store``. plans: one per iteration, e.g. made by a search as batches come.
        num_readers: world ranks. timeout_s: for an iteration [s]. name: of the channel.
    Returns:
        How many plans were written.
    Raises:
        ExecutorError: the readers do not take what is there. Whatever ``plans`` raises.
    """
    count = 0
    try:
        for plan in plans:
            _wait_taken(store, name, count - AHEAD, num_readers, timeout_s)
            store.set(f"{name}/{count}", _PLAN + plan.to_json().encode())
            count += 1
    except Exception as error:
        _end(store, name, count, _ERROR + str(error).encode())
        raise
    _end(store, name, count, _END)
    return count


def _end(store: Any, name: str, count: int, word: bytes) -> None:
    with suppress(RuntimeError):  # the store may be what failed
        store.set(f"{name}/{count}", word)


def _wait_taken(store: Any, name: str, number: int, num_readers: int, timeout_s: float) -> None:
    """Until all readers have taken a plan, which is then dropped."""
    if number < 0:
        return
    try:
        store.wait([f"{name}/{number}/taken"], timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise ExecutorError(
            "the ranks do not take plans",
            where=f"plan {number} of {name}",
            expected=f"all {num_readers} within {timeout_s:g} s",
            got=str(error).splitlines()[0],
        ) from error
    for key in (f"{name}/{number}", f"{name}/{number}/count", f"{name}/{number}/taken"):
        with suppress(RuntimeError, NotImplementedError):
            store.delete_key(key)


def received_plans(
    store: Any, num_readers: int, *, timeout_s: float = 300.0, name: str = "semu/plans"
) -> Iterator[ExecutionPlan]:
    """Plans as the planner writes them, the next one read by a thread while the present one runs.

    Args:
        store: this rank's own connection. num_readers, name: as ``publish_plans``.
        timeout_s: for the next plan, once the one before was taken [s].
    Raises:
        ExecutorError: no plan came, the planner has failed, or what came is no plan that this version reads.
    """
    plans = Prefetcher(_read(store, num_readers, timeout_s, name))
    try:
        yield from plans
    finally:
        plans.close()


def _read(store: Any, num_readers: int, timeout_s: float, name: str) -> Iterator[ExecutionPlan]:
    """Plans until the end or an error."""
    for number in itertools.count():
        try:
            plan = _take(store, name, number, num_readers, timeout_s)
        except ExecutorError:
            raise
        except Exception as error:  # whatever it is, nobody may wait for a plan
            raise ExecutorError(f"{type(error).__name__}: {error}", where=f"plan {number} of {name}") from error
        if plan is None:
            return
        yield plan


def _take(store: Any, name: str, number: int, num_readers: int, timeout_s: float) -> ExecutionPlan | None:
    """The next plan; None: there are no more."""
    where = f"plan {number} of {name}"
    key = f"{name}/{number}"
    try:
        store.wait([key], timedelta(seconds=timeout_s))
        data = bytes(store.get(key))
        if data[:1] == _PLAN and store.add(f"{key}/count", 1) == num_readers:
            store.set(f"{key}/taken", b"1")
    except RuntimeError as error:
        got = str(error).splitlines()[0]
        raise ExecutorError("no plan came", where=where, expected=f"one within {timeout_s:g} s", got=got) from error
    if data[:1] == _END:
        return None
    if data[:1] == _ERROR:
        raise ExecutorError("the planner has failed", where=where, got=data[1:].decode(errors="replace"))
    try:
        return ExecutionPlan.from_json(data[1:].decode(), where)
    except SemuError as error:
        raise ExecutorError.of(error, where=error.where or where) from error

"""``Engine``: runs one function on many tasks; ``SerialEngine`` does it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from semu.records import dataclass

Task = TypeVar("Task")
Result = TypeVar("Result")

ATTEMPTS = 3
"""How often a task is begun at most, where its worker dies."""
IN_FLIGHT = 2
"""Tasks that are handed out at a time, per worker: one that runs, one that waits."""


class Engine(Protocol):
    """Runs tasks somewhere."""

    @property
    def workers(self) -> int:
        """Tasks that run at the same time, at most."""
        ...

    def run(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """Run a function on every task.

        Args:
            work: a function that can be pickled, with everything that all tasks share (``functools.partial``); it
                travels once per worker. It depends on nothing but its task.
            tasks: read no faster than they are done, so it may be long. They are numbered from 0 as they come.
        Returns:
            (number, result) of every task, once each, as they end. Closing the iterator ends the workers.
        Raises:
            ExecutorError: workers died again and again, or all are gone; results that came before stand.
            Exception: what ``work`` raised.
        """
        ...


@dataclass(frozen=True)
class SerialEngine:
    """Runs tasks one after another in this process."""

    workers: int = 1

    def run(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """As ``Engine``."""
        for number, task in enumerate(tasks):
            yield number, work(task)

"""``Engine``: runs one function on many tasks; ``SerialEngine`` does it here; ``make_engine`` makes one by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from semu.checks import check_integer, check_word
from semu.errors import ConfigError

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("serial", "local", "ray")
"""Engines by name: in this process, in processes of this machine, on a Ray cluster."""
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


def make_engine(name: str = "local", *, workers: int | None = None, address: str | None = None) -> Engine:
    """An engine by name.

    Args:
        name: one of ``ENGINES``. workers: processes of ``local``, CPUs of a Ray cluster that is started here; None: all
            cores. address: of a Ray cluster that runs already; None: one is started here.
    Raises:
        ConfigError: an unknown name, no count, an address for another engine, Ray is not installed.
    """
    check_word(name, ENGINES, "engine", "engine")
    if workers is not None:
        check_integer(workers, "workers", "a number of workers")
    if address is not None and name != "ray":
        raise ConfigError("only a Ray cluster has an address", where="address", expected="engine ray", got=name)
    if name == "serial":
        return SerialEngine()
    if name == "local":
        from semu.searcher.engines.local import LocalEngine

        return LocalEngine(workers)
    from semu.searcher.engines.cluster import RayEngine

    return RayEngine(address=address, workers=workers)

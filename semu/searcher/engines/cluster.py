"""``RayEngine``: tasks on a Ray cluster; what a lost node was doing is done again elsewhere, and nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from semu.errors import ConfigError, ExecutorError, install_line
from semu.searcher.engines.engine import ATTEMPTS, IN_FLIGHT, Result, Task

POLL_S = 1.0
"""How often the cluster is looked at while no task ends [s]."""
PATIENCE_S = 20.0
"""How long a cluster may be without any CPU before it counts as lost [s]."""


class RayEngine:
    """A Ray cluster: one that runs already, or one that is started on this machine and ends with the process.

    Args:
        address: of a cluster, ``auto`` for the one that this machine belongs to; None: starts one.
        workers: CPUs of a cluster that is started; None: all cores. Of one that runs: tasks at the same time at most.
        patience_s: how long the cluster may be without any CPU before it counts as lost [s].
    Raises:
        ConfigError: Ray is not installed. ExecutorError: the cluster cannot be reached.
    """

    def __init__(
        self, *, address: str | None = None, workers: int | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self._ray = _import_ray()
        self._limit = workers if address is not None else None
        self._patience_s = patience_s
        if not self._ray.is_initialized():
            own = {"address": "local", "num_cpus": workers}  # also where one runs on this machine already
            options: dict[str, Any] = own if address is None else {"address": address}
            try:
                self._ray.init(
                    **options,
                    include_dashboard=None if address is not None else False,
                    log_to_driver=False,
                    logging_level="error",
                    configure_logging=False,
                )
            except Exception as error:
                raise ExecutorError(
                    f"no Ray cluster there: {error}", where="engine ray", expected="an address such as HOST:6379"
                ) from error

    @property
    def workers(self) -> int:
        """CPUs that the cluster has at present, at least 1."""
        count = max(1, int(self._ray.cluster_resources().get("CPU", 0)))
        return count if self._limit is None else min(count, self._limit)

    def run(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """As ``Engine``."""
        ray = self._ray
        stream = enumerate(tasks)
        shared = ray.put(work)
        remote = ray.remote(num_cpus=1, max_retries=0)(_run)
        running: dict[Any, tuple[int, Task, int]] = {}
        seen = time.monotonic()
        try:
            while True:
                for number, task in islice(stream, max(0, self.workers * IN_FLIGHT - len(running))):
                    running[remote.remote(shared, task)] = (number, task, 1)
                if not running:
                    return
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_S)
                if done or ray.cluster_resources().get("CPU", 0) > 0:
                    seen = time.monotonic()
                elif time.monotonic() - seen > self._patience_s:
                    raise ExecutorError(
                        f"the cluster has no CPU left, {len(running)} tasks are not done",
                        where="engine ray",
                        expected="at least one node",
                    )
                for reference in done:
                    number, task, attempt = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:
                        raise error.as_instanceof_cause() from error
                    except ray.exceptions.RayError as error:  # its worker, its node or its result is gone
                        if attempt >= ATTEMPTS:
                            raise ExecutorError(
                                f"task {number} was lost {ATTEMPTS} times: {type(error).__name__}", where="engine ray"
                            ) from error
                        running[remote.remote(shared, task)] = (number, task, attempt + 1)
                        continue
                    yield number, result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "Ray is not installed", where="engine ray", expected=install_line("ray", "ray"), got="no module ray"
        ) from error
    return ray


def _run(work: Callable[[Any], Any], task: Any) -> Any:
    return work(task)

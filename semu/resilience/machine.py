"""``Machine``: a long run that goes from event to event; ``Conduct``: what a strategy does with some nodes alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.resilience import kernels
from semu.resilience.accounts import Account
from semu.resilience.events import NodeEvents, to_us


@dataclass(frozen=True)
class Conduct:
    """What a strategy does with a number of nodes alive [s].

    Attributes:
        iteration_s: an iteration; 0: it cannot train with so few. nodes: that it uses.
        redundant_s: of the iteration, for what another node computes too.
        detect_s, reconfigure_s, copy_s: after a failure that left so many alive.
        keeps_progress: a failure loses no more than the iteration in flight; else it goes back to a checkpoint.
        planned_save_s, planned_load_s: for taking in nodes that have joined, beside ``reconfigure_s`` and ``copy_s``.
    """

    iteration_s: float
    nodes: int
    redundant_s: float = 0.0
    detect_s: float = 0.0
    reconfigure_s: float = 0.0
    copy_s: float = 0.0
    keeps_progress: bool = False
    planned_save_s: float = 0.0
    planned_load_s: float = 0.0

    def row(self) -> list[int]:
        """As the kernel has it."""
        iteration = max(1, to_us(self.iteration_s)) if self.iteration_s > 0 else 0
        times = map(to_us, (self.redundant_s, self.detect_s, self.reconfigure_s, self.copy_s))
        planned = map(to_us, (self.planned_save_s, self.planned_load_s))
        return [iteration, self.nodes, *times, int(self.keeps_progress), *planned]


STOPPED = Conduct(0.0, 0)
"""Too few nodes to train."""


@dataclass(frozen=True)
class Tier:
    """A place for training checkpoints.

    Attributes:
        every_s: work between two saves [s], a whole number of iterations, at least one. every_iterations: instead.
        stall_s: how long training waits for a save. background_s: how long it goes on after that.
        load_s: reading it back. is_memory: it lies in hosts' memory, each node's also with the next node.
    """

    every_s: float
    stall_s: float
    background_s: float
    load_s: float
    is_memory: bool = False
    every_iterations: int = 0

    def row(self) -> list[int]:
        """As the kernel has it."""
        times = map(to_us, (self.stall_s, self.background_s, self.load_s))
        return [max(1, to_us(self.every_s)), self.every_iterations, *times, int(self.is_memory)]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a long run.

    Attributes:
        wall_us: how long it was [us]. gpus: of the cluster, spares too. gpu_us: what they did, together wall x GPUs.
        iterations: that count at the end. failures: of nodes. interruptions: failures of nodes in use.
        changes: times that joined nodes were taken in. saves: training checkpoints.
        from_start: times that nothing was left to go back to but the start.
        log: int64[n, 4], time [us], nodes alive, time of an iteration [us] (0: none runs), iterations.
    """

    wall_us: int
    gpus: int
    gpu_us: Mapping[Account, int]
    iterations: int
    failures: int
    interruptions: int
    changes: int
    saves: int
    from_start: int
    log: NDArray[np.int64]

    def share(self, account: Account) -> float:
        """An account over wall x GPUs."""
        return self.gpu_us[account] / (self.wall_us * self.gpus)


class Machine:
    """A long run.

    Args:
        nodes: of the cluster, spares too. gpus_per_node: of each. tiers: places for checkpoints, the fastest first.
        first: what the strategy does with all nodes. log_events: lines of the log to keep room for; 0: none.
    """

    def __init__(
        self, nodes: int, gpus_per_node: int, tiers: Sequence[Tier], first: Conduct, log_events: int = 0
    ) -> None:
        self._tiers = np.array([tier.row() for tier in tiers], dtype=np.int64).reshape(-1, kernels.NUM_TIER_COLUMNS)
        state = np.zeros(kernels.NUM_STATE, dtype=np.int64)
        status = np.full(nodes, kernels.SPARE, dtype=np.int64)
        status[: first.nodes] = kernels.IN_USE
        rank_of, failed_at = np.arange(nodes, dtype=np.int64), np.full(nodes, -1, dtype=np.int64)
        idle = np.zeros(nodes, dtype=np.int64)
        idle[: nodes - first.nodes] = np.arange(nodes - 1, first.nodes - 1, -1)  # the first of them on top
        free = idle.copy()
        row = first.row()
        for entry, value in {
            kernels.ALIVE: nodes,
            kernels.ACTIVE: first.nodes,
            kernels.IDLE: nodes - first.nodes,
            kernels.FREE: nodes - first.nodes,
            kernels.RUNNING: int(row[kernels.ITERATION] > 0),
            kernels.CAN_RUN: int(row[kernels.ITERATION] > 0),
            kernels.NOW_ITERATION: row[kernels.ITERATION],
            kernels.NOW_REDUNDANT: row[kernels.REDUNDANT],
            kernels.GPUS_PER_NODE: gpus_per_node,
            kernels.MOST: nodes,
            kernels.RANKS: max(1, first.nodes),
        }.items():
            state[entry] = value
        tier_state = np.zeros((len(tiers), kernels.NUM_TIER_STATE), dtype=np.int64)
        tier_state[:, kernels.NEXT_END] = -1
        account = np.zeros(kernels.NUM_ACCOUNTS, dtype=np.int64)
        log = np.zeros((log_events + 1 if log_events else 0, 4), dtype=np.int64)
        if len(log):
            log[0] = (0, nodes, row[kernels.ITERATION], 0)
            state[kernels.LOGGED] = 1
        self._state, self._tier_state, self._log = state, tier_state, log
        self._account = account
        self._world = (0, state, tier_state, account, status, rank_of, failed_at, idle, free, log)
        self._gpus = nodes * gpus_per_node

    @property
    def alive(self) -> NDArray[np.bool_]:
        """bool[nodes], whether each node is there."""
        found: NDArray[np.bool_] = self._world[4] != kernels.DOWN
        return found

    def run(self, rows: NDArray[np.int64], events: NodeEvents, until_us: int) -> None:
        """Go on, through some events, to a moment.

        Args:
            rows: int64[nodes + 1, columns], ``Conduct.row`` by nodes alive. events: from now on, none after
                ``until_us``. until_us: a moment [us].
        """
        kernels.run_events(self._world, rows, self._tiers, events.rows, until_us)

    def outcome(self) -> Outcome:
        """What has become of it until now; an iteration in flight counts as useful time."""
        state = self._state.tolist()
        account = {what: int(value) for what, value in zip(Account, self._account, strict=True)}
        account[Account.USEFUL] += state[kernels.PHASE] * state[kernels.ACTIVE] * state[kernels.GPUS_PER_NODE]
        return Outcome(
            state[kernels.CLOCK],
            self._gpus,
            account,
            state[kernels.ITERATIONS],
            state[kernels.FAILURES],
            state[kernels.INTERRUPTIONS],
            state[kernels.CHANGES],
            state[kernels.SAVES],
            state[kernels.FROM_START],
            self._log[: state[kernels.LOGGED]],
        )


def table_of(conducts: Sequence[Conduct]) -> NDArray[np.int64]:
    """``Conduct.row`` of 0, 1, ... nodes alive: int64[nodes + 1, columns]."""
    return np.array([conduct.row() for conduct in conducts], dtype=np.int64)

"""What an iteration looked like: stages, operators, transfers and memory of each simulated rank.

``IterationTimeline`` holds one ``RankTimeline`` per pipeline rank of the slowest data-parallel replica. Stages and
outer operators (transfers, reductions, optimizer) are there at once; the operators inside stages are expanded lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import Provenance


@dataclass(frozen=True, slots=True)
class StageSlice:
    """One stage on the time axis.

    Attributes:
        rank: pipeline rank.
        label: text form, ``2F0`` = chunk 2, forward, microbatch 0.
        module: name of the modality module.
        chunk, microbatch: numbers in the label.
        phase: FORWARD or BACKWARD.
        start_s, end_s: within the iteration [s].
    """

    rank: int
    label: str
    module: str
    chunk: int
    microbatch: int
    phase: Phase
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class OuterSlice:
    """An operator outside stages: a P2P transfer, a gradient reduction, a parameter gather, the optimizer step.

    Attributes:
        name: for people, e.g. ``send 3F0 -> rank 1``.
        kind: operator kind.
        stream: ``"compute"`` or the communicator's name (``"pp"``, ``"dp"``).
        start_s, end_s: [s].
        net_bytes: wire bytes per rank, 0 for compute.
        group_ranks: ranks of the communicator, 1 for compute.
        provenance: of the coefficients behind its latency.
    """

    name: str
    kind: OpKind
    stream: str
    start_s: float
    end_s: float
    net_bytes: int
    group_ranks: int
    provenance: Provenance = Provenance.DEFAULT


@dataclass(frozen=True)
class OperatorTable:
    """What the operators of a stage are; one table serves all microbatches of a chunk and phase.

    Attributes (all of length ``num_ops``):
        paths: dotted module paths. kinds: operator kinds. phases: FORWARD, RECOMPUTE, INPUT_GRADIENT, ...
        streams: ``"compute"`` or the communicator's name (``"tp"``).
        group_ranks: ranks of the communicator, 1 for compute.
    """

    paths: tuple[str, ...]
    kinds: tuple[OpKind, ...]
    phases: tuple[Phase, ...]
    streams: tuple[str, ...]
    group_ranks: tuple[int, ...]


@dataclass(frozen=True)
class StageOperators:
    """The operators of one stage at their absolute times.

    Attributes:
        table: what they are. start_s, end_s: float64[num_ops] [s]. flop: float64[num_ops].
        mem_bytes, net_bytes: int64[num_ops].
    """

    table: OperatorTable
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    flop: NDArray[np.float64]
    mem_bytes: NDArray[np.int64]
    net_bytes: NDArray[np.int64]


@dataclass(frozen=True)
class PeakMemory:
    """The highest point of a memory curve: when, in which stage and operator, and what makes it up."""

    time_s: float
    size_bytes: int
    stage: str
    operator: str
    by_role: dict[Role, int]


@dataclass(frozen=True)
class MemoryCurve:
    """Allocated bytes of one rank as a step function of time.

    Attributes:
        times_s: float64[n], non-decreasing; value i holds from times_s[i] to times_s[i + 1].
        by_role: int64[num_roles, n] [bytes], rows in the order of ``roles``.
        roles: the rows' roles.
        capacity_bytes: size of the memory pool.
    """

    times_s: NDArray[np.float64]
    by_role: NDArray[np.int64]
    roles: tuple[Role, ...]
    capacity_bytes: int

    @cached_property
    def total(self) -> NDArray[np.int64]:
        """int64[n] [bytes], all roles together."""
        total: NDArray[np.int64] = self.by_role.sum(axis=0)
        return total

    @property
    def peak_bytes(self) -> int:
        """Highest total."""
        return int(self.total.max())


def compress_steps(
    time: NDArray[np.float64], level: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A step function with at most two points per moment: the last, and the highest where it is only passed through
    (something lived for no time at all).

    Args:
        time: float64[n] [s], non-decreasing, n >= 1. level: int64[num_roles, n] [bytes], after each event.
    Returns:
        (times, levels) of the points kept.
    """
    total = level.sum(axis=0)
    last = np.append(time[1:] > time[:-1], True)
    moment = np.concatenate(([0], np.cumsum(last)[:-1]))
    ends = np.flatnonzero(last)
    highest = np.maximum.reduceat(total, np.concatenate(([0], ends[:-1] + 1)))
    around = np.maximum(total[ends], np.concatenate((total[:1] * 0, total[ends][:-1])))
    is_top = (total == highest[moment]) & (total > around[moment])
    passed = np.flatnonzero(is_top)
    first = passed[np.diff(moment[passed], prepend=-1) > 0]
    keep = np.union1d(ends, first)
    return time[keep], level[:, keep]


@dataclass(frozen=True)
class RankTimeline:
    """One simulated pipeline rank.

    Attributes:
        rank: pipeline rank. gpu: global number of its first GPU. replica: data-parallel replica.
        stages: in order of start. outer: operators outside stages, in order of start.
        find_peak: explains the highest point of the memory curve.
        expand: stage number (position in ``stages``) -> its operators.
        build_memory: makes the memory curve.
    """

    rank: int
    gpu: int
    replica: int
    stages: tuple[StageSlice, ...]
    outer: tuple[OuterSlice, ...]
    find_peak: Callable[[MemoryCurve], PeakMemory]
    expand: Callable[[int], StageOperators]
    build_memory: Callable[[], MemoryCurve]

    @cached_property
    def memory(self) -> MemoryCurve:
        """Allocated bytes over the iteration (built on first use)."""
        return self.build_memory()

    @cached_property
    def peak(self) -> PeakMemory:
        """The highest point of the memory curve, with the operator there and what makes it up."""
        return self.find_peak(self.memory)

    def busy_s(self, stream: str = "compute") -> float:
        """Time during which a stream of this rank works [s]; the operators of all stages are expanded.

        On the compute stream: kernels of all stages and the optimizer step.
        """
        total = sum(piece.end_s - piece.start_s for piece in self.outer if piece.stream == stream)
        for _, operators in self.stage_operators():
            mine = np.array([name == stream for name in operators.table.streams])
            total += float((operators.end_s - operators.start_s)[mine].sum())
        return total

    def stage_operators(self) -> Iterator[tuple[StageSlice, StageOperators]]:
        """Every stage with its operators, in order of start."""
        for number, stage in enumerate(self.stages):
            yield stage, self.expand(number)


@dataclass(frozen=True)
class IterationTimeline:
    """One training iteration of the slowest replica.

    Attributes:
        ranks: one per pipeline rank, in order.
        iteration_time_s: from the start of the iteration to the end of the last rank's optimizer step [s].
        makespan_s: end of the pipeline's last stage [s].
    """

    ranks: tuple[RankTimeline, ...]
    iteration_time_s: float
    makespan_s: float

    @property
    def bubble_ratio(self) -> float:
        """1 - (sum of stage times) / (P x makespan) (DESIGN §2); waiting inside a stage counts as busy."""
        stages = sum(stage.end_s - stage.start_s for rank in self.ranks for stage in rank.stages)
        return 1.0 - stages / (len(self.ranks) * self.makespan_s) if self.makespan_s else 0.0

    def exposed_communication_s(self) -> dict[str, float]:
        """Mean time per rank, inside stages, in which no kernel computes, by communicator [s].

        A gap belongs to the communicator whose operator ends with it.
        """
        totals: dict[str, float] = {}
        for rank in self.ranks:
            for stage, operators in rank.stage_operators():
                names = np.array(operators.table.streams)
                computes = np.flatnonzero(names == "compute")
                ends = np.concatenate(([stage.start_s], operators.end_s[computes]))
                begins = np.concatenate((operators.start_s[computes], [operators.end_s.max(initial=stage.start_s)]))
                for begin, end in zip(ends, begins, strict=True):
                    if end > begin:
                        blockers = np.flatnonzero((operators.end_s == end) & (names != "compute"))
                        if len(blockers):
                            name = str(names[blockers[0]])
                            totals[name] = totals.get(name, 0.0) + float(end - begin) / len(self.ranks)
        return totals

"""``Recording``: when a rank did what, by CUDA events or, on a CPU, its clock; ``timeline_of`` all ranks together."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, NoReturn

import torch

from semu.engine.timeline import IterationTimeline, OuterSlice, RankTimeline, StageSlice
from semu.errors import ConfigError
from semu.graph.operator import OpKind, Phase
from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

PHASES = {
    ActionKind.FORWARD_STAGE: Phase.FORWARD,
    ActionKind.BACKWARD_STAGE: Phase.BACKWARD,
    ActionKind.INPUT_BACKWARD_STAGE: Phase.INPUT_GRADIENT,
    ActionKind.WEIGHT_BACKWARD_STAGE: Phase.WEIGHT_GRADIENT,
}
"""Of the actions that compute."""


@dataclass(frozen=True)
class Recording:
    """One rank's iteration.

    Attributes:
        rank, replica: whose. actions: numbers in the rank's list, in order; a batch under its first action; -1: the
            reduction of gradients. start_s, end_s: from the moment when all ranks were ready [s].
    """

    rank: int
    replica: int
    actions: tuple[int, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]


def own_clock() -> tuple[str, int]:
    """This machine and its clock [ns], for ``common_zero``."""
    return platform.node(), perf_counter_ns()


def common_zero(clocks: Sequence[tuple[str, int]]) -> int:
    """Where a rank's time begins [ns of ``perf_counter_ns``]: on one machine, whose processes share a clock, when the
    last rank was ready; on several, now, a moment after that.

    Args:
        clocks: ``own_clock`` of every rank.
    """
    return max(time for _, time in clocks) if len({machine for machine, _ in clocks}) == 1 else perf_counter_ns()


class Recorder:
    """Takes times while an iteration runs, by the processor's clock."""

    def __init__(self) -> None:
        self._zero_ns = 0
        self._actions: list[int] = []
        self._marks: list[Any] = []

    def begin(self, zero_ns: int) -> None:
        """All ranks are ready. ``zero_ns``: of ``perf_counter_ns``, where time begins."""
        self._zero_ns = zero_ns

    def start(self, action: int) -> None:
        """An action begins."""
        self._actions.append(action)
        self._marks.append(self._mark())

    def stop(self) -> None:
        """It has ended."""
        self._marks.append(self._mark())

    def finish(self, rank: int, replica: int) -> Recording:
        """What was taken on a rank."""
        times = self._times_s()
        return Recording(rank, replica, tuple(self._actions), tuple(times[::2]), tuple(times[1::2]))

    def _mark(self) -> Any:
        return perf_counter_ns()

    def _times_s(self) -> list[float]:
        return [(time - self._zero_ns) / 1e9 for time in self._marks]


class _EventRecorder(Recorder):
    """By CUDA events of the current stream."""

    def begin(self, zero_ns: int) -> None:
        """Tie events to the clock."""
        torch.cuda.current_stream().synchronize()
        self._offset_s = (perf_counter_ns() - zero_ns) / 1e9
        self._zero = self._mark()

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _times_s(self) -> list[float]:
        torch.cuda.current_stream().synchronize()
        return [self._offset_s + self._zero.elapsed_time(event) / 1e3 for event in self._marks]


def recorder_on(device: torch.device) -> Recorder:
    """A recorder for what runs on a device."""
    return _EventRecorder() if device.type == "cuda" else Recorder()


def timeline_of(plan: ExecutionPlan, recordings: Sequence[Recording], replica: int = 0) -> IterationTimeline:
    """The iteration as semu draws one: stages, waits for other ranks, and the reduction of gradients.

    There are no operators inside stages and no memory.

    Args:
        plan: what ran. recordings: of all ranks. replica: whose.
    Raises:
        ConfigError: a rank is missing.
    """
    by_rank = {one.rank: one for one in recordings if one.replica == replica}
    if sorted(by_rank) != list(range(plan.num_ranks)):
        raise ConfigError(
            "not a recording of every rank", where="recordings", expected=f"{plan.num_ranks} ranks", got=sorted(by_rank)
        )
    ranks = [_rank_timeline(plan, by_rank[rank]) for rank in range(plan.num_ranks)]
    ends = [stage.end_s for rank in ranks for stage in rank.stages]
    last = max((end for one in by_rank.values() for end in one.end_s), default=0.0)
    return IterationTimeline(tuple(ranks), last, max(ends, default=0.0))


def stage_label(plan: ExecutionPlan, pair: int, phase: Phase) -> str:
    """``2F5``; where a module cuts microbatches into k parts at most, those of microbatch i are numbered from i x k."""
    pairs = plan.pairs
    chunk = int(pairs.chunk[pair])
    split = int(pairs.part[pairs.chunk == chunk].max(initial=0)) + 1
    return f"{chunk}{phase.value}{int(pairs.microbatch[pair]) * split + int(pairs.part[pair])}"


def _rank_timeline(plan: ExecutionPlan, one: Recording) -> RankTimeline:
    actions = plan.actions[one.rank]
    stages, outer = [], []
    for action, start, end in zip(one.actions, one.start_s, one.end_s, strict=True):
        if action < 0:
            copies = max(plan.num_replicas, len(plan.weights))
            if copies > 1:
                outer.append(OuterSlice("reduce gradients", OpKind.ALL_REDUCE, "dp", start, end, 0, copies))
            continue
        kind, target = KINDS[actions.kind[action]], int(actions.target[action])
        if kind.is_stage:
            chunk = int(plan.pairs.chunk[target])
            label = stage_label(plan, target, PHASES[kind])
            part = int(label.partition(PHASES[kind].value)[2])
            stages.append(StageSlice(one.rank, label, plan.chunks[chunk].module, chunk, part, PHASES[kind], start, end))
        elif kind in (ActionKind.WAIT_IRECV, ActionKind.WAIT_ISEND):
            name = f"wait {'for' if kind is ActionKind.WAIT_IRECV else 'until sent'} message {target}"
            outer.append(OuterSlice(name, OpKind.P2P, "pp", start, end, 0, 2))
        elif kind.is_exchange:
            outer.append(
                OuterSlice(f"{kind.value} of pair {target}", OpKind.ALL_GATHER, "vocabulary", start, end, 0, 2)
            )
    gpu = one.rank * plan.num_replicas + one.replica
    parts = tuple(stages), tuple(outer), _unknown, _unknown, _unknown
    return RankTimeline(one.rank, gpu, one.replica, *parts, is_bare=True)


def _unknown(*_: object) -> NoReturn:
    raise ConfigError("a recording has no operators and no memory", expected="stages and outer slices only")

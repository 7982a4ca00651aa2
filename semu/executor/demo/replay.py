"""``calibrate`` and ``simulate_order``: a plan's order with the stage times of this machine, by semu's own kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from semu.executor.demo.model import item_counts
from semu.executor.edges import linked_stages
from semu.executor.recording import Recording
from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What things take here.

    Attributes:
        stage_s: float64[4 x pairs] [s], by stage number: 4 x pair + phase, as ``semu.schedule.kernels.run_orders`` has
            them; the code of an ``ActionKind`` that computes is its phase.
        transfer_s: of a message, from its launch to its arrival [s].
        launch_s: float64[4 x pairs] [s], launches of communication before the stage; None: no time.
    """

    stage_s: F64
    transfer_s: float
    launch_s: F64 | None = None


def calibrate(plan: ExecutionPlan, recordings: Sequence[Sequence[Recording]], replica: int = 0) -> Calibrated:
    """Medians of what iterations took: of stages of one chunk, kind, variant and number of items; of messages.

    Args:
        plan: what ran. recordings: per iteration, of all ranks. replica: whose.
    """
    pairs = plan.pairs
    items = pairs.items[replica]
    columns = pairs.chunk.tolist(), pairs.variant.tolist(), (items[:, 1] - items[:, 0]).tolist()
    keys = list(zip(*columns, _read_items(plan, replica), strict=True))
    found: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for recording in (own for iteration in recordings for own in iteration if own.replica == replica):
        actions = plan.actions[recording.rank]
        launching = 0.0
        for action, start, end in zip(recording.actions, recording.start_s, recording.end_s, strict=True):
            if action < 0:
                continue
            kind = KINDS[actions.kind[action]]
            if kind.is_stage:
                key = (kind.code, *keys[int(actions.target[action])])
                found[key].append((end - start, launching))
                launching = 0.0
            elif kind in (ActionKind.ISEND, ActionKind.IRECV):
                launching += end - start
    medians = {own: (median(a for a, _ in spans), median(b for _, b in spans)) for own, spans in found.items()}
    times = np.zeros((4 * len(pairs), 2))
    for pair, own in enumerate(keys):
        for phase in range(4):
            times[4 * pair + phase] = medians.get((phase, *own), (0.0, 0.0))
    return Calibrated(times[:, 0].copy(), _transfer(plan, recordings, replica), times[:, 1].copy())


def _read_items(plan: ExecutionPlan, replica: int) -> list[int]:
    """Items of all modules in the pair's microbatch, which a module that runs it whole may read."""
    pairs = plan.pairs
    counts = {name: own[replica] for name, own in item_counts(plan).items()}
    module = np.array([chunk.module for chunk in plan.chunks])[pairs.chunk]
    for name, reads in plan.reads.items():
        part = {
            (whose, number): last - first
            for whose, number, (first, last) in zip(
                pairs.microbatch[module == name].tolist(),
                pairs.part[module == name].tolist(),
                pairs.items[replica, module == name].tolist(),
                strict=True,
            )
        }
        counts[name] = np.array([sum(part[own] for own in rows) for rows in reads])
    is_cut = np.isin(pairs.chunk, pairs.chunk[pairs.part > 0])
    found: list[int] = np.where(is_cut, 0, np.sum(list(counts.values()), axis=0)[pairs.microbatch]).tolist()
    return found


def _transfer(plan: ExecutionPlan, recordings: Sequence[Sequence[Recording]], replica: int) -> float:
    """Median time of messages for which a rank waited."""
    found = []
    for iteration in recordings:
        sent: dict[int, float] = {}
        got: dict[int, tuple[float, float]] = {}
        for own in iteration:
            if own.replica != replica:
                continue
            actions = plan.actions[own.rank]
            for action, start, end in zip(own.actions, own.start_s, own.end_s, strict=True):
                kind = KINDS[actions.kind[action]] if action >= 0 else None
                if kind is ActionKind.ISEND:
                    sent[int(actions.target[action])] = end
                elif kind is ActionKind.WAIT_IRECV:
                    got[int(actions.target[action])] = (start, end)
        found += [end - sent[one] for one, (start, end) in got.items() if one in sent and start < sent[one] < end]
    return max(median(found), 0.0) if found else 0.0


@dataclass(frozen=True, eq=False)
class Replay:
    """A simulated iteration. ``recordings``: its stages as if they had been recorded; ``makespan_s``: its end [s]."""

    recordings: tuple[Recording, ...]
    makespan_s: float


def simulate_order(
    plan: ExecutionPlan, sources: Mapping[str, Sequence[str]], times: Calibrated, replica: int = 0
) -> Replay:
    """Run the order of the plan's stages with calibrated times.

    Args:
        plan: the order. sources: module -> modules that it reads. times: of this machine. replica: whose items.
    """
    from semu.schedule.kernels import run_orders

    stages = linked_stages(plan, sources, replica)
    before: list[list[tuple[int, float]]] = [[] for _ in range(4 * len(stages))]
    for stage in stages:
        for edge in stage.readers:
            if edge.is_empty:
                continue
            delay = times.transfer_s if stages[edge.target].rank != stage.rank else 0.0
            before[4 * edge.target].append((4 * edge.source, delay))
            if edge.has_gradient:
                for phase in (1, 2):
                    before[4 * edge.source + phase].append((4 * edge.target + 1, delay))
        for edge in (edge for group in stage.reads for edge in group if edge.is_exchanged):
            before[4 * edge.target].append((4 * edge.source, times.transfer_s))
        for phase in (1, 2):
            before[4 * stage.pair + phase].append((4 * stage.pair, 0.0))
        before[4 * stage.pair + 3].append((4 * stage.pair + 2, 0.0))
    lists, numbers = [], []
    for own in plan.actions:
        chosen = [at for at, code in enumerate(own.kind.tolist()) if KINDS[code].is_stage]
        lists.append([4 * int(own.target[at]) + int(own.kind[at]) for at in chosen])
        numbers.append(chosen)
    ptr = np.concatenate(([0], np.cumsum([len(own) for own in lists]))).astype(np.int64)
    order = np.array([stage for own in lists for stage in own], dtype=np.int32)
    start, end = np.empty(len(order)), np.empty(len(order))
    launch_s = np.zeros(len(times.stage_s)) if times.launch_s is None else times.launch_s
    run_orders(
        ptr,
        order,
        np.concatenate(([0], np.cumsum([len(own) for own in before]))).astype(np.int32),
        np.array([source for own in before for source, _ in own], dtype=np.int32),
        times.stage_s + launch_s,
        np.array([delay for own in before for _, delay in own], dtype=np.float64),
        np.full(4 * len(stages), np.nan),
        start,
        end,
        np.zeros(plan.num_ranks, dtype=np.int64),
    )
    start += launch_s[order]  # the stage itself
    times_of = [[tuple(part.tolist()) for part in np.split(column, ptr[1:-1])] for column in (start, end)]
    recordings = tuple(
        Recording(rank, replica, tuple(actions), begins, ends)
        for rank, (actions, begins, ends) in enumerate(zip(numbers, *times_of, strict=True))
    )
    return Replay(recordings, float(end.max(initial=0.0)))


def starts_of(plan: ExecutionPlan, recordings: Sequence[Recording], replica: int = 0) -> dict[tuple[int, int], float]:
    """(rank, action) -> start of every stage [s]."""
    found = {}
    for own in recordings:
        if own.replica == replica:
            kinds = plan.actions[own.rank].kind
            for action, start in zip(own.actions, own.start_s, strict=True):
                if action >= 0 and KINDS[kinds[action]].is_stage:
                    found[own.rank, action] = start
    return found


def agreement(simulated: Mapping[tuple[int, int], float], measured: Mapping[tuple[int, int], float]) -> float:
    """Share of pairs of stages on different ranks that begin in the same order in both (Kendall's concordance)."""
    keys = sorted(simulated.keys() & measured.keys())
    rank = np.array([key[0] for key in keys])
    a, b = (np.array([own[key] for key in keys]) for own in (simulated, measured))
    same, total = 0, 0
    for at in range(len(keys)):
        others = np.flatnonzero(rank[at + 1 :] != rank[at]) + at + 1
        differ = a[others] != a[at]
        same += int(((a[others] > a[at]) == (b[others] > b[at]))[differ].sum())
        total += int(differ.sum())
    return same / total if total else 1.0

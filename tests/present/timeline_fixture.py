"""A synthetic iteration for the tests of traces and pictures: 1F1B, an image encoder before a language model.

Written without the engine: a few dozen lines of integer arithmetic place stages, operators, transfers and memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from semu.engine.timeline import (
    IterationTimeline,
    MemoryCurve,
    OperatorTable,
    OuterSlice,
    PeakMemory,
    RankTimeline,
    StageOperators,
    StageSlice,
)
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role

TICKS_PER_S = 1 << 40
TICKS_PER_MS = TICKS_PER_S // 1000
GIB = 1 << 30
CAPACITY_BYTES = int(79.1 * GIB)

# name, kind, stream, latency in ticks for a microbatch of size 1, saved activation [MiB]
FORWARD_LAYER = (
    ("norm", OpKind.NORM, "compute", 0.011, 4),
    ("attention.gather", OpKind.ALL_GATHER, "tp", 0.05, 0),
    ("attention.qkv", OpKind.MATMUL, "compute", 0.21, 18),
    ("attention.core", OpKind.ATTENTION_FORWARD, "compute", 0.30, 9),
    ("attention.out", OpKind.MATMUL, "compute", 0.08, 4),
    ("attention.scatter", OpKind.REDUCE_SCATTER, "tp", 0.05, 0),
    ("mlp.up", OpKind.MATMUL, "compute", 0.42, 24),
    ("mlp.act", OpKind.ACTIVATION, "compute", 0.017, 12),
    ("mlp.down", OpKind.MATMUL, "compute", 0.21, 4),
)
HIDDEN = "attention.gather"
"""This collective runs beside the operator after it; the others are exposed."""


@dataclass(frozen=True)
class Template:
    """Operators of one chunk and phase, relative times in ticks for a microbatch of size 1."""

    table: OperatorTable
    start: np.ndarray
    end: np.ndarray
    saved_bytes: np.ndarray


@dataclass
class Placed:
    """A stage that has its time."""

    chunk: int
    phase: Phase
    microbatch: int
    start: int
    size: int
    template: Template

    @property
    def end(self) -> int:
        return self.start + self.size * int(self.template.end.max())


@dataclass
class Rank:
    """What a rank does, in order, while it is being placed."""

    order: list[tuple[int, Phase, int]]
    stages: list[Placed] = field(default_factory=list)
    outer: list[OuterSlice] = field(default_factory=list)
    compute_free: int = 0
    link_free: int = 0


def make_template(module: str, num_layers: int, phase: Phase) -> Template:
    """Forward layers, or the same backwards with input and weight gradients."""
    layers = range(num_layers) if phase is Phase.FORWARD else reversed(range(num_layers))
    rows, start, end, saved = [], [], [], []
    clock = 0
    for layer in layers:
        ops = FORWARD_LAYER if phase is Phase.FORWARD else FORWARD_LAYER[::-1]
        for name, kind, stream, ms, saved_mib in ops:
            phases = (Phase.FORWARD,)
            if phase is Phase.BACKWARD:
                is_matmul = kind is OpKind.MATMUL
                phases = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT) if is_matmul else (Phase.INPUT_GRADIENT,)
            for number, part in enumerate(phases):
                length = int(ms * 0.3779 * TICKS_PER_MS) | 1
                block, ranks = f"{module}.layers.{layer}", 1 if stream == "compute" else 2
                rows.append((f"{block}.{name}", kind, part, stream, ranks, block))
                start.append(clock)
                end.append(clock + length)
                saved.append((saved_mib << 20) if number == 0 else 0)
                clock += 0 if name == HIDDEN else length
    table = OperatorTable(*(tuple(column) for column in zip(*rows, strict=True)))
    return Template(table, np.array(start), np.array(end), np.array(saved))


def one_forward_one_backward(rank: int, num_ranks: int, num_microbatches: int, chunks: list[int]) -> list:
    """The order of a rank's stages."""
    warmup = min(num_ranks - 1 - rank, num_microbatches)
    units = [(Phase.FORWARD, i) for i in range(warmup)]
    for i in range(num_microbatches - warmup):
        units += [(Phase.FORWARD, warmup + i), (Phase.BACKWARD, i)]
    units += [(Phase.BACKWARD, i) for i in range(num_microbatches - warmup, num_microbatches)]
    return [
        (chunk, phase, i) for phase, i in units for chunk in (chunks if phase is Phase.FORWARD else reversed(chunks))
    ]


def make_timeline(num_ranks: int = 4, num_microbatches: int = 16, num_layers: int = 8) -> IterationTimeline:
    """The slowest replica's iteration; the encoder is on the first quarter of the ranks, the last of which shares."""
    num_encoder_ranks = (num_ranks + 3) // 4
    rank_of = [*range(num_encoder_ranks), *range(num_encoder_ranks - 1, num_ranks)]
    modules = ["vision"] * num_encoder_ranks + ["llm"] * (num_ranks - num_encoder_ranks + 1)
    templates = {}
    for chunk, module in enumerate(modules):
        shared = rank_of.count(rank_of[chunk]) > 1
        layers = max(1, num_layers // 2) if shared else num_layers
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            templates[chunk, phase] = make_template(module, layers, phase)
    ranks = [
        Rank(one_forward_one_backward(r, num_ranks, num_microbatches, [c for c, q in enumerate(rank_of) if q == r]))
        for r in range(num_ranks)
    ]
    _place(ranks, rank_of, modules, templates)
    makespan = max(rank.compute_free for rank in ranks)
    iteration = _finish(ranks)
    return IterationTimeline(
        ranks=tuple(_rank_timeline(r, rank, modules, iteration) for r, rank in enumerate(ranks)),
        iteration_time_s=iteration / TICKS_PER_S,
        makespan_s=makespan / TICKS_PER_S,
    )


def _place(ranks: list[Rank], rank_of: list[int], modules: list[str], templates: dict) -> None:
    """Start each stage when its rank is free and its input is there; transfers are in order on the sender's link."""
    arrived: dict[tuple[int, Phase, int], int] = {(0, Phase.FORWARD, i): 0 for i in range(1 << 12)}
    cursors = [0] * len(ranks)
    while any(cursor < len(rank.order) for cursor, rank in zip(cursors, ranks, strict=True)):
        for r, rank in enumerate(ranks):
            while cursors[r] < len(rank.order) and rank.order[cursors[r]] in arrived:
                chunk, phase, i = rank.order[cursors[r]]
                cursors[r] += 1
                size = 8 + (7 * i) % 5 if modules[chunk] == "llm" else 2 + (11 * i) % 9
                start = max(rank.compute_free, arrived[chunk, phase, i])
                stage = Placed(chunk, phase, i, start, size, templates[chunk, phase])
                rank.stages.append(stage)
                rank.compute_free = stage.end
                successor = (chunk + (1 if phase is Phase.FORWARD else -1), phase, i)
                if successor[0] == len(rank_of):
                    successor = (chunk, Phase.BACKWARD, i)
                if successor[0] < 0:
                    continue
                arrived[successor] = stage.end
                receiver = rank_of[successor[0]]
                if receiver != r:
                    begin = max(stage.end, rank.link_free)
                    rank.link_free = arrived[successor] = begin + 2 * TICKS_PER_MS + 12345
                    name = f"send {chunk}{phase.value}{i} -> rank {receiver}"
                    rank.outer.append(_outer(name, OpKind.P2P, "pp", begin, rank.link_free, 2))


def _outer(name: str, kind: OpKind, stream: str, start: int, end: int, group_ranks: int) -> OuterSlice:
    net_bytes = 50_000_000 if kind.is_communication else 0
    return OuterSlice(name, kind, stream, start / TICKS_PER_S, end / TICKS_PER_S, net_bytes, group_ranks)


def _finish(ranks: list[Rank]) -> int:
    """Gradient reduction per rank, then the optimizer, then the parameters; returns the end of the iteration."""
    clocks = []
    for rank in ranks:
        clock = rank.compute_free
        for name, kind, stream, ms, group in (
            ("reduce gradients", OpKind.REDUCE_SCATTER, "dp", 41, 8),
            ("optimizer step", OpKind.OPTIMIZER, "compute", 17, 1),
            ("gather parameters", OpKind.ALL_GATHER, "dp", 23, 8),
        ):
            rank.outer.append(_outer(name, kind, stream, clock, clock + ms * TICKS_PER_MS, group))
            clock += ms * TICKS_PER_MS
        clocks.append(clock)
    return max(clocks)


def _rank_timeline(number: int, rank: Rank, modules: list[str], iteration: int) -> RankTimeline:
    slices = tuple(
        StageSlice(
            number,
            f"{stage.chunk}{stage.phase.value}{stage.microbatch}",
            modules[stage.chunk],
            stage.chunk,
            stage.microbatch,
            stage.phase,
            stage.start / TICKS_PER_S,
            stage.end / TICKS_PER_S,
        )
        for stage in rank.stages
    )

    def expand(position: int) -> StageOperators:
        stage = rank.stages[position]
        template = stage.template
        start = stage.start + template.start * stage.size
        end = stage.start + template.end * stage.size
        is_link = np.array([stream != "compute" for stream in template.table.streams])
        work = (end - start) // 1000
        return StageOperators(
            table=template.table,
            start_s=start / TICKS_PER_S,
            end_s=end / TICKS_PER_S,
            flop=np.where(is_link, 0.0, work * 400.0),
            mem_bytes=np.where(is_link, 0, work * 3),
            net_bytes=np.where(is_link, work, 0),
        )

    curve = _memory(rank, iteration)
    peak = int(curve.total.argmax())
    time_s = float(curve.times_s[peak])
    position = max(i for i, stage in enumerate(slices) if stage.start_s <= time_s)
    operators = expand(position)
    operator = int(np.flatnonzero(operators.start_s <= time_s)[-1])
    return RankTimeline(
        rank=number,
        gpu=number * 8,
        replica=0,
        stages=slices,
        outer=tuple(sorted(rank.outer, key=lambda slice_: slice_.start_s)),
        find_peak=lambda _: PeakMemory(
            time_s=time_s,
            size_bytes=curve.peak_bytes,
            stage=slices[position].label,
            operator=operators.table.paths[operator],
            by_role={role: int(curve.by_role[row, peak]) for row, role in enumerate(curve.roles)},
        ),
        expand=expand,
        build_memory=lambda: curve,
    )


def _memory(rank: Rank, iteration: int) -> MemoryCurve:
    """Static roles, activations from forward to backward, a workspace per operator, a buffer per collective."""
    roles = tuple(Role)
    layers = sum(len(stage.template.table.paths) for stage in {s.chunk: s for s in rank.stages}.values()) / 14
    static = {Role.PARAMETER: 0.62, Role.GRADIENT: 1.24, Role.OPTIMIZER_STATE: 0.93}
    base = np.array([int(static.get(role, 0.05) * GIB * layers) for role in roles])
    times, rows, deltas = [], [], []

    def change(time: np.ndarray, role: Role, delta: np.ndarray) -> None:
        times.append(time)
        rows.append(np.full(len(time), roles.index(role)))
        deltas.append(delta)

    for stage in rank.stages:
        template, table = stage.template, stage.template.table
        start, end = stage.start + template.start * stage.size, stage.start + template.end * stage.size
        if stage.phase is Phase.FORWARD:
            change(start, Role.ACTIVATION, template.saved_bytes * stage.size)
        else:
            change(end, Role.ACTIVATION, -template.saved_bytes * stage.size)
        is_link = np.array([kind.is_communication for kind in table.kinds])
        for role, mask in ((Role.WORKSPACE, ~is_link), (Role.COMMUNICATION, is_link)):
            change(start[mask], role, np.full(mask.sum(), stage.size << 26))
            change(end[mask], role, np.full(mask.sum(), -(stage.size << 26)))
    time, row, delta = (np.concatenate(column) for column in (times, rows, deltas))
    order = np.lexsort((delta, time))
    time, row, delta = time[order], row[order], delta[order]
    by_role = np.zeros((len(roles), len(time)), dtype=np.int64)
    by_role[row, np.arange(len(time))] = delta
    by_role = base[:, np.newaxis] + np.cumsum(by_role, axis=1)
    last = np.append(time[1:] != time[:-1], True)
    return MemoryCurve(
        times_s=np.concatenate(([0.0], time[last] / TICKS_PER_S, [iteration / TICKS_PER_S])),
        by_role=np.concatenate((base[:, np.newaxis], by_role[:, last], base[:, np.newaxis]), axis=1),
        roles=roles,
        capacity_bytes=CAPACITY_BYTES,
    )

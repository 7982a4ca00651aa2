"""The operators of a rank as columns of JSON text: what is constant is written once, only times are formatted.

``OperatorTexts`` keeps the constant text of tables, ``KernelColumns`` puts times between. Boundaries are rounded once,
to multiples of 1/1024 us (0.98 ns), and durations are differences of rounded boundaries. Both are short binary
fractions: they print exactly, a reader's start + duration is exact in float64, and cutting them to whole nanoseconds,
as Perfetto does, keeps slices disjoint. Decimal nanoseconds have none of these properties.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.engine.timeline import IterationTimeline, OperatorTable, OuterSlice, RankTimeline, StageOperators
from semu.errors import ConfigError
from semu.graph.operator import OpKind, Phase

_TailMaker: TypeAlias = Callable[[float, int, int], str]

TICKS_PER_US = 1024
"""Resolution of the times in a trace."""
_NCCL_KERNELS = {
    OpKind.ALL_REDUCE: "ncclDevKernel_AllReduce",
    OpKind.ALL_GATHER: "ncclDevKernel_AllGather",
    OpKind.REDUCE_SCATTER: "ncclDevKernel_ReduceScatter",
    OpKind.ALL_TO_ALL: "ncclDevKernel_AllToAll",
    OpKind.P2P: "ncclDevKernel_SendRecv",
}


class KernelColumns:
    """The operators of one rank: text before the times, start and end in ticks, text after the times, stream.

    Attributes:
        start_ticks: int64[num_ops], stage by stage, then the operators outside stages.
    """

    def __init__(self, texts: OperatorTexts, stages: Sequence[StageOperators], outer: Sequence[OuterSlice]) -> None:
        self._heads: list[str] = []
        self._tails: list[str] = []
        streams = [np.empty(0, dtype=np.int64)]
        times_s = [np.empty((2, 0))]
        for operators in stages:
            heads, tails, codes = texts.of(operators)
            self._heads += heads
            self._tails += tails
            streams.append(codes)
            times_s.append(np.stack((operators.start_s, operators.end_s)))
        self._heads += [_head(_operator_name(slice_.name, slice_.kind, None, slice_.stream)) for slice_ in outer]
        self._tails += [_outer_tail(slice_) for slice_ in outer]
        streams.append(np.array([texts.stream_code(slice_.stream) for slice_ in outer], dtype=np.int64))
        times_s.append(np.array([(slice_.start_s, slice_.end_s) for slice_ in outer]).reshape(-1, 2).T)
        self._streams = np.concatenate(streams)
        self.start_ticks, self._end_ticks = ticks(np.concatenate(times_s, axis=1))
        self._codes = {name: code for name, code in texts.stream_codes.items() if np.any(self._streams == code)}

    def streams(self) -> list[str]:
        """Names of the streams in use, compute first."""
        return sorted(self._codes, key=lambda name: (name != "compute", name))

    def lanes(self, stream: str) -> list[NDArray[np.int64]]:
        """The stream's operators in order of start, as few groups as hold no overlap: one, unless slices overlap."""
        rows = np.flatnonzero(self._streams == self._codes[stream])
        rows = rows[np.lexsort((self._end_ticks[rows], self.start_ticks[rows]))]
        return [rows[lane] for lane in disjoint_lanes(self.start_ticks[rows], self._end_ticks[rows])]

    def kernels(self, rows: NDArray[np.int64], pid: int, number: int) -> list[str]:
        """The events of one track. Correlation 0: the launch is not in the trace."""
        middle = f',"pid":{pid},"tid":{number},"ts":'
        arguments = f',"args":{{"stream":{number},"correlation":0,'
        starts = microseconds(self.start_ticks[rows])
        durations = microseconds(self._end_ticks[rows] - self.start_ticks[rows])
        heads, tails = self._heads, self._tails
        return [
            f'{heads[row]}{middle}{start},"dur":{duration}{arguments}{tails[row]}'
            for row, start, duration in zip(rows.tolist(), starts, durations, strict=True)
        ]


class OperatorTexts:
    """Constant text of operators: names are made once per table, costs again only when they change."""

    def __init__(self) -> None:
        self.stream_codes: dict[str, int] = {}
        self._rows: dict[int, tuple[OperatorTable, list[str], list[_TailMaker], NDArray[np.int64]]] = {}
        self._last_tails: dict[int, tuple[StageOperators, list[str]]] = {}

    def stream_code(self, name: str) -> int:
        """A small number that stands for a stream in arrays."""
        return self.stream_codes.setdefault(name, len(self.stream_codes))

    def of(self, operators: StageOperators) -> tuple[list[str], list[str], NDArray[np.int64]]:
        """Per operator of a stage: text up to and including the name, text of the arguments up to the end, and the code
        of the stream, int64[num_ops]."""
        _, heads, makers, codes = self._table(operators.table)
        known = self._last_tails.get(id(operators.table))
        if known is not None and _same_costs(known[0], operators):
            return heads, known[1], codes
        costs = zip(operators.flop.tolist(), operators.mem_bytes.tolist(), operators.net_bytes.tolist(), strict=True)
        tails = [make(*cost) for make, cost in zip(makers, costs, strict=True)]
        self._last_tails[id(operators.table)] = (operators, tails)
        return heads, tails, codes

    def _table(self, table: OperatorTable) -> tuple[OperatorTable, list[str], list[_TailMaker], NDArray[np.int64]]:
        known = self._rows.get(id(table))
        if known is None:
            rows = list(zip(table.paths, table.kinds, table.phases, table.streams, table.group_ranks, strict=True))
            heads = [_head(_operator_name(path, kind, phase, stream)) for path, kind, phase, stream, _ in rows]
            makers = [_tail_maker(kind, phase, group_ranks) for _, kind, phase, _, group_ranks in rows]
            codes = np.array([self.stream_code(stream) for stream in table.streams], dtype=np.int64)
            known = self._rows[id(table)] = (table, heads, makers, codes)
        return known


def _same_costs(a: StageOperators, b: StageOperators) -> bool:
    pairs = ((a.flop, b.flop), (a.mem_bytes, b.mem_bytes), (a.net_bytes, b.net_bytes))
    return all(x is y or np.array_equal(x, y) for x, y in pairs)


def _operator_name(path: str, kind: OpKind, phase: Phase | None, stream: str) -> str:
    """``llm.layers.3.mlp.down [recompute]``; communication begins with NCCL's kernel name, as profilers show it."""
    suffix = "" if phase in (None, Phase.FORWARD) else f" [{phase_words(phase)}]"
    prefix = f"{_NCCL_KERNELS[kind]} {stream}: " if kind.is_communication else ""
    return f"{prefix}{path}{suffix}"


def phase_words(phase: Phase) -> str:
    """``input gradient`` for ``INPUT_GRADIENT``."""
    return phase.name.lower().replace("_", " ")


def _head(name: str) -> str:
    return f'{{"ph":"X","cat":"kernel","name":{json.dumps(name)}'


def _tail_maker(kind: OpKind, phase: Phase, group_ranks: int) -> _TailMaker:
    """Function of (flop, mem_bytes, net_bytes) that makes the text of the arguments."""
    constant = f'"kind":"{kind.value}","phase":"{phase_words(phase)}"'
    if kind.is_communication:
        return lambda flop, mem_bytes, net_bytes: f'{constant},"net_bytes":{net_bytes},"Group size":{group_ranks}}}}}'
    return lambda flop, mem_bytes, net_bytes: f'{constant},"flop":{flop:.17g},"mem_bytes":{mem_bytes}}}}}'


def _outer_tail(slice_: OuterSlice) -> str:
    costs = f',"net_bytes":{slice_.net_bytes},"Group size":{slice_.group_ranks}' if slice_.kind.is_communication else ""
    return f'"kind":"{slice_.kind.value}"{costs}}}}}'


def rank_of(timeline: IterationTimeline, rank: int) -> RankTimeline:
    """The timeline of a pipeline rank.

    Raises:
        ConfigError: there is no such rank.
    """
    by_number = {row.rank: row for row in timeline.ranks}
    if rank not in by_number:
        legal = list(by_number)
        nearest = min(legal, key=lambda number: abs(number - rank), default=None)
        raise ConfigError(
            "no such pipeline rank in the timeline", expected=f"one of {legal}", got=rank, nearest=nearest
        )
    return by_number[rank]


def disjoint_lanes(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Positions of slices in as few groups as hold no overlap, filled from the first on: one, unless slices overlap.

    Args:
        starts, ends: int64[num_slices], in order of start.
    """
    if np.all(starts[1:] >= ends[:-1]):
        return [np.arange(len(starts))]
    lane_ends: list[int] = []
    lane_of = np.empty(len(starts), dtype=np.int64)
    for position, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        lane = next((lane for lane, free in enumerate(lane_ends) if free <= start), len(lane_ends))
        lane_ends[lane : lane + 1] = [end]
        lane_of[position] = lane
    return [np.flatnonzero(lane_of == lane) for lane in range(len(lane_ends))]


def ticks(times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Times [s] rounded to whole ticks of 1/1024 us; rounding keeps the order."""
    rounded: NDArray[np.int64] = np.rint(times_s * (1e6 * TICKS_PER_US)).astype(np.int64)
    return rounded


def microseconds(count: NDArray[np.int64]) -> list[float]:
    """Ticks as microseconds: at most ten decimals, exact in float64."""
    result: list[float] = (count / TICKS_PER_US).tolist()
    return result

"""``GraphTimeline``: times, work and memory of a simulated graph; operators and memory are made on first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.engine.graph_memory import GraphMemory
from semu.engine.unit_graph import UnitTimes
from semu.errors import ConfigError, unknown_name
from semu.graph.dim import DimTable
from semu.graph.graph import Graph
from semu.graph.level import Level
from semu.hardware.device import DeviceKind, Stream
from semu.records import dataclass

if TYPE_CHECKING:
    from semu.engine.checkpoint import Checkpoint
    from semu.engine.consolidation import Consolidated
    from semu.engine.memory import MemoryCurve, PeakMemory
    from semu.engine.simulator import Simulation  # circle: a timeline names its simulation, which makes it


@dataclass(frozen=True)
class Totals:
    """Work of a graph or a part of it, replicas counted.

    Attributes:
        flop, mem_bytes, net_bytes: sums over operators. num_gpus: GPUs that take part.
    """

    flop: int
    mem_bytes: int
    net_bytes: int
    num_gpus: int


@dataclass(frozen=True)
class GraphSpan:
    """One subgraph on the time axis.

    Attributes:
        path: dotted path. level: None for a subgraph that only groups. replicas: peers that it stands for.
        start_s, end_s: of its first and last operator [s].
        busy_s: time [s] that its operators take, by stream name.
        totals: its work, replicas counted.
        peak_bytes: highest allocation of every pool in that time.
        net_change_bytes: what its operators leave behind in every pool.
    """

    path: str
    level: Level | None
    replicas: int
    start_s: float
    end_s: float
    busy_s: Mapping[str, float]
    totals: Totals
    peak_bytes: Mapping[str, int]
    net_change_bytes: Mapping[str, int]


@dataclass(frozen=True)
class GraphTimeline:
    """A simulated graph.

    Attributes:
        simulation: what was simulated. state: the edges and priorities that it was simulated with.
        alone: its units simulated alone. times: when they ran.
    """

    simulation: Simulation
    state: Checkpoint
    alone: Consolidated
    times: UnitTimes

    @property
    def graph(self) -> Graph:
        """The graph, chains written out; positions of ``start`` and ``end`` are its operators'."""
        return self.alone.partition.graph

    def checkpoint(self) -> Checkpoint:
        """The state behind this timeline: restored, it gives this timeline again, or others under further edges."""
        return self.state

    # -- times ---------------------------------------------------------------------------------------------------
    @property
    def makespan_s(self) -> float:
        """End of the last operator [s]."""
        return float(self.times.makespan_s[0])

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        start, end = np.zeros(len(self.alone.latency)), np.zeros(len(self.alone.latency))
        for number, unit in enumerate(self.alone.partition.units):
            begin, variant = self.times.start[0, number], self.alone.variant[number]
            inner = self.alone.start[variant], self.alone.end[variant]
            if self.times.touched[0, number]:
                inner = self._timed_again(number)
            start[unit.first : unit.last] = begin + inner[0]
            end[unit.first : unit.last] = begin + inner[1]
        return start, end

    def _timed_again(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Operators of a unit that an edge binds inside, relative to its start."""
        unit, slots = self.alone.partition.units[number], self.times.slots
        program = self.alone.programs[self.alone.variant[number]]
        release = np.zeros(program.num_ops)
        mine = slice(slots.ptr[number], slots.ptr[number + 1])
        release[slots.op[mine]] = self.times.release[0, mine] - self.times.start[0, number]
        start, end, *_ = program.timed(self.alone.latency[unit.first : unit.last], release)
        return start, end

    @property
    def start(self) -> NDArray[np.float64]:
        """float64[num_ops] [s]."""
        return self._bounds[0]

    @property
    def end(self) -> NDArray[np.float64]:
        """float64[num_ops] [s]."""
        return self._bounds[1]

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams in use."""
        return self.alone.partition.streams

    def busy_s(self, stream: Stream | str) -> float:
        """Time during which a stream, or all streams of a name, work [s].

        Raises:
            ConfigError: no such stream.
        """
        mine = self._operators_on(stream)
        return float((self.end - self.start)[mine].sum())

    def idle_s(self, stream: Stream | str) -> float:
        """Time during which a stream, or all streams of a name, do nothing [s]; busy + idle = streams x makespan."""
        count = sum(1 for other in self.streams if stream in (other, other.name))
        return count * self.makespan_s - self.busy_s(stream)

    def _operators_on(self, stream: Stream | str) -> NDArray[np.intp]:
        if not any(stream in (other, other.name) for other in self.streams):
            if isinstance(stream, str):
                raise unknown_name("stream", stream, dict.fromkeys(other.name for other in self.streams))
            raise ConfigError("unknown stream", expected="one of timeline.streams", got=stream)
        return np.flatnonzero([stream in (op.stream, op.stream.name) for op in self.graph.operators])

    # -- work ----------------------------------------------------------------------------------------------------
    @cached_property
    def _work(self) -> NDArray[np.int64]:
        """int64[4, num_ops]: FLOP, memory bytes, network bytes of one replica, and the number of replicas."""
        operators = self.graph.operators
        symbols = {name: np.array([value], dtype=np.int64) for name, value in self.simulation.shapes.items()}
        replicas = np.ones(len(operators), dtype=np.int64)
        for group in self.graph.subgraphs:
            replicas[group.first : group.last] *= group.replicas
        rows = [[op.flop for op in operators], [op.mem_bytes for op in operators], [op.net_bytes for op in operators]]
        return np.stack([*(DimTable.build(dims).evaluate(symbols)[:, 0] for dims in rows), replicas])

    def totals(self) -> Totals:
        """Work of the whole graph, replicas counted."""
        return self._sum(0, len(self.graph.operators))

    def _sum(self, first: int, last: int) -> Totals:
        *costs, replicas = (column[first:last].tolist() for column in self._work)
        gpus = {
            op.stream.device.rank: count
            for op, count in zip(self.graph.operators[first:last], replicas, strict=True)
            if op.stream.device.kind is not DeviceKind.HOST
        }
        sums = [sum(cost * count for cost, count in zip(column, replicas, strict=True)) for column in costs]
        return Totals(sums[0], sums[1], sums[2], sum(gpus.values()))

    # -- levels --------------------------------------------------------------------------------------------------
    def span(self, path: str) -> GraphSpan:
        """A subgraph at any level of nesting: when it ran, how long, its work and its memory.

        Args:
            path: dotted path; copies of a chain are named ``path#1`` and so on.
        Raises:
            ConfigError: no such subgraph.
        """
        paths = {group.path: group for group in reversed(self.graph.subgraphs)}
        if path not in paths:
            raise unknown_name("subgraph", path, paths)
        group = paths[path]
        mine = slice(group.first, group.last)
        begin, stop = float(self.start[mine].min(initial=np.inf)), float(self.end[mine].max(initial=0.0))
        for number, unit in enumerate(self.alone.partition.units):
            if unit.subgraph == group.index:
                begin, stop = float(self.times.start[0, number]), float(self.times.end[0, number])
        begin = begin if np.isfinite(begin) else stop
        busy: dict[str, float] = {}
        for operator, lasts in zip(self.graph.operators[mine], (self.end - self.start)[mine], strict=True):
            busy[operator.stream.name] = busy.get(operator.stream.name, 0.0) + float(lasts)
        peaks = {}
        for pool in self.pools:
            curve = self.memory_of(pool)
            at = max(int(np.searchsorted(curve.times_s, begin, side="right")) - 1, 0)
            after = int(np.searchsorted(curve.times_s, stop, side="left"))
            peaks[pool] = int(curve.total[at : max(after, at + 1)].max())
        return GraphSpan(
            path,
            group.level,
            group.replicas,
            begin,
            stop,
            busy,
            self._sum(group.first, group.last or 0),
            peaks,
            self._memory.net_change(group.first, group.last or 0),
        )

    # -- memory --------------------------------------------------------------------------------------------------
    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the memory pools."""
        return self._memory.pools

    @cached_property
    def _memory(self) -> GraphMemory:
        of = self.simulation
        return GraphMemory(self.alone.partition, *self._bounds, of.size_bytes, of.capacity_bytes)

    def memory_of(self, pool: str) -> MemoryCurve:
        """Allocated bytes of one pool over time.

        Raises:
            ConfigError: no such pool.
        """
        if pool not in self.pools:
            raise unknown_name("memory pool", pool, self.pools)
        if pool not in self._curves:
            self._curves[pool] = self._memory.curve(pool)
        return self._curves[pool]

    @cached_property
    def _curves(self) -> dict[str, MemoryCurve]:
        return {}

    @property
    def memory(self) -> MemoryCurve:
        """Allocated bytes over time of the only pool.

        Raises:
            ConfigError: there are several; ask ``memory_of``.
        """
        if len(self.pools) != 1:
            raise ConfigError("several memory pools", expected="memory_of(pool)", got=", ".join(self.pools) or "none")
        return self.memory_of(self.pools[0])

    @property
    def peak(self) -> PeakMemory:
        """Highest allocation of the only pool."""
        return self._memory.peak(self.pools[0], self.memory)

    def to_text(self) -> str:
        """One line per operator: start, end [us], stream, path, kind, phase."""
        lines = []
        for operator, start, end in zip(self.graph.operators, self.start, self.end, strict=True):
            lines.append(
                f"{start * 1e6:12.3f} {end * 1e6:12.3f} us  {operator.stream.name:8} "
                f"{operator.path or '-':40} {operator.kind.value:20} {operator.phase.name.lower()}"
            )
        return "\n".join(lines)

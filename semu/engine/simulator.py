"""``run``: times and memory of one graph on one simulated rank; ``GraphTimeline``: what came out.

This is the engine's door for graphs built by hand or traced from a single module; ``semu.simulate`` runs whole jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.costs import CostModel, LatencyRules
from semu.engine.join import build_stages
from semu.engine.stage import ROLES, ExpandedStage
from semu.engine.template import TemplateLibrary, compile_template, stream_names
from semu.engine.timeline import MemoryCurve, PeakMemory, compress_steps
from semu.errors import ConfigError
from semu.graph.graph import Graph
from semu.graph.tensor import Role
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.device import Stream
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup


@dataclass(frozen=True)
class GraphTimeline:
    """A simulated graph.

    Attributes:
        graph: the graph. start, end: float64[num_ops] [s]. exposed: float64[num_streams] [s].
        stage: operators and memory events. capacity_bytes: size of the memory pool.
        streams: stream names, the compute stream first.
        stream_of: int32[num_ops], index into ``streams``.
        static_bytes: parameters, gradients and optimizer states by role.
        initial_bytes: inputs that exist before the first operator, by role.
    """

    graph: Graph
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    exposed: NDArray[np.float64]
    stage: ExpandedStage
    capacity_bytes: int
    streams: tuple[str, ...]
    stream_of: NDArray[np.int32]
    static_bytes: Mapping[Role, int]
    initial_bytes: Mapping[Role, int]

    @property
    def makespan_s(self) -> float:
        """End of the last operator [s]."""
        return float(self.end.max(initial=0.0))

    def busy_s(self, stream: str) -> float:
        """Time during which a stream works [s].

        Raises:
            ConfigError: no such stream.
        """
        if stream not in self.streams:
            raise ConfigError("unknown stream", expected=", ".join(self.streams), got=stream)
        mine = self.stream_of == self.streams.index(stream)
        return float((self.end - self.start)[mine].sum())

    def idle_s(self, stream: str) -> float:
        """Time during which a stream does nothing [s]; busy + idle = makespan."""
        return self.makespan_s - self.busy_s(stream)

    def exposed_communication_s(self) -> dict[str, float]:
        """Time that compute waits for each communicator [s]."""
        return {name: float(self.exposed[i]) for i, name in enumerate(self.streams) if i}

    def time_by_kind_s(self) -> dict[OpKind, float]:
        """Busy time by operator kind [s]."""
        totals: dict[OpKind, float] = {}
        for operator, latency in zip(self.graph.operators, self.end - self.start, strict=True):
            totals[operator.kind] = totals.get(operator.kind, 0.0) + float(latency)
        return totals

    @cached_property
    def memory(self) -> MemoryCurve:
        """Allocated bytes over time."""
        base = np.array([self.static_bytes.get(role, 0) + self.initial_bytes.get(role, 0) for role in ROLES])
        time = np.concatenate(([0.0], self.stage.event_time))
        delta = np.concatenate((base[:, None], self.stage.event_bytes), axis=1)
        level = np.cumsum(delta, axis=1)
        times, levels = compress_steps(time, level)
        return MemoryCurve(times, levels, ROLES, self.capacity_bytes)

    @cached_property
    def peak(self) -> PeakMemory:
        """Highest allocation, the operator that reaches it, and what makes it up."""
        curve = self.memory
        position = int(np.argmax(curve.total))
        time = float(curve.times_s[position])
        started = np.flatnonzero((self.start <= time) & (self.end > time))
        path = self.graph.operators[int(started[-1])].path if len(started) else ""
        by_role = {role: int(curve.by_role[i, position]) for i, role in enumerate(ROLES)}
        return PeakMemory(time, int(curve.total[position]), "", path, by_role)

    def to_text(self) -> str:
        """One line per operator: start, end [us], stream, path, kind, phase."""
        lines = []
        for operator, start, end in zip(self.graph.operators, self.start, self.end, strict=True):
            lines.append(
                f"{start * 1e6:12.3f} {end * 1e6:12.3f} us  {operator.stream.name:8} "
                f"{operator.path or '-':40} {operator.kind.value:20} {operator.phase.name.lower()}"
            )
        return "\n".join(lines)


def run(
    graph: Graph,
    profile: DeviceProfile,
    *,
    shapes: Mapping[str, int] | None = None,
    groups: Mapping[Stream, CommGroup] | None = None,
    latency_rules: LatencyRules | None = None,
) -> GraphTimeline:
    """Simulate a graph: every operator starts when its predecessors have ended and its stream is free.

    Args:
        graph: operators in issue order.
        profile: the device, e.g. ``Cluster("h100").profile``.
        shapes: value of each symbol, for a graph with symbolic sizes.
        groups: communicator of each link stream, for collectives.
        latency_rules: custom latencies by operator kind.
    Raises:
        GraphError: the graph breaks an invariant (``Graph.lint``).
    """
    graph.lint()
    template = compile_template(
        graph, len(graph.operators), inputs=graph.inputs, outputs=graph.outputs, groups=groups or {}
    )
    library = TemplateLibrary([template])
    columns = library.evaluate({name: np.array([value], dtype=np.int64) for name, value in (shapes or {}).items()})
    latency = CostModel(library, profile, latency_rules).latencies(columns)[:, 0]
    streams = stream_names(library)
    program, _ = build_stages(library, [0], streams, serial=False)
    size = columns.size_bytes[:, 0]
    stage = program.expand(latency, size)
    costs = program.run(latency[None, :], size[None, :].copy())
    static: dict[Role, int] = {}
    for storage in graph.storages:
        if storage.role.is_static:
            static[storage.role] = static.get(storage.role, 0) + int(size[storage.index])
    initial: dict[Role, int] = {}
    for index in {graph.tensors[tensor].storage for tensor in graph.inputs}:
        role = graph.storages[index].role
        if not role.is_static:
            initial[role] = initial.get(role, 0) + int(size[index])
    return GraphTimeline(
        graph=graph,
        start=stage.start,
        end=stage.end,
        exposed=costs.exposed[0],
        stage=stage,
        capacity_bytes=int(profile.memory_bytes.value),
        streams=streams,
        stream_of=program.stream,
        static_bytes=static,
        initial_bytes=initial,
    )

"""``sweep``: one graph with symbolic sizes, simulated for many shapes in one go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.join import build_stages
from semu.compile.segments import cost_stage
from semu.compile.template import TemplateLibrary, compile_template, stream_names
from semu.costs.roofline import CostModel, LatencyRules
from semu.engine.symbols import check_sizes, check_symbols
from semu.errors import ConfigError, GraphError
from semu.graph.graph import Graph
from semu.graph.level import Level
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.device import Stream
from semu.hardware.network import CommGroup
from semu.records import dataclass


@dataclass(frozen=True)
class ShapeSweep:
    """One graph for many shapes (arrays [num_shapes]).

    Attributes:
        latency_s: from the first start to the last end [s].
        peak_bytes: highest allocation, parameters, gradients and optimizer states included.
        exposed_s: by communicator, time that compute waits for it [s].
        flop: [FLOP].
    """

    latency_s: NDArray[np.float64]
    peak_bytes: NDArray[np.int64]
    exposed_s: Mapping[str, NDArray[np.float64]]
    flop: NDArray[np.float64]


def sweep(
    graph: Graph,
    profile: DeviceProfile,
    shapes: Mapping[str, NDArray[np.integer] | Sequence[int]],
    *,
    groups: Mapping[Stream, CommGroup] | None = None,
    latency_rules: LatencyRules | None = None,
) -> ShapeSweep:
    """Simulate one graph with symbolic sizes for many shapes in one go: costs, times and memory (DESIGN §4).

    Args:
        graph: one unit (no stages), in one memory pool, without replicas. profile: the device.
        shapes: symbol -> its value in every shape, all of one length. groups, latency_rules: as ``Simulation``.
    Raises:
        GraphError: a graph with stages or replicas. ConfigError: symbols of different lengths.
    """
    graph.lint()
    special = next((g for g in graph.subgraphs if g.level is Level.STAGE or g.replicas > 1), None)
    if special is not None:
        raise GraphError("a sweep simulates one unit", where=special.path, expected="no stages, no replicas")
    columns = {name: check_sizes(name, values) for name, values in shapes.items()}
    check_symbols(graph, columns)
    if len({storage.pool for storage in graph.storages}) > 1:
        raise GraphError("a sweep has one memory pool", where="graph", expected="tensors in one pool", got="several")
    if len({len(values) for values in columns.values()}) > 1:
        lengths = ", ".join(f"{name}: {len(values)}" for name, values in columns.items())
        raise ConfigError("symbols with different numbers of shapes", where="shapes", expected="equal", got=lengths)
    template = compile_template(
        graph, len(graph.operators), inputs=graph.inputs, outputs=graph.outputs, groups=groups or {}
    )
    library = TemplateLibrary([template])
    evaluated = library.evaluate(columns)
    latency = CostModel(library, profile, latency_rules).latencies(evaluated)
    streams = stream_names(library)
    program, _ = build_stages(library, [0], streams, serial=False)
    costs = cost_stage(program, np.ascontiguousarray(latency.T), np.ascontiguousarray(evaluated.size_bytes.T))
    inputs = {graph.tensors[tensor].storage for tensor in graph.inputs}
    held = [s.index for s in graph.storages if s.role.is_static or s.index in inputs]
    return ShapeSweep(
        latency_s=costs.latency,
        peak_bytes=costs.peak + evaluated.size_bytes[held].sum(axis=0),
        exposed_s={name: costs.exposed[:, number] for number, name in enumerate(streams) if number},
        flop=evaluated.flop.sum(axis=0),
    )

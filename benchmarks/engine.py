"""Speed of the kernels that ``prepare``, ``restore`` and ``simulate`` call, on the arrays that setups hand them.

Every call of a kernel is recorded, and the largest of each kernel is timed beside the same algorithm in C over copies
of the same arrays (when a C compiler is there); the replay of a schedule also beside SimPy and networkx (when there).
Ratios within this run have goals, absolute figures do not. Contenders take turns, the fastest turn of each counts.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _compiled import bind, compiled
from _rows import Row, print_rows
from _timing import fastest

import semu
from semu.runfile import load_run

SECONDS_PER_ROW = 2.0
SETUPS = {"vlm-l": ["training.global_batch=64"], "gpt3-175b": [], "t2v-l": [], "vlm-xl-16k": []}
QUICK = ("vlm-l", "gpt3-175b")
KERNELS = {
    "forced_order": "semu.engine.kernels.orders",
    "replay_units": "semu.engine.kernels.dispatch",
    "dispatch_units": "semu.engine.kernels.dispatch",
    "pipeline_summits": "semu.engine.kernels.pipeline_memory",
    "roofline_latency": "semu.costs.kernels",
    "run_stage": "semu.compile.kernels",
    "run_segment": "semu.compile.kernels",
}
MOST_OF_C = 2.0
"""Goal: at most so many times what C takes."""
WORK = {
    "pipeline_summits": ("stages", lambda given: given[3].size),
    "roofline_latency": ("latencies", lambda given: given[0].size),
    "run_stage": ("operators", lambda given: len(given[0]) * len(given[1])),
    "run_segment": ("operators", lambda given: len(given[1]) * given[0].shape[1]),
}
"""What a call goes through, and how many of them; else units."""


def copied(value: Any) -> Any:
    """Arguments of a kernel with arrays of their own."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def arrays_of(value: Any) -> list[NDArray[Any]]:
    """All arrays among arguments, in order."""
    if isinstance(value, tuple):
        return [array for item in value for array in arrays_of(item)]
    return [value] if isinstance(value, np.ndarray) else []


def units_of(name: str, given: tuple[Any, ...]) -> int:
    """How much a call goes through."""
    if name in WORK:
        return int(WORK[name][1](given))
    return int(given[2].size if name == "replay_units" else len(given[-1]))


def recorded(setup: str) -> dict[str, tuple[Any, ...]]:
    """Arguments of the largest call of every kernel while a setup is prepared, restored and simulated."""
    job, largest = load_run(setup, SETUPS[setup]), dict[str, tuple[Any, ...]]()

    def call(name: str, kernel: Callable[..., Any], *given: Any) -> Any:
        if name not in largest or units_of(name, given) > units_of(name, largest[name]):
            largest[name] = copied(given)
        return kernel(*given)

    with ExitStack() as stack:
        for name, home in KERNELS.items():
            module = import_module(home)
            stack.enter_context(mock.patch.object(module, name, partial(call, name, getattr(module, name))))
        state = semu.prepare(job)
        state.restore(state.edges_of())
        state.restore(np.zeros((0, 2), dtype=np.int32))
        semu.simulate(job)
    return largest


def for_c(name: str, given: tuple[Any, ...]) -> list[Any]:
    """Arguments of the function of the same name in reference.c: sizes, then arrays."""
    if name in ("forced_order", "dispatch_units", "replay_units"):
        (ptr, hold, num_streams), (edge_ptr, target, lag, *inner), (source, new_target, new_lag, *new_inner) = (
            given[place]
            for place in {"forced_order": (0, 1, 2), "dispatch_units": (0, 3, 4), "replay_units": (1, 3, 4)}[name]
        )
        assert not lag.size + new_lag.size, "an edge reads the inside of a unit"
        if name == "forced_order":
            sizes = [len(given[3]), len(hold), len(source), num_streams]
            return [*sizes, ptr, hold, edge_ptr, target, *inner, source, new_target, *new_inner, given[3]]
        slots, times = given[5], given[6]
        assert not len(slots[1]), "a unit has slots"
        if name == "replay_units":
            edges = (edge_ptr, target, source, new_target)
            sizes = [*given[2].shape, len(source), num_streams]
            return [*sizes, given[0], ptr, hold, given[2], *edges, times[0], times[1], times[3]]
        assert not len(source), "edges were added"
        assert np.array_equal(ptr, np.arange(len(ptr))), "a unit does not hold one stream"
        return [len(hold), num_streams, hold, given[1], given[2], edge_ptr, target, times[0], times[1], given[7]]
    if name == "pipeline_summits":
        sizes = [len(given[0]) - 1, *given[1].shape, given[3].shape[1], given[6].shape[1]]
    elif name == "run_stage":
        latency, row, program, _, size, size_row, _ = given
        sizes = [*latency.shape, len(row), size.shape[1], len(size_row), program[3]]
    else:
        sizes = [len(given[1]), given[0].shape[1]] if name == "run_segment" else list(given[0].shape)
    return [*sizes, *arrays_of(given)]


def measure_setup(setup: str, c: tuple[str, ctypes.CDLL] | None, seconds: float) -> Iterator[Row]:
    """Rows of one setup: every kernel, on the largest call."""
    for name, given in sorted(recorded(setup).items(), key=lambda item: list(KERNELS).index(item[0])):
        kernel = getattr(import_module(KERNELS[name]), name)
        mine, theirs = copied(given), copied(given)
        contenders: dict[str, Callable[[], object]] = {"semu": partial(kernel, *mine)}
        result = contenders["semu"]()
        if c is not None:
            contenders["C"] = bind(getattr(c[1], name), *for_c(name, theirs))
            returned = contenders["C"]()
            expected = 2 * result[0] + result[1] if name == "forced_order" else result or 0  # type: ignore[index]
            assert returned == expected, f"C returns something else from {name}"
            for one, other in zip(arrays_of(mine), arrays_of(theirs), strict=True):
                assert np.array_equal(one, other), f"C finds something else in {name}"
        times_s = fastest(contenders, seconds)
        title, count = f"{setup}: {name}", units_of(name, given)
        unit = WORK[name][0] if name in WORK else "units"
        yield Row(title, times_s["semu"] * 1e6, "us", f"{count} {unit}, the largest call")
        if c is not None:
            value = times_s["semu"] / times_s["C"]
            yield Row(title, value, "x the time", c[0], f"<= {MOST_OF_C:g}", value <= MOST_OF_C)
        if name == "replay_units" and setup in QUICK:
            yield from measure_libraries(title, contenders["semu"], given, seconds)


def simpy_ends(streams: list[list[int]], before: list[list[int]], latency: list[float]) -> list[float]:
    """End times by SimPy: one process per stream, one event per unit."""
    import simpy

    env = simpy.Environment()
    is_done = [env.event() for _ in latency]
    end = [0.0] * len(latency)

    def run(units: list[int]) -> Iterator[Any]:
        for unit in units:
            for other in before[unit]:
                if not is_done[other].processed:
                    yield is_done[other]
            yield env.timeout(latency[unit])
            end[unit] = env.now
            is_done[unit].succeed()

    for units in streams:
        env.process(run(units))
    env.run()
    return end


def measure_libraries(
    title: str, replay: Callable[[], object], given: tuple[Any, ...], seconds: float
) -> Iterator[Row]:
    """A replay against SimPy and networkx, which get lists and, networkx, a graph that is already built."""
    order, (_, hold, num_streams), latency, edges, added, _, times = given
    before: list[list[int]] = [[] for _ in order]
    for source, target in zip(
        np.repeat(np.arange(len(order)), np.diff(edges[0])).tolist(), edges[1].tolist(), strict=True
    ):
        before[target].append(source)
    for source, target in zip(added[0].tolist(), added[1].tolist(), strict=True):
        before[target].append(source)
    by_stream: list[list[int]] = [[] for _ in range(num_streams)]
    for unit in order.tolist():
        by_stream[hold[unit]].append(unit)
    lasts = latency[0].tolist()
    import_module(KERNELS["replay_units"]).replay_units(*given)
    end = times[1][0]
    contenders: dict[str, Callable[[], object]] = {"semu": replay}
    if importlib.util.find_spec("simpy") is not None:
        run = partial(simpy_ends, by_stream, before, lasts)
        assert run() == end.tolist(), "SimPy finds other times"
        contenders["SimPy, one process per stream"] = run
    if importlib.util.find_spec("networkx") is not None:
        import networkx

        graph = networkx.DiGraph()
        for units in by_stream:
            graph.add_weighted_edges_from((one, other, lasts[other]) for one, other in pairwise(units))
        for unit, others in enumerate(before):
            graph.add_weighted_edges_from((other, unit, lasts[unit]) for other in ["source", *others])
        assert networkx.dag_longest_path_length(graph) == end.max(), "networkx finds another makespan"
        contenders["networkx, dag_longest_path"] = partial(networkx.dag_longest_path, graph)
    times_s = fastest(contenders, seconds)
    for reference in list(times_s)[1:]:
        value = times_s[reference] / times_s["semu"]
        yield Row(title, value, "x faster", reference, ">= 100", value >= 100)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    with compiled("reference.c") as c:
        if c is None:
            yield Row("kernels against C", None, "x the time", "no C compiler found")
        for setup in QUICK if quick else SETUPS:
            yield from measure_setup(setup, c, 0.2 if quick else SECONDS_PER_ROW)


if __name__ == "__main__":
    print_rows(__doc__, measure)

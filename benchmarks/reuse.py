"""Speed of reuse: a checkpoint restored under new schedules against simulating every operator anew (PipeWeaver §4.2).

A row with a goal is a ratio within this run, a time that one call takes, or a limit for a whole process. Results are
compared bit for bit before anything is timed. Contenders take turns, and the fastest turn of each counts.

``--out DIR`` (default ``out``) gets ``growth.png``. The README's picture is made by

    python benchmarks/reuse.py --out examples/pictures
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _expanded import bare_kernel, expand, stage_templates, trace_anew
from _growth import draw, growth_rows, measure_growth
from _rows import Row, print_rows
from _timing import fastest, run_process

import semu
from semu import nn
from semu.engine.unit_graph import Edges
from semu.errors import ScheduleError
from semu.runfile import load_run
from semu.schedule.schedule import PipelineShape, Schedule

SETUP, NUM_MICROBATCHES = "vlm-l", 64
LARGEST = "vlm-xl-16k"


def perturbed_schedules(start: Schedule, shape: PipelineShape, count: int, seed: int = 0) -> list[Schedule]:
    """Different schedules by a random walk: up to eight neighbours swapped at each step, where that stays legal."""
    rng = random.Random(seed)
    orders = [list(order) for order in start.orders]
    result = {start.orders: start}
    while len(result) <= count:
        for _ in range(8):
            order = orders[rng.randrange(len(orders))]
            at = rng.randrange(len(order) - 1)
            order[at], order[at + 1] = order[at + 1], order[at]
            try:
                Schedule.build("perturbed", orders).validate(shape)
            except ScheduleError:
                order[at], order[at + 1] = order[at + 1], order[at]
        schedule = Schedule.build(f"perturbed {len(result)}", orders)
        result[schedule.orders] = schedule
    return list(result.values())[1:]


def measure_restore(quick: bool) -> Iterator[Row]:
    """One checkpoint under many schedules, against the same operators without reuse."""
    seconds = 1.0 if quick else 10.0
    job = load_run(SETUP, [f"training.global_batch={NUM_MICROBATCHES}"])
    state = semu.prepare(job)
    schedules = perturbed_schedules(state.schedule(), state.pipeline_shape, 10 if quick else 100)
    edges = [state.edges_of(schedule) for schedule in schedules]
    stages, latency = stage_templates(state), state.evaluation.by_shape.latency
    for pairs in edges[:3]:
        expanded = expand(state, stages, latency, pairs)
        times, written = state.restore(pairs), expanded.nodes.resume()
        begin, end = expanded.spans(written)
        assert np.array_equal(begin, times.start[0]), "the operators find other starts"
        assert np.array_equal(end, times.end[0]), "the operators find other ends"
        assert written.makespan_s == times.makespan_s, "the operators find another makespan"
    first = state.replicas.shape[0, 0]
    used = np.concatenate([latency[first, stage.rows] for stage in stages])
    assert np.array_equal(np.sort(used), np.sort(trace_anew(job))), "tracing anew finds other operators"

    def restore_all() -> None:
        for pairs in edges:
            state.restore(pairs)

    def make_all() -> None:
        for schedule in schedules:
            state.edges_of(schedule)

    def simulate_operators() -> None:
        expand(state, stages, latency, edges[0]).nodes.resume()

    calls = [bare_kernel(state.nodes, Edges.between(pairs)) for pairs in edges]

    def call_all() -> None:
        for call in calls:
            call()

    contenders: dict[str, Callable[[], object]] = {
        "restore": restore_all,
        "kernel, stages": call_all,
        "edges": make_all,
        "operators": simulate_operators,
        "kernel, operators": bare_kernel(expanded.nodes),
    }
    times_s = fastest(contenders, seconds)
    restore_s, anew_s = times_s["restore"] / len(edges), fastest({"trace": partial(trace_anew, job)}, 0.0)["trace"]
    sizes = f"{expanded.nodes.num_units} nodes against {state.nodes.num_units}"
    yield Row(
        f"{SETUP}, {NUM_MICROBATCHES} microbatches: restore", restore_s * 1e3, "ms",
        f"{len(edges)} schedules in turn, Python included", "<= 1", restore_s <= 1e-3,
    )  # fmt: skip
    yield Row(
        "a Schedule checked and turned into edges", times_s["edges"] / len(edges) * 1e3, "ms", "not in the row above"
    )
    value = times_s["operators"] / restore_s
    reference = f"numpy builds, the same kernel simulates every operator, {sizes}; tracing and costing for free"
    yield Row("restore against build + simulate", value, "x faster", reference, ">= 200", value >= 200)
    value = (times_s["operators"] + NUM_MICROBATCHES * anew_s) / restore_s
    reference = f"the same, every block of every microbatch traced and costed: one microbatch took {anew_s:.2f} s, x 64"
    yield Row("restore against trace + build + simulate", value, "x faster", reference)
    value = times_s["kernel, operators"] / (times_s["kernel, stages"] / len(edges))
    least = expanded.nodes.num_units / state.nodes.num_units / 2
    yield Row(
        "kernel call on stages against on operators", value, "x faster",
        f"{sizes}: goal is half that ratio", f">= {least:.0f}", value >= least,
    )  # fmt: skip


def measure_graph(quick: bool) -> Iterator[Row]:
    """64 equal stages of one traced layer in a graph of their own, with and without reuse of equal units."""
    layer = nn.TransformerLayer(4096, 16384, 32)
    part = semu.trace(layer, semu.Input((8192, 4096), requires_grad=True))
    graph = semu.Graph()
    shared: dict[int, int] = {}
    for number in range(64):
        with graph.subgraph(f"microbatch{number}", level=semu.Level.STAGE):
            made = semu.include(graph, part, tensors=shared)
        static = [t.index for t in part.tensors if part.storages[t.storage].role.is_static]
        shared = {tensor: made[tensor] for tensor in static}
    profile = semu.Cluster("h800", nodes=1, gpus_per_node=1).profile

    def simulate(reuse: bool) -> semu.GraphTimeline:
        return semu.Simulation(graph, profile, reuse=reuse).run()

    with_reuse, without = simulate(True), simulate(False)
    assert np.array_equal(with_reuse.start, without.start), "reuse changes starts"
    assert np.array_equal(with_reuse.end, without.end), "reuse changes ends"
    times_s = fastest({"with": partial(simulate, True), "without": partial(simulate, False)}, 1.0 if quick else 5.0)
    value = times_s["without"] / times_s["with"]
    num_ops = len(graph.operators)
    name = f"graph of 64 equal stages, {num_ops} operators"
    yield Row(name, times_s["with"] * 1e3, "ms", f"{with_reuse.alone.num_simulated} unit simulated")
    yield Row(name, value, "x faster", f"reuse=False, {without.alone.num_simulated} units simulated")


def measure_processes(quick: bool) -> Iterator[Row]:
    """Building and simulating the largest setup, from the start of Python to its end."""
    alike = "job = replace(job, batch=CycledBatch(job.batch, 1))\n"
    for name, change, count in (("its own data", "", 128), ("equal replicas", alike, 1)):
        code = (
            "from dataclasses import replace\n"
            "import semu\n"
            "from semu.runfile import load_run\n"
            f"{'from _growth import CycledBatch' if change else ''}\n"
            f"job = load_run({LARGEST!r})\n{change}"
            "result = semu.simulate(job).num_distinct_replicas\n"
        )
        runs = [run_process(code) for _ in range(2 if quick else 4)][1:]
        assert all(run.result == count for run in runs), f"{count} distinct replicas were expected"
        best, peak = min(runs, key=lambda run: run.wall_s), max(run.peak_bytes for run in runs)
        reference = f"whole process, {count} distinct of 128 replicas, best of {len(runs)}"
        on_cpu = f"{reference}; {best.cpu_s:.2f} s on the processor"
        yield Row(f"{LARGEST}, {name}", best.wall_s, "s", on_cpu, "<= 2", best.wall_s <= 2)
        yield Row(f"{LARGEST}, {name}: peak memory", peak / 1e9, "GB", reference, "<= 1", peak <= 1e9)


def measure(out: Path, quick: bool) -> Iterator[Row]:
    """All rows, and the picture."""
    yield from measure_restore(quick)
    yield from measure_graph(quick)
    yield from measure_processes(quick)
    growths = measure_growth(quick)
    yield from growth_rows(growths)
    out.mkdir(parents=True, exist_ok=True)
    draw(out / "growth.png", growths)
    print(f"wrote {out / 'growth.png'}", file=sys.stderr)


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--out", type=Path, default=Path("out"))
    options, sys.argv[1:] = own.parse_known_args()
    print_rows(__doc__, partial(measure, options.out))

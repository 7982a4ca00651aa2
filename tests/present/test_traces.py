"""The trace says what the timeline says, in a form that viewers can nest."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.jobs import job_of, overlap, vlm, vlm_items

from semu.engine.sampling import pool_step_function, sample_step_function
from semu.engine.timeline import IterationTimeline, OuterSlice
from semu.errors import ConfigError
from semu.graph.operator import OpKind
from semu.parallel.config import Parallel
from semu.present.traces import write_rank_trace, write_trace
from semu.present.traces.columns import microseconds, ticks
from semu.simulation import simulate
from tests.present.timeline_fixture import make_timeline


@pytest.fixture(scope="module")
def timeline() -> IterationTimeline:
    return make_timeline()


@pytest.fixture(scope="module")
def document(timeline: IterationTimeline, tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(path, timeline, title="two modules", metadata={"seed": 0, "device": "h100"})
    return json.loads(path.read_text())


def slices_of(document: dict, category: str | None = None) -> list[dict]:
    return [e for e in document["traceEvents"] if e["ph"] == "X" and category in (None, e["cat"])]


def operators_of(timeline: IterationTimeline) -> list[tuple[int, str, OpKind, float, float]]:
    """(rank, stream, kind, start, end) [s] of every operator, read off the timeline."""
    rows = []
    for rank in timeline.ranks:
        rows += [(rank.rank, s.stream, s.kind, s.start_s, s.end_s) for s in rank.outer]
        for _, ops in rank.stage_operators():
            columns = (ops.table.streams, ops.table.kinds, ops.start_s.tolist(), ops.end_s.tolist())
            rows += [(rank.rank, *row) for row in zip(*columns, strict=True)]
    return rows


def stream_names(document: dict) -> dict[tuple[int, int], str]:
    events = document["traceEvents"]
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_one_slice_per_operator(document: dict, timeline: IterationTimeline) -> None:
    kernels, operators = slices_of(document, "kernel"), operators_of(timeline)
    assert len(kernels) == len(operators)
    starts = sorted((e["pid"], e["ts"]) for e in kernels)
    expected = sorted((rank, start * 1e6) for rank, _, _, start, _ in operators)
    assert np.allclose(starts, expected, rtol=0, atol=0.0005001)


def test_durations_are_conserved_per_stream(document: dict, timeline: IterationTimeline) -> None:
    names = stream_names(document)
    written, expected, counts = defaultdict(float), defaultdict(float), defaultdict(int)
    for event in slices_of(document, "kernel"):
        name = names[event["pid"], event["tid"]]
        assert name.startswith(f"stream {event['tid']} (")
        assert event["args"]["stream"] == event["tid"]
        written[event["pid"], name.split("(")[1].rstrip(")")] += event["dur"]
    for rank, stream, _, start, end in operators_of(timeline):
        expected[rank, stream] += (end - start) * 1e6
        counts[rank, stream] += 1
    assert written.keys() == expected.keys()
    for key, total in expected.items():
        assert written[key] == pytest.approx(total, abs=1e-3 * counts[key]), key


def test_slices_of_a_track_nest_or_are_disjoint(document: dict) -> None:
    """In the binary arithmetic of readers, without tolerance; in file order."""
    assert_tracks_nest(document)
    on_streams = defaultdict(list)
    for event in slices_of(document, "kernel"):
        on_streams[event["pid"], event["tid"]].append(event)
    for events in on_streams.values():
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"]


def assert_tracks_nest(document: dict) -> None:
    open_ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    last_start: dict[tuple[int, int], float] = defaultdict(float)
    for event in slices_of(document):
        track = (event["pid"], event["tid"])
        assert event["ts"] >= last_start[track]
        last_start[track] = event["ts"]
        stack = open_ends[track]
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert not stack or end <= stack[-1], event
        stack.append(end)


@given(st.lists(st.integers(0, 1 << 52), min_size=2, max_size=40), st.integers(0, 40))
def test_printed_times_are_exact(grid_steps: list[int], shift: int) -> None:
    """For times on the 2^-40 s grid below 2^12 s: reading gives exact sums, and whole nanoseconds do not overlap."""
    times_s = np.sort(np.array(grid_steps) >> shift) / 2.0**40
    boundaries = ticks(times_s)
    starts = [float(repr(us)) for us in microseconds(boundaries[:-1])]
    durations = [float(repr(us)) for us in microseconds(np.diff(boundaries))]
    for start, duration, after, before_s in zip(starts, durations, starts[1:], times_s.tolist(), strict=False):
        assert start + duration == after
        assert int(start * 1000.0) + int(duration * 1000.0) <= int(after * 1000.0)
        assert abs(Fraction(start) - Fraction(before_s) * 10**6) <= Fraction(1, 2000)


def test_stages_and_step_are_annotations(document: dict, timeline: IterationTimeline) -> None:
    names = stream_names(document)
    annotations = slices_of(document, "user_annotation")
    steps = [e for e in annotations if e["name"] == "ProfilerStep#0"]
    assert [e["pid"] for e in steps] == [rank.rank for rank in timeline.ranks]
    assert all(e["dur"] == pytest.approx(timeline.iteration_time_s * 1e6, abs=1e-3) for e in steps)
    stages = [e for e in annotations if e["args"]["level"] == "stage"]
    assert {names[e["pid"], e["tid"]] for e in stages} == {"stages"}
    expected = [
        (rank.rank, f"{stage.label} {stage.module}", stage.microbatch)
        for rank in timeline.ranks
        for stage in rank.stages
    ]
    assert [(e["pid"], e["name"], e["args"]["microbatch"]) for e in stages] == expected
    assert {names[e["pid"], e["tid"]] for e in steps} == {"iteration"}
    assert {e["args"]["level"] for e in steps} == {"iteration"}


def layers_of(timeline: IterationTimeline) -> list[tuple[int, int, int, str, float, float]]:
    """(rank, chunk, microbatch, block, start, end) [us] of each run of a block's operators, times as written."""
    found = []
    for rank in timeline.ranks:
        for stage, ops in rank.stage_operators():
            rows = list(zip(ops.table.blocks, ops.start_s, ops.end_s, strict=True))
            for block, run in groupby(rows, lambda row: row[0]):
                members = list(run)
                spans = ticks(np.array([min(row[1] for row in members), max(row[2] for row in members)]))
                found.append((rank.rank, stage.chunk, stage.microbatch, block, *microseconds(spans)))
    return found


def assert_layers_nest(document: dict, timeline: IterationTimeline) -> int:
    """Each is there once, in its stage's slice or, if it overlaps another, on a track of layers; returns how many."""
    names = stream_names(document)
    written, beside = [], 0
    stages: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    current: dict[tuple[int, int], dict] = {}
    for event in slices_of(document, "user_annotation"):
        args, end = event["args"], event["ts"] + event["dur"]
        track = (event["pid"], event["tid"])
        if args["level"] == "stage":
            stages[event["pid"], args["chunk"], args["microbatch"]].append((event["ts"], end))
            current[track] = event
        elif args["level"] == "layer":
            assert set(args) == {"level", "chunk", "microbatch"}
            place = (event["pid"], args["chunk"], args["microbatch"])
            written.append((*place, event["name"], event["ts"], end))
            assert any(low <= event["ts"] and end <= high for low, high in stages[place])
            if names[track] == "stages":
                stage = current[track]
                assert (stage["args"]["chunk"], stage["args"]["microbatch"]) == place[1:]
                assert stage["ts"] <= event["ts"] <= end <= stage["ts"] + stage["dur"]
            else:
                assert names[track].startswith("stages, lane ")
                beside += 1
    assert sorted(written) == sorted(layers_of(timeline))
    return beside


def test_layers_are_inside_their_stages(document: dict, timeline: IterationTimeline) -> None:
    """In the fixture's backward stages a layer begins while a collective of the one before it is still on its way."""
    assert assert_layers_nest(document, timeline) > 0
    order = {
        names: e["args"]["sort_index"]
        for e in document["traceEvents"]
        if e["name"] == "thread_sort_index"
        for names in [stream_names(document)[e["pid"], e["tid"]]]
        if e["pid"] == 0
    }
    assert order["iteration"] < order["stages"] == order["stages, lane 2"] < order["stream 7 (compute)"]


def test_operators_are_inside_their_layers(document: dict, timeline: IterationTimeline) -> None:
    """Every kernel of a stage is within a slice of its block that belongs to its microbatch's stage, as written."""
    layers = defaultdict(list)
    for event in slices_of(document, "user_annotation"):
        if event["args"]["level"] == "layer":
            layers[event["pid"], event["name"]].append((event["ts"], event["ts"] + event["dur"]))
    kernels = defaultdict(int)
    for event in slices_of(document, "kernel"):
        path = event["name"].split(": ")[-1].split(" ")[0]
        block = ".".join(path.split(".")[:3])
        if (event["pid"], block) in layers:
            spans = layers[event["pid"], block]
            assert sum(low <= event["ts"] and event["ts"] + event["dur"] <= high for low, high in spans) == 1
            kernels[event["pid"]] += 1
    for rank in timeline.ranks:
        assert kernels[rank.rank] == sum(len(ops.table.paths) for _, ops in rank.stage_operators())


@pytest.mark.parametrize("overlapped", [False, True])
def test_levels_of_a_simulated_job(overlapped: bool, tmp_path: Path) -> None:
    """With a microbatch without images, whose encoder stages take no time."""
    items = vlm_items(4, empty=(0, 2))
    timeline = simulate(job_of(vlm(), items, Parallel(tp=2, pp=3), overlap=overlap(tensor=overlapped))).timeline
    assert any(stage.start_s == stage.end_s for rank in timeline.ranks for stage in rank.stages)
    write_trace(tmp_path / "t.json", timeline, title="", metadata={})
    document = json.loads((tmp_path / "t.json").read_text())
    assert_tracks_nest(document)
    assert_layers_nest(document, timeline)
    assert_microbatches(document, timeline)


def test_microbatches_last_from_first_to_last_stage(document: dict, timeline: IterationTimeline) -> None:
    assert_microbatches(document, timeline)


def assert_microbatches(document: dict, timeline: IterationTimeline) -> None:
    found = {}
    names = stream_names(document)
    for event in slices_of(document, "microbatch"):
        assert event["pid"] == len(timeline.ranks)
        assert names[event["pid"], event["tid"]].split(",")[0] == "microbatches"
        assert event["name"] == f"microbatch {event['args']['microbatch']}"
        assert event["args"]["level"] == "microbatch"
        found[event["args"]["microbatch"]] = (event["ts"], event["ts"] + event["dur"])
    stages = [stage for rank in timeline.ranks for stage in rank.stages]
    expected = {}
    for number in {stage.microbatch for stage in stages}:
        own = [stage for stage in stages if stage.microbatch == number]
        times = ticks(np.array([min(stage.start_s for stage in own), max(stage.end_s for stage in own)]))
        expected[number] = tuple(microseconds(times))
    assert found == expected
    assert len(slices_of(document, "microbatch")) == len(expected)


def test_processes_are_named_and_sorted(document: dict) -> None:
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    ranks = {0: "rank 0 (gpu 0)", 1: "rank 1 (gpu 8)", 2: "rank 2 (gpu 16)", 3: "rank 3 (gpu 24)"}
    assert names == {**ranks, 4: "microbatches"}
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert sorted(order, key=order.__getitem__) == [4, 0, 1, 2, 3]
    tracks = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    for name in ("thread_name", "thread_sort_index"):
        assert {(e["pid"], e["tid"]) for e in events if e["name"] == name} == tracks
    assert len({name for (_, tid), name in stream_names(document).items() if tid == 7}) == 1


def test_communication_is_named_as_nccl_names_it(document: dict, timeline: IterationTimeline) -> None:
    nccl = [e for e in slices_of(document, "kernel") if e["name"].startswith("nccl")]
    assert len(nccl) == sum(kind.is_communication for _, _, kind, _, _ in operators_of(timeline))
    assert all(OpKind(e["args"]["kind"]).is_communication and e["args"]["Group size"] > 1 for e in nccl)
    assert any(e["name"].startswith("ncclDevKernel_ReduceScatter tp: llm.layers.3.attention.scatter") for e in nccl)
    written = sum(e["args"]["net_bytes"] for e in nccl)
    expected = sum(slice_.net_bytes for rank in timeline.ranks for slice_ in rank.outer)
    expected += sum(int(ops.net_bytes.sum()) for rank in timeline.ranks for _, ops in rank.stage_operators())
    assert written == expected


def test_costs_are_conserved(document: dict, timeline: IterationTimeline) -> None:
    kernels = slices_of(document, "kernel")
    operators = [ops for rank in timeline.ranks for _, ops in rank.stage_operators()]
    assert sum(e["args"].get("flop", 0) for e in kernels) == sum(ops.flop.sum() for ops in operators)
    assert sum(e["args"].get("mem_bytes", 0) for e in kernels) == sum(int(ops.mem_bytes.sum()) for ops in operators)


def test_counters_hold_the_curve(document: dict, timeline: IterationTimeline) -> None:
    for rank in timeline.ranks:
        counters = [e for e in document["traceEvents"] if e["ph"] == "C" and e["pid"] == rank.rank]
        assert len(counters) == len(rank.memory.times_s)
        by_role = np.array([list(e["args"].values()) for e in counters]).T
        assert np.array_equal(by_role, rank.memory.by_role)
        assert list(counters[0]["args"]) == [role.value for role in rank.memory.roles]


@pytest.mark.slow
def test_long_curves_are_thinned_but_keep_the_peak(tmp_path: Path) -> None:
    timeline = make_timeline(num_ranks=2, num_microbatches=48, num_layers=24)
    write_trace(tmp_path / "t.json", timeline, title="", metadata={})
    for rank in timeline.ranks:
        assert len(rank.memory.times_s) > 3 * 2048
        events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
        totals = [sum(e["args"].values()) for e in events if e["ph"] == "C" and e["pid"] == rank.rank]
        assert len(totals) <= 3 * 2048 + 1
        assert max(totals) == rank.peak.size_bytes


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=60), st.integers(1, 8))
def test_sampling_keeps_extremes_and_held_values(points: list[tuple[int, int]], num_buckets: int) -> None:
    times = np.sort(np.array([float(time) for time, _ in points]))
    values = np.array([value for _, value in points])
    kept = sample_step_function(times, values, num_buckets)
    assert np.all(np.diff(kept) > 0)
    assert len(kept) <= 3 * num_buckets + 1
    assert kept[0] == 0
    assert kept[-1] == len(times) - 1
    width = (times[-1] - times[0]) / num_buckets
    for bucket in range(num_buckets):
        low, high = times[0] + bucket * width, times[0] + (bucket + 1) * width
        inside = np.flatnonzero((times > low + 1e-9) & (times < high - 1e-9))
        chosen = kept[(times[kept] >= low - 1e-9) & (times[kept] <= high + 1e-9)]
        if len(inside):
            assert values[inside].max() <= values[chosen].max()
            assert values[inside].min() >= values[chosen].min()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=40), st.integers(1, 8))
def test_pooling_finds_the_highest_held_value(points: list[tuple[int, int]], num_buckets: int) -> None:
    times = np.sort(np.array([0.0, *(float(time) for time, _ in points)]))
    values = np.array([5, *(value for _, value in points)])
    edges = np.linspace(0.0, 32.0, num_buckets + 1)
    for bucket, position in enumerate(pool_step_function(times, values, edges)):
        inside = [v for t, v in zip(times, values, strict=True) if edges[bucket] <= t < edges[bucket + 1]]
        if not np.any(times == edges[bucket]):
            inside.append(values[np.flatnonzero(times < edges[bucket])[-1]])
        assert values[position] == max(inside)


def test_rank_trace_is_that_rank(timeline: IterationTimeline, document: dict, tmp_path: Path) -> None:
    write_rank_trace(tmp_path / "rank2.json", timeline, 2)
    one = json.loads((tmp_path / "rank2.json").read_text())
    assert one["distributedInfo"] == {"rank": 2, "world_size": 4}
    assert_tracks_nest(one)
    columns = ("name", "ts", "dur", "tid")
    kernels = [[e[c] for c in columns] for e in slices_of(one, "kernel")]
    assert kernels == [[e[c] for c in columns] for e in slices_of(document, "kernel") if e["pid"] == 2]
    stages = [e["name"] for e in slices_of(one, "gpu_user_annotation")]
    assert stages == [f"{stage.label} {stage.module}" for stage in timeline.ranks[2].stages]
    assert {e["args"]["level"] for e in slices_of(one, "user_annotation")} == {"iteration", "stage", "layer"}
    assert not slices_of(one, "microbatch")
    with pytest.raises(ConfigError, match="nearest allowed: 3"):
        write_rank_trace(tmp_path / "rank9.json", timeline, 9)
    assert [path.name for path in tmp_path.iterdir()] == ["rank2.json"]


def test_overlapping_transfers_get_lanes(timeline: IterationTimeline, tmp_path: Path) -> None:
    spans = [(0.0, 3.0), (1.0, 2.0), (1.5, 4.0), (2.0, 5.0), (3.0, 3.5)]
    outer = tuple(OuterSlice(f"send {i}", OpKind.P2P, "pp", a, b, 7, 2) for i, (a, b) in enumerate(spans))
    rank = replace(timeline.ranks[0], outer=outer)
    write_trace(tmp_path / "t.json", replace(timeline, ranks=(rank,)), title="", metadata={})
    document = json.loads((tmp_path / "t.json").read_text())
    assert_tracks_nest(document)
    names = stream_names(document)
    lanes = {
        e["name"].split(": ")[1]: names[e["pid"], e["tid"]].split("(")[1].rstrip(")")
        for e in slices_of(document, "kernel")
        if e["name"].startswith("ncclDevKernel_SendRecv")
    }
    assert lanes == {
        "send 0": "pp",
        "send 1": "pp, lane 2",
        "send 2": "pp, lane 3",
        "send 3": "pp, lane 2",
        "send 4": "pp",
    }


def test_bytes_are_deterministic(timeline: IterationTimeline, tmp_path: Path) -> None:
    for name, source in (("a.json", timeline), ("b.json", make_timeline())):
        write_trace(tmp_path / name, source, title="same", metadata={"seed": 0})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_failing_halfway_leaves_what_was_there(timeline: IterationTimeline, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("before")

    def explode(stage: int) -> None:
        raise RuntimeError(stage)

    broken = replace(timeline.ranks[1], expand=explode)
    with pytest.raises(RuntimeError):
        write_trace(path, replace(timeline, ranks=(timeline.ranks[0], broken)), title="", metadata={})
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_title_and_metadata(document: dict) -> None:
    assert document["otherData"] == {"title": "two modules", "seed": 0, "device": "h100"}

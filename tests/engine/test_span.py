"""Spans say of a piece of an iteration what its operators, added up one by one, say."""

from __future__ import annotations

import math
import pickle
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items

import semu
from semu.engine.span import Span
from semu.engine.timeline import (
    IterationTimeline,
    MemoryCurve,
    OperatorTable,
    PeakMemory,
    RankTimeline,
    StageOperators,
    StageSlice,
)
from semu.errors import ConfigError
from semu.graph.level import Level
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.parallel.config import Overlap, Parallel
from semu.present.report import Report
from semu.simulation import simulate
from tests.present.timeline_fixture import make_timeline

JOBS = {
    "vlm": lambda: job_of(
        vlm(), vlm_items(4, empty=(2,)), Parallel(tp=2, pp=3), overlap=overlap(tensor=True, pipeline=True)
    ),
    "t2v": lambda: job_of(t2v(), t2v_items(6), Parallel(dp=2, pp=2), overlap=Overlap(), recompute="full"),
}


@cache
def report_of(name: str) -> Report:
    return simulate(JOBS[name]())


@pytest.fixture(params=[*JOBS, "synthetic"])
def timeline(request: pytest.FixtureRequest) -> IterationTimeline:
    if request.param == "synthetic":
        return make_timeline(num_ranks=3, num_microbatches=4, num_layers=2)
    return report_of(request.param).timeline


shapes = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))


@dataclass(frozen=True)
class Row:
    """One operator, read off the timeline."""

    rank: int
    chunk: int
    microbatch: int
    label: str
    path: str
    stream: str
    start_s: float
    end_s: float
    flop: float
    mem_bytes: int
    net_bytes: int


def rows_of(timeline: IterationTimeline) -> list[Row]:
    rows = []
    for rank in timeline.ranks:
        for stage, operators in rank.stage_operators():
            for i, path in enumerate(operators.table.paths):
                rows.append(
                    Row(
                        rank.rank,
                        stage.chunk,
                        stage.microbatch,
                        stage.label,
                        path,
                        operators.table.streams[i],
                        float(operators.start_s[i]),
                        float(operators.end_s[i]),
                        float(operators.flop[i]),
                        int(operators.mem_bytes[i]),
                        int(operators.net_bytes[i]),
                    )
                )
        for piece in rank.outer:
            label = re.match(r"send (\d+[FB](\d+)) ", piece.name)
            rows.append(
                Row(
                    rank.rank,
                    -1,
                    int(label[2]) if label else -1,
                    "",
                    "",
                    piece.stream,
                    piece.start_s,
                    piece.end_s,
                    0.0,
                    0,
                    piece.net_bytes,
                )
            )
    return rows


def assert_costs(span: Span, rows: list[Row]) -> None:
    busy: dict[str, float] = defaultdict(float)
    for row in rows:
        busy[row.stream] += row.end_s - row.start_s
    assert span.operators == len(rows)
    assert dict(span.busy_s) == busy
    assert span.flop == pytest.approx(math.fsum(row.flop for row in rows), rel=1e-12)
    assert span.mem_bytes == sum(row.mem_bytes for row in rows)
    assert span.net_bytes == sum(row.net_bytes for row in rows)


def walk(span: Span) -> Iterator[Span]:
    yield span
    for child in span.children():
        yield from walk(child)


def stages_of(timeline: IterationTimeline) -> list[tuple[RankTimeline, StageSlice]]:
    return [(rank, stage) for rank in timeline.ranks for stage in rank.stages]


def test_levels_are_ordered() -> None:
    names = ["operator", "layer", "chunk", "stage", "microbatch", "iteration"]
    assert [level.value for level in Level] == names
    assert [Level(name).depth for name in names] == list(range(6))
    for low, name in enumerate(names):
        for high, other in enumerate(names):
            assert Level(name).is_inside(Level(other)) == (low < high)
    assert (semu.Level, semu.Span) == (Level, Span)


def test_children_add_up_to_their_parent(timeline: IterationTimeline) -> None:
    for span in walk(timeline.root):
        inside = span.children()
        if not inside:
            assert span.level is Level.OPERATOR
            assert span.operators == 1
            continue
        assert len({child.name for child in inside}) == len(inside)
        assert span.operators == sum(child.operators for child in inside)
        assert span.mem_bytes == sum(child.mem_bytes for child in inside)
        assert span.net_bytes == sum(child.net_bytes for child in inside)
        assert span.flop == pytest.approx(sum(child.flop for child in inside), rel=1e-12)
        busy: Counter[str] = Counter()
        for child in inside:
            busy.update(child.busy_s)
            assert child.level.is_inside(span.level) or child.level is span.level is Level.LAYER
            assert span.start_s <= child.start_s <= child.end_s <= span.end_s
            assert {rank.rank for rank in child.ranks} <= {rank.rank for rank in span.ranks}
            assert child.rank == (child.ranks[0].rank if len(child.ranks) == 1 else None)
        assert dict(span.busy_s) == dict(busy)
        if span.level is Level.LAYER:
            assert span.start_s == min(child.start_s for child in inside)
        if span.level in (Level.LAYER, Level.STAGE):
            assert span.end_s == max(child.end_s for child in inside)


def test_every_level_is_what_its_operators_say(timeline: IterationTimeline) -> None:
    """Modules that run twice in a layer (recompute, backward) are ``mlp`` and ``mlp#2``: added up here. So is a module
    that has one operator in one phase, which stands there itself, and several in another."""
    rows = rows_of(timeline)
    assert_costs(timeline.root, rows)
    by_module: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in walk(timeline.root):
        if span.level is Level.MICROBATCH:
            number = int(span.path.removeprefix("mb"))
            assert_costs(span, [row for row in rows if row.microbatch == number])
            own = [stage for _, stage in stages_of(timeline) if stage.microbatch == number]
            assert (span.start_s, span.end_s) == (min(s.start_s for s in own), max(s.end_s for s in own))
        elif span.level is Level.STAGE:
            assert_costs(span, [row for row in rows if row.label == span.name])
        elif span.path.count("/") > 1:
            _, label, path = span.path.split("/", maxsplit=2)
            by_module[label, re.sub(r"#\d+", "", path).replace("/", ".")].append(span)
    modules = {key: spans for key, spans in by_module.items() if any(span.level is Level.LAYER for span in spans)}
    for (label, path), spans in modules.items():
        mine = [row for row in rows if row.label == label and f"{row.path}.".startswith(f"{path}.")]
        ends = [(span.start_s, span.end_s) for span in spans]
        assert sum(span.operators for span in spans) == len(mine)
        assert (min(s for s, _ in ends), max(e for _, e in ends)) == (
            min(row.start_s for row in mine),
            max(row.end_s for row in mine),
        )
        assert sum(span.busy_s.get("compute", 0.0) for span in spans) == sum(
            row.end_s - row.start_s for row in mine if row.stream == "compute"
        )
        assert sum(span.net_bytes for span in spans) == sum(row.net_bytes for row in mine)
    assert any(re.search(r"layers\.\d+\.attention$", path) for _, path in modules)


def test_leaves_are_all_operators_once(timeline: IterationTimeline) -> None:
    leaves = [span for span in walk(timeline.root) if not span.children()]
    found = Counter((span.rank, *span.busy_s, span.start_s, span.end_s, span.net_bytes) for span in leaves)
    assert found == Counter((row.rank, row.stream, row.start_s, row.end_s, row.net_bytes) for row in rows_of(timeline))


def test_paths_lead_back(timeline: IterationTimeline) -> None:
    spans = list(walk(timeline.root))
    assert len({span.path for span in spans}) == len(spans)
    for span in spans:
        assert timeline.span(span.path) is span


def test_chunks_hold_their_stages(timeline: IterationTimeline) -> None:
    rows = rows_of(timeline)
    numbers = sorted({stage.chunk for _, stage in stages_of(timeline)})
    assert [span.path for span in timeline.chunks] == [f"chunk{number}" for number in numbers]
    for number in numbers:
        span = timeline.chunk(number)
        own = [stage for _, stage in stages_of(timeline) if stage.chunk == number]
        assert span.level is Level.CHUNK
        assert span.rank == own[0].rank
        assert [child.name for child in span.children()] == [stage.label for stage in own]
        assert (span.start_s, span.end_s) == (min(s.start_s for s in own), max(s.end_s for s in own))
        assert_costs(span, [row for row in rows if row.chunk == number])
        for child in span.children():
            assert child == timeline.span(child.path) == timeline.span(f"{span.path}/{child.name}")


def highest(curve: MemoryCurve, start_s: float, end_s: float) -> int:
    """What holds at or after the start and before the end, and what is only passed through at the end."""
    values = []
    for i, time in enumerate(curve.times_s):
        until = curve.times_s[i + 1] if i + 1 < len(curve.times_s) else np.inf
        holds = time < end_s and until > start_s
        passed = time == until and start_s <= time <= end_s
        if holds or passed or time <= start_s == end_s < until:
            values.append(int(curve.total[i]))
    return max(values)


def between(curve: MemoryCurve, time_s: float) -> int:
    before = [int(v) for t, v in zip(curve.times_s, curve.total, strict=True) if t < time_s]
    after = [int(v) for t, v in zip(curve.times_s, curve.total, strict=True) if t <= time_s]
    return min(before[-1] if before else int(curve.total[-1]), after[-1])


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9), st.booleans()), max_size=10),
    st.integers(0, 14),
    st.integers(0, 14),
)
def test_memory_within_a_span(steps: list[tuple[int, int, bool]], one: int, other: int) -> None:
    """On random step functions, with at most one point at a moment that is only passed through, as curves have."""
    moments: dict[int, list[int]] = {0: [5]}
    for time, value, is_passed in steps:
        moments[time] = [value + 10, value] if is_passed else [value]
    moments[13] = [5]
    times = [float(time) for time in sorted(moments) for _ in moments[time]]
    levels = np.array([[value for time in sorted(moments) for value in moments[time]]])
    curve = MemoryCurve(np.array(times), levels, (Role.ACTIVATION,), 100)
    start, end = float(min(one, other)), float(max(one, other))
    if start < end or start not in moments or len(moments[int(start)]) == 1:
        assert curve.highest_within(start, end) == highest(curve, start, end)
    else:
        assert curve.highest_within(start, end) == moments[int(start)][0]
    assert curve.between(start) == between(curve, start)


def test_memory_of_every_level(timeline: IterationTimeline) -> None:
    for span in walk(timeline.root):
        assert list(span.peak_bytes) == [rank.rank for rank in span.ranks]
        for rank in span.ranks:
            if span.level.depth >= Level.STAGE.depth:
                change = between(rank.memory, span.end_s) - between(rank.memory, span.start_s)
                assert span.net_change_bytes[rank.rank] == change
                if span.duration_s > 0:
                    assert span.peak_bytes[rank.rank] == highest(rank.memory, span.start_s, span.end_s)
            for child in span.children():
                assert child.peak_bytes.get(rank.rank, 0) <= span.peak_bytes[rank.rank]


@pytest.mark.slow
@given(shapes)
def test_stages_and_gaps_make_up_the_rank(shape: tuple[int, int, int]) -> None:
    assert_stages_and_gaps(make_timeline(*shape))


@pytest.mark.parametrize("name", JOBS)
def test_simulated_stages_and_gaps_make_up_the_rank(name: str) -> None:
    assert_stages_and_gaps(report_of(name).timeline)


def assert_stages_and_gaps(timeline: IterationTimeline) -> None:
    """Peaks: none above the rank's, and one of them is it. Changes: they take each other back."""
    root = timeline.root
    spans = {span.name: span for span in walk_stages(root)}
    for rank in timeline.ranks:
        pieces, change, clock = [], 0, 0.0
        for stage in rank.stages:
            span = spans[stage.label]
            assert (span.start_s, span.end_s, span.rank) == (stage.start_s, stage.end_s, rank.rank)
            pieces += [rank.memory.highest_within(clock, stage.start_s), span.peak_bytes[rank.rank]]
            change += rank.memory.between(stage.start_s) - rank.memory.between(clock)
            change += span.net_change_bytes[rank.rank]
            clock = stage.end_s
        pieces.append(rank.memory.highest_within(clock, root.end_s))
        change += rank.memory.between(root.end_s) - rank.memory.between(clock)
        assert max(pieces) == root.peak_bytes[rank.rank] == rank.peak.size_bytes == rank.memory.peak_bytes
        assert change == root.net_change_bytes[rank.rank] == 0


def walk_stages(root: Span) -> list[Span]:
    microbatches = [span for span in root.children() if span.level is Level.MICROBATCH]
    return [span for parent in microbatches for span in parent.children() if span.level is Level.STAGE]


def test_the_root_is_the_report() -> None:
    """All replicas are equal and every matrix product is split, so one rank of each group counts for all."""
    items = [item for item in text_items(3) for _ in range(2)]
    report = simulate(job_of(gpt(), items, Parallel(dp=2, tp=2, pp=2), recompute="full"))
    root = report.timeline.root
    assert (root.start_s, root.end_s, root.duration_s) == (0.0, report.iteration_time_s, report.iteration_time_s)
    assert root.flop == report.hardware_flop / 4
    assert tuple(root.peak_bytes.values()) == report.peak_memory_bytes
    assert root.busy_s["compute"] == sum(rank.busy_s() for rank in report.timeline.ranks)
    outside = [span.name for span in root.children() if span.level is Level.OPERATOR]
    assert len(outside) == sum(piece.kind is not OpKind.P2P for rank in report.timeline.ranks for piece in rank.outer)
    assert "Adam step (rank 1)" in outside


def test_a_forward_stage_leaves_what_its_backward_needs(timeline: IterationTimeline) -> None:
    """The last rank runs forward and backward in turn, nothing else: together they change nothing there."""
    last = timeline.ranks[-1]
    pairs = [s for s in walk_stages(timeline.root) if s.rank == last.rank]
    assert sum(span.net_change_bytes[last.rank] for span in pairs if "F" in span.name) > 0
    assert sum(span.net_change_bytes[last.rank] for span in pairs if "B" in span.name) < 0


def test_times_above_layers_expand_nothing() -> None:
    timeline = make_timeline(3, 4, 2)

    def explode(number: int) -> StageOperators:
        raise AssertionError(number)

    closed = replace(timeline, ranks=tuple(replace(rank, expand=explode) for rank in timeline.ranks))
    assert closed.root.duration_s == timeline.root.duration_s
    for path in ("mb3", "mb3/2F3", "mb3/send 2F3 -> rank 2", "chunk2"):
        assert closed.span(path) == timeline.span(path)
        assert closed.span(path).peak_bytes == timeline.span(path).peak_bytes
        assert closed.span(path).net_change_bytes == timeline.span(path).net_change_bytes
    assert len(closed.span("mb1").children()) == len(timeline.span("mb1").children())
    with pytest.raises(AssertionError):
        closed.span("mb3/2F3").children()


def test_reports_travel_with_or_without_spans() -> None:
    report = report_of("vlm")
    path = next(iter(report.timeline.root.children()[0].children())).path
    again: Report = pickle.loads(pickle.dumps(report))
    assert again.timeline.span(path) == report.timeline.span(path)
    assert again.timeline.root.costs == report.timeline.root.costs


@pytest.mark.parametrize(
    ("path", "where", "nearest"),
    [
        ("mb17", "timeline", "mb15"),
        ("microbatch", "timeline", None),
        ("", "timeline", None),
        ("chunk9", "timeline", "chunk4"),
        ("chunk2/3F1", "chunk2", "mb1/2F1"),
        ("mb3/2F4", "mb3", "mb3/2F3"),
        ("mb3/9B3", "mb3", "mb3/4B3"),
        ("mb3/2F3/llm.layers.11", "mb3/2F3", "mb3/2F3/llm.layers.7"),
        ("mb3/2F3/llm.layers.1/atention.qkv", "mb3/2F3/llm.layers.1", "mb3/2F3/llm.layers.1/attention"),
        ("mb3/2F3/llm.layers.1/attention.qvk", "mb3/2F3/llm.layers.1/attention", "mb3/2F3/llm.layers.1/attention.qkv"),
        ("mb3/2F3/llm.layers.1/attention/qkv", "mb3/2F3/llm.layers.1", "mb3/2F3/llm.layers.1/attention"),
        ("mb3/2F3/llm.layers.1/attention.qkv.x", "mb3/2F3/llm.layers.1/attention.qkv", None),
    ],
)
def test_unknown_paths_name_the_nearest(path: str, where: str, nearest: str | None) -> None:
    timeline = make_timeline()
    with pytest.raises(ConfigError) as caught:
        timeline.span(path)
    assert caught.value.where == where
    if nearest is not None:
        assert caught.value.nearest == nearest
    if caught.value.nearest is not None:
        assert timeline.span(str(caught.value.nearest)).path == caught.value.nearest
    assert len(str(caught.value)) < 400
    with pytest.raises(ConfigError, match="nearest allowed: chunk4"):
        timeline.chunk(7)


# -- nesting of any module paths -----------------------------------------------------------------------------------
parts = st.lists(st.sampled_from("ab"), max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["m.0", "m.1", "m"]), parts), min_size=1, max_size=24))
def test_runs_nest_by_module_path(places: list[tuple[str, list[str]]]) -> None:
    """Operator i lasts from i to i + 1: a span's times are its rows."""
    stage = one_stage(places).root.children()[0].children()[0]
    leaves = [span for span in walk(stage) if not span.children()]
    assert [(span.start_s, span.end_s) for span in leaves] == [(i, i + 1) for i in range(len(places))]
    for layer in stage.children():
        assert {places[row][0] for row in rows_in(layer)} == {layer.name.split("#")[0]}
        check_runs(layer, places, 0)
    for before, after in zip(stage.children(), stage.children()[1:], strict=False):
        assert before.name.split("#")[0] != after.name.split("#")[0]


def rows_in(span: Span) -> range:
    return range(int(span.start_s), int(span.end_s))


def check_runs(layer: Span, places: list[tuple[str, list[str]]], depth: int) -> None:
    """Modules hold operators of one part, some below it, and are as long as they can be."""
    assert [row for child in layer.children() for row in rows_in(child)] == list(rows_in(layer))
    for child in layer.children():
        rows, name = rows_in(child), child.name.split("#")[0]
        found = [places[row][1][depth:] for row in rows]
        if child.level is Level.OPERATOR:
            assert name == (found[0][0] if found[0] else "copy")
            assert len(found[0]) <= 1
            continue
        assert {path[0] for path in found} == {name}
        assert any(len(path) > 1 for path in found)
        for row in (rows.start - 1, rows.stop):
            if row in rows_in(layer):
                assert places[row][1][depth : depth + 1] != [name]
        check_runs(child, places, depth + 1)


def one_stage(places: list[tuple[str, list[str]]]) -> IterationTimeline:
    count = len(places)
    table = OperatorTable(
        paths=tuple(".".join([block, *path]) for block, path in places),
        kinds=(OpKind.COPY,) * count,
        phases=(Phase.FORWARD,) * count,
        streams=("compute",) * count,
        group_ranks=(1,) * count,
        blocks=tuple(block for block, _ in places),
    )
    times, none = np.arange(count + 1.0), np.zeros(count, dtype=np.int64)
    operators = StageOperators(table, times[:-1], times[1:], np.zeros(count), none, none)
    curve = MemoryCurve(np.zeros(1), np.zeros((1, 1), dtype=np.int64), (Role.ACTIVATION,), 1)
    rank = RankTimeline(
        rank=0,
        gpu=0,
        replica=0,
        stages=(StageSlice(0, "0F0", "m", 0, 0, Phase.FORWARD, 0.0, float(count)),),
        outer=(),
        find_peak=lambda _: PeakMemory(0.0, 0, "", "", {}),
        expand=lambda _: operators,
        build_memory=lambda: curve,
    )
    return IterationTimeline((rank,), float(count), float(count))

"""Memory of a rank as PyTorch's snapshot: the sums of the curve, event by event, in a form that torch's tool takes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.cli import main
from semu.engine.timeline import IterationTimeline
from semu.errors import ConfigError
from semu.present.traces import write_memory_snapshot
from semu.present.traces.memory_snapshots import _blocks, memory_snapshot
from tests.cli.test_command import TINY
from tests.present.timeline_fixture import make_timeline


@pytest.fixture(scope="module")
def timeline() -> IterationTimeline:
    return make_timeline()


def replayed(snapshot: dict[str, Any]) -> tuple[dict[int, tuple[int, str]], list[tuple[int, Counter[str]]]]:
    """What is allocated at the end, and the bytes of every role after each event; a walk over the events."""
    live: dict[int, tuple[int, str]] = {}
    sums: Counter[str] = Counter()
    asked: set[int] = set()
    after: list[tuple[int, Counter[str]]] = []
    for event in snapshot["device_traces"][0]:
        address, size = event["addr"], event["size"]
        if event["action"] == "alloc":
            for other, (extent, _) in live.items():
                assert address + size <= other or other + extent <= address, "two blocks at one place"
            live[address] = size, event["frames"][0]["name"]
            sums[event["category"]] += size
            assert event["category"] == event["frames"][0]["name"]
        elif event["action"] == "free_requested":
            asked.add(address)
        elif event["action"] == "free_completed":
            asked.remove(address)
            extent, role = live.pop(address)
            assert extent == size
            sums[role] -= size
        else:
            assert event["action"] == "segment_alloc"
        after.append((event["time_us"], sums.copy()))
    return live, after


def test_sums_of_every_role_are_the_curves(timeline: IterationTimeline) -> None:
    for rank in timeline.ranks[:2]:
        memory = rank.memory
        snapshot = memory_snapshot(timeline, rank.rank)
        live, after = replayed(snapshot)
        totals = [sum(sums.values()) for _, sums in after]
        assert max(totals) == memory.peak_bytes
        assert [time for time, _ in after] == sorted(time for time, _ in after)
        found = {tuple(sums[role.value] for role in memory.roles) for _, sums in after}
        assert found >= {tuple(column) for column in memory.by_role.T.tolist()}
        last = Counter[str]()
        for size, role in live.values():
            last[role] += size
        assert [last[role.value] for role in memory.roles] == memory.by_role[:, -1].tolist()
        assert sum(segment["active_size"] for segment in snapshot["segments"]) == memory.total[-1]
        for segment, role in zip(
            snapshot["segments"], [r for r in memory.roles if memory.by_role[memory.roles.index(r)].max()], strict=True
        ):
            assert segment["total_size"] == memory.by_role[memory.roles.index(role)].max()
            assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


def test_frames_say_which_stage_ran(timeline: IterationTimeline) -> None:
    rank = timeline.ranks[0]
    events = memory_snapshot(timeline, rank.rank)["device_traces"][0]
    said = {event["frames"][0]["filename"] for event in events if event["action"] == "alloc"}
    assert said & {f"{stage.label} {stage.module}".rstrip() for stage in rank.stages}


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_blocks_are_a_stack(levels: list[int]) -> None:
    blocks = _blocks(levels)
    for point, level in enumerate(levels):
        held = sorted((b.low, b.high) for b in blocks if b.first <= point and (b.last is None or b.last > point))
        assert sum(high - low for low, high in held) == level
        assert all(low < high for low, high in held)
        assert [low for low, _ in held] == [0, *(high for _, high in held)][: len(held)]
    assert len(blocks) <= 2 * len(levels)
    assert all(b.last is None or b.last > b.first for b in blocks)


def test_no_such_rank(timeline: IterationTimeline, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such pipeline rank") as caught:
        write_memory_snapshot(tmp_path / "x.pickle", timeline, 99)
    assert caught.value.nearest == timeline.ranks[-1].rank
    with pytest.raises(ConfigError, match="cannot write"):
        write_memory_snapshot(tmp_path / "no" / "x.pickle", timeline, timeline.ranks[0].rank)
    assert not list(tmp_path.iterdir())


def test_the_command_refuses_snapshots_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.toml"
    run.write_text(TINY)
    words = ["simulate", str(run), "--json", "--memory-snapshot", "1"]
    assert main(words) == 2
    assert json.loads(capsys.readouterr().out)["error"]["where"] == "--memory-snapshot"
    assert main([*words, "--out", str(tmp_path / "out"), "--memory-snapshot", "2"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["nearest"] == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_writes_snapshots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.toml"
    run.write_text(TINY)
    words = ["simulate", str(run), "--json", "--memory-snapshot", "1"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    result = json.loads(capsys.readouterr().out)
    snapshot = pickle.loads((tmp_path / "out" / "memory-rank1.pickle").read_bytes())
    totals = [sum(sums.values()) for _, sums in replayed(snapshot)[1]]
    assert max(totals) == result["peak_memory_bytes"][1]


def kinds(value: object) -> set[type]:
    if isinstance(value, dict):
        return {dict}.union(*(kinds(item) for pair in value.items() for item in pair))
    if isinstance(value, list | tuple):
        return {type(value)}.union(*map(kinds, value))
    return {type(value)}


def test_only_what_the_viewers_own_reader_of_pickles_knows(timeline: IterationTimeline, tmp_path: Path) -> None:
    file = write_memory_snapshot(tmp_path / "x.pickle", timeline, timeline.ranks[0].rank)
    assert kinds(pickle.loads(file.read_bytes())) <= {dict, list, tuple, str, int, bool}
    assert file.read_bytes()[:2] == b"\x80\x04"
    again = write_memory_snapshot(tmp_path / "y.pickle", timeline, timeline.ranks[0].rank)
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_torchs_tool_takes_it(timeline: IterationTimeline, tmp_path: Path) -> None:
    """Its totals, its listing of events, its flame graph's lines, and the pages for the viewer."""
    pytest.importorskip("torch", reason="needs torch (the extra semu[executor])", exc_type=ImportError)
    from torch.cuda import _memory_viz as viz

    rank = timeline.ranks[0]
    file = write_memory_snapshot(tmp_path / "x.pickle", timeline, rank.rank)
    snapshot = pickle.loads(file.read_bytes())
    reserved = int(sum(row.max() for row in rank.memory.by_role))
    text = viz.segsum(snapshot)
    assert f"total_reserved: {viz.Bytes(reserved)!r}" in text
    assert f"total_allocated: {viz.Bytes(int(rank.memory.total[-1]))!r}" in text
    listing = viz.trace(snapshot)
    events = snapshot["device_traces"][0]
    assert listing.count("# free completed") == sum(event["action"] == "free_completed" for event in events)
    assert listing.count("cudaMalloc") == len(snapshot["segments"])
    lines = viz.memory(snapshot, format_flamegraph=str).splitlines()
    sizes: Counter[str] = Counter()
    for line in lines:
        sizes["active" if ";active_allocated;" in line else "inactive"] += int(line.rsplit(" ", 1)[1])
    assert (sizes["active"], sum(sizes.values())) == (int(rank.memory.total[-1]), reserved)
    for page in (viz.trace_plot(snapshot), viz.segment_plot(snapshot)):
        assert "MemoryViz.js" in page
    for command in ("stats", "trace", "trace_plot"):
        output = [] if command in ("stats", "trace") else ["-o", str(tmp_path / "page.html")]
        words = [sys.executable, "-m", "torch.cuda._memory_viz", command, str(file), *output]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert np.any(rank.memory.total)
    assert (tmp_path / "page.html").stat().st_size > file.stat().st_size

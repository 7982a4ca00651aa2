"""Drawn failures against their rates, and files of events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semu.errors import ConfigError
from semu.resilience.events import NodeChange
from semu.resilience.failures.drawn import DrawnFailures, draw_events
from semu.resilience.failures.files import read_events

DAY = 86400.0
FAIL, JOIN = NodeChange.FAIL.value, NodeChange.JOIN.value


@pytest.mark.parametrize("shape", [1.0, 0.7, 2.0])
def test_rates(shape: float) -> None:
    """Failures per node and time; gaps of a node have Weibull's coefficient of variation."""
    nodes, days = 400, 400.0
    events = draw_events(DrawnFailures(5 * DAY, shape), nodes, days * DAY, 1).rows
    failures = events[events[:, 2] == FAIL]
    assert len(failures) == pytest.approx(nodes * days / 5, rel=0.02)
    gaps = np.concatenate([np.diff(failures[failures[:, 1] == node, 0]) for node in range(nodes)]) / 1e6
    scale = {1.0: 1.0, 0.7: 1.4624, 2.0: 0.5227}[shape]  # sqrt(gamma(1 + 2/k) / gamma(1 + 1/k)^2 - 1)
    assert gaps.std() / gaps.mean() == pytest.approx(scale, rel=0.04)
    assert (np.diff(events[:, 0]) >= 0).all()


def test_racks_keep_a_nodes_rate() -> None:
    nodes, days = 400, 400.0
    source = DrawnFailures(5 * DAY, rack_nodes=8, rack_share=0.25)
    events = draw_events(source, nodes, days * DAY, 1).rows
    failures = events[events[:, 2] == FAIL]
    assert len(failures) == pytest.approx(nodes * days / 5, rel=0.03)
    _, counts = np.unique(failures[:, 0], return_counts=True)
    assert set(counts.tolist()) <= {1, 2, 8, 9}
    assert (counts >= 8).mean() == pytest.approx(0.25, abs=0.02)


def test_repairs() -> None:
    events = draw_events(DrawnFailures(DAY, repair_s=3600.0), 20, 100 * DAY, 1).rows
    down: set[int] = set()
    since = {}
    for time, node, change, _ in events.tolist():
        assert (node in down) is (change == JOIN)
        if change == FAIL:
            down.add(node)
            since[node] = time
        else:
            down.remove(node)
            assert time - since[node] == 3600 * 10**6
    never = draw_events(DrawnFailures(DAY, repair_s=None), 20, 100 * DAY, 1).rows
    assert sorted(never[:, 1].tolist()) == list(range(20))


def test_same_seed_same_events() -> None:
    source = DrawnFailures(DAY, 0.7, 4, 0.2, 100.0)
    first, second, other = (draw_events(source, 16, 20 * DAY, seed).rows for seed in (1, 1, 2))
    assert first.tobytes() == second.tobytes() != other.tobytes()


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_own_form(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.csv", "time_s,node,event,notice_s\n# first\n10.5,1,fail,30\n20,1,join,\n20,0,preempt\n"
    )
    assert read_events(path, 2).rows.tolist() == [
        [10_500_000, 1, FAIL, 30_000_000],
        [20_000_000, 1, JOIN, 0],
        [20_000_000, 0, FAIL, 0],
    ]


@pytest.mark.parametrize(("head", "scale"), [("hours,count", 3600), ("timestamp,count", 1)])
def test_counts(head: str, scale: int, tmp_path: Path) -> None:
    path = written(tmp_path / "b.csv", f"{head}\n100,4\n101,2\n103,3\n")
    found = read_events(path, 4).rows.tolist()
    assert found == [
        [scale * 10**6, 3, FAIL, 0],
        [scale * 10**6, 2, FAIL, 0],
        [3 * scale * 10**6, 2, JOIN, 0],
    ]


def test_sacct(tmp_path: Path) -> None:
    path = written(
        tmp_path / "c.txt",
        "JobID|State|Start|End\n1|NODE_FAIL|2024-05-01T00:00:00|2024-05-01T01:00:00\n"
        "2|CANCELLED by 1000|2024-05-01T01:10:00|2024-05-01T02:00:00\n"
        "3|FAILED|2024-05-01T02:10:00|2024-05-01T03:00:00\n4|RUNNING|2024-05-01T03:10:00|Unknown\n",
    )
    found = read_events(path, 4).rows
    assert found[:, 0].tolist() == [3600 * 10**6] * 2 + [3 * 3600 * 10**6] * 2
    assert found[:, 2].tolist() == [FAIL, JOIN] * 2


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("time_s,node,event\n5,0,fail\n4,1,fail\n", ":3 time_s", "out of order"),
        ("time_s,node,event\n5,4,fail\n", ":2 node", "not a node of the cluster"),
        ("time_s,node,event\n5,x,fail\n", ":2 node", "not a node of the cluster"),
        ("time_s,node,event\n5,0,fail\n6,0,fail\n", ":3", "fails while it is down"),
        ("time_s,node,event\n5,0,join\n", ":2", "comes while it is there"),
        ("time_s,node,event\n5,0,fial\n", ":2 event", "did you mean 'fail'"),
        ("time_s,node,event\nnan,0,fail\n", ":2 time_s", "not a time"),
        ("time_s,node,event\n-1,0,fail\n", ":2 time_s", "not a time"),
        ("time_s,node,event,notice_s\n1,0,fail,inf\n", ":2 notice_s", "not a time"),
        ("hours,count\n1,5\n", ":2 count", "not a number of nodes"),
        ("hours,count\n2,3\n1,4\n", ":3", "out of order"),
        ("JobID|State|Start\n1|FAILED|2024-05-01\n", ":1", "without End"),
        ("JobID|State|Start|End\n1|FAILED|yesterday|2024-05-01\n", ":2 Start", "not a date"),
        ("", ":1", "not a trace"),
        ("nonsense\n", ":1", "not a trace"),
    ],
)
def test_refused(text: str, where: str, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_events(path, 4)
    assert caught.value.where == path + where


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_events(tmp_path / "none.csv", 4)

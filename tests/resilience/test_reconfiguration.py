"""Oobleck's three steps by enumeration, racks against brute force, batches that divide better."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semu
from semu.errors import ConfigError
from semu.resilience.options import FailureOptions
from semu.resilience.templates.composing import Speed, distribute
from semu.resilience.templates.holding import layers_in_one_rack, reassign
from semu.resilience.templates.planner import Stage
from semu.resilience.templates.reinstantiating import three_steps
from semu.resilience.templates.template_set import PipelineSet, PipelineTemplate

SETTINGS = ("parallel.zero=0", "training.recompute=full")


def fresh(*sizes: int) -> list[tuple[int, ...]]:
    ends = np.cumsum(sizes)
    return [tuple(range(end - size, end)) for size, end in zip(sizes, ends.tolist(), strict=True)]


def sizes_after(groups: list[tuple[int, ...]], lost: set[int], smallest: int, largest: int) -> list[int]:
    alive = {node for group in groups for node in group} - lost
    return [len(group) for group in three_steps(groups, alive, smallest, largest)]


def test_steps_of_the_figure() -> None:
    """Figure 2.8: a node of a larger pipeline; of one that borrows; of one that merges."""
    assert sizes_after(fresh(4, 3), {0}, 2, 4) == [3, 3]
    assert sizes_after(fresh(4, 2), {4}, 2, 4) == [3, 2]
    assert sizes_after(fresh(2, 2, 2), {0}, 2, 4) == [3, 2]


def test_they_can_break_the_guarantee() -> None:
    """Five pipelines of three nodes, four wanted, a node of each of three lost: 12 nodes would make four of three."""
    assert sorted(sizes_after(fresh(3, 3, 3, 3, 3), {0, 3, 6}, 3, 7)) == [3, 4, 5]


def test_how_often_they_break_it() -> None:
    """All sets of up to f failures of all pipelines of up to 15 nodes: legal sizes, every node used; some break."""
    broken = cases = 0
    for smallest, faults in itertools.product((2, 3), (1, 2, 3)):
        for count in range(faults + 1, 15 // smallest + 1):
            for sizes in itertools.combinations_with_replacement(range(smallest, 2 * smallest), count):
                if sum(sizes) > 15:
                    continue
                groups = fresh(*sizes)
                for number in range(1, faults + 1):
                    for lost in itertools.combinations(range(sum(sizes)), number):
                        found = three_steps(groups, set(range(sum(sizes))) - set(lost), smallest, 2 * smallest - 1)
                        if sum(sizes) - number < (faults + 1) * smallest:
                            continue
                        cases += 1
                        assert all(smallest <= len(group) <= 2 * smallest - 1 for group in found)
                        used = sorted(node for group in found for node in group)
                        assert used == sorted(set(range(sum(sizes))) - set(lost))
                        broken += len(found) <= faults
    assert 0 < broken < cases / 10


@given(st.integers(1, 4), st.integers(0, 5), st.data())
def test_steps_are_legal(smallest: int, more: int, data: st.DataObject) -> None:
    largest = 2 * smallest - 1 + more
    sizes = data.draw(st.lists(st.integers(smallest, largest), min_size=1, max_size=6))
    total = sum(sizes)
    alive = data.draw(st.sets(st.integers(0, total + 4)))
    found = three_steps(fresh(*sizes), alive, smallest, largest)
    used = [node for group in found for node in group]
    assert len(used) == len(set(used)) and set(used) <= alive
    assert all(smallest <= len(group) <= largest for group in found)
    if len(used) < len(alive):  # only where every pipeline is as large as can be, or there is none
        assert all(len(group) == largest for group in found)
        assert found or len(alive) < smallest


@given(st.lists(st.integers(1, 3), min_size=2, max_size=3), st.integers(2, 4), st.randoms(use_true_random=False))
def test_racks_hold_as_little_alone_as_can_be(sizes: list[int], rack_nodes: int, random: Random) -> None:
    """Against all orders of up to six nodes."""
    total = sum(sizes)
    if total > 6:
        return
    layers = 5
    wanted = []
    for stages in sizes:
        edges = [0, *sorted(random.sample(range(1, layers), stages - 1)), layers]
        wanted += [frozenset(range(a, b)) for a, b in itertools.pairwise(edges)]
    order = random.sample(range(total), total)
    held = dict(zip(order, wanted, strict=True))
    chosen, copies = reassign(held, wanted, np.ones(layers), rack_nodes=rack_nodes)
    assert sorted(chosen) == sorted(order)
    found = len(layers_in_one_rack(dict(zip(chosen, wanted, strict=True)), rack_nodes))
    least = min(
        len(layers_in_one_rack(dict(zip(one, wanted, strict=True)), rack_nodes))
        for one in itertools.permutations(range(total))
    )
    assert found == least
    if found == len(layers_in_one_rack(held, rack_nodes)):
        assert copies.total_bytes == 0.0


def test_a_rack_that_goes_leaves_every_layer(tmp_path: Path) -> None:
    """Racks of two. Node 3 fails, and with the least copied bytes nodes 0 and 1 are the only ones with some layers."""
    job = semu.load_run("lm-7b", list(SETTINGS), cluster="h100:5x1", parallel="pp5")
    events = ["1000,3,fail,0", "2000,0,fail,0", "2000,1,fail,0", "2001,0,join,0", "2001,1,join,0"]
    path = tmp_path / "rack.csv"
    path.write_text("\n".join(["time_s,node,event,notice_s", *events]) + "\n")
    runs = {}
    for rack_nodes in (0, 2):
        failures = FailureOptions(trace=str(path), rack_nodes=rack_nodes)
        (runs[rack_nodes],) = semu.goodput(job, failures=failures, strategies="oobleck", days=0.05).strategies
    assert runs[0].outcomes[0].from_start == 1
    assert runs[2].outcomes[0].from_start == 0
    assert runs[2].settings["layers_in_one_rack"] == 0


def test_paper_steps_in_a_run(tmp_path: Path) -> None:
    """One failure: both ways have the same two pipelines; the word is checked."""
    path = tmp_path / "one.csv"
    path.write_text("time_s,node,event,notice_s\n1000,2,fail,0\n")
    found = []
    for word in ("compose", "paper"):
        report = semu.goodput(
            "lm-7b",
            [*SETTINGS, f"resilience.reconfiguration={word}"],
            cluster="h100:5x1",
            parallel="pp5",
            failures=str(path),
            strategies="oobleck",
            days=0.05,
        )
        found.append(report.strategies[0])
    composed, stepped = found
    assert "guarantee_broken" not in composed.settings and stepped.settings["guarantee_broken"] == 0
    assert stepped.outcomes[0].iterations == pytest.approx(composed.outcomes[0].iterations, abs=2)
    with pytest.raises(ConfigError) as caught:
        semu.goodput("lm-7b", ["resilience.reconfiguration=papers"], cluster="h100:5x1", parallel="pp5", days=0.01)
    assert caught.value.where.endswith("resilience.reconfiguration") and caught.value.nearest == "paper"


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4), st.integers(8, 40))
def test_nearby_batch(periods: list[float], total: int) -> None:
    """Against all batches within 10 %."""
    speeds = [Speed(1, 0.3, period) for period in periods]

    def _each(count: int) -> float:
        dealt = distribute(speeds, count)
        return (max(one.time_s(m) for one, m in zip(speeds, dealt, strict=True)) + 0.2) / count

    pipelines = tuple(PipelineTemplate(one, (Stage(0, 1, 1),), 1.0) for one in speeds)
    found = PipelineSet(pipelines, tuple(distribute(speeds, total)), 0.2, 4)
    batch, less = found.nearby_batch
    near = [count for count in range(len(speeds), 2 * total) if 0.9 * total <= count <= int(1.1 * total)]
    least = min(map(_each, near))
    now = _each(total)
    if least < now * (1 - 0.005) * (1 - 1e-9):
        assert _each(batch // 4) == pytest.approx(least) and less == pytest.approx(1 - least / now)
    else:
        assert batch == 4 * total and less == 0

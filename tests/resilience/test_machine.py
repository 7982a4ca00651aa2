"""The machine of a long run against a walk through single iterations, closed forms, and cases counted by hand."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from semu.resilience.accounts import Account
from semu.resilience.closed_forms import (
    best_interval,
    daly_interval,
    expected_goodput,
    expected_time,
    kept_without_saves,
    young_interval,
)
from semu.resilience.events import NodeChange, NodeEvents
from semu.resilience.failures.drawn import DrawnFailures, draw_events
from semu.resilience.machine import Conduct, Machine, Outcome, Tier, table_of

FAIL, JOIN = NodeChange.FAIL, NodeChange.JOIN
US = 1_000_000


def run(
    conducts: list[Conduct], tiers: list[Tier], events: list[tuple[float, int, NodeChange, float]], end_s: float
) -> Outcome:
    machine = Machine(len(conducts) - 1, 2, tiers, conducts[-1], 1000)
    end_us = round(end_s * US)
    machine.run(table_of(conducts), NodeEvents.of(events).before(end_us), end_us)
    outcome = machine.outcome()
    assert sum(outcome.gpu_us.values()) == outcome.wall_us * outcome.gpus
    assert min(outcome.gpu_us.values()) >= 0
    return outcome


def fixed(nodes: int, **times: float) -> list[Conduct]:
    """All nodes or nothing."""
    return [Conduct(0.0, 0)] * nodes + [Conduct(nodes=nodes, **times)]


def replaced(times: list[float], node: int = 0) -> list[tuple[float, int, NodeChange, float]]:
    return [(time, node, change, 0.0) for time in times for change in (FAIL, JOIN)]


def walk(
    iteration: int, every: int, save: int, restart: int, load: int, failures: list[int], end: int
) -> dict[str, int]:
    """One iteration, one save, one restart after another, with every failure of one node (it is replaced at once)."""
    spent = dict.fromkeys(("useful", "lost", "save", "load", "reconfigure"), 0)
    now, done, since, durable, has_saved = 0, 0, 0, 0, False
    left = sorted(failures)

    def spend(length: int) -> int:
        """Up to ``length`` until a failure or the end; how much."""
        until = min(left[0] if left else end, end)
        return min(length, until - now)

    restarting: list[tuple[str, int]] = []
    while now < end or (left and left[0] < end):
        if left and left[0] <= now:
            left.pop(0)
            spent["lost"] += (done - durable) * iteration
            spent["useful"] -= (done - durable) * iteration
            done, since = durable, 0
            restarting = [("reconfigure", restart), ("load", load if has_saved else 0)]
            continue
        if restarting:
            what, length = restarting.pop(0)
        elif since == every:
            what, length = "save", save
        else:
            what, length = "useful", iteration
        had = spend(length)
        now += had
        if had < length and what == "useful" and now < end:
            spent["lost"] += had
            continue
        spent[what] += had
        if had == length and what == "useful":
            done, since = done + 1, since + 1
        elif had == length and what == "save":
            durable, since, has_saved = done, 0, True
        elif had < length and now < end and what in ("reconfigure", "load"):
            continue
    return spent | {"iterations": done}


@pytest.mark.parametrize("seed", range(200))
def test_against_a_walk(seed: int) -> None:
    """Failures on boundaries, during saves and during restarts, to the microsecond."""
    draw = random.Random(seed)
    unit = draw.choice([1, 3, 7])
    iteration, every, save = draw.randint(1, 5) * unit, draw.randint(1, 6), draw.randint(0, 4) * unit
    restart, load, end = draw.randint(0, 6) * unit, draw.randint(0, 3) * unit, draw.randint(60, 400)
    failures = sorted(draw.randint(0, end - 1) for _ in range(draw.randint(0, 12)))
    failures = [time - time % unit if draw.random() < 0.6 else time for time in failures]
    expected = walk(iteration, every, save, restart, load, failures, end)
    outcome = run(
        fixed(3, iteration_s=iteration / US, reconfigure_s=restart / US),
        [Tier(0.0, save / US, 0.0, load / US, every_iterations=every)],
        replaced([time / US for time in failures], 1),
        end / US,
    )
    found = {what.value: amount // 6 for what, amount in outcome.gpu_us.items() if amount}
    assert found == {what: value for what, value in expected.items() if value and what != "iterations"}
    assert outcome.iterations == expected["iterations"]


def goodput_of(iteration_s: float, mtbf_s: float, tier: Tier | None, conduct: Conduct, days: float = 54.0) -> float:
    """Mean over seeds of a job on four nodes, with failures replaced at once."""
    end_s, found = days * 86400.0, []
    table = table_of([Conduct(0.0, 0)] * 4 + [conduct])
    for seed in range(40):
        events = draw_events(DrawnFailures(4 * mtbf_s), 4, end_s, seed)
        machine = Machine(4, 1, [] if tier is None else [tier], conduct)
        machine.run(table, events, round(end_s * US))
        found.append(machine.outcome().iterations * iteration_s / end_s)
    return float(np.mean(found))


MTBF = 54 * 86400 / 419


@pytest.mark.parametrize(("save", "best", "goodput"), [(10.0, 465.0, 0.908), (30.0, 797.0, 0.880)])
def test_reference_point(save: float, best: float, goodput: float) -> None:
    """419 interruptions in 54 days (2407.21783 §3.3.4), a restart takes 600 s."""
    work = best_interval(save, MTBF)
    assert work == pytest.approx(best, abs=1.0)
    assert expected_goodput(work, save, 600.0, MTBF) == pytest.approx(goodput, abs=5e-4)
    found = goodput_of(1.0, MTBF, Tier(work, save, 0.0, 0.0), Conduct(1.0, 4, reconfigure_s=600.0), days=216.0)
    assert found == pytest.approx(goodput, rel=0.01)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("work", [60.0, 300.0, 2000.0])
@pytest.mark.parametrize(
    ("save", "restart", "mtbf"), [(10.0, 600.0, 11134.0), (60.0, 100.0, 1500.0), (5.0, 0.0, 300.0)]
)
def test_closed_form(work: float, save: float, restart: float, mtbf: float) -> None:
    """E = e^(R/M) (e^((W + C)/M) - 1) M, within 1 % or what the drawn failures leave open."""
    expected = expected_time(work, save, restart, mtbf)
    days = min(540.0, 2_000 * expected / 86400)  # 2,000 units of work a seed
    found = goodput_of(1.0, mtbf, Tier(work, save, 0.0, 0.0), Conduct(1.0, 4, reconfigure_s=restart), days=days)
    assert found == pytest.approx(work / expected, rel=0.01, abs=1e-4)


@pytest.mark.parametrize("iteration", [1.0, 30.0, 245.0, 900.0])
def test_without_checkpoints(iteration: float) -> None:
    """x / (e^x - 1): a failure loses the iteration in flight and nothing else."""
    days = 540
    events = draw_events(DrawnFailures(2400.0), 4, days * 86400.0, 3)
    table = [Conduct(iteration, nodes, keeps_progress=True) for nodes in range(5)]
    machine = Machine(4, 1, [], table[-1])
    machine.run(table_of(table), events, days * 86400 * US)
    kept = machine.outcome().iterations * iteration / (days * 86400)
    assert kept == pytest.approx(kept_without_saves(iteration, 600.0), rel=0.01)


def test_intervals() -> None:
    """The best interval is where W / E is largest; Daly's formula is its series, Young's the first term."""
    for save, mtbf in ((10.0, 11134.0), (30.0, 11134.0), (60.0, 1500.0), (1.0, 1e6)):
        best = best_interval(save, mtbf)
        around = [expected_goodput(best * factor, save, 50.0, mtbf) for factor in (0.98, 1.0, 1.02)]
        assert max(around) == around[1]
        assert daly_interval(save, mtbf) == pytest.approx(best, rel=0.01)
        assert young_interval(save, mtbf) == pytest.approx(math.sqrt(2 * save * mtbf))
    assert daly_interval(100.0, 40.0) == 40.0
    for save in (30.0, 40.0, 1e3, 1e9):  # far beyond M, where the root is M but for what no float says
        assert best_interval(save, 1.0) == pytest.approx(1.0, abs=1e-12)
    assert expected_time(1e6, 1.0, 1.0, 1.0) == math.inf


def test_asynchronous_saves() -> None:
    """A save counts when its background part has ended, and the next one waits for that."""
    conducts = fixed(2, iteration_s=10.0, reconfigure_s=1.0)
    tier = Tier(0.0, 1.0, 15.0, 2.0, every_iterations=2)
    # 20 s of work, a stall until 21, in storage at 36; a failure at 35 takes all, at 36 nothing that was saved
    early = run(conducts, [tier], replaced([35.0]), 35.0 + 3.0)
    assert early.iterations == 0 and early.from_start == 1
    late = run(conducts, [tier], replaced([36.0]), 36.0 + 3.0)
    assert late.iterations == 2 and late.from_start == 0
    assert late.gpu_us[Account.LOST] == 15 * US * 4
    slow = Tier(0.0, 1.0, 50.0, 2.0, every_iterations=2)  # due at 41, begins when the first ends, at 71
    outcome = run(conducts, [slow], [], 72.0)
    assert outcome.saves == 2 and outcome.gpu_us[Account.SAVE] == (1 + 31) * US * 4


def test_memory_of_a_peer() -> None:
    """One node's failure leaves its peer's copy; two neighbours' leave storage, two apart the copies."""
    conducts = fixed(4, iteration_s=1.0, reconfigure_s=1.0)
    memory = Tier(0.0, 0.0, 0.0, 0.0, is_memory=True, every_iterations=1)
    storage = Tier(0.0, 0.0, 0.0, 5.0, every_iterations=4)
    one = run(conducts, [memory, storage], replaced([10.5], 1), 11.0)
    assert one.iterations == 10
    pair = [(10.5, node, change, 0.0) for change in (FAIL, JOIN) for node in (1, 2)]
    two = run(conducts, [memory, storage], pair, 11.0)
    assert two.iterations == 8
    assert run(conducts, [memory], pair, 11.0).from_start == 1
    apart = [(10.5, node, change, 0.0) for change in (FAIL, JOIN) for node in (1, 3)]
    assert run(conducts, [memory, storage], apart, 11.0).iterations == 10


def test_spares_take_over_and_may_fail() -> None:
    conducts = [Conduct(0.0, 0)] * 2 + [Conduct(1.0, 2, reconfigure_s=4.0)] * 2
    tier = Tier(0.0, 0.0, 0.0, 0.0, every_iterations=1)
    # the spare fails: nothing stops; node 0 fails: no spare is left, all wait until node 2 is back
    events = [(3.5, 2, FAIL, 0.0), (6.5, 0, FAIL, 0.0), (10.5, 2, JOIN, 0.0), (20.0, 0, JOIN, 0.0)]
    outcome = run(conducts, [tier], events, 21.0)
    assert (outcome.failures, outcome.interruptions, outcome.changes) == (2, 1, 0)
    assert outcome.gpu_us[Account.WAITING] == 4 * US * 2
    assert outcome.gpu_us[Account.RECONFIGURE] == 4 * US * 4
    assert outcome.iterations == 6 + 6  # until 6.5, and from 14.5 to 21
    assert outcome.gpu_us[Account.IDLE] == (3.5 + 1.0) * US * 2


def test_notice() -> None:
    """A node that gives notice: no iteration is begun that would not end in time, and what is done is saved."""
    conducts = [Conduct(0.0, 0), Conduct(2.0, 1, reconfigure_s=1.0), Conduct(1.0, 2)]
    tier = Tier(100.0, 2.0, 0.0, 0.0)
    sudden = run(conducts, [tier], [(10.5, 1, FAIL, 0.0)], 11.5)
    assert sudden.iterations == 0
    warned = run(conducts, [tier], [(10.5, 1, FAIL, 5.0)], 11.5)
    assert warned.iterations == 8 and warned.gpu_us[Account.SAVE] == 2 * US * 4
    assert warned.gpu_us[Account.LOST] == 0 and warned.gpu_us[Account.WAITING] == US // 2 * 4
    assert run(conducts, [tier], [(10.5, 1, FAIL, 1.5)], 11.5).iterations == 0  # a save takes longer


def test_joined_nodes_are_taken_in_at_an_iterations_end() -> None:
    conducts = [
        Conduct(0.0, 0),
        Conduct(2.0, 1, reconfigure_s=1.0, keeps_progress=True),
        Conduct(1.0, 2, reconfigure_s=3.0, copy_s=2.0, planned_save_s=0.5),
    ]
    events = [(4.5, 1, FAIL, 0.0), (8.0, 1, JOIN, 0.0)]
    outcome = run(conducts, [], events, 20.0)
    # 4 iterations; half of one is lost; 1 s; from 5.5 on 2 s each, the second ends at 9.5; then 0.5 + 3 + 2 s
    assert outcome.iterations == 4 + 2 + 5
    assert outcome.changes == 1
    assert outcome.gpu_us[Account.COPY] == 2 * US * 4 and outcome.gpu_us[Account.SAVE] == US // 2 * 4
    assert outcome.log[-1].tolist() == [20 * US, 2, 1 * US, 11]


def test_failure_while_it_recovers_begins_the_recovery_anew() -> None:
    stopped = Conduct(0.0, 0, detect_s=2.0)
    conducts = [stopped, stopped, Conduct(1.0, 2, reconfigure_s=3.0)]
    tier = Tier(0.0, 0.0, 0.0, 4.0, every_iterations=1)
    outcome = run(conducts, [tier], replaced([5.0, 13.0]), 30.0)
    assert outcome.gpu_us[Account.DETECT] == 4 * US * 4
    assert outcome.gpu_us[Account.RECONFIGURE] == 6 * US * 4
    assert outcome.gpu_us[Account.LOAD] == (3 + 4) * US * 4
    assert outcome.iterations == 4 + 8  # the save at 5 s had not begun


@pytest.mark.parametrize("seed", range(30))
def test_accounts_add_up_whatever_happens(seed: int) -> None:
    draw = random.Random(1000 + seed)
    nodes = draw.randint(3, 8)
    conducts = [
        Conduct(0.0, 0, detect_s=0.3)
        if alive < 2
        else Conduct(
            draw.choice([1.0, 1.7, 2.3]),
            draw.randint(2, alive),
            redundant_s=draw.choice([0.0, 0.25]),
            detect_s=draw.choice([0.0, 0.4]),
            reconfigure_s=draw.choice([0.0, 2.0]),
            copy_s=draw.choice([0.0, 1.0]),
            keeps_progress=draw.random() < 0.4,
            planned_save_s=draw.choice([0.0, 0.6]),
            planned_load_s=draw.choice([0.0, 0.6]),
        )
        for alive in range(nodes + 1)
    ]
    tiers = [
        Tier(draw.uniform(1, 9), draw.choice([0.0, 0.5]), draw.choice([0.0, 3.0]), 1.0, is_memory=bool(k == 0))
        for k in range(draw.randint(0, 2))
    ]
    source = DrawnFailures(90.0, draw.choice([1.0, 0.7]), draw.choice([0, 2]), 0.3, draw.choice([0.0, 25.0, None]), 3.0)
    events = draw_events(source, nodes, 2000.0, seed)
    rows = [(time / US, node, NodeChange(kind), notice / US) for time, node, kind, notice in events.rows.tolist()]
    outcome = run(conducts, tiers, rows, 2000.0)
    assert outcome.wall_us == 2000 * US
    again = run(conducts, tiers, rows, 2000.0)
    assert again.gpu_us == outcome.gpu_us and (again.log == outcome.log).all()

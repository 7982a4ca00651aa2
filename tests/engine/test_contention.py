"""Transfers that share ports: the kernel against exact fractions, cases done by hand, and what must always hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semu.engine.kernels.fair_shares import share_speeds
from semu.engine.ports import LinkUnits, PortUses
from semu.errors import GraphError
from semu.units import TIME_GRID_PER_S
from tests.engine.contention_reference import Mover, fair, share

ONE = Fraction(1)
NUM_PORTS = 4


def units_of(movers: Sequence[Mover]) -> LinkUnits:
    """The same as arrays."""
    uses = [(i, port, float(part)) for i, mover in enumerate(movers) for port, part in mover.ports.items()]
    edges = [
        (other, i, -1.0 if lag is None else lag / TIME_GRID_PER_S)
        for i, mover in enumerate(movers)
        for other, lag in mover.after
    ]
    return LinkUnits(
        np.array([mover.fixed for mover in movers]) / TIME_GRID_PER_S,
        np.array([mover.work for mover in movers]) / TIME_GRID_PER_S,
        PortUses.of(
            np.array([use[0] for use in uses], dtype=np.int64),
            np.array([use[1] for use in uses], dtype=np.int64),
            np.array([use[2] for use in uses]),
            (len(movers), NUM_PORTS),
        ),
        np.array([edge[0] for edge in edges], dtype=np.int32),
        np.array([edge[1] for edge in edges], dtype=np.int32),
        np.array([edge[2] for edge in edges]),
    )


def steps(seconds: NDArray[np.float64]) -> list[int]:
    """Whole steps of the time grid."""
    found = seconds * TIME_GRID_PER_S
    assert (found == np.rint(found)).all()
    return [int(value) for value in found]


def speeds(uses: PortUses) -> NDArray[np.float64]:
    """Speeds of units that all move at the same time, by the kernel."""
    n, ports = len(uses.ptr) - 1, uses.num_ports
    result, left = np.ones(n), np.empty(ports, dtype=np.int32)
    members = (np.arange(n, dtype=np.int32), n, np.arange(ports, dtype=np.int32), ports)
    share_speeds(*members, uses.ptr, uses.port, uses.share, uses.most, *np.empty((2, ports)), left, result)
    return result


def run(movers: Sequence[Mover]) -> list[tuple[int, int]]:
    """Start and end by the kernel."""
    start, end = units_of(movers).run()
    return list(zip(steps(start), steps(end), strict=True))


@st.composite
def movers(draw: st.DrawFn, *, whole: bool = False) -> list[Mover]:
    """Random transfers and kernels, each after some of those before it."""
    parts = st.just(ONE) if whole else st.sampled_from([ONE, ONE, Fraction(1, 2), Fraction(1, 4), Fraction(7, 8)])
    result = []
    for number in range(draw(st.integers(1, 9))):
        ports = draw(st.dictionaries(st.integers(0, NUM_PORTS - 1), parts, max_size=3))
        others = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=2)) if number else []
        after = [(other, draw(st.none() | st.integers(0, 60))) for other in others]
        work = draw(st.integers(0, 100)) * 1024
        result.append(Mover(draw(st.integers(0, 50)) * 1024, work, ports if work else {}, after))
    return result


@pytest.mark.slow
@given(movers())
def test_the_kernel_says_what_exact_fractions_say(problem: list[Mover]) -> None:
    """Up to the rounding of what is left at each change of speed: less than a step divided by the lowest speed."""
    seen = run(problem)
    expected = share([replace(mover) for mover in problem])
    slack = 4 * len(problem) ** 2
    for (start, end), (begin, finish) in zip(seen, expected, strict=True):
        assert abs(start - begin) <= slack
        assert abs(end - finish) <= slack


@given(movers())
def test_the_kernel_says_so_exactly_where_speeds_are_powers_of_two(problem: list[Mover]) -> None:
    """At most two over a port: speeds are 1 and 1/2, which floats hold."""
    load: dict[object, int] = defaultdict(int)
    few = []
    for mover in problem:
        ports = {port: ONE for port in mover.ports if load[port] < 2}
        for port in ports:
            load[port] += 1
        few.append(replace(mover, ports=ports))
    assert run(few) == share([replace(mover) for mover in few])


@given(movers())
def test_a_transfer_alone_takes_what_it_takes_alone(problem: list[Mover]) -> None:
    """One after the other nothing is shared, whatever the ports."""
    chain = [replace(mover, after=[(number - 1, None)] if number else []) for number, mover in enumerate(problem)]
    now = 0
    for mover, (start, end) in zip(chain, run(chain), strict=True):
        assert (start, end) == (now, now + mover.fixed + mover.work)
        now = end


@given(movers())
def test_ports_that_nobody_fills_slow_nobody_down(problem: list[Mover]) -> None:
    """Shares that sum to 1 at most: longest paths, bit for bit."""
    small = [replace(mover, ports={port: Fraction(1, 16) for port in mover.ports}) for mover in problem]
    assert run(small) == run([replace(mover, ports={}) for mover in small])


@given(movers(whole=True))
def test_a_port_gives_no_more_than_it_has(problem: list[Mover]) -> None:
    """What begins to move after a moment and has arrived by another fits between them."""
    seen = run(problem)
    for port in range(NUM_PORTS):
        own = [(start + m.fixed, end, m.work) for m, (start, end) in zip(problem, seen, strict=True) if port in m.ports]
        for first in {begin for begin, _, _ in own}:
            for last in {end for _, end, _ in own}:
                inside = sum(work for begin, end, work in own if begin >= first and end <= last)
                assert inside <= max(last - first, 0) + 4 * len(own)


@given(movers(whole=True))
def test_a_port_is_never_idle_while_somebody_needs_it(problem: list[Mover]) -> None:
    """One port: it moves all of a busy period's bytes in the time that they take."""
    one = [replace(mover, ports={0: ONE} if mover.work else {}, after=[]) for mover in problem]
    seen = run(one)
    now = 0
    for begin, work in sorted((mover.fixed, mover.work) for mover in one if mover.work):
        now = max(now, begin) + work
    assert abs(max((end for m, (_, end) in zip(one, seen, strict=True) if m.work), default=0) - now) <= 4 * len(one)


@given(movers())
def test_sharing_makes_nothing_earlier(problem: list[Mover]) -> None:
    """Every start and every end is as late as without sharing, or later."""
    alone = run([replace(mover, ports={}) for mover in problem])
    for (start, end), (begin, finish) in zip(run(problem), alone, strict=True):
        assert start >= begin
        assert end >= finish


@given(movers())
def test_rates_are_max_min_fair(problem: list[Mover]) -> None:
    """As exact progressive filling has them; and a slow one meets a full port on which nobody takes more than it."""
    together = [mover for mover in problem if mover.ports]
    found = speeds(units_of([replace(mover, after=[]) for mover in together]).uses)
    assert found == pytest.approx([float(speed) for speed in fair(together)], rel=1e-12)
    taken = [speed * float(max(mover.ports.values())) for mover, speed in zip(together, found, strict=True)]
    for port in range(NUM_PORTS):
        used = sum(float(o.ports.get(port, 0)) * s for o, s in zip(together, found, strict=True))
        assert used <= 1 + 1e-9
    for mover, speed, rate in zip(together, found, taken, strict=True):
        full = [
            port
            for port in mover.ports
            if sum(float(o.ports.get(port, 0)) * s for o, s in zip(together, found, strict=True)) > 1 - 1e-9
        ]
        assert speed == 1.0 or any(
            all(other <= rate + 1e-9 for o, other in zip(together, taken, strict=True) if port in o.ports)
            for port in full
        )


def test_two_sends_over_one_nic_take_twice_as_long_where_they_meet() -> None:
    """The first moves 1000 alone, then both at half speed until it ends; the second has 2000 left and moves alone."""
    first = Mover(100, 3000, {0: ONE})
    second = Mover(1100, 4000, {0: ONE})
    assert run([first, second]) == [(0, 1100 + 2 * 2000), (0, 1100 + 2 * 2000 + 2000)]


def test_a_transfer_that_needs_less_than_its_part_gets_all_it_needs() -> None:
    """One that fills a port and one that takes a quarter of it: 3/4 and full speed; alone, the first is quicker."""
    send, collective = Mover(0, 6000, {0: ONE}), Mover(0, 4000, {0: Fraction(1, 4)})
    assert run([send, collective]) == [(0, 4000 + 3000), (0, 4000)]


def test_a_transfer_that_needs_more_than_its_part_gets_half() -> None:
    """Shares 1 and 3/4 of one port: half of it each, so 1/2 and 2/3 of their speeds."""
    send, collective = Mover(0, 600, {0: ONE}), Mover(0, 600, {0: Fraction(3, 4)})
    assert run([send, collective]) == [(0, 900 + 150), (0, 900)]


def test_whoever_is_held_up_elsewhere_leaves_room() -> None:
    """Three on port 0 go at 1/3; the third of them leaves a fourth 2/3 of port 1."""
    ports = [{0: ONE}, {0: ONE}, {0: ONE, 1: ONE}, {1: ONE}]
    problem = [Mover(0, 3000, use) for use in ports]
    assert speeds(units_of(problem).uses) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2 / 3])
    assert [end for _, end in run(problem)] == [9000, 9000, 9000, 4500]


def test_a_circle_is_refused() -> None:
    """Units that wait for one another."""
    with pytest.raises(GraphError, match="circle"):
        units_of([Mover(1, 0, {}, [(1, None)]), Mover(1, 0, {}, [(0, None)])]).run()

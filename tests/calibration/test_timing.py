"""The policy of sustained load, on a clock that only pretends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.timing import Call, Policy, is_cache_hot, is_settled, num_copies, time_calls
from semu.errors import ConfigError


@dataclass
class FakeStopwatch:
    """A device whose call takes ``call_s(load so far)``; every call is really made."""

    call_s: Callable[[float], float]
    load_s: float = 0.0
    rounds: list[int] = field(default_factory=list)

    def round_s(self, calls: Sequence[Call], start: int, count: int) -> float:
        elapsed = 0.0
        for number in range(start, start + count):
            calls[number % len(calls)]()
            elapsed += self.call_s(self.load_s + elapsed)
        self.load_s += elapsed
        self.rounds.append(count)
        return elapsed


def throttling(load_s: float) -> float:
    """100 us at first, 140 us when the clock has settled, with a time constant of 30 ms."""
    return 1e-4 * (1.4 - 0.4 * math.exp(-load_s / 0.03))


def test_a_throttling_device_is_timed_when_it_has_settled() -> None:
    stopwatch = FakeStopwatch(throttling)
    timing = time_calls(stopwatch, [int], Policy())
    assert timing.settled
    assert timing.median_s == pytest.approx(1.4e-4, rel=0.01)
    assert timing.min_s <= timing.median_s <= timing.max_s
    assert timing.min_s > 1.35e-4  # none of the fast calls of the beginning
    assert timing.load_s >= Policy().warm_s
    assert timing.note() == ""


def test_median_least_and_most_of_the_counted_rounds() -> None:
    times = iter([*[1e-3] * 13, 1e-3, 2e-3, 3e-3])

    class Scripted:
        def round_s(self, calls: Sequence[Call], start: int, count: int) -> float:
            return next(times) * count

    policy = Policy(round_s=1e-3, warm_s=0.0, window=5, rounds=4)
    timing = time_calls(Scripted(), [int], policy)  # two rounds to start, ten of warm-up, four counted
    assert (timing.min_s, timing.median_s, timing.max_s) == (1e-3, 1.5e-3, 3e-3)
    assert timing.calls == 1
    assert timing.load_s == pytest.approx(10e-3)


def test_a_device_that_never_settles_says_so_and_ends() -> None:
    stopwatch = FakeStopwatch(lambda load_s: 1e-4 * (1 + 5 * load_s))
    timing = time_calls(stopwatch, [int], Policy(max_warm_s=0.3))
    assert not timing.settled
    assert timing.note() == "unsettled"
    assert 0.3 <= timing.load_s < 0.32


@pytest.mark.parametrize(("call_s", "calls"), [(1e-7, 200), (1e-3, 5), (0.5, 1), (0.0, 200)])
def test_a_round_has_so_many_calls_as_its_length_needs(call_s: float, calls: int) -> None:
    assert time_calls(FakeStopwatch(lambda _: call_s), [int], Policy()).calls == calls


def test_the_start_of_a_kernel_does_not_count_into_the_length_of_a_round() -> None:
    stopwatch = FakeStopwatch(lambda load_s: 1e-3 if load_s < 1.5e-3 else 1e-5)
    assert time_calls(stopwatch, [int], Policy()).calls == 200


def test_operands_take_turns_across_rounds() -> None:
    made: list[int] = []
    calls = [lambda i=i: made.append(i) for i in range(3)]
    time_calls(FakeStopwatch(lambda _: 1e-3), calls, Policy())
    assert made == [number % 3 for number in range(len(made))]


@pytest.mark.slow
@given(st.integers(1, 64), st.integers(1, 30), st.integers(1, 300), st.floats(1e-7, 1e-1))
def test_whatever_the_policy_as_many_rounds_are_counted_as_it_says(
    max_calls: int, rounds: int, most_ms: int, call_s: float
) -> None:
    policy = Policy(max_calls=max_calls, rounds=rounds, warm_s=most_ms * 1e-3, max_warm_s=most_ms * 1e-3, window=2)
    stopwatch = FakeStopwatch(lambda _: call_s)
    timing = time_calls(stopwatch, [int], policy)
    assert 1 <= timing.calls <= max_calls
    assert stopwatch.rounds[-rounds:] == [timing.calls] * rounds
    assert timing.median_s == pytest.approx(call_s)


def test_settled_compares_two_windows() -> None:
    policy = Policy(window=2, tolerance=0.1)
    assert not is_settled([1.0, 1.0, 1.0], policy)
    assert is_settled([9.0, 1.0, 1.0, 1.05, 1.05], policy)
    assert not is_settled([1.0, 1.0, 1.2, 1.2], policy)


def test_errors() -> None:
    with pytest.raises(ConfigError, match="nothing to time"):
        time_calls(FakeStopwatch(lambda _: 1.0), [], Policy())
    with pytest.raises(ConfigError, match="no time"):
        time_calls(FakeStopwatch(lambda _: -1.0), [int], Policy())
    with pytest.raises(ConfigError, match="not a valid number"):
        Policy(rounds=0)
    with pytest.raises(ConfigError, match="out of range"):
        Policy(round_s=-1.0)
    with pytest.raises(ConfigError, match="less than the least"):
        Policy(warm_s=2.0, max_warm_s=1.0)


def test_copies_of_operands() -> None:
    assert num_copies(10, 50, 10**9) == 20
    assert num_copies(10, 50, 10**9, most=8) == 8
    assert num_copies(10, 50, 35) == 3
    assert num_copies(1000, 50, 10**9) == 1
    assert num_copies(1000, 50, 10) == 1
    assert num_copies(0, 50, 10**9) == 1


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 28), st.integers(0, 1 << 40))
def test_copies_leave_the_cache_or_are_called_hot(set_bytes: int, cache_bytes: int, free_bytes: int) -> None:
    copies = num_copies(set_bytes, cache_bytes, free_bytes)
    assert copies >= 1
    assert copies == 1 or copies * set_bytes <= free_bytes
    if not is_cache_hot(set_bytes, copies, cache_bytes):
        assert copies * set_bytes >= 2 * cache_bytes
    elif copies < 64:
        assert (copies + 1) * set_bytes > free_bytes

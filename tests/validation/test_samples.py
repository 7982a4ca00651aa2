"""The warm-up rule, the median and the outliers of a log."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.validation.logs.samples import steady_samples, warm_up_count


def test_a_fifth_is_warm_up_between_1_and_10() -> None:
    counts = {1: 0, 2: 1, 5: 1, 9: 1, 10: 2, 49: 9, 50: 10, 1000: 10}
    assert {count: warm_up_count(count) for count in counts} == counts


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.data())
def test_median_and_quantiles(values: list[int], data: st.DataObject) -> None:
    warm_up = data.draw(st.integers(0, len(values) - 1))
    samples = steady_samples(range(len(values)), values, warm_up)
    rest = sorted(values[warm_up:])
    assert samples.numbers == tuple(range(warm_up, len(values)))
    assert samples.median == statistics.median(rest)
    assert samples.p5 == next(v for v in rest if sum(w <= v for w in rest) * 100 >= 5 * len(rest))
    assert samples.p95 == next(v for v in rest if sum(w <= v for w in rest) * 100 >= 95 * len(rest))


def test_outliers_are_named_and_kept() -> None:
    values = [1.00, 1.01, 0.99, 1.02, 0.98, 1.00, 7.0, 1.01]
    samples = steady_samples(range(10, 18), values, 0)
    assert samples.outliers == ((16, 7.0),)
    assert (samples.median, len(samples.values)) == (1.005, 8)
    assert steady_samples(range(8), [1.0] * 7 + [1.04], 0).outliers == ()  # within 5 % is none
    assert steady_samples(range(8), [1.0] * 7 + [1.06], 0).outliers == ((7, 1.06),)


@pytest.mark.parametrize(("warm_up", "nearest"), [(3, 2), (30, 2), (-1, 0)])
def test_something_must_be_left(warm_up: int, nearest: int) -> None:
    with pytest.raises(ConfigError) as error:
        steady_samples([1, 2, 3], [1.0, 1.0, 1.0], warm_up, where="log")
    assert (error.value.where, error.value.expected) == ("--warm-up, log", "0 to 2")
    assert (error.value.got, error.value.nearest) == (warm_up, nearest)

"""Checks of single values: what passes comes back, what does not is told with its place and the nearest legal value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pytest

from semu import checks
from semu.errors import ConfigError, ScheduleError, SemuError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


PASSING: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = [
    (checks.check_integer, (3,), {}, 3),
    (checks.check_integer, (0,), {"least": 0, "most": 0}, 0),
    (checks.check_seed, (2**64 - 1,), {}, 2**64 - 1),
    (checks.check_number, (2,), {}, 2.0),
    (checks.check_number, (math.inf,), {"is_infinite_ok": True}, math.inf),
    (checks.check_efficiency, (1,), {}, 1.0),
    (checks.check_switch, (False,), {}, False),
    (checks.check_member, ("red", Colour), {}, Colour.RED),
    (checks.check_member, (Colour.BLUE, Colour), {}, Colour.BLUE),
    (checks.check_int32, (np.int64(7),), {}, 7),
    (checks.check_resolution, ([2, 3],), {}, (2, 3)),
]


@pytest.mark.parametrize(("check", "arguments", "options", "expected"), PASSING)
def test_legal_values_come_back(check: Any, arguments: Any, options: Any, expected: Any) -> None:
    found = check(*arguments, "here", **options)
    assert found == expected and type(found) is type(expected)


REFUSED: list[tuple[Callable[..., Any], Any, dict[str, Any], type[SemuError], str, Any]] = [
    (checks.check_integer, True, {}, ConfigError, "not a valid number; expected an integer >= 1", 1),
    (checks.check_integer, 1.0, {"what": "a size"}, ConfigError, "not a size; expected an integer >= 1", 1),
    (
        checks.check_integer,
        9,
        {"most": 8},
        ConfigError,
        "not a valid number; expected an integer from 1 to 8; got 9",
        8,
    ),
    (checks.check_integer, -1, {"least": 0, "error": ScheduleError}, ScheduleError, "expected an integer >= 0", 0),
    (checks.check_number, math.nan, {}, ConfigError, "not a number in range; expected a finite number >= 0", 0.0),
    (checks.check_number, math.inf, {}, ConfigError, "not a number in range", None),
    (checks.check_number, 10**400, {}, ConfigError, "not a number in range", None),
    (checks.check_number, 0, {"is_above": True}, ConfigError, "expected a finite number > 0", None),
    (checks.check_number, 3, {"most": 2}, ConfigError, "expected a number >= 0, at most 2", 2),
    (checks.check_efficiency, 1.5, {}, ConfigError, "not an efficiency; expected a number > 0, at most 1", 1.0),
    (checks.check_switch, 1, {}, ConfigError, "not a switch; expected true or false", None),
    (checks.check_seed, 2**64, {}, ConfigError, "expected an integer from 0 to 18446744073709551615", 2**64 - 1),
    (checks.check_int32, 2**31, {}, ScheduleError, "out of range", 2**31 - 1),
    (checks.check_text, "\ud800", {}, ScheduleError, "not a text", None),
]


@pytest.mark.parametrize(("check", "value", "options", "kind", "words", "nearest"), REFUSED)
def test_other_values_are_refused_in_one_form(
    check: Any, value: Any, options: Any, kind: Any, words: str, nearest: Any
) -> None:
    with pytest.raises(kind) as caught:
        check(value, "here", **options)
    assert str(caught.value).startswith("here: ") and words in str(caught.value)
    assert (caught.value.where, caught.value.nearest) == ("here", nearest)


def test_an_unknown_word_has_a_nearest_one() -> None:
    with pytest.raises(ConfigError, match="unknown colour 'blu', did you mean 'blue'") as caught:
        checks.check_member("blu", Colour, "run.colour")
    assert (caught.value.where, caught.value.nearest) == ("run.colour", "blue")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a_b", "a_b"), ("A-B", "A-B"), ("a b", "A-B"), ("c.D", "cd"), ("", None), ("abc", None), ("a", None)],
)
def test_a_name_is_known_by_its_letters_and_first_as_it_stands(name: str, expected: str | None) -> None:
    entries = {"A-B": 1, "a_b": 2, "cd": 3}
    assert checks.known_spelling(name, entries) == expected
    if expected is None:
        with pytest.raises(ConfigError):
            checks.find_named("letter", name, entries)
    else:
        assert checks.find_named("letter", name, entries) == entries[expected]


def test_the_nearest_divisor_is_the_nearest_of_all() -> None:
    for total in range(1, 61):
        for near in range(1, 71):
            divisors = [n for n in range(1, total + 1) if total % n == 0]
            assert checks.nearest_divisor(total, near) == min(divisors, key=lambda n: (abs(n - near), n))


@dataclass
class Sizes:
    width: int = 3
    share: float = 0.5
    depth: int | None = None


def test_sizes_are_all_whole_numbers_or_those_that_are_named() -> None:
    checks.check_sizes(Sizes())
    checks.check_sizes(Sizes(width=0), zero=("width",))
    checks.check_sizes(Sizes(width=0), "depth")
    checks.check_sizes(Sizes(share=2), "share")
    for sizes, names, place in (
        (Sizes(width=0), (), "Sizes.width"),
        (Sizes(width=0), ("width",), "Sizes.width"),
        (Sizes(depth=-1), (), "Sizes.depth"),
        (Sizes(width=0, share=0.5), ("share",), "Sizes.share"),
    ):
        with pytest.raises(ConfigError) as caught:
            checks.check_sizes(sizes, *names)
        assert caught.value.where == place


@pytest.mark.parametrize(
    ("check", "value", "shape", "words"),
    [
        (checks.check_times, [["a"]], (1, 1), "here: not times; expected numbers, 1 x 1; got 1 x 1 of str32"),
        (checks.check_times, np.zeros((2, 3)), (2, None, 1), "expected numbers, 2 x n x 1; got 2 x 3"),
        (checks.check_times, np.zeros((2, 3)), (2, 2), "expected numbers, 2 x 2; got 2 x 3"),
        (checks.check_times, 1.0, (2,), "expected numbers, 2; got one"),
        (checks.check_times, [[1.0], [1.0, 2.0]], (), "here: not a table of numbers; expected numbers, one"),
        (checks.check_times, [[0.0, 1.0], [2.0, -3.0]], (2, 2), "here[1][1]: not a time"),
        (checks.check_times, [math.inf], (None,), "here[0]: not a time; expected a finite number >= 0; got inf"),
    ],
)
def test_arrays_are_told_by_their_sizes(check: Any, value: Any, shape: Any, words: str) -> None:
    assert check(np.full((2, 3), 4), "here", (2, None)).tolist() == [[4.0] * 3] * 2
    with pytest.raises(ScheduleError) as caught:
        check(value, "here", shape)
    assert words in str(caught.value)


def test_integers_of_arrays_are_whole_and_an_empty_list_has_none() -> None:
    assert checks.check_integers([], np.int32, "here", (None,)).dtype == np.int32
    assert checks.check_integers([[0, 9]], np.int8, "here", (1, 2), most=9).tolist() == [[0, 9]]
    for value, words in (
        ([1.0], "here: not whole numbers; expected numbers, n; got 1 of float64"),
        (["a"], "here: not whole numbers"),
        ([[]], "here: not whole numbers; expected numbers, n; got 1 x 0 of float64"),
        ([0, 10], "here[1]: out of range; expected 0 to 9; got 10; nearest allowed: 9"),
        ([-1], "here[0]: out of range"),
    ):
        with pytest.raises(ScheduleError) as caught:
            checks.check_integers(value, np.int8, "here", (None,), most=9)
        assert words in str(caught.value)

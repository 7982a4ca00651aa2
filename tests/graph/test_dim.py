"""Sizes against Python's integers: random expressions, random values for the symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError, GraphError, InternalError
from semu.graph.dim import LARGEST, Dim, DimTable, Poly, as_int, check_largest, divide, product

SYMBOLS = ("text.pairs", "text.shard", "video*text.pairs", "vision.shard")
Values = Mapping[str, int]


@dataclass(frozen=True)
class Expression:
    """The same expression twice: as a size, and as a function on Python's integers."""

    dim: Dim
    value: Callable[[Values], int]


def leaf(item: int | str) -> Expression:
    if isinstance(item, int):
        return Expression(item, lambda _: item)
    return Expression(Poly.symbol(item), lambda values: values[item])


def combine(pair: tuple[Expression, Expression, str]) -> Expression:
    left, right, operation = pair
    if operation == "+":
        return Expression(left.dim + right.dim, lambda v: left.value(v) + right.value(v))
    if operation == "-":
        return Expression(left.dim - right.dim, lambda v: left.value(v) - right.value(v))
    return Expression(left.dim * right.dim, lambda v: left.value(v) * right.value(v))


def expressions() -> st.SearchStrategy[Expression]:
    leaves = (st.integers(-9, 9) | st.sampled_from(SYMBOLS)).map(leaf)
    return st.recursive(
        leaves, lambda inner: st.tuples(inner, inner, st.sampled_from("+-*")).map(combine), max_leaves=6
    )


values = st.fixed_dictionaries({name: st.integers(0, 50) for name in SYMBOLS})


def substitute(dim: Dim, at: Values) -> int:
    """The slow way: every monomial by itself."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, coefficient in dim.terms.items():
        term = coefficient
        for name in monomial:
            term *= at[name]
        total += term
    return total


@given(expressions(), values)
def test_arithmetic_is_that_of_the_integers(expression: Expression, at: Values) -> None:
    assert substitute(expression.dim, at) == expression.value(at)


@given(expressions(), expressions(), expressions())
def test_ring_laws_hold_structurally(a: Expression, b: Expression, c: Expression) -> None:
    x, y, z = a.dim, b.dim, c.dim
    for left, right in (
        (x + y, y + x),
        (x * y, y * x),
        ((x + y) * z, x * z + y * z),
        (x * (y * z), (x * y) * z),
        (x - y, -1 * (y - x)),
    ):
        assert left == right
        assert hash(left) == hash(right)
    assert x - x == 0
    assert isinstance(x - x, int)


@given(expressions(), values)
def test_what_does_not_depend_on_a_symbol_is_a_plain_integer(expression: Expression, at: Values) -> None:
    constant = expression.dim - expression.dim + 7
    assert isinstance(constant, int)
    assert constant == 7
    if isinstance(expression.dim, Poly):
        assert any(expression.dim.terms)
        assert 0 not in expression.dim.terms.values()


@given(expressions(), expressions(), st.lists(values, min_size=1, max_size=5))
def test_sizes_that_differ_somewhere_are_not_equal(a: Expression, b: Expression, at: list[Values]) -> None:
    if any(a.value(v) != b.value(v) for v in at):
        assert a.dim != b.dim


def test_negation_and_reflected_subtraction() -> None:
    tokens = Poly.symbol("text.shard")
    at = {"text.shard": 11}
    assert substitute(-tokens, at) == -11
    assert substitute(5 - tokens, at) == -6
    assert substitute(tokens - 5, at) == 6


def test_text_form() -> None:
    tokens, pairs = Poly.symbol("text.shard"), Poly.symbol("text.pairs")
    assert repr(3 * tokens * pairs + tokens + 4) == "4 + 3*text.pairs*text.shard + text.shard"
    assert repr(Poly({})) == "0"


# -- division ----------------------------------------------------------------------------------------------------
@given(expressions(), st.integers(1, 12), values)
def test_exact_division_undoes_multiplication(expression: Expression, divisor: int, at: Values) -> None:
    assert divide(divisor * expression.dim, divisor, "a size", "here") == expression.dim
    assert substitute(divide(divisor * expression.dim, divisor, "a size", "here"), at) == expression.value(at)


@given(st.integers(1, 1000), st.integers(2, 12))
def test_an_integer_divides_as_in_python_or_is_refused(size: int, divisor: int) -> None:
    if size % divisor == 0:
        assert divide(size, divisor, "heads", "llm.attention") == size // divisor
        return
    with pytest.raises(GraphError) as caught:
        divide(size, divisor, "heads", "llm.attention")
    error = caught.value
    assert error.where == "llm.attention"
    assert error.got == size
    assert f"a multiple of {divisor}" == error.expected
    assert f"heads cannot be split {divisor} ways" in str(error)
    assert isinstance(error.nearest, int)
    assert error.nearest > 0
    assert error.nearest % divisor == 0
    assert abs(error.nearest - size) < divisor


def test_a_symbolic_size_is_divided_coefficient_by_coefficient() -> None:
    tokens = Poly.symbol("text.shard")
    assert divide(6 * tokens + 4, 2, "tokens", "here") == 3 * tokens + 2
    with pytest.raises(GraphError, match="tokens cannot be split 4 ways"):
        divide(6 * tokens + 4, 4, "tokens", "here")
    with pytest.raises(GraphError, match="tokens cannot be split 2 ways"):
        divide(6 * tokens + 3, 2, "tokens", "here")


def test_by_one_everything_divides() -> None:
    assert divide(7 * Poly.symbol("text.shard"), 1, "tokens", "here") == 7 * Poly.symbol("text.shard")


# -- helpers -----------------------------------------------------------------------------------------------------
@given(st.lists(expressions(), max_size=3), values)
def test_product(items: list[Expression], at: Values) -> None:
    expected = 1
    for item in items:
        expected *= item.value(at)
    assert substitute(product(item.dim for item in items), at) == expected


def test_as_int() -> None:
    assert as_int(5, "a width", "here") == 5
    with pytest.raises(GraphError, match="a width must not depend on the batch") as caught:
        as_int(Poly.symbol("text.shard"), "a width", "mlp.up")
    assert caught.value.where == "mlp.up"


# -- many shapes at once -----------------------------------------------------------------------------------------
@given(st.lists(expressions(), min_size=1, max_size=6), st.lists(values, min_size=1, max_size=5))
def test_table_agrees_with_direct_evaluation(items: list[Expression], batches: list[Values]) -> None:
    columns = {name: np.array([at[name] for at in batches], dtype=np.int64) for name in SYMBOLS}
    table = DimTable.build([item.dim for item in items]).evaluate(columns)
    assert table.dtype == np.int64
    assert table.tolist() == [[item.value(at) for at in batches] for item in items]


def test_table_of_constants_needs_no_columns() -> None:
    assert DimTable.build([3, 0, 12]).evaluate({}).tolist() == [[3], [0], [12]]


def test_table_is_exact_where_floats_are_not() -> None:
    tokens = Poly.symbol("text.shard")
    columns = {"text.shard": np.array([2**27 + 1], dtype=np.int64)}
    (value,) = DimTable.build([tokens * tokens + 1]).evaluate(columns)[:, 0].tolist()
    assert value == (2**27 + 1) ** 2 + 1
    assert value != int(float(value))


def test_table_without_a_column_that_it_needs_is_refused() -> None:
    with pytest.raises(InternalError, match=r"no value for symbol 'text\.pairs'"):
        DimTable.build([Poly.symbol("text.pairs")]).evaluate({"text.shard": np.array([1], dtype=np.int64)})


MONOMIALS = st.sampled_from([(), ("a",), ("a", "a"), ("a", "b")])


@given(st.dictionaries(MONOMIALS, st.integers(-(1 << 66), 1 << 66)), st.integers(1, 1 << 40), st.integers(1, 1 << 40))
def test_values_within_the_bound_are_exact(terms: dict[tuple[str, ...], int], a: int, b: int) -> None:
    """Python's integers have no end; int64 begins again at the other."""
    if max(map(abs, terms.values()), default=0) > LARGEST:
        with pytest.raises(ConfigError, match="too large to be counted"):
            DimTable.build([Poly(terms)])
        return
    table = DimTable.build([Poly(terms), 1])
    exact: dict[tuple[str, ...], int] = {(): 1, ("a",): a, ("a", "a"): a * a, ("a", "b"): a * b}
    value = sum(coefficient * exact[names] for names, coefficient in terms.items())
    bound = table.highest(exact)
    assert abs(value) <= bound
    assert table.select(np.array([0])).highest(exact) <= bound
    if bound <= LARGEST:
        columns = {"a": np.array([a], dtype=np.int64), "b": np.array([b], dtype=np.int64)}
        assert table.evaluate(columns).tolist() == [[value], [1]]
        check_largest(bound, LARGEST)
    else:
        with pytest.raises(ConfigError, match="too large to be counted"):
            check_largest(bound, LARGEST)

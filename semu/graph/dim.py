"""``Dim``: a size that may depend on the shapes of the batch at hand.

A size is an integer or a ``Poly``, a polynomial with integer coefficients in named symbols such as ``text.shard``
(tokens of one shard) and ``text.pairs`` (sum of squared sequence lengths). A graph traced once with symbols is a
template: ``DimTable`` evaluates all its costs for many shapes in one matrix product (DESIGN §4). All arithmetic is
on integers, so that grouping shapes cannot change a bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, GraphError, InternalError
from semu.records import dataclass

Monomial: TypeAlias = tuple[str, ...]
"""Symbols multiplied together, sorted; the empty tuple is the constant."""


class Poly:
    """An integer polynomial in named symbols; immutable, with structural equality.

    Args:
        terms: monomial -> coefficient; zero coefficients are dropped.
    """

    __slots__ = ("_hash", "terms")

    terms: dict[Monomial, int]

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {monomial: terms[monomial] for monomial in sorted(terms) if terms[monomial]}
        self._hash: int | None = None

    @classmethod
    def symbol(cls, name: str) -> Poly:
        """The polynomial that is one symbol."""
        return cls({(name,): 1})

    @classmethod
    def _of(cls, terms: dict[Monomial, int]) -> Poly:
        """A polynomial of sorted terms without zeros, which it keeps."""
        poly = cls.__new__(cls)
        poly.terms, poly._hash = terms, None
        return poly

    def __add__(self, other: Dim) -> Dim:
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _simplify(terms)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        return self + -other

    def __rsub__(self, other: Dim) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        if not isinstance(other, Poly):
            return self._times(other)
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right)) if left and right else left or right
                terms[monomial] = terms.get(monomial, 0) + a * b
        return _simplify(terms)

    __rmul__ = __mul__

    def _times(self, factor: int) -> Dim:
        """The product with a number: the order of the terms stays."""
        if factor == 0 or self.terms.keys() <= _CONSTANT:
            return factor * self.terms.get((), 0)
        return self if factor == 1 else Poly._of({monomial: factor * own for monomial, own in self.terms.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self.terms.items()))
        return self._hash

    def __repr__(self) -> str:
        return " + ".join("*".join([str(c)] * (c != 1 or not m) + list(m)) for m, c in self.terms.items()) or "0"


Dim: TypeAlias = int | Poly
_CONSTANT = frozenset({()})
LARGEST = 1 << 62
"""No value of a table is larger: it stays an int64."""


def _terms(dim: Dim) -> Mapping[Monomial, int]:
    return dim.terms if isinstance(dim, Poly) else {(): dim}


def _simplify(terms: Mapping[Monomial, int]) -> Dim:
    poly = Poly(terms)
    if not poly.terms:
        return 0
    return poly.terms[()] if poly.terms.keys() == {()} else poly


def divide(dim: Dim, divisor: int, what: str, where: str) -> Dim:
    """``dim / divisor`` where it divides exactly.

    Raises:
        GraphError: it does not; ``what`` and ``where`` say what was being split.
    """
    if divisor == 1:
        return dim
    if isinstance(dim, int) and dim % divisor == 0:
        return dim // divisor
    for monomial, coefficient in _terms(dim).items():
        if coefficient % divisor:
            nearest = max(round(coefficient / divisor), 1) * divisor
            raise GraphError(
                f"{what} cannot be split {divisor} ways",
                where=where,
                expected=f"a multiple of {divisor}",
                got=dim,
                nearest=nearest if monomial == () else None,
            )
    return _simplify({monomial: coefficient // divisor for monomial, coefficient in _terms(dim).items()})


def product(dims: Iterable[Dim]) -> Dim:
    """Product of sizes; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def as_int(dim: Dim, what: str, where: str) -> int:
    """The integer that a size must be where symbols are not allowed.

    Raises:
        GraphError: the size depends on the batch.
    """
    if isinstance(dim, Poly):
        raise GraphError(f"{what} must not depend on the batch", where=where, expected="an integer", got=dim)
    return dim


def symbols_of(dim: Dim) -> frozenset[str]:
    """The symbols that a size depends on."""
    return frozenset(name for monomial in _terms(dim) for name in monomial)


@dataclass(frozen=True)
class DimTable:
    """Many sizes as one matrix: value[i, b] = sum over j of coefficients[i, j] x monomial_j(shape b).

    Attributes:
        monomials: the columns' monomials.
        coefficients: int64[num_dims, num_monomials].
        largest: of each column, no coefficient is farther from 0.
    """

    monomials: tuple[Monomial, ...]
    coefficients: NDArray[np.int64]
    largest: tuple[int, ...]

    @classmethod
    def build(cls, dims: Sequence[Dim]) -> DimTable:
        """Collect sizes into a table, one row each, in order.

        Raises:
            ConfigError: a coefficient beyond ``LARGEST``.
        """
        index: dict[Monomial, int] = {}
        rows: list[int] = []
        columns: list[int] = []
        values: list[int] = []
        for row, dim in enumerate(dims):
            for monomial, coefficient in _terms(dim).items():
                rows.append(row)
                columns.append(index.setdefault(monomial, len(index)))
                values.append(coefficient)
        largest = [0] * len(index)
        for column, value in zip(columns, values, strict=True):
            largest[column] = max(largest[column], abs(value))
        check_largest(max(largest, default=0), LARGEST)
        coefficients = np.zeros((len(dims), len(index)), dtype=np.int64)
        coefficients[rows, columns] = values
        return cls(tuple(index), coefficients, tuple(largest))

    def select(self, rows: NDArray[np.integer]) -> DimTable:
        """The table of some rows, in the order given, with the monomials that they use."""
        coefficients = self.coefficients[rows]
        used = np.flatnonzero(coefficients.any(axis=0))
        monomials = tuple(self.monomials[column] for column in used)
        return DimTable(monomials, coefficients[:, used], tuple(self.largest[column] for column in used))

    def evaluate(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        """Values for many shapes at once; nothing looks here whether they stay within 64 bits (``highest``).

        Args:
            columns: symbol -> int64[num_shapes]; all of one length.
        Returns:
            int64[num_dims, num_shapes]; num_shapes is 1 where no symbol is given.
        Raises:
            InternalError: a symbol without a column.
        """
        result: NDArray[np.int64] = self.coefficients @ self._monomial_values(columns)
        return result

    def highest(self, values: Mapping[Monomial, int]) -> int:
        """What no value exceeds in size.

        Args:
            values: monomial -> its largest value.
        """
        return sum(most * values[monomial] for monomial, most in zip(self.monomials, self.largest, strict=True))

    def weighted_sum(
        self, columns: Mapping[str, NDArray[np.int64]], weights: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Sum over shapes of weight x value, without evaluating every shape: float64[num_dims].

        Args:
            columns: as ``evaluate``. weights: float64[num_shapes].
        """
        result: NDArray[np.float64] = self.coefficients.astype(np.float64) @ (self._monomial_values(columns) @ weights)
        return result

    def _monomial_values(self, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int64]:
        num_shapes = len(next(iter(columns.values()))) if columns else 1
        values = np.ones((len(self.monomials), num_shapes), dtype=np.int64)
        for row, monomial in enumerate(self.monomials):
            for name in monomial:
                if name not in columns:
                    raise InternalError(f"no value for symbol {name!r}", expected=", ".join(sorted(columns)), got=name)
                values[row] *= columns[name]
        return values


def check_largest(value: int, most: int) -> None:
    """What sizes come to must not exceed what is counted.

    Raises:
        ConfigError: it does.
    """
    if value > most:
        raise ConfigError(
            "sizes of the model and its batch are too large to be counted",
            where="model",
            expected=f"at most {most:.1e} FLOP or bytes in an operator or a tensor",
            got=f"up to {float(value):.1e}" if value.bit_length() < 1000 else "far more",
        )

"""``Coefficient``: a number in a profile's ``[link.PORT.KIND]`` that the time of a collective depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semu.hardware.kinds import OpKind, Port

COLLECTIVES = frozenset((OpKind.ALL_REDUCE, OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER, OpKind.ALL_TO_ALL))
COMMUNICATION = COLLECTIVES | {OpKind.P2P}


@dataclass(frozen=True, slots=True)
class Fit:
    """How ``semu calibrate`` fits a coefficient: where it starts, its bounds, and which measurements determine it.

    Attributes:
        start, low, high: in the coefficient's unit; bounds keep times finite and growing with the bytes.
        min_sizes, min_ranks, min_rows: different message sizes, different numbers of ranks, and rows, at least.
        needs_switch: needs rows of a whole switch beside others, on a device whose switch reduces.
    """

    start: float
    low: float
    high: float
    min_sizes: int = 0
    min_ranks: int = 0
    min_rows: int = 0
    needs_switch: bool = False

    def is_determined(self, num_sizes: int, num_ranks: int, num_rows: int, *, has_switch: bool) -> bool:
        """Whether measurements of so many message sizes, numbers of ranks and rows determine the coefficient."""
        is_many = num_sizes >= self.min_sizes and num_ranks >= self.min_ranks and num_rows >= self.min_rows
        return is_many and (has_switch or not self.needs_switch)


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A number of a ``[link.PORT.KIND]`` table.

    Attributes:
        name: key of the table. neutral: value where nothing is known. meaning: what it is, and its unit.
        check: (value, name) -> the value, or a ConfigError where it is out of range.
        fit: how it is fitted; None: it keeps the value that the profile has.
        kinds, ports: tables in which ``semu calibrate`` fits it, and writes it even where it is neutral.
    """

    name: str
    neutral: float
    meaning: str
    check: Callable[[object, str], float]
    fit: Fit | None = None
    kinds: frozenset[OpKind] = COMMUNICATION
    ports: frozenset[Port] = frozenset(Port)

    def is_in(self, port: Port, kind: OpKind) -> bool:
        """Whether the coefficient is one of the table ``[link.PORT.KIND]`` that ``semu calibrate`` writes."""
        return port in self.ports and kind in self.kinds

"""Concurrent transfers share the capacity of ports (DESIGN §3.4): units, what they use, and their times.

Objects: ``PortUses``, ``LinkUnits``. ``kernels.fair_shares`` says what a unit is and how ports are shared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.errors import GraphError
from semu.records import dataclass

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class PortUses:
    """Which ports units use.

    Attributes:
        ptr, port: CSR int32[num_units + 1], int32[num_uses]. share: float64[num_uses], of the port at full speed, > 0
            and at most 1. num_ports: number of ports.
    """

    ptr: I32
    port: I32
    share: F64
    num_ports: int

    @classmethod
    def of(cls, unit: NDArray[np.integer], port: NDArray[np.integer], share: F64, shape: tuple[int, int]) -> PortUses:
        """Sort uses by unit.

        Args:
            unit, port, share: one entry per use. shape: (number of units, number of ports).
        """
        order = np.argsort(unit, kind="stable")
        return cls(_pointer(unit, shape[0]), port[order].astype(np.int32), share[order].astype(np.float64), shape[1])

    @property
    def most(self) -> F64:
        """The largest share of each unit, 1 where it uses no port: float64[num_units]."""
        count = np.diff(self.ptr)
        result = np.ones(len(count))
        used = np.flatnonzero(count)
        if len(used):
            result[used] = np.maximum.reduceat(self.share, self.ptr[used])
        return result


@dataclass(frozen=True)
class LinkUnits:
    """Units with their edges.

    Attributes:
        fixed, work: float64[num_units] [s]: what a unit lasts before it moves bytes; what moving them takes at full
            speed, 0 where there are none.
        uses: ports. source, target: int32[num_edges], units. lag: float64[num_edges] [s], the target starts so long
            after the source's start; less than 0: at its end.
    """

    fixed: F64
    work: F64
    uses: PortUses
    source: I32
    target: I32
    lag: F64

    def run(self) -> tuple[F64, F64]:
        """Start and end of every unit: float64[num_units] [s].

        Raises:
            GraphError: the edges close a circle.
        """
        from semu.engine.kernels.fair_shares import share_links

        n, uses = len(self.fixed), self.uses
        start, end = np.empty(n), np.empty(n)
        order = np.argsort(self.source, kind="stable")
        done = share_links(
            self.fixed,
            self.work,
            *(uses.ptr, uses.port, uses.share, uses.most, uses.num_ports),
            _pointer(self.source, n),
            self.target[order].astype(np.int32),
            self.lag[order],
            start,
            end,
        )
        if done < n:
            raise GraphError(
                "units wait for one another in a circle",
                where="contention",
                expected="edges without a cycle",
                got=f"{n - done} of {n} units never start",
            )
        return start, end


def _pointer(owner: NDArray[np.integer], n: int) -> I32:
    """CSR pointer over what has these owners."""
    return np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=n)))).astype(np.int32)

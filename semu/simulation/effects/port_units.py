"""``JobUnits``: the units of an iteration as they are written down one after another, then as arrays."""

from __future__ import annotations

from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.engine.ports import LinkUnits, PortUses
from semu.records import dataclass

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class WrittenStages:
    """All written-out stages of one program.

    Attributes:
        program: the stage. replica, node: int64[num_stages], which stages. first: int64[num_stages], unit of the first
            operator of each, the others follow, then the end. latency: float64[num_stages, num_ops] [s], alone.
        shape: int64[num_stages]. moves: bool[num_ops], operators that use ports.
    """

    program: StageProgram
    replica: I64
    node: I64
    first: I64
    latency: F64
    shape: I64
    moves: NDArray[np.bool_]


@dataclass
class JobUnits:
    """Units of a whole iteration up to the optimizer.

    Attributes:
        fixed, work: per unit, in pieces. edges: (source, target, lag) arrays. uses: (unit, port, share) arrays.
        written: stages operator by operator. tail: int64[num_replicas, num_units], the unit whose end is that of a
            pipeline unit. gathers, reductions: first units of both.
    """

    fixed: list[F64] = field(default_factory=list)
    work: list[F64] = field(default_factory=list)
    edges: list[tuple[I64, I64, F64]] = field(default_factory=list)
    uses: list[tuple[I64, I64, F64]] = field(default_factory=list)
    written: list[WrittenStages] = field(default_factory=list)
    tail: I64 = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))
    gathers: int = 0
    reductions: int = 0
    count: int = 0

    def add(self, fixed: F64, work: F64) -> int:
        """Append units; returns the number of the first."""
        first = self.count
        self.fixed.append(fixed.ravel())
        self.work.append(work.ravel())
        self.count += fixed.size
        return first

    def join(self, source: object, target: object, lag: object = -1.0) -> None:
        """Append edges; the arguments are broadcast."""
        self.edges.append(_columns(source, target, lag))

    def use(self, unit: object, port: object, share: float) -> None:
        """Append uses; the arguments are broadcast."""
        self.uses.append(_columns(unit, port, share))

    def build(self, num_ports: int) -> LinkUnits:
        """All of it as arrays."""
        source, target, lag = (np.concatenate([piece[k] for piece in self.edges]) for k in range(3))
        uses = (*self.uses, _columns((), (), ()))  # there may be none
        unit, port, share = (np.concatenate([piece[k] for piece in uses]) for k in range(3))
        return LinkUnits(
            np.concatenate(self.fixed),
            np.concatenate(self.work),
            PortUses.of(unit, port, share, (self.count, num_ports)),
            source.astype(np.int32),
            target.astype(np.int32),
            lag,
        )


def _columns(first: object, second: object, third: object) -> tuple[I64, I64, F64]:
    a, b, c = np.broadcast_arrays(np.asarray(first), np.asarray(second), np.asarray(third, dtype=np.float64))
    return a.ravel().astype(np.int64), b.ravel().astype(np.int64), c.ravel()

"""``RankedCosts``: costs of a batch whose context ranks do different work, and how long their stages last together.

Ranks go their own way between the collectives that they share; a stage ends when the last of them does. Times of single
operators are those of the rank with most tiles, which waits in collectives as long as the joint timeline says; memory
is that of the rank with most tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import ExpandedStage, StageCosts, StageProgram
from semu.costs.shape_costs import Columns, ShapeCosts, num_shapes
from semu.graph.operator import Operator, Phase
from semu.graph.rounding import with_rounded
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.nn.masked_kernel import is_held
from semu.parallel.config import Parallel
from semu.records import dataclass

_TOGETHER = 2048
"""Shapes x ranks that are costed at once."""
INSIDE, COLLECTIVE, FORWARD_RING, BACKWARD_RING = range(4)

_ON_RANKS = memo.ScopedTable["NDArray[np.float64]"]("latencies of all operators on every context rank", 1)
_JOINT = memo.ScopedTable["tuple[StageCosts, NDArray[np.float64]]"](
    "stages on all context ranks together, and when the rank that is shown is let go", 512, is_large=True
)


def is_context(group: CommGroup | None) -> bool:
    """Whether context ranks communicate in a group."""
    return group is not None and (group.name == "cp" or group.name.startswith("cp_"))


def exchange_of(operator: Operator, group: CommGroup | None, parallel: Parallel) -> tuple[int, int, int]:
    """Between whom an operator is: 0 for one within a context rank; and its span and turn, see ``time_ranks``."""
    cp = parallel.cp
    if group is not None and group.name in ("ep", "experts"):
        together = min(max(parallel.ep * parallel.expert_tensor_ranks // parallel.tp, 1), cp)
        return (COLLECTIVE, together if cp % together == 0 else cp, cp) if together > 1 else (INSIDE, 1, cp)
    if group is not None and group.name == "dp":  # shards of parameters and gradients lie on all context ranks too
        return COLLECTIVE, cp, cp
    if group is None or not is_context(group):
        return INSIDE, 1, cp
    is_part = group.name.startswith("cp_part")
    if operator.kind is not OpKind.P2P:
        return COLLECTIVE, group.num_ranks if is_part or group.name == "cp_group" else cp, cp
    step = parallel.cp_inner if group.name == "cp_ring" else 1
    way = FORWARD_RING if operator.phase in (Phase.FORWARD, Phase.RECOMPUTE) else BACKWARD_RING
    return way, step, group.num_ranks if is_part else cp


@dataclass(frozen=True, eq=False)
class RankedCosts(ShapeCosts):
    """Costs of operators, storages and stages for shapes that are different numbers on every context rank.

    Attributes:
        given: the shapes' own columns, on the rank that is shown. ranks: symbol -> int64[cp, num_shapes].
        shown: int64[num_shapes], that rank. parallel: sizes of the job.
    """

    given: Columns = field(default_factory=dict)
    ranks: Columns = field(default_factory=dict)
    shown: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    parallel: Parallel = field(default_factory=Parallel)

    @classmethod
    def of(
        cls, base: ShapeCosts, given: Columns, ranks: Columns, shown: NDArray[np.int64], parallel: Parallel
    ) -> RankedCosts:
        """Costs whose shapes are numbers on every rank."""
        return cls(base.model, base.symbols, base.idle, base.scope, given, ranks, shown, parallel)

    @property
    def num_ranks(self) -> int:
        """Context ranks."""
        return len(next(iter(self.ranks.values())))

    @property
    def stored(self) -> Columns:
        """The shapes as storages see them: of the rank with most tokens, its own and those that it receives."""
        most = {name: table.max(axis=0) for name, table in self.ranks.items() if is_held(name)}
        return with_rounded({**self.given, **most}, self.model.library.symbols)

    @property
    def exchange(self) -> NDArray[np.int32]:
        """``exchange_of`` every operator of the library: int32[3, num_rows], between whom, spans and turns."""
        library = self.model.library
        every = [exchange_of(*of, self.parallel) for of in zip(library.operators, library.groups, strict=True)]
        return np.array(every, np.int32).reshape(-1, 3).T.copy()

    def latencies_of(self, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
        """As ``ShapeCosts``, on the rank that is shown."""
        result: NDArray[np.float64] = self.latency[shapes]
        return result

    @property
    def latency(self) -> NDArray[np.float64]:
        """float64[num_shapes, num_rows] [s] on the rank that is shown; what all ranks do together takes as long as on
        the rank where it takes longest."""
        every = self.on_ranks
        found = every[self.shown, np.arange(every.shape[1])]
        together = self.exchange[0] > 0
        found[:, together] = every[:, :, together].max(axis=0)
        return self._without_idle(found)

    @property
    def on_ranks(self) -> NDArray[np.float64]:
        """float64[cp, num_shapes, num_rows] [s]."""
        return _ON_RANKS.get(self.scope, (), self._cost)

    def _cost(self) -> NDArray[np.float64]:
        library, ranks = self.model.library, self.num_ranks
        total = num_shapes(self.symbols)
        result = np.empty((ranks, total, len(library.operators)))
        step = max(_TOGETHER // ranks, 1)
        for first in range(0, total, step):
            some = slice(first, min(first + step, total))
            columns = {name: np.tile(column[some], ranks) for name, column in self.given.items()}
            columns |= {name: table[:, some].ravel() for name, table in self.ranks.items()}
            evaluated = library.evaluate(with_rounded(columns, library.symbols), size_rows=np.zeros(0, np.int64))
            result[:, some] = self.model.latencies(evaluated).T.reshape(ranks, -1, len(library.operators))
        if self.idle >= 0:
            result[:, self.idle] = 0.0
        return result

    def stage(self, program: StageProgram) -> StageCosts:
        """A stage on all ranks together, for every shape."""
        return self._joint(program)[0]

    def waits(self, program: StageProgram, shape: int) -> NDArray[np.float64]:
        """When the rank that is shown may begin each operator, after the stage's beginning: float64[num_ops] [s]."""
        found: NDArray[np.float64] = self._joint(program)[1][shape]
        return found

    def ends(self, program: StageProgram, shapes: Sequence[int]) -> list[NDArray[np.float64]]:
        """As ``ShapeCosts``, with what the rank waits for others."""
        latency = self.latency
        return [program.times(latency[shape], self.waits(program, shape))[1] for shape in shapes]

    def expanded(self, program: StageProgram, shape: int) -> ExpandedStage:
        """As ``ShapeCosts``, with what the rank waits for others."""
        return program.expand(self.latency[shape], self.size[shape], self.waits(program, shape))

    def _joint(self, program: StageProgram) -> tuple[StageCosts, NDArray[np.float64]]:
        return _JOINT.get(self.scope, program, lambda: self._find(program))

    def _find(self, program: StageProgram) -> tuple[StageCosts, NDArray[np.float64]]:
        from semu.masks.kernels import time_ranks

        total, ops = num_shapes(self.symbols), program.num_ops
        exchange, span, turn = np.ascontiguousarray(self.exchange[:, program.rows])
        shared = np.flatnonzero(exchange)
        groups = self.model.library.groups
        ways = [op for op in shared.tolist() if is_context(groups[program.rows[op]])] or shared.tolist()
        stream = int(program.stream[ways[0]]) if ways else 0
        latency, exposed = np.zeros(total), np.zeros((total, program.num_streams))
        peak, net, peak_op = np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total, np.int32)
        waits = np.zeros((total, ops))
        costs, sizes, own = self.on_ranks, self.size, self.latency
        start, end = np.zeros((self.num_ranks, ops)), np.zeros((self.num_ranks, ops))
        for shape in range(total):
            each = np.ascontiguousarray(costs[:, shape][:, program.rows])
            time_ranks(each, program.graph, exchange, span, turn, start, end)
            waits[shape, shared] = start[self.shown[shape], shared]
            latency[shape] = end.max(initial=0.0)
            begin, done, alone, seen = program.timed(own[shape][program.rows], waits[shape])
            exposed[shape] = seen
            exposed[shape, stream] += latency[shape] - alone
            peak[shape], net[shape], peak_op[shape] = _memory(program, begin, done, sizes[shape])
        return StageCosts(latency, exposed, peak, net, peak_op), waits


def _memory(
    program: StageProgram, start: NDArray[np.float64], end: NDArray[np.float64], size: NDArray[np.int64]
) -> tuple[int, int, int]:
    from semu.compile.kernels import memory_of_stage

    none = np.zeros(0), np.zeros((0, 0), np.int64)
    return memory_of_stage(start, end, program.storages, size[program.size_row], program.role, *none)[:3]


def ranked_stage_costs(programs: Sequence[StageProgram], by_shape: RankedCosts) -> list[StageCosts]:
    """Costs of stages on all context ranks together."""
    return [by_shape.stage(program) for program in programs]

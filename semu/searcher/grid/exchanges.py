"""``ExchangeFloors``: what ZeRO-2 and ZeRO-3 exchange inside stages takes at least.

Under ZeRO-3 a stage gathers the parameters of each block before the block, in turn, and reduces its gradients behind
it. Gathers and reductions of a communicator take turns, and at most one gather runs ahead of the blocks. So a forward
stage takes at least as long as its blocks with the first gather before them, and as all gathers with the last block
behind them; a backward stage too, each with the last reduction behind, and as all gathers and reductions. Under ZeRO-2
gradients are reduced in buckets, which no latency is counted of.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.costs.roofline import CostModel
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup, wire_factor
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.records import dataclass
from semu.searcher.grid.columns import F64, I64, running_sums

LEAST = 1 - 1e-9
"""Of a time, what is left for sums to be rounded."""


@dataclass(frozen=True)
class ExchangedBytes:
    """What the units of blocks move: int64[2, num_blocks] each, all else and routed experts.

    Of blocks with a parameter that others use too nothing counts: it is a unit of its own where they are together.

    Attributes:
        gathered, reduced: parameters before and gradients behind a block [bytes]. has_backward: bool[num_blocks].
    """

    gathered: I64
    reduced: I64
    has_backward: NDArray[np.bool_]

    @cached_property
    def content(self) -> bytes:
        """The same for blocks that move as much."""
        return self.gathered.tobytes() + self.reduced.tobytes() + self.has_backward.tobytes()


class StageExchanges(NamedTuple):
    """What the exchanges of every chunk take at least, for one microbatch: float64[..., num_chunks] each [s].

    Attributes:
        first: the gather before the first block of a forward. gathers: all of a forward. closed: those that the last
            block of a forward waits for.
        back_first, back_closed: as ``first`` and ``closed``, of a backward. back_sum: its gathers and reductions.
        back_last: the gathers that its last block waits for, and the reduction behind that block.
        behind: the reduction behind a backward's last block, where the block ends all else. reductions: all.
    """

    first: F64
    gathers: F64
    closed: F64
    back_first: F64
    back_closed: F64
    back_sum: F64
    back_last: F64
    behind: F64
    reductions: F64

    def forward_s(self, blocks_s: F64, last_s: F64, count: I64 | int = 1) -> F64:
        """Forwards of a number of microbatches at least [s]; ``blocks_s``: without exchanges, of all of them;
        ``last_s``: of the last block, of one."""
        least: F64 = np.maximum(blocks_s + count * self.first, count * self.gathers)
        return np.maximum(least, count * (self.closed + last_s))

    def backward_s(self, blocks_s: F64, last_s: F64, count: I64) -> F64:
        """Backwards, as ``forward_s``, with the reductions behind them."""
        least: F64 = np.maximum(blocks_s + count * (self.back_first + self.behind), count * self.back_sum)
        return np.maximum(least, count * (self.back_last + last_s))

    def handing_on_s(self, blocks_s: F64, last_s: F64) -> F64:
        """One backward until its gradient is handed on; reductions may still run."""
        least: F64 = np.maximum(blocks_s + self.back_first, self.back_closed + last_s)
        return least


class _Running(NamedTuple):
    """One kind of parameters on the ranks of a pipeline: float64[num_groups, num_blocks] [s], and running sums over the
    blocks.

    Attributes:
        gather, back, reduce: of every block, before its forward, before its backward, behind that.
        gathers, backs, reductions: sums. idle, back_idle: how many blocks have no gather. of_rank: whose group.
    """

    gather: F64
    back: F64
    reduce: F64
    gathers: F64
    backs: F64
    reductions: F64
    idle: F64
    back_idle: F64
    of_rank: I64


class ExchangeFloors:
    """Least times of exchanges in the configurations of one job; what they share is found once."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        training = job.training
        self._is_plain = training.offload is None and not training.overlap.expert_parallel
        self._is_serial = not job.overlaps_tensor_parallel
        self._groups: dict[tuple[object, ...], dict[int, tuple[CommGroup, ...]]] = {}
        self._known: dict[tuple[object, ...], _Running] = {}

    def of(
        self, parallel: Parallel, model: CostModel, moved: ExchangedBytes, first: I64, last: I64, rank: I64
    ) -> StageExchanges | None:
        """The exchanges of all chunks; None: nothing is known of them, or there are none.

        Args:
            parallel: the configuration's. model: its prices. moved: by its blocks.
            first, last, rank: int64[num_chunks], the blocks of the chunks among all, and where they are.
        """
        is_known = parallel.zero == 2 or (parallel.zero == 3 and parallel.reshard_after_forward)
        if not (is_known and self._is_plain) or parallel.modules or parallel.copies > 1:
            return None
        found = []
        for kind, groups in self._groups_of(parallel).items():
            own = self._running(kind, groups, parallel, model, moved)
            found.append(_of_chunks(own, first, last, own.of_rank[rank], is_serial=self._is_serial))
        if not found:
            return None
        return StageExchanges(*(np.max(column, axis=0) for column in zip(*found, strict=True)))

    def _groups_of(self, parallel: Parallel) -> dict[int, tuple[CommGroup, ...]]:
        """Over which ranks all else (0) and experts (1) are sharded, on every pipeline rank."""
        p = parallel
        key = p.dp, p.tp, p.pp, p.cp, p.ep, p.zero_group, p.expert_tensor_ranks
        if key not in self._groups:
            mesh, found = Mesh(parallel, self._job.cluster), {}
            if p.gradient_ranks > 1:
                found[0] = tuple(map(mesh.shard_group, range(p.pp)))
            if p.expert_data_ranks > 1:
                found[1] = tuple(map(mesh.expert_shard_group, range(p.pp)))
            self._groups[key] = found
        return self._groups[key]

    def _running(
        self, kind: int, groups: tuple[CommGroup, ...], parallel: Parallel, model: CostModel, moved: ExchangedBytes
    ) -> _Running:
        """Times of one kind of parameters on every block."""
        is_kept, zero = parallel.pp == 1, parallel.zero  # then the model's last block may stay gathered
        key = kind, groups, zero, is_kept, moved.content
        if key not in self._known:
            distinct = [*dict.fromkeys(groups)]
            gather, reduce = np.zeros((2, len(distinct), len(moved.has_backward)))
            for row, group in enumerate(distinct):
                if zero == 3:
                    gather[row] = _times(model, OpKind.ALL_GATHER, group, moved.gathered[kind])
                    reduce[row] = _times(model, OpKind.REDUCE_SCATTER, group, moved.reduced[kind])
                else:
                    reduce[row] = _transfer_s(model, OpKind.REDUCE_SCATTER, group, moved.reduced[kind])
            back = np.where(moved.has_backward, gather, 0.0)
            if is_kept:
                back[:, -1] = 0.0
            reduce = np.where(moved.has_backward, reduce, 0.0)
            gathers, backs, reductions, idle, back_idle = map(
                running_sums, (gather, back, reduce, gather == 0.0, back == 0.0)
            )
            of_rank = np.array([*map(distinct.index, groups)])
            self._known[key] = _Running(gather, back, reduce, gathers, backs, reductions, idle, back_idle, of_rank)
        return self._known[key]


def _of_chunks(own: _Running, first: I64, last: I64, row: I64, *, is_serial: bool) -> StageExchanges:
    """Of one kind; arguments as ``ExchangeFloors.of``, and the chunks' groups."""
    gathers, backs, reductions, idle, back_idle = (
        sums[row, last] - sums[row, first] for sums in (own.gathers, own.backs, own.reductions, own.idle, own.back_idle)
    )
    back_closed, reduced = np.where(own.back[row, first] > 0.0, backs, 0.0), own.reduce[row, first]
    return StageExchanges(
        first=np.where(idle == 0, own.gather[row, first], 0.0),
        gathers=gathers,
        closed=np.where(own.gather[row, last - 1] > 0.0, gathers, 0.0),
        back_first=np.where(back_idle == 0, own.back[row, last - 1], 0.0),
        back_closed=back_closed,
        back_sum=backs + reductions,
        back_last=back_closed + reduced,
        behind=reduced if is_serial else np.zeros_like(reduced),
        reductions=reductions,
    )


def _wire(kind: OpKind, group: CommGroup, moved: I64) -> I64:
    factor = wire_factor(kind, group.num_ranks)
    wire: I64 = moved * factor.numerator // factor.denominator
    return wire


def _times(model: CostModel, kind: OpKind, group: CommGroup, moved: I64) -> F64:
    """Collectives over buffers of some sizes [s]."""
    found: F64 = model.outer_latency(kind, "", group=group, net_bytes=_wire(kind, group, moved))
    return found * LEAST


def _transfer_s(model: CostModel, kind: OpKind, group: CommGroup, moved: I64) -> F64:
    """What buffers add to a collective over several of them at least [s]: no latency."""
    rate = max(way.bytes_per_s for way in model.link_cost(kind, group).protocols)
    added: F64 = _wire(kind, group, moved).astype(np.float64) * (LEAST / rate)
    return added

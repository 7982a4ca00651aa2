"""``ProblemArrays``: the arrays of a search problem, and what follows from them."""

from __future__ import annotations

from dataclasses import fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.records import dataclass

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I16 = NDArray[np.int16]
U8 = NDArray[np.bool_]
_TOPOLOGICAL = memo.Table["I32"]("stages of a search problem in topological order, by its graph", 64, is_large=True)


@dataclass(frozen=True, eq=False)
class ProblemArrays:
    """What must run, what it may cost and what memory there is.

    Attributes:
        rank: int16[n], of each pair. has_backward: bool[n].
        module, microbatch, part, slot, chunk: int32[n], labels; part = sub-microbatch within the microbatch.
        group: int32[n], the segment group: all pairs of one module in one microbatch (002 §5.1: equal priority).
        segment: int32[n], the forward segment; those of a group run by (part, slot), backwards by (part, -slot).
        num_candidates: int16[n], at least 1; column 0 is the leanest, the last one the fastest, later ones repeat it.
        forward_s, backward_s: float64[n, S] [s], on the time grid; 0 for a backward that does not exist.
        held_bytes: int64[n, S], from the start of the forward to the end of the backward; 0 without one.
        forward_peak_bytes, backward_peak_bytes: int64[n, S], the highest of a stage above what its rank held before
            it began; a forward's is at least what is held.
        pred_ptr, pred: CSR predecessors of the 2n stages, int32: F of F, own F of B, B of B.
        transfer_s: float64[num_edges] [s], by ``pred``: how long the send takes, 0 within a rank. Sends between one
            directed pair of ranks go one after another in the order of their producers, those of one producer in the
            order of their consumers' numbers.
        static_bytes, limit_bytes: int64[num_ranks], what is always there; what the rank has (``NO_LIMIT``: enough).
        module_names: for people.
    """

    rank: I16
    has_backward: U8
    module: I32
    microbatch: I32
    part: I32
    slot: I32
    chunk: I32
    group: I32
    segment: I32
    num_candidates: I16
    forward_s: F64
    backward_s: F64
    held_bytes: I64
    forward_peak_bytes: I64
    backward_peak_bytes: I64
    pred_ptr: I32
    pred: I32
    transfer_s: F64
    static_bytes: I64
    limit_bytes: I64
    module_names: tuple[str, ...]

    def __getstate__(self) -> dict[str, object]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # copies begin without what follows

    @property
    def num_pairs(self) -> int:
        """n."""
        return len(self.rank)

    @property
    def num_stages(self) -> int:
        """Stage numbers: 2n, those of backwards that do not exist among them."""
        return 2 * len(self.rank)

    @property
    def num_ranks(self) -> int:
        """P."""
        return len(self.limit_bytes)

    @cached_property
    def num_groups(self) -> int:
        """Segment groups."""
        return int(self.group.max(initial=-1)) + 1

    @cached_property
    def joint(self) -> I32:
        """int32[n], from 0 on: microbatches whose stages need one another's, as those of deferred samples do, have one
        number; others have their own."""
        _, number = np.unique(self.microbatch, return_inverse=True)
        found = number.reshape(-1).astype(np.int32)
        ends = np.unique(np.stack([found[end // 2] for end in self.edges], axis=1), axis=0)
        ends = ends[ends[:, 0] != ends[:, 1]]
        if not len(ends):
            return found
        first = np.arange(int(found.max()) + 1)
        while (first[ends[:, 0]] != first[ends[:, 1]]).any():
            least = first[ends].min(axis=1)
            np.minimum.at(first, ends[:, 0], least)
            np.minimum.at(first, ends[:, 1], least)
        return np.unique(first[found], return_inverse=True)[1].reshape(-1).astype(np.int32)

    @cached_property
    def exists(self) -> U8:
        """bool[2n], whether a stage runs."""
        found = np.ones((self.num_pairs, 2), dtype=np.bool_)
        found[:, 1] = self.has_backward
        return found.reshape(-1)

    @cached_property
    def stage_rank(self) -> I16:
        """int16[2n]."""
        return np.repeat(self.rank, 2)

    @cached_property
    def rank_ptr(self) -> I64:
        """int64[P + 1], the first stage of each rank in orders that are written rank after rank."""
        count = np.bincount(self.stage_rank[self.exists], minlength=self.num_ranks)
        return np.concatenate(([0], np.cumsum(count))).astype(np.int64)

    @cached_property
    def edges(self) -> tuple[I64, I64]:
        """Of every edge, the stage that must end and the one that waits: int64[num_edges] each."""
        return self.pred.astype(np.int64), np.repeat(np.arange(self.num_stages), np.diff(self.pred_ptr))

    @cached_property
    def topological(self) -> I32:
        """All stages that exist, each after its predecessors: int32[num existing stages]."""
        graph = memo.Same((self.pred_ptr, self.pred, self.has_backward))  # problems of one graph differ in costs
        return _TOPOLOGICAL.get(graph, self._find_topological)

    def _find_topological(self) -> I32:
        before, after = self.edges
        waiting = np.diff(self.pred_ptr).tolist()
        readers: list[list[int]] = [[] for _ in range(self.num_stages)]
        for source, target in zip(before.tolist(), after.tolist(), strict=True):
            readers[source].append(target)
        found = [stage for stage in np.flatnonzero(self.exists).tolist() if not waiting[stage]]
        for stage in found:
            for reader in readers[stage]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    found.append(reader)
        return np.array(found, dtype=np.int32)

    def costs_of(self, choice: I16 | None = None) -> tuple[F64, I64, I64]:
        """What the stages cost under a choice of candidates.

        Args:
            choice: int16[n], columns; None: the leanest ones.
        Returns:
            times float64[2n] [s]; held bytes int64[n]; peaks int64[2n] [bytes].
        """
        at = (np.arange(self.num_pairs), np.zeros(self.num_pairs, dtype=np.int16) if choice is None else choice)
        latency = np.stack((self.forward_s[at], self.backward_s[at]), axis=1).reshape(-1)
        peak = np.stack((self.forward_peak_bytes[at], self.backward_peak_bytes[at]), axis=1).reshape(-1)
        return latency, self.held_bytes[at], peak

    def name_of(self, stage: int) -> str:
        """A stage for people: ``LM backward, microbatch 3, part 0, slot 1, rank 2``."""
        i, phase = divmod(int(stage), 2)
        return (
            f"{self.module_names[self.module[i]]} {'backward' if phase else 'forward'}, microbatch "
            f"{self.microbatch[i]}, part {self.part[i]}, slot {self.slot[i]}, rank {self.rank[i]}"
        )

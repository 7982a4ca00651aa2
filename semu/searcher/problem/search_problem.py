"""``SearchProblem``, all that the searcher knows of a batch, and ``Solution``, what it found: plain arrays.

A *pair* is the forward stage of a chunk for one (sub-)microbatch with its backward stage, where it has one. Pair ``i``
has the stages ``2i`` (forward) and ``2i + 1`` (backward). A pair may run in one of several ways, its candidates, which
trade time for memory (002 §5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.errors import ConfigError
from semu.searcher.problem.checks import COSTS, TYPES, check_problem, typed_array
from semu.units import TIME_GRID_PER_S

if TYPE_CHECKING:
    from semu.schedule.graph import PipelineGraph
    from semu.schedule.study import PipelineStudy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I16 = NDArray[np.int16]
U8 = NDArray[np.bool_]

NO_LIMIT = 1 << 60
"""Bytes that no rank reaches: a limit that never binds."""


@dataclass(frozen=True, eq=False)
class SearchProblem:
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

    @classmethod
    def of(cls, *, module_names: Sequence[str] = (), **arrays: ArrayLike) -> SearchProblem:
        """Checked arrays, in the types above; arguments as the attributes.

        Times are put on the time grid. One column of candidates may be given as a vector.

        Raises:
            ConfigError: an array that is missing, of another shape, or with impossible numbers (the first is named).
            ScheduleError: predecessors that no pipeline has, or that go in a circle.
        """
        types = {item.name: TYPES[item.name] for item in fields(cls) if item.name in TYPES}
        for name in [*arrays, *types]:
            if name not in arrays or name not in types:
                raise ConfigError(
                    "not an array of a search problem" if name in arrays else "an array is missing",
                    where=name,
                    expected=", ".join(types),
                )
        found: dict[str, Any] = {name: typed_array(name, arrays[name], kind) for name, kind in types.items()}
        for name in COSTS:
            found[name] = found[name][:, None] if found[name].ndim == 1 else found[name]
        for name in ("forward_s", "backward_s", "transfer_s"):
            found[name] = np.rint(found[name] * TIME_GRID_PER_S) / TIME_GRID_PER_S
        names = tuple(module_names) or tuple(f"module {i}" for i in range(int(found["module"].max(initial=-1)) + 1))
        problem = cls(**found, module_names=names)
        check_problem(problem)
        return problem

    @classmethod
    def from_study(
        cls, study: PipelineStudy, *, limit_bytes: ArrayLike = NO_LIMIT, static_bytes: ArrayLike = 0
    ) -> SearchProblem:
        """A pipeline on plain numbers, whose stages have one candidate each; backwards are whole.

        Args:
            study: shape and costs. limit_bytes, static_bytes: one number, or one per rank [bytes].
        """
        graph, costs, num_ranks = study.arrays, study.costs, study.shape.num_ranks
        pairs = np.flatnonzero(graph.exists)
        backward = np.where(graph.has_backward[pairs], 4 * pairs + 1, -1)
        return cls.on(
            graph,
            num_candidates=np.ones(len(pairs), dtype=np.int16),
            forward_s=costs.latency_s[4 * pairs],
            backward_s=np.where(backward >= 0, costs.latency_s[backward], 0.0),
            held_bytes=costs.delta_bytes[4 * pairs],
            forward_peak_bytes=costs.internal_bytes[4 * pairs],
            backward_peak_bytes=np.where(backward >= 0, costs.internal_bytes[backward], 0),
            transfer_s=study.delay_s[graph.pair_edges.place],
            static_bytes=np.broadcast_to(np.asarray(static_bytes), num_ranks),
            limit_bytes=np.broadcast_to(np.asarray(limit_bytes), num_ranks),
        )

    @classmethod
    def on(cls, graph: PipelineGraph, **costs: ArrayLike) -> SearchProblem:
        """The pairs of a pipeline that exist; backwards are whole.

        Args:
            graph: the pipeline; pair ``i`` is the i-th that exists.
            costs: the attributes from ``num_candidates`` on, but ``pred_ptr`` and ``pred``.
        """
        pairs, edges = np.flatnonzero(graph.exists), graph.pair_edges
        groups = np.stack((graph.microbatch, graph.module), axis=1)[pairs]
        return cls.of(
            rank=graph.rank[pairs],
            has_backward=graph.has_backward[pairs],
            module=graph.module[pairs],
            microbatch=graph.microbatch[pairs],
            part=graph.sub_microbatch[pairs],
            slot=np.array(graph.shape.chunk_slot)[graph.chunk[pairs]],
            chunk=graph.chunk[pairs],
            group=np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1),
            segment=np.unique(graph.segment[pairs], return_inverse=True)[1],
            pred_ptr=edges.ptr,
            pred=edges.pred,
            module_names=tuple(dict.fromkeys(graph.shape.chunk_module)),
            **costs,
        )

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

    def to_json(self) -> str:
        """As text; pairs that cost the same share one entry of ``costs``."""
        from semu.searcher.problem.json_form import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str, where: str = "search problem") -> SearchProblem:
        """Read what ``to_json`` wrote.

        Raises:
            ConfigError: something else; ``where`` names the file.
        """
        from semu.searcher.problem.json_form import from_json

        return from_json(text, where)


@dataclass(frozen=True, eq=False)
class Solution:
    """A schedule of a search problem.

    Attributes:
        ptr: int64[P + 1], first stage of each rank. order: int32[num existing stages], rank after rank.
        choice: int16[n], candidate of each pair. start_s, end_s: float64[2n] [s], NaN where a stage does not exist.
        makespan_s: end of the last stage [s]. peak_bytes: int64[P], with static memory.
        lower_bound_s: no schedule ends before [s]; 0 where nobody has asked.
    """

    ptr: I64
    order: I32
    choice: I16
    start_s: F64
    end_s: F64
    makespan_s: float
    peak_bytes: I64
    lower_bound_s: float = 0.0

    @property
    def gap(self) -> float:
        """Makespan over the lower bound, less one; infinite without a bound."""
        if self.lower_bound_s > 0:
            return self.makespan_s / self.lower_bound_s - 1.0
        return 0.0 if self.makespan_s == 0 else float("inf")

    def orders(self) -> list[I32]:
        """Per rank, its stages in order."""
        return [self.order[a:b] for a, b in pairwise(self.ptr.tolist())]

"""``SearchProblem``, all that the searcher knows of a batch, and ``Solution``, what it found: plain arrays.

A *pair* is the forward stage of a chunk for one (sub-)microbatch with its backward stage, where it has one. Pair ``i``
has the stages ``2i`` (forward) and ``2i + 1`` (backward). A pair may run in one of several ways, its candidates, which
trade time for memory (002 §5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import ConfigError
from semu.records import dataclass
from semu.searcher.problem.checks import COSTS, TYPES, check_problem, typed_array
from semu.searcher.problem.json_form import arrays_of_json, json_of
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64, ProblemArrays
from semu.units import TIME_GRID_PER_S

if TYPE_CHECKING:
    from semu.schedule.graph import PipelineGraph

NO_LIMIT = 1 << 60
"""Bytes that no rank reaches: a limit that never binds."""


@dataclass(frozen=True, eq=False)
class SearchProblem(ProblemArrays):
    """What must run, what it may cost and what memory there is; its attributes are those of ``ProblemArrays``."""

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

    def to_json(self) -> str:
        """As text; pairs that cost the same share one entry of ``costs``."""
        return json_of(self)

    @classmethod
    def from_json(cls, text: str, where: str = "search problem") -> SearchProblem:
        """Read what ``to_json`` wrote.

        Raises:
            ConfigError: something else; ``where`` names the file.
        """
        names, arrays = arrays_of_json(text, where)
        return cls.of(module_names=names, **arrays)


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

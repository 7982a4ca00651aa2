"""``SearchProblem``, all that the searcher knows of a batch, and ``Solution``, what it found: plain arrays.

A *pair* is the forward stage of a chunk for one (sub-)microbatch with its backward stage, where it has one. Pair ``i``
has the stages ``2i`` (forward) and ``2i + 1`` (backward). A pair may run in one of several ways, its candidates, which
trade time for memory (002 §5.3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semu.errors import ConfigError, ScheduleError
from semu.units import TIME_GRID_PER_S

if TYPE_CHECKING:
    from semu.schedule.study import PipelineStudy

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I16 = NDArray[np.int16]
U8 = NDArray[np.bool_]

NO_LIMIT = 1 << 60
"""Bytes that no rank reaches: a limit that never binds."""
_LABELS = ("module", "microbatch", "part", "slot", "chunk", "group", "segment")
_COSTS = ("forward_s", "backward_s", "held_bytes", "forward_peak_bytes", "backward_peak_bytes")
_FORMAT = "semu search problem 1"


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
        types = {item.name: _TYPES[item.name] for item in fields(cls) if item.name in _TYPES}
        for name in [*arrays, *types]:
            if name not in arrays or name not in types:
                raise ConfigError(
                    "not an array of a search problem" if name in arrays else "an array is missing",
                    where=name,
                    expected=", ".join(types),
                )
        found: dict[str, Any] = {name: _array(name, arrays[name], kind) for name, kind in types.items()}
        for name in _COSTS:
            found[name] = found[name].reshape(len(found["rank"]), -1) if found[name].ndim < 2 else found[name]
        for name in ("forward_s", "backward_s", "transfer_s"):
            found[name] = np.rint(found[name] * TIME_GRID_PER_S) / TIME_GRID_PER_S
        names = tuple(module_names) or tuple(f"module {i}" for i in range(int(found["module"].max(initial=-1)) + 1))
        problem = cls(**found, module_names=names)
        _check(problem)
        return problem

    @classmethod
    def from_study(
        cls, study: PipelineStudy, *, limit_bytes: ArrayLike = NO_LIMIT, static_bytes: ArrayLike = 0
    ) -> SearchProblem:
        """A pipeline on plain numbers, whose stages have one candidate each; backwards are whole.

        Args:
            study: shape and costs. limit_bytes, static_bytes: one number, or one per rank [bytes].
        """
        arrays, costs, shape = study.arrays, study.costs, study.shape
        pairs = np.flatnonzero(arrays.exists)
        number = np.full(arrays.num_pairs, -1, dtype=np.int64)
        number[pairs] = np.arange(len(pairs))
        reader = np.repeat(np.arange(arrays.num_stages), np.diff(arrays.pred_ptr))
        kept = (reader % 4 <= 1) & (arrays.pred % 4 <= 1)
        before, after, sent = arrays.pred[kept], reader[kept], study.delay_s[kept]
        pred = 2 * number[before // 4] + before % 4
        stage = 2 * number[after // 4] + after % 4
        order = np.lexsort((pred, stage))
        costs_of = {
            "forward_s": costs.latency_s[4 * pairs],
            "backward_s": np.where(arrays.has_backward[pairs], costs.latency_s[4 * pairs + 1], 0.0),
            "held_bytes": costs.delta_bytes[4 * pairs],
            "forward_peak_bytes": costs.internal_bytes[4 * pairs],
            "backward_peak_bytes": np.where(arrays.has_backward[pairs], costs.internal_bytes[4 * pairs + 1], 0),
        }
        _, group = np.unique(np.stack((arrays.microbatch, arrays.module), 1)[pairs], axis=0, return_inverse=True)
        return cls.of(
            rank=arrays.rank[pairs],
            has_backward=arrays.has_backward[pairs],
            module=arrays.module[pairs],
            microbatch=arrays.microbatch[pairs],
            part=arrays.sub_microbatch[pairs],
            slot=np.array(shape.chunk_slot)[arrays.chunk[pairs]],
            chunk=arrays.chunk[pairs],
            group=group.reshape(-1),
            segment=np.unique(arrays.segment[pairs], return_inverse=True)[1],
            num_candidates=np.ones(len(pairs), dtype=np.int16),
            pred_ptr=np.concatenate(([0], np.cumsum(np.bincount(stage, minlength=2 * len(pairs))))),
            pred=pred[order],
            transfer_s=sent[order],
            static_bytes=np.broadcast_to(np.asarray(static_bytes), shape.num_ranks),
            limit_bytes=np.broadcast_to(np.asarray(limit_bytes), shape.num_ranks),
            module_names=tuple(dict.fromkeys(shape.chunk_module)),
            **costs_of,
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
        rows = np.concatenate(
            [getattr(self, name).astype(object) for name in _COSTS] + [self.num_candidates[:, None].astype(object)], 1
        )
        table: dict[tuple[Any, ...], int] = {}
        kinds = [table.setdefault(tuple(row), len(table)) for row in rows.tolist()]
        width = self.forward_s.shape[1]
        costs = []
        for row in table:
            columns = {name: list(row[i * width : i * width + row[-1]]) for i, name in enumerate(_COSTS)}
            costs.append(columns)
        plain = ("rank", *_LABELS, "pred_ptr", "pred", "transfer_s", "static_bytes", "limit_bytes")
        body: dict[str, Any] = {"format": _FORMAT, "module_names": list(self.module_names)}
        body |= {name: getattr(self, name).tolist() for name in plain}
        body |= {"has_backward": self.has_backward.astype(int).tolist(), "costs_of": kinds, "costs": costs}
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str = "search problem") -> SearchProblem:
        """Read what ``to_json`` wrote.

        Raises:
            ConfigError: something else.
        """
        try:
            body = json.loads(text)
            if not isinstance(body, Mapping) or body.get("format") != _FORMAT:
                raise ValueError("another format")
            width = max((len(row["held_bytes"]) for row in body["costs"]), default=1)
            kinds = np.array(body["costs_of"], dtype=np.int64)
            arrays: dict[str, Any] = {name: body[name] for name in ("rank", "has_backward", *_LABELS)}
            arrays |= {name: body[name] for name in ("pred_ptr", "pred", "transfer_s", "static_bytes", "limit_bytes")}
            for name in _COSTS:
                rows = [row[name] + row[name][-1:] * (width - len(row[name])) for row in body["costs"]]
                arrays[name] = np.array(rows).reshape(len(rows), width)[kinds]
            counts = np.array([len(row["held_bytes"]) for row in body["costs"]], dtype=np.int16)
            arrays["num_candidates"] = counts[kinds]
            names = [str(name) for name in body["module_names"]]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ConfigError(f"not a search problem: {error}", where=where, expected=_FORMAT) from error
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


_TYPES: dict[str, Any] = {
    "rank": np.int16,
    "has_backward": np.bool_,
    **dict.fromkeys(_LABELS, np.int32),
    "num_candidates": np.int16,
    "forward_s": np.float64,
    "backward_s": np.float64,
    "held_bytes": np.int64,
    "forward_peak_bytes": np.int64,
    "backward_peak_bytes": np.int64,
    "pred_ptr": np.int32,
    "pred": np.int32,
    "transfer_s": np.float64,
    "static_bytes": np.int64,
    "limit_bytes": np.int64,
}


def _array(name: str, values: ArrayLike, kind: Any) -> Any:
    try:
        given = np.asarray(values)
        found = np.array(given, dtype=kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError("not numbers", where=name, expected=f"an array of {np.dtype(kind)}", got=values) from error
    wanted = np.array(given, dtype=np.float64) if given.size else found
    if not np.all(np.isfinite(wanted)) or np.any(wanted < 0) or not np.array_equal(found, wanted):
        raise ConfigError("an impossible number", where=name, expected=f"{np.dtype(kind)} >= 0")
    return np.ascontiguousarray(found)


def _check(problem: SearchProblem) -> None:
    """Refuse what no pipeline has; see ``SearchProblem.of``."""
    n, ranks = problem.num_pairs, problem.num_ranks
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("rank", "has_backward", *_LABELS, "num_candidates"), (n,))
    shapes |= dict.fromkeys(_COSTS, (n, max(1, problem.forward_s.shape[-1])))
    shapes |= {"static_bytes": (ranks,), "limit_bytes": (ranks,), "pred_ptr": (2 * n + 1,)}
    shapes |= {"transfer_s": problem.pred.shape}
    for name, shape in shapes.items():
        if getattr(problem, name).shape != shape:
            raise ConfigError("another shape", where=name, expected=str(shape), got=getattr(problem, name).shape)

    def refuse(bad: U8, message: str, where: str, expected: str) -> None:
        if np.any(bad):
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            got = getattr(problem, where)[at]
            raise ConfigError(message, where=f"{where}[{', '.join(map(str, at))}]", expected=expected, got=got)

    width = problem.forward_s.shape[1]
    refuse(problem.rank >= ranks, "no such rank", "rank", f"below {ranks}")
    refuse(problem.module >= len(problem.module_names), "no such module", "module", str(problem.module_names))
    refuse(
        (problem.num_candidates < 1) | (problem.num_candidates > width), "not a count", "num_candidates", f"1..{width}"
    )
    last = (np.arange(n), problem.num_candidates - 1)
    for name in _COSTS:
        values = getattr(problem, name)
        unused = np.arange(width) >= problem.num_candidates[:, None]
        refuse(unused & (values != values[last][:, None]), "an unused column", name, "the last candidate's number")
    back = problem.has_backward[:, None]
    for name in ("backward_s", "held_bytes", "backward_peak_bytes"):
        refuse(~back & (getattr(problem, name) > 0), "a cost of a backward that does not exist", name, "0")
    refuse(problem.forward_peak_bytes < problem.held_bytes, "less than is held", "forward_peak_bytes", "held_bytes")
    falls = np.diff(problem.held_bytes, axis=1, prepend=0) < 0
    refuse(falls, "candidates in another order", "held_bytes", "rising from the leanest on")
    rises = np.diff(problem.forward_s + problem.backward_s, axis=1, prepend=np.inf) > 0
    refuse(rises, "a candidate with more memory and more time", "forward_s", "times that fall as memory rises")
    first = np.full(problem.num_groups, -1, dtype=np.int64)
    first[problem.group[::-1]] = np.arange(n)[::-1]
    of = first[problem.group]
    refuse(
        (problem.module != problem.module[of]) | (problem.microbatch != problem.microbatch[of]),
        "a group of several modules or microbatches",
        "group",
        "one module in one microbatch",
    )
    _check_edges(problem)


def _check_edges(problem: SearchProblem) -> None:
    """Refuse predecessors that no pipeline has."""
    n, ptr = problem.num_pairs, problem.pred_ptr
    if ptr[0] != 0 or np.any(np.diff(ptr) < 0) or ptr[-1] != len(problem.pred):
        raise ScheduleError("not a CSR", where="pred_ptr", expected=f"rising from 0 to {len(problem.pred)}")
    if np.any(problem.pred >= 2 * n):
        raise ScheduleError("no such stage", where="pred", expected=f"below {2 * n}", got=int(problem.pred.max()))
    before, after = problem.edges
    own = before == after - 1
    wrong = ~problem.exists[before] | ~problem.exists[after] | ((before % 2 != after % 2) & ~(own & (after % 2 == 1)))
    if np.any(wrong):
        e = int(np.argmax(wrong))
        expected = "F before F, B before B, F before its own B, all of which exist"
        raise ScheduleError("an impossible edge", where=f"pred[{e}]", expected=expected, got=f"{before[e]} {after[e]}")
    if np.count_nonzero(own & (after % 2 == 1)) != np.count_nonzero(problem.has_backward):
        raise ScheduleError("a backward without its own forward", where="pred", expected="one such edge per backward")
    within = problem.stage_rank[before] == problem.stage_rank[after]
    if np.any(within & (problem.transfer_s > 0)):
        e = int(np.argmax(within & (problem.transfer_s > 0)))
        raise ScheduleError("a send within a rank", where=f"transfer_s[{e}]", expected="0", got=problem.transfer_s[e])
    if len(problem.topological) != np.count_nonzero(problem.exists):
        raise ScheduleError("stages wait for one another in a circle", where="pred", expected="no circle")

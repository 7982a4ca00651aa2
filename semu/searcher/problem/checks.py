"""What a ``SearchProblem`` must be: types of its arrays, numbers and edges that no pipeline has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import ConfigError, ScheduleError
from semu.searcher.problem.problem_arrays import U8, ProblemArrays

LABELS = ("module", "microbatch", "part", "slot", "chunk", "group", "segment")
COSTS = ("forward_s", "backward_s", "held_bytes", "forward_peak_bytes", "backward_peak_bytes")
TYPES: dict[str, Any] = {
    "rank": np.int16,
    "has_backward": np.bool_,
    **dict.fromkeys(LABELS, np.int32),
    "num_candidates": np.int16,
    **dict.fromkeys(("forward_s", "backward_s", "transfer_s"), np.float64),
    **dict.fromkeys((*COSTS[2:], "static_bytes", "limit_bytes"), np.int64),
    **dict.fromkeys(("pred_ptr", "pred"), np.int32),
}


def typed_array(name: str, values: ArrayLike, kind: Any) -> Any:
    """An array of a type.

    Raises:
        ConfigError: not numbers, negative ones, or such as the type does not hold.
    """
    try:
        given = np.asarray(values)
        found = np.array(given, dtype=kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError("not numbers", where=name, expected=f"an array of {np.dtype(kind)}", got=values) from error
    wanted = np.array(given, dtype=np.float64) if given.size else found
    if not np.all(np.isfinite(wanted)) or np.any(wanted < 0) or not np.array_equal(found, wanted):
        raise ConfigError("an impossible number", where=name, expected=f"{np.dtype(kind)} >= 0")
    return np.ascontiguousarray(found)


def check_problem(problem: ProblemArrays) -> None:
    """Refuse what no pipeline has.

    Raises:
        ConfigError, ScheduleError: see ``SearchProblem.of``.
    """
    n, ranks = problem.num_pairs, problem.num_ranks
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("rank", "has_backward", *LABELS, "num_candidates"), (n,))
    shapes |= dict.fromkeys(COSTS, (n, max(1, problem.forward_s.shape[-1])))
    shapes |= {"static_bytes": (ranks,), "limit_bytes": (ranks,), "pred_ptr": (2 * n + 1,)}
    shapes |= {"transfer_s": problem.pred.shape}
    for name, shape in shapes.items():
        if getattr(problem, name).shape != shape:
            raise ConfigError("another shape", where=name, expected=str(shape), got=getattr(problem, name).shape)

    def _refuse(bad: U8, message: str, where: str, expected: str) -> None:
        if np.any(bad):
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            got = getattr(problem, where)[at]
            raise ConfigError(message, where=f"{where}[{', '.join(map(str, at))}]", expected=expected, got=got)

    width = problem.forward_s.shape[1]
    _refuse(problem.rank >= ranks, "no such rank", "rank", f"below {ranks}")
    _refuse(problem.module >= len(problem.module_names), "no such module", "module", str(problem.module_names))
    _refuse(
        (problem.num_candidates < 1) | (problem.num_candidates > width),
        "not a valid number",
        "num_candidates",
        f"1..{width}",
    )
    last = (np.arange(n), problem.num_candidates - 1)
    for name in COSTS:
        values = getattr(problem, name)
        unused = np.arange(width) >= problem.num_candidates[:, None]
        _refuse(unused & (values != values[last][:, None]), "an unused column", name, "the last candidate's number")
    back = problem.has_backward[:, None]
    for name in ("backward_s", "held_bytes", "backward_peak_bytes"):
        _refuse(~back & (getattr(problem, name) > 0), "a cost of a backward that does not exist", name, "0")
    _refuse(problem.forward_peak_bytes < problem.held_bytes, "less than is held", "forward_peak_bytes", "held_bytes")
    falls = np.diff(problem.held_bytes, axis=1, prepend=0) < 0
    _refuse(falls, "candidates in another order", "held_bytes", "rising from the leanest on")
    rises = np.diff(problem.forward_s + problem.backward_s, axis=1, prepend=np.inf) > 0
    _refuse(rises, "a candidate with more memory and more time", "forward_s", "times that fall as memory rises")
    first = np.full(problem.num_groups, -1, dtype=np.int64)
    first[problem.group[::-1]] = np.arange(n)[::-1]
    of = first[problem.group]
    _refuse(
        (problem.module != problem.module[of]) | (problem.microbatch != problem.microbatch[of]),
        "a group of several modules or microbatches",
        "group",
        "one module in one microbatch",
    )
    _check_edges(problem)


def _check_edges(problem: ProblemArrays) -> None:
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

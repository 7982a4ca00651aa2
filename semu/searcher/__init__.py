"""The searcher: schedules made for the batch at hand (002 §5, 000 §6).

``SearchProblem`` is all that it knows, ``Solution`` what it returns. ``Interleaver`` makes schedules of priorities,
``evaluate`` times any order, ``choose_candidates`` trades time for memory, ``lower_bounds`` says what is left.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from semu.searcher.problem.search_problem import NO_LIMIT, SearchProblem, Solution

if TYPE_CHECKING:
    from semu.searcher.bounds import LowerBounds, lower_bounds
    from semu.searcher.memory import MemoryChoice, check_limits, choose_candidates
    from semu.searcher.orders.interleave import Interleaver, Rollouts, evaluate

_HOMES = {
    "Interleaver": "orders.interleave",
    "LowerBounds": "bounds",
    "MemoryChoice": "memory",
    "Rollouts": "orders.interleave",
    "check_limits": "memory",
    "choose_candidates": "memory",
    "evaluate": "orders.interleave",
    "lower_bounds": "bounds",
}

__all__ = [
    "NO_LIMIT",
    "Interleaver",
    "LowerBounds",
    "MemoryChoice",
    "Rollouts",
    "SearchProblem",
    "Solution",
    "check_limits",
    "choose_candidates",
    "evaluate",
    "lower_bounds",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

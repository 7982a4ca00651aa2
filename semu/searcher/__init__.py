"""The searcher: schedules made for the batch at hand (002 §5, 000 §6).

``SearchProblem`` is all that it knows; ``Solution`` is what it returns.
"""

from __future__ import annotations

from semu.searcher.problem import NO_LIMIT, SearchProblem, Solution

__all__ = ["NO_LIMIT", "SearchProblem", "Solution"]

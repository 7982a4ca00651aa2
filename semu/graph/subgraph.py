"""``Subgraph``: a named, nestable, contiguous range of operators (DESIGN §2)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A named group of consecutive operators.

    Attributes:
        index: position among the graph's subgraphs, in order of opening.
        name: last part of the path.
        path: dotted path from the root.
        parent: index of the enclosing subgraph, or None at the top.
        first, last: its operators are ``first <= index < last``; ``last`` is None while it is open.
    """

    index: int
    name: str
    path: str
    parent: int | None
    first: int
    last: int | None

    def holds(self, operator: int) -> bool:
        """True when the operator's index lies in this subgraph."""
        return self.first <= operator and (self.last is None or operator < self.last)

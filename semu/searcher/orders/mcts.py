"""``TreeStrategy``: Monte-Carlo tree search over sequences of segment groups (DIP §5.1, PipeWeaver Algorithm 1).

A node at depth d is a legal beginning of d items; it keeps the best score of anything below it. From the root the
search goes to the child with the highest s^a + b sqrt(log N_x / N_v) until a node has a child that was never tried,
tries it, completes it several times at random, and hands the best score up.

Three things the papers leave open. Scores are in (0, 1] whatever the problem (a lower bound over the makespan, or the
makespan over the worst one seen), so a = 4 makes differences of a few percent count beside b = 0.1. Children are tried
in the order of the default sequence. Of the completions of a node the first follows the default sequence, and half of
the others stay near it: a uniform completion of a hundred groups says nearly nothing of its beginning.
"""

from __future__ import annotations

import math
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategy import OrderStrategy, Proposal


@dataclass(eq=False)
class _Node:
    """A beginning of sequences.

    Attributes:
        item: the last one of it. parent: without it. untried: items that may follow and have no child, the next last;
            None: not computed yet. best: highest score below. visits: how often a search came through.
        is_done: everything below has been evaluated.
    """

    item: int
    parent: _Node | None
    untried: list[int] | None = None
    children: list[_Node] = field(default_factory=list)
    best: float = 0.0
    visits: int = 0
    is_done: bool = False


POWER, EXPLORATION = 4.0, 0.1
"""a and b of the UCB score."""
COMPLETIONS = 10
"""Completions of a node, at most."""
NEAR = 0.05
"""How far, in parts of a sequence's length, items of near completions wander from their places in the guide."""


class TreeStrategy(OrderStrategy):
    """See the module."""

    def __init__(self, space: OrderSpace) -> None:
        super().__init__(space)
        self._root = _Node(-1, None)
        self._guide = space.default_wish

    def begin_at(self, sequence: NDArray[np.int32], score: float) -> None:
        """Complete near another sequence from now on, such as the best one."""
        self._guide = self._space.places(sequence)

    def ask(self, rng: np.random.Generator, count: int) -> Proposal:
        """Completions of the next node; none where everything has been evaluated."""
        if self._root.is_done:
            return Proposal(np.empty((0, self._space.num_items), dtype=np.int32))
        node, prefix = self._select()
        beginning = np.array(prefix, dtype=np.int32)
        if len(prefix) == self._space.num_items:
            self._visit(node)
            return Proposal(beginning[None], node)
        k = max(1, min(count, COMPLETIONS))
        wishes = rng.random((k, 2 * self._space.num_groups)) * len(self._guide)
        spread = NEAR * len(self._guide)
        with np.errstate(invalid="ignore"):
            near = self._guide + rng.standard_normal(wishes.shape) * spread
        wishes[: (k + 1) // 2] = near[: (k + 1) // 2]
        wishes[0] = self._guide
        self._visit(node)
        return Proposal(self._space.nearest(wishes, beginning), node)

    def tell(self, proposal: Proposal, scores: NDArray[np.float64]) -> None:
        """Hand the best score of a proposal up the tree."""
        node = proposal.note
        best = float(scores.max(initial=0.0))
        while isinstance(node, _Node):
            node.best = max(node.best, best)
            node = node.parent

    def _select(self) -> tuple[_Node, list[int]]:
        """A node that has not been evaluated, new unless there is none left, and its items."""
        node, prefix = self._root, list[int]()
        while True:
            if node.untried is None:
                node.untried = self._space.choices(np.array(prefix, dtype=np.int32))[::-1]
                if not node.untried:
                    return node, prefix
            if node.untried:
                child = _Node(node.untried.pop(), node)
                node.children.append(child)
                prefix.append(child.item)
                return self._only_way(child, prefix)
            log, top = math.log(max(node.visits, 1)), max(self._root.best, 1.0)
            alive = [child for child in node.children if not child.is_done]
            merits = [self._merit(child, log, top) for child in alive]
            node = alive[merits.index(max(merits))]
            prefix.append(node.item)

    def _merit(self, child: _Node, log: float, top: float) -> float:
        """The UCB score of a child. ``log``: of its parent's visits. ``top``: the highest score there is."""
        merit: float = (child.best / top) ** POWER
        return merit + EXPLORATION * math.sqrt(log / max(child.visits, 1))

    def _only_way(self, node: _Node, prefix: list[int]) -> tuple[_Node, list[int]]:
        """Down to where there is a choice, or to the end."""
        while True:
            choices = self._space.choices(np.array(prefix, dtype=np.int32))
            if len(choices) != 1:
                node.untried = choices[::-1]
                return node, prefix
            child = _Node(choices[0], node, best=node.best)
            node.untried = []
            node.children.append(child)
            prefix.append(child.item)
            node = child

    def _visit(self, node: _Node) -> None:
        """Count a visit on the way up, and close what has been evaluated in full."""
        if node.untried is not None and not node.untried and not node.children:
            node.is_done = True
        at: _Node | None = node
        while at is not None:
            at.visits += 1
            if at.children and not at.untried and all(child.is_done for child in at.children):
                at.is_done = True
            at = at.parent

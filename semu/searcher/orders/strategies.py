"""``STRATEGIES``: every order strategy by name; ``MixedStrategy``: tree search and local search in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_word
from semu.searcher.orders.mcts import TreeStrategy
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategy import DepthFirstStrategy, LocalStrategy, OrderStrategy, Proposal, RandomStrategy

_TURN = 4


class MixedStrategy(OrderStrategy):
    """Of every ``_TURN`` proposals one comes from the tree, the others from insertions; both learn of the best.

    The tree of DIP §5.1 tells beginnings apart quickly, but reaches the end of a hundred groups only by chance;
    insertions mend that.
    """

    def __init__(self, space: OrderSpace) -> None:
        super().__init__(space)
        self._tree, self._local = TreeStrategy(space), LocalStrategy(space)
        self._asked, self._best = 0, -np.inf

    def ask(self, rng: np.random.Generator, count: int) -> Proposal:
        """See ``OrderStrategy``."""
        self._asked += 1
        if self._asked % _TURN == 0:
            found = self._tree.ask(rng, count)
            if len(found.sequences):
                return Proposal(found.sequences, (self._tree, found))
        found = self._local.ask(rng, count)
        return Proposal(found.sequences, (self._local, found))

    def tell(self, proposal: Proposal, scores: NDArray[np.float64]) -> None:
        """See ``OrderStrategy``."""
        assert isinstance(proposal.note, tuple)
        owner, asked = proposal.note
        owner.tell(asked, scores)
        at = int(scores.argmax())
        if scores[at] > self._best:
            self.begin_at(proposal.sequences[at], float(scores[at]))

    def begin_at(self, sequence: NDArray[np.int32], score: float) -> None:
        """See ``OrderStrategy``."""
        self._best = score
        self._tree.begin_at(sequence, score)
        self._local.begin_at(sequence, score)


STRATEGIES: Mapping[str, Callable[[OrderSpace], OrderStrategy]] = {
    "mixed": MixedStrategy,
    "mcts": TreeStrategy,
    "local": LocalStrategy,
    "dfs": DepthFirstStrategy,
    "random": RandomStrategy,
}
"""Strategies by the name that the command line uses."""


def make_strategy(name: str, space: OrderSpace) -> OrderStrategy:
    """A strategy by name.

    Raises:
        ConfigError: an unknown name.
    """
    check_word(name, STRATEGIES, "search strategy", "strategy")
    return STRATEGIES[name](space)

"""``STRATEGIES``: every order strategy by name; ``make_strategy``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semu.checks import check_word
from semu.searcher.orders.mcts import TreeStrategy
from semu.searcher.orders.mixed import MixedStrategy
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategy import DepthFirstStrategy, LocalStrategy, OrderStrategy, RandomStrategy

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

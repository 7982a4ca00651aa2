"""``STRATEGIES``: all strategies by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from semu.checks import check_word
from semu.resilience.strategies.asynchronous import AsynchronousCheckpoint
from semu.resilience.strategies.bamboo import Bamboo
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart
from semu.resilience.strategies.hot_spares import HotSpares
from semu.resilience.strategies.in_memory import InMemoryCheckpoint
from semu.resilience.strategies.oobleck import Oobleck
from semu.resilience.strategies.oobleck_checkpoint import OobleckCheckpoint
from semu.resilience.strategies.strategy import Strategy
from semu.resilience.strategies.tiered import TieredCheckpoint
from semu.resilience.strategies.varuna import Varuna

_ALL: Sequence[type[Strategy]] = (
    CheckpointRestart,
    AsynchronousCheckpoint,
    InMemoryCheckpoint,
    TieredCheckpoint,
    HotSpares,
    Varuna,
    Bamboo,
    Oobleck,
    OobleckCheckpoint,
)
STRATEGIES: Mapping[str, type[Strategy]] = MappingProxyType({each.name: each for each in _ALL})


def chosen_strategies(names: Sequence[str], where: str = "resilience.strategies") -> list[type[Strategy]]:
    """Strategies by name; ``all``: every one.

    Raises:
        ConfigError: a name that is none.
    """
    if "all" in names:
        return list(STRATEGIES.values())
    return [STRATEGIES[check_word(name, STRATEGIES, "strategy", where)] for name in dict.fromkeys(names)]

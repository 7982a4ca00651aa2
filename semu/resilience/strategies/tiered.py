"""Tiered checkpoints: often to a peer's memory, seldom to storage, for when neighbours go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from semu.resilience.machine import Tier
from semu.resilience.strategies.in_memory import InMemoryCheckpoint

SELDOM = 16
"""Saves to memory between two to storage where nobody says, at least."""


class TieredCheckpoint(InMemoryCheckpoint):
    """A peer's memory, and storage."""

    name, title = "tiered", "restart from a peer's memory, else from storage"

    def tiers(self) -> Sequence[Tier]:
        """Hosts' memory, then storage, written beside training.

        Storage is needed where neighbours go between two copies: of failures, one in M / (2 / nodes x interval) by
        chance, and racks' failures; the interval for those is the best one, but not shorter than 16 of memory's."""
        memory, storage = self.memory(), self.storage(is_async=True)
        options, failures = self.situation.options, self.situation.options.failures
        if isinstance(options.checkpoint.every_s, str):
            mtbf, nodes = self.situation.mtbf_s, self.situation.figures.nodes
            by_chance = min(1.0, 2.0 / nodes * memory.every_s / mtbf) if math.isfinite(mtbf) else 0.0
            share = max(by_chance, failures.rack_share if failures.rack_nodes > 1 else 0.0)
            rare = replace(self.situation, mtbf_s=mtbf / share if share > 0 else math.inf)
            every = rare.every_s("best", storage.stall_s, storage.background_s)
            storage = replace(storage, every_s=max(every, SELDOM * memory.every_s))
        return (memory, storage)

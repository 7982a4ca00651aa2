"""Checkpoints in memory: each node keeps its state in its host and in the next node's.

A failure of two neighbours since the last copy leaves nothing to go back to but the start. Source: GEMINI, SOSP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.resilience.machine import Tier
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart


class InMemoryCheckpoint(CheckpointRestart):
    """Copies in the memory of the host and of a peer."""

    name, title = "in-memory", "restart from a peer's memory"

    def tiers(self) -> Sequence[Tier]:
        """Hosts' memory."""
        return (self.memory(),)

    def memory(self) -> Tier:
        """Copies to the host, for which training waits, and on to the next node beside training; the node that takes a
        failed one's place gets them from there."""
        situation = self.situation
        figures, options = situation.figures, situation.options.checkpoint
        stall, send = figures.host_copy_s(), figures.peer_copy_s()
        every = situation.every_s(options.memory_every_s, stall, send)
        return Tier(every, stall, send, stall + send, is_memory=True)

"""Checkpoint and restart: the job waits for each save to storage; a failure takes it back to the last one.

A node that goes is replaced (``resilience.failures.repair``); until then the job waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.resilience.machine import Conduct, Tier
from semu.resilience.strategies.strategy import Strategy


class CheckpointRestart(Strategy):
    """Synchronous saves to storage."""

    name, title = "checkpoint", "restart from storage, training waits for saves"

    def tiers(self) -> Sequence[Tier]:
        """Storage, for which training waits."""
        return (self.storage(),)

    def storage(self, *, is_async: bool = False) -> Tier:
        """Checkpoints in storage. ``is_async``: training waits for the copy to the hosts only."""
        situation = self.situation
        options, figures = situation.options.checkpoint, situation.figures
        save = figures.save_s(options)
        stall = min(save, figures.host_copy_s()) if is_async else save
        every = situation.every_s(options.every_s, stall, save - stall)
        return Tier(every, stall, save - stall, figures.load_s(options))

    def conduct(self, alive: int) -> Conduct:
        """The job as it is, on all of its nodes."""
        return self.fixed(alive, self.situation.figures.nodes)

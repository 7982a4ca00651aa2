"""Asynchronous checkpoints: training waits for the copy to the hosts, which write to storage beside it.

A save counts when it has been written; one begins after the last has ended. Source: CheckFreq, FAST 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.resilience.machine import Tier
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart


class AsynchronousCheckpoint(CheckpointRestart):
    """Saves to storage beside training."""

    name, title = "async", "restart from storage, saves go on beside training"

    def tiers(self) -> Sequence[Tier]:
        """Storage, for which training waits until the hosts have the state."""
        return (self.storage(is_async=True),)

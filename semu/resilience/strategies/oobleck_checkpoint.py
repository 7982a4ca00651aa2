"""Oobleck with checkpoints to fall back on: saved beside training, for when all holders of a layer are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.resilience.machine import Tier
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart
from semu.resilience.strategies.oobleck import Oobleck

SELDOM_S = 3600.0
"""Work between two saves where nobody says [s]: losses of all holders are rare; a default."""


class OobleckCheckpoint(Oobleck):
    """Pipeline templates, and saves to storage."""

    name, title = "oobleck-checkpoint", "as oobleck, with saves to fall back on"

    def tiers(self) -> Sequence[Tier]:
        """Storage, written beside training."""
        tier = CheckpointRestart(self.situation).storage(is_async=True)
        if isinstance(self.situation.options.checkpoint.every_s, str):
            tier = replace(tier, every_s=max(SELDOM_S, tier.every_s))
        return (tier,)

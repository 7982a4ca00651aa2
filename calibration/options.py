"""``Options``: what a measurement was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """What was asked for; see ``calibration.measure.parse`` and ``--help``."""

    out: Path
    only: tuple[str, ...]
    device: str
    device_name: str | None
    source: str
    topology: str | None
    quick: bool
    compiled: bool
    settle_s: float
    budget_s: float | None = None
    match: str = ""

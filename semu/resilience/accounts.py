"""``Account``: what a GPU-second of a long run was spent on."""

from __future__ import annotations

from enum import Enum


class Account(Enum):
    """Every GPU-second of a long run is one of these; together they are wall x GPUs.

    Their order is that of the machine's accounts (``semu.resilience.kernels``).
    """

    USEFUL = "useful"
    """Iterations that count at the end."""
    LOST = "lost"
    """Iterations that a failure took back, and those in flight when it came."""
    SAVE = "save"
    LOAD = "load"
    DETECT = "detect"
    RECONFIGURE = "reconfigure"
    """Restarting processes, communicators, pipelines."""
    COPY = "copy"
    """Layers copied from a node that has them."""
    IDLE = "idle capacity"
    """Nodes that are alive and that no iteration uses: spares, remainders of a grid."""
    WAITING = "waiting"
    """All of the nodes while too few are alive, or until an announced failure comes."""
    REDUNDANT = "redundant"
    """Computing what another node computes too."""
    DOWN = "down"
    """Nodes that are not there."""

"""Communicators, the algorithms of collectives, and what they cost on links.

A new algorithm is a file beside ``ring`` with its ``Algorithm``, and its line in ``algorithms.ALGORITHMS``. What a
collective costs on a device, with the coefficients of the device's profile, is in ``semu.hardware.network.cost``.
"""

from semu.hardware.network.algorithms import ALGORITHMS, COEFFICIENTS, cost_on_links
from semu.hardware.network.group import PIPELINE, CommGroup, wire_factor

__all__ = ["ALGORITHMS", "COEFFICIENTS", "PIPELINE", "CommGroup", "cost_on_links", "wire_factor"]

"""Phases of stages: the letters of a schedule's text, and the codes that arrays hold."""

from __future__ import annotations

from semu.graph.operator import Phase

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
"""Phases of stages; the position of a phase is its code."""
FORWARD, BACKWARD, INPUT, WEIGHT, NOTHING = range(5)
"""Codes: the four of ``PHASES``, then a stage in which nothing happens (behind a whole backward among split ones)."""
CODE_OF_PHASE = {phase: code for code, phase in enumerate(PHASES)}
"""Code of each phase."""
LETTERS = "FBIW-"
"""Letter of each code."""

"""``ActionKind``: what a rank does, one action after another (PipeWeaver Table 2, DIP §6.3)."""

from __future__ import annotations

from enum import StrEnum

from semu.graph.operator import Phase
from semu.schedule.phases import PHASES


class ActionKind(StrEnum):
    """Kinds of actions; arrays hold their ``code``. Stages come first, in the order of ``PHASES``."""

    FORWARD_STAGE = "forward_stage"
    BACKWARD_STAGE = "backward_stage"
    INPUT_BACKWARD_STAGE = "input_backward_stage"
    """Gradients of the inputs only (phase I)."""
    WEIGHT_BACKWARD_STAGE = "weight_backward_stage"
    """Gradients of the parameters only (phase W)."""
    ISEND = "isend"
    WAIT_ISEND = "wait_isend"
    """Until the buffer that was sent may be freed."""
    IRECV = "irecv"
    """The buffer is taken here."""
    WAIT_IRECV = "wait_irecv"
    EXCHANGE = "exchange"
    """The ranks of a gang meet before a forward stage; what arrives at one of them goes to all (a broadcast)."""
    EXCHANGE_GRADIENT = "exchange_gradient"
    """The same before a backward stage, with the gradients of what the gang handed on."""

    @property
    def code(self) -> int:
        """Its number in arrays."""
        return _CODES[self]

    @property
    def is_stage(self) -> bool:
        """Whether it computes; else it communicates."""
        return self.code < len(PHASES)

    @property
    def is_exchange(self) -> bool:
        """Whether the ranks of a gang meet; its target is a pair, as a stage's."""
        return self in (ActionKind.EXCHANGE, ActionKind.EXCHANGE_GRADIENT)

    @property
    def phase(self) -> Phase:
        """The phase of a stage; its value is the letter of schedules."""
        return PHASES[self.code]


KINDS = tuple(ActionKind)
"""All kinds, by code."""
_CODES = {kind: code for code, kind in enumerate(KINDS)}

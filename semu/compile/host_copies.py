"""``HostCopyCosts``: what copies of parameters that live on the host (``training.offload = "weights"``) cost a stage.

The parameters of a unit are copied to the device ahead of either pass (``semu.simulation.memory.weights_on_host``). The
copies are operators of the stage (``join`` places them), on the stream of everything that comes from the host, so they
take turns with activations that come back. What they bring is a storage of the stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semu.compile.template import HalfTemplate, Template
from semu.graph.operator import Operator, Phase
from semu.graph.tensor import Role
from semu.hardware.device import RELOAD
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup

COPY_FORWARD, COPY_BACKWARD = range(2)
"""Rows of the template, and storages: of the pass before which the copy is made."""


@dataclass(frozen=True)
class HostCopyCosts:
    """What a unit's copies move; units of equal costs share a template.

    Attributes:
        size_bytes: of the parameters, or of the rank's shard of them. group: GPU and host as ends of a transfer.
    """

    size_bytes: int
    group: CommGroup

    def template(self) -> Template:
        """The unit as a template of two operators and two storages."""
        phases = (Phase.FORWARD, Phase.BACKWARD)
        copies = [
            Operator(
                0, "weights", OpKind.P2P, phase, RELOAD, 0, 0, self.size_bytes, DType.BF16, (), (), (), (), 0, 0, 1
            )
            for phase in phases
        ]
        return Template(
            forward=_half(copies[COPY_FORWARD], COPY_FORWARD),
            backward=_half(copies[COPY_BACKWARD], COPY_BACKWARD),
            sizes=(self.size_bytes, self.size_bytes),
            roles=(Role.PARAMETER, Role.PARAMETER),
            carry_in=(),
            carry_out=(),
            gradient_in=(),
            gradient_out=(),
            groups={RELOAD: self.group},
        )


def _half(operator: Operator, row: int) -> HalfTemplate:
    return HalfTemplate((operator,), np.array([row], dtype=np.int32), ((),), ((),), ())

"""``HostCopyCosts``: what copies of parameters that live on the host (``training.offload = "weights"``) cost a stage.

The parameters of a unit are copied to the device ahead of either pass (``semu.simulation.memory.weights_on_host``). The
copies are operators of the stage (``join`` places them), on the stream of everything that comes from the host, so they
take turns with activations that come back. What they bring is a storage of the stage.
"""

from __future__ import annotations

from semu.compile.template import Template, transfer
from semu.graph.operator import Phase
from semu.graph.tensor import Role
from semu.hardware.device import RELOAD
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.records import dataclass


@dataclass(frozen=True)
class HostCopyCosts:
    """What a unit's copies move; units of equal costs share a template.

    Attributes:
        size_bytes: of the parameters, or of the rank's shard of them. group: GPU and host as ends of a transfer.
    """

    size_bytes: int
    group: CommGroup

    def template(self) -> Template:
        """The unit as a template: two operators and two storages, one of each before the forward and the backward."""
        phases = (Phase.FORWARD, Phase.BACKWARD)
        copies = [transfer("weights", OpKind.P2P, phase, RELOAD, self.size_bytes) for phase in phases]
        return Template.of_transfers(copies, (self.size_bytes,) * 2, (Role.PARAMETER,) * 2, {RELOAD: self.group})

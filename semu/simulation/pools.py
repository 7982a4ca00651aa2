"""``ParameterPool``: parameters of a rank that the same other ranks hold: they are reduced and sharded together.

Most jobs have one on every rank. Routed experts that are spread otherwise than all else are one of their own, and so
are the parameters of modality modules with other tensor-parallel groups than the job's.
"""

from __future__ import annotations

from dataclasses import dataclass

from semu.hardware.network import CommGroup
from semu.parallel.mesh import Mesh
from semu.simulation.tracer import HeldParameter


@dataclass(frozen=True)
class ParameterPool:
    """Parameters that the same ranks hold.

    Attributes:
        mesh: of their modality module. is_expert: routed experts. held: the parameters, in forward order.
    """

    mesh: Mesh
    is_expert: bool
    held: tuple[HeldParameter, ...]

    @property
    def ranks(self) -> int:
        """Ranks over which their gradients are reduced."""
        return self.mesh.parallel.expert_data_ranks if self.is_expert else self.mesh.parallel.gradient_ranks

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards them."""
        return self.mesh.parallel.expert_data_ranks if self.is_expert else self.mesh.parallel.shard_ranks

    @property
    def trained(self) -> list[HeldParameter]:
        """Those that are trained."""
        return [held for held in self.held if held.parameter.requires_grad]

    def shard_group(self, rank: int) -> CommGroup:
        """The ranks that ZeRO shards them over, at a pipeline rank."""
        return self.mesh.expert_dp_group(rank) if self.is_expert else self.mesh.shard_group(rank)

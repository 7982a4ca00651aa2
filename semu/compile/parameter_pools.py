"""``ParameterPool``: parameters of a rank that the same other ranks hold: they are reduced and sharded together.

Most jobs have one on every rank. Routed experts that are spread otherwise than all else are one of their own, and so
are the parameters of modality modules with other tensor-parallel groups than the job's.
"""

from __future__ import annotations

from functools import cached_property

from semu.compile.tracer import HeldParameter
from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.parallel.mesh import Mesh
from semu.records import dataclass


def weight_bytes(job: TrainingJob, held: HeldParameter) -> int:
    """Bytes of a rank's part of a parameter as the optimizer writes and gathers move it."""
    if held.is_fp8 and job.moves_fp8_weights:
        return held.elements + job.training.fp8_recipe.scale_bytes(held.elements)
    return held.elements * job.training.precision.tensor_dtype.size_bytes


@dataclass(frozen=True, eq=False)
class PoolParameters:
    """What a pool holds, whichever ranks share it.

    Attributes:
        held: the parameters, in forward order. is_expert: routed experts.
    """

    held: tuple[HeldParameter, ...]
    is_expert: bool

    @cached_property
    def trained(self) -> tuple[HeldParameter, ...]:
        """Those that are trained."""
        return tuple(held for held in self.held if held.parameter.requires_grad)

    @cached_property
    def elements(self) -> int:
        """Local elements of all of them."""
        return sum(held.elements for held in self.held)

    @cached_property
    def trained_elements(self) -> int:
        """Local elements of those that are trained."""
        return sum(held.elements for held in self.trained)


@dataclass(frozen=True)
class ParameterPool:
    """Parameters that the same ranks hold.

    Attributes:
        mesh: of their modality module. parameters: what they are.
    """

    mesh: Mesh
    parameters: PoolParameters

    @property
    def is_expert(self) -> bool:
        """Whether they are of routed experts."""
        return self.parameters.is_expert

    @property
    def held(self) -> tuple[HeldParameter, ...]:
        """The parameters, in forward order."""
        return self.parameters.held

    @property
    def trained(self) -> tuple[HeldParameter, ...]:
        """Those that are trained."""
        return self.parameters.trained

    @property
    def elements(self) -> int:
        """Local elements of all of them."""
        return self.parameters.elements

    @property
    def trained_elements(self) -> int:
        """Local elements of those that are trained."""
        return self.parameters.trained_elements

    @property
    def ranks(self) -> int:
        """Ranks over which their gradients are reduced."""
        return self.mesh.parallel.expert_data_ranks if self.is_expert else self.mesh.parallel.gradient_ranks

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO shards them."""
        return self.mesh.parallel.expert_shard_ranks if self.is_expert else self.mesh.parallel.shard_ranks

    def shard_group(self, rank: int) -> CommGroup:
        """The ranks that ZeRO shards them over, at a pipeline rank."""
        return self.mesh.expert_shard_group(rank) if self.is_expert else self.mesh.shard_group(rank)

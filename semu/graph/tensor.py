"""``Tensor``: a view of a ``Storage`` in a memory pool, with a role (DESIGN §2)."""

from __future__ import annotations

from enum import Enum

from semu.graph.dim import Dim
from semu.hardware.kinds import DType
from semu.records import dataclass


class Role(Enum):
    """What a storage is for; memory is reported by role."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATION = "activation"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"

    @property
    def is_static(self) -> bool:
        """True for roles whose storages live for the whole run (DESIGN §3.5)."""
        return self in (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes in a memory pool.

    Attributes:
        index: position in the graph.
        path: the module that made it.
        size_bytes: local size on one rank.
        role: what it is for.
        pool: name of the memory pool, e.g. ``hbm``.
    """

    index: int
    path: str
    size_bytes: Dim
    role: Role
    pool: str


@dataclass(frozen=True, slots=True)
class TensorNode:
    """A tensor node of the graph: a shaped view of a storage.

    Attributes:
        index: position in the graph.
        storage: index of the storage it views.
        shape: local shape on one rank.
        dtype: element type.
        name: for people.
        base: the tensor that it is a view of, None for the first tensor of a storage.
    """

    index: int
    storage: int
    shape: tuple[Dim, ...]
    dtype: DType
    name: str
    base: int | None = None

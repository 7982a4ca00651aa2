"""``ParameterUse``: a parameter of the model as one rank of a trace holds it."""

from __future__ import annotations

from semu.nn.module import Parameter
from semu.records import dataclass


@dataclass(frozen=True)
class ParameterUse:
    """A parameter as one rank of the trace holds it.

    Attributes:
        path: where it is used. parameter: the model's parameter. numel: local elements.
        is_sharded: split over the tensor-parallel group (else every rank holds it whole).
        tensor, gradient: tensor nodes of the parameter and of its gradient buffer (None when frozen).
        is_fp8: the weight of a linear that runs in fp8.
        is_expert: a parameter of routed experts whose gradient is reduced over another group than dense parameters'.
        shape: of the local part. parts: global widths of the fused projections in it; empty: there is one.
        is_packed: stored as ``frozen_weights`` says.
    """

    path: str
    parameter: Parameter
    numel: int
    is_sharded: bool
    tensor: int
    gradient: int | None
    is_fp8: bool = False
    is_expert: bool = False
    shape: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    is_packed: bool = False

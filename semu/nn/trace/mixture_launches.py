"""What a host issues for layers with a mixture of experts under Megatron-LM: ``launches_of_mixture``.

Shapes follow from counts that are read back from the device, so that CUDA graphs cannot hold such layers while nothing
is dropped, and a router and a dispatcher are many small kernels. Counted here as launches of an eager framework
(``host.eager_launch_s``), from what Megatron-LM's modules and Transformer Engine's do:

* router: scores with their casts 3; softmax, top-k, two zeroed tensors, two scatters, a mask, casts 10; the auxiliary
  loss repeats them and has means, products and its bookkeeping 15; backwards 16.
* dispatch: sums of the mask, reshapes, copies to the host and events 12, the gather of counts a collective, the fused
  permutation 5; an exchange of rows and one of their probabilities, which are two collectives, one on the way back;
  sorts by expert 3.
* a module of Transformer Engine around a product 3, a cast 3 (largest magnitude, scale, cast); a weight's gradient is
  two, product and hook of the gradient's bucket.
* experts: 4 for the module, then for every expert a third of a launch a product, in C++ (Transformer Engine's grouped
  products on B200 never take less than 8.6 us an expert in ``gemm.csv``); under fp8 half of one for an operand that is
  cast, three kernels in C++, and as much for the weight's copies, looked up in Python; 1 for a gradient, whose tensor
  and hook are Python's.

The counts are an estimate from what the modules do, not measured; ``host.eager_launch_s`` is fitted on runs of another
framework.
"""

from __future__ import annotations

from collections.abc import Mapping

from semu.graph.operator import Operator, OpKind, Phase
from semu.hardware.kinds import DType

_COLLECTIVE = 10
_NAMED: Mapping[str, int] = {
    "gate": 3,
    "top_k": 10,
    "auxiliary_loss": 15,
    "top_k_bw": 16,
    "permute": 12 + _COLLECTIVE + 5,
    "permute_bw": 2,
    "unpermute": 2,
    "unpermute_bw": 3,
    "sort": 3,
}
_KINDS: Mapping[tuple[OpKind, Phase], int] = {
    (OpKind.MATMUL, Phase.FORWARD): 3,
    (OpKind.MATMUL, Phase.RECOMPUTE): 3,
    (OpKind.MATMUL, Phase.INPUT_GRADIENT): 2,
    (OpKind.MATMUL, Phase.WEIGHT_GRADIENT): 2,
    (OpKind.ATTENTION_FORWARD, Phase.FORWARD): 4,
    (OpKind.ATTENTION_FORWARD, Phase.RECOMPUTE): 4,
    (OpKind.ATTENTION_BACKWARD, Phase.INPUT_GRADIENT): 6,
    (OpKind.NORM, Phase.INPUT_GRADIENT): 2,
}
_CAST = 3
_EXPERTS = 4
_PRODUCT_OF_EXPERT, _CAST_OF_EXPERT, _WEIGHT_OF_EXPERT, _GRADIENT_OF_EXPERT = 1 / 3, 1 / 2, 1 / 2, 1.0


def launches_of_mixture(operator: Operator) -> float:
    """Launches of kernels that an operator's are like for the host."""
    parts = operator.path.split(".")
    if operator.kind.is_communication:
        return 2 * _COLLECTIVE if parts[-2:-1] in (["dispatch"], ["dispatch_bw"]) else _COLLECTIVE
    if operator.kind is OpKind.GROUPED_MATMUL:
        return _EXPERTS + _of_experts(operator)
    if operator.kind is OpKind.CAST:
        return 1 if "experts" in parts else _CAST
    return _NAMED.get(parts[-1], _KINDS.get((operator.kind, operator.phase), 1))


def _of_experts(operator: Operator) -> float:
    groups = max(part for part in operator.key[3:5] if isinstance(part, int))  # rows or the summed axis are split
    each = _PRODUCT_OF_EXPERT
    if operator.phase is Phase.WEIGHT_GRADIENT:
        each += _GRADIENT_OF_EXPERT
    elif operator.dtype is DType.FP8:
        each += _CAST_OF_EXPERT
        if operator.phase is not Phase.INPUT_GRADIENT:
            each += _WEIGHT_OF_EXPERT
    return groups * each

"""``Family``: kinds of kernels that names distinguish; ``family_of``: a GPU kernel's name -> its family.

A kernel's name says less than semu's operator kind: one ``elementwise_kernel`` adds, another casts. A family is the
smallest set of operator kinds that names distinguish; both sides of a comparison are counted in families.

The names are those of PyTorch's kernels, of Inductor's Triton code, cuBLAS (``nvjet``, ``ampere_``), CUTLASS, cuDNN,
FlashAttention 2 and 3, Transformer Engine, Apex, NCCL, DeepEP and DeepGEMM. The first pattern that matches counts:
communication first, then templates whose names contain words of other families.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from semu import memo
from semu.graph.operator import OpKind


class Family(Enum):
    """Kernels of one sort; the value is for people and files."""

    MATMUL = "matmul"
    ATTENTION_FORWARD = "attention forward"
    ATTENTION_BACKWARD = "attention backward"
    NORM = "norm, softmax"
    ELEMENTWISE = "elementwise, copies"
    EMBEDDING = "embedding, indexing"
    CROSS_ENTROPY = "cross entropy"
    REDUCTION = "reduction"
    OPTIMIZER = "optimizer"
    MEMCPY = "memcpy, memset"
    UNMATCHED = "unmatched"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    P2P = "p2p"
    BROADCAST = "broadcast, other NCCL"

    @property
    def is_communication(self) -> bool:
        """True for what uses the network."""
        return self in _COLLECTIVES

    @property
    def is_compute(self) -> bool:
        """True for kernels that can hide communication; copies by the DMA engines are neither."""
        return self not in _COLLECTIVES and self is not Family.MEMCPY


_COLLECTIVES: Mapping[Family, str] = MappingProxyType(
    {
        Family.ALL_REDUCE: "allreduce allreduce_coalesced all_reduce",
        Family.ALL_GATHER: "allgather _allgather_base all_gather all_gather_into_tensor "
        "allgather_into_tensor_coalesced",
        Family.REDUCE_SCATTER: "reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced",
        Family.ALL_TO_ALL: "all_to_all all_to_allv",
        Family.P2P: "send recv",
        Family.BROADCAST: "broadcast barrier",
    }
)
"""PyTorch's names of collectives (argument ``Collective name`` of a kernel, torch 2.2 and later)."""
_FAMILY_OF_COLLECTIVE = {name: family for family, names in _COLLECTIVES.items() for name in names.split()}

_KINDS: Mapping[Family, tuple[OpKind, ...]] = MappingProxyType(
    {
        Family.MATMUL: (OpKind.MATMUL, OpKind.GROUPED_MATMUL),
        Family.ATTENTION_FORWARD: (OpKind.ATTENTION_FORWARD,),
        Family.ATTENTION_BACKWARD: (OpKind.ATTENTION_BACKWARD,),
        Family.NORM: (OpKind.NORM, OpKind.SOFTMAX),
        Family.ELEMENTWISE: (
            *(OpKind.ACTIVATION, OpKind.ADD, OpKind.ROPE, OpKind.DROPOUT, OpKind.MODULATE, OpKind.COPY, OpKind.CAST),
        ),
        Family.EMBEDDING: (OpKind.PERMUTE, OpKind.TOP_K, OpKind.EMBEDDING),
        Family.CROSS_ENTROPY: (OpKind.CROSS_ENTROPY,),
        Family.REDUCTION: (OpKind.CUSTOM,),
        Family.OPTIMIZER: (OpKind.OPTIMIZER,),
        Family.ALL_REDUCE: (OpKind.ALL_REDUCE,),
        Family.ALL_GATHER: (OpKind.ALL_GATHER,),
        Family.REDUCE_SCATTER: (OpKind.REDUCE_SCATTER,),
        Family.ALL_TO_ALL: (OpKind.ALL_TO_ALL,),
        Family.P2P: (OpKind.P2P,),
    }
)
"""Operator kinds of semu in each family; ``custom`` are sums over rows, as bias gradients."""
FAMILY_OF_KIND: Mapping[OpKind, Family] = MappingProxyType(
    {kind: family for family, kinds in _KINDS.items() for kind in kinds}
)
"""Families of semu's operator kinds."""

_ATTENTION = r"(flash|fmha|sdpa|attention|attn)"

PATTERNS: tuple[tuple[str, Family], ...] = (
    # communication
    (r"nccl.*all_?reduce|multimem_all_reduce|(one|two)_shot_all_?reduce", Family.ALL_REDUCE),
    (r"nccl.*all_?gather|userbuffers.*_ag\b|userbuffers.*_ag_", Family.ALL_GATHER),
    (r"nccl.*reduce_?scatter|userbuffers.*_rs\b|userbuffers.*_rs_", Family.REDUCE_SCATTER),
    (
        r"nccl.*all_?to_?all|deep_ep::|(cached|ep)_notify|notify_dispatch|\bep_(dispatch|combine|layout)",
        Family.ALL_TO_ALL,
    ),
    (r"nccl.*send_?recv|nccl.*(send|recv)|userbuffers.*push(send|recv)|memcpy (ptop|p2p|peer-to-peer)", Family.P2P),
    (r"nccl", Family.BROADCAST),
    # the DMA engines
    (r"^(\[cuda )?memcpy[ _](dtod|d2d|device-to-device)", Family.ELEMENTWISE),
    (r"^(memcpy|memset|copy_?engine|\[cuda .*mem(cpy|set))", Family.MEMCPY),
    # the optimizer
    (r"multi_tensor|adam|lamb_?(stage|functor)|\bsgd|lpnorm_cleanup|foreach_?norm|fused_?optimizer", Family.OPTIMIZER),
    # attention
    (rf"fmha_cutlassb|{_ATTENTION}.*(bwd|backward|bprop|dgrad|dot_do_o|convert_?dq)", Family.ATTENTION_BACKWARD),
    (r"cross_?entropy|log_?softmax|nll_?loss", Family.CROSS_ENTROPY),
    (rf"fmha_cutlassf|{_ATTENTION}.*(fwd|forward|fprop|combine)", Family.ATTENTION_FORWARD),
    (r"softmax", Family.NORM),
    (_ATTENTION, Family.ATTENTION_FORWARD),
    # Inductor's pointwise and reduction kernels, named after all that they fuse
    (r"^triton_(per|red|poi)_.*(rsqrt|layer_norm|rms_norm)", Family.NORM),
    (r"^triton_(per|red|poi)_.*(embedding|index_put|gather)", Family.EMBEDDING),
    (r"^triton_red_", Family.REDUCTION),
    (r"^triton_(per|poi)_", Family.ELEMENTWISE),
    # norms before products: Transformer Engine's live beside its GEMMs
    (r"layer_?norm|rms_?norm|group_?norm|\bln_(fwd|bwd)|::ln_|norm_(fwd|bwd)|gamma_?beta|apply_?rms", Family.NORM),
    # matrix products
    (r"gemm|nvjet|cutlass|cublas|xmma|split_?k|gemv|ampere_|hopper_|volta_|turing_|triton_(mm|bmm|tem)", Family.MATMUL),
    (r"\bsm\d+_.*(f16|bf16|fp16|f32|tf32|e4m3|e5m2|s1688|s16816)|wgrad|matmul", Family.MATMUL),
    # indexing
    (
        r"embedding|index_?select|index_?put|index_elementwise|indexing_backward|vectorized_gather|scatter_gather"
        r"|compute_grad_weight|krn_partial|sum_and_scatter|permut|topk|top_k|\bmoe_|radix|\bsort|\bscan|cub::|histogram",
        Family.EMBEDDING,
    ),
    # the rest of PyTorch and Transformer Engine
    (
        r"elementwise|swiglu|geglu|gelu|silu|rope|rotary|dropout|act_and_mul|gated_act|dgated|cat_?array|copy|cast"
        r"|transpose|quantiz|amax|fill|distribution_|\badd_|\bmul_|swizzle|bias_act",
        Family.ELEMENTWISE,
    ),
    (r"reduce", Family.REDUCTION),
)
"""(pattern, family), upper and lower case alike; the first match counts."""

_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), family) for pattern, family in PATTERNS)


@memo.remembered(1 << 14)
def family_of(name: str, collective: str | None = None) -> Family:
    """The family of a GPU kernel or copy.

    Args:
        name: of the kernel. collective: PyTorch's name of the collective, where the trace has one; it decides, because
            an all-to-all runs NCCL's ``SendRecv`` kernel.
    """
    if collective is not None and collective.lower() in _FAMILY_OF_COLLECTIVE:
        return _FAMILY_OF_COLLECTIVE[collective.lower()]
    return next((family for pattern, family in _COMPILED if pattern.search(name)), Family.UNMATCHED)


def family_of_kind(word: str) -> Family | None:
    """The family of an operator kind by its name in semu's traces; None: no such kind."""
    try:
        return FAMILY_OF_KIND[OpKind(word)]
    except ValueError:
        return None

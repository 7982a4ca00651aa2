"""Memory traffic of PyTorch's eager mode beyond a fused kernel, where a module runs as several element-wise kernels.

Without ``torch.compile`` and without a fused kernel, a module runs operator by operator, and every operator reads and
writes memory. Counted here for half-precision tensors [bytes per element], beyond the one kernel that the rules append,
from torchtitan's modules (torchtitan/models/llama/model.py, norms.py):

* RMS norm (``x.float() * rsqrt(x.float().pow(2).mean() + eps)``, cast back, times weight): cast 2 + 4, square 4 + 4,
  mean 4, scale 4 + 4, cast 4 + 2, weight 2 + 2 = 36, fused 4. Its gradients: of the weight's product 4 + 6 + 2, cast
  2 + 4, of the scaling 4 + 4 and 8 + 4 + 4, of the mean 4, of the square 8 + 8 + 12, their sum 8 + 4, cast 4 + 2 = 92,
  fused 6.
* gated activation (``silu(gate) * up``), per element of the result: 2 + 2 and 4 + 2 = 10, fused 6; gradients
  4 + 2, 4 + 2 and 4 + 2 = 18, fused 10.
* rotary embedding in complex fp32: cast 2 + 4, product 4 + 4, cast 4 + 2 = 20, fused 4; gradients the same.

Other modules of eager PyTorch, as reads and writes of an element [passes] beyond the fused kernel (counted by
``tests/nn/test_eager_traffic.py`` from PyTorch's own operators):

* ``x * sigmoid(1.702 * x)``: product 2, sigmoid 2, product 3 = 7, fused 2; gradients 3 + 3, 3 and 2, their sum 3 = 14,
  fused 3. Squared ReLU: 2 + 2, fused 2; gradients 2 + 2 + 3 and 3 = 10, fused 3.
* layer norm with weights: gradients of weight and bias read gradient and input again: 2.
* group norm, beyond kernels that read their inputs twice (``norms.norm``): blocks of threads take a group element by
  element, so that 16 bits lose 5 bytes an element each way, fp32 nothing; with channels last the input is
  copied to channels first, at a seventh of a copy's rate: 24 bytes (50 rows of ``calibration/measurements`` on an H100:
  4.4 and 5.7 us for a million elements; its neighbours write channels first then, which is not counted).
* modulation (``x * (1 + scale) + shift``): 2; its gradients (dy * (1 + scale), dy * x and its sum, the sum of dy): 4.
* gated addition (``x + gate * branch``): 2; its gradients (dy * gate, dy * branch and its sum): 3.
* the gradient of a linear layer's or a convolution's bias is a sum over rows: 1 of the result.
* a convolution adds its bias in a kernel of its own: 2 of the result; so do linear layers of Megatron-LM without
  Transformer Engine, but for those before a residual, whose kernel adds both (PyTorch's fuse it into the product).
* a gate whose halves are chunks of one product (diffusers' GEGLU): 2 in the backward, to join their gradients.
* cuDNN's convolutions on tensor cores want channels last. Where the model keeps PyTorch's default, channels first,
  each of the three products copies both tensors that it shares with the model, 2 of each, and its weight (or the
  weight's gradient), whose copy runs at a third of the rate: 6. Convolutions of one pixel are products in either
  layout and copy nothing (cuDNN 9.19 on an H100, 276 rows of ``calibration/measurements``: over the same product
  with channels last, tensors go at 2.87 TB/s, weights at 1.0, and 8 us are lost).

The package flash-attn brings norms and rotary embeddings as kernels of its own (``EagerKernels.FLASH_ATTN``). Around
them nanotron copies tensors into other layouts (``CausalSelfAttention``, ``GLUActivation``), in reads and writes [bytes
per element of half precision]:

* queries: sequences first, 4; their gradients: joined with those of keys and values, 4.
* keys and as many values: sequences first, packed, and laid side by side, 3 x 4 each; their gradients: the pack and the
  join, 2 x 4 each.
* gate and up are halves of one product, whose gradients are joined: 8 per element of the result.

How many kernels these are decides what launching them takes (``launches_of``), as do the copies around attention and
the rest of a norm's backward; the sum of a weight's gradient into ``.grad`` is an operator of its own. A collective
takes the host about as long as ten kernels: a function of autograd, ``torch.distributed``, the streams' events (CPU
time of a bare Llama block on PyTorch 2: 137 kernels forward and backward in 0.71 ms, eight collectives 0.77 ms more).

The extra bytes are a kernel of the kind ADD, whose rate is that of element-wise operators. What eager mode keeps
beyond the fused kernels' inputs: the activated gate of a gated activation (``silu(gate)``, an operand of its product
with ``up``; not beside the package flash-attn, where the memory of 51 runs of nanotron is 11 % off without it and 14 %
with it), the sigmoid of a quick GELU. Copies in fp32 of an RMS norm are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from semu.graph.operator import Operator, OpKind, Phase
from semu.nn.trace.tensor import Tensor

RMS_NORM, RMS_NORM_BACKWARD = 32, 86
GATE, GATE_BACKWARD = 4, 8
ROTARY, ROTARY_BACKWARD = 16, 16
ROTARY_JOIN = 4
"""More per rotated feature where a head is rotated in part: the fused kernel's 4 are then those of the joining copy."""
COMPOSED: Mapping[str, tuple[int, int]] = {"quick_gelu": (5, 11), "squared_relu": (2, 7)}
"""Activations that are no operator of PyTorch's: more reads and writes, forward and backward."""
KEPT = ("quick_gelu",)
"""Those of which autograd keeps a tensor beside the input: the sigmoid. (A squared ReLU keeps its ReLU instead.)"""
LAYER_NORM_BACKWARD = 2
GROUP_NORM, GROUP_NORM_BACKWARD, GROUP_NORM_LAYOUT = 5, 5, 24
"""Bytes an element: of 16 bits, forward and backward; of a copy to channels first."""
MODULATE, MODULATE_BACKWARD = 2, 4
GATED_ADD, GATED_ADD_BACKWARD = 2, 3
BIAS_BACKWARD = 1
BIAS = 2
JOIN = 2
LAYOUT = 2
"""Of both tensors of a convolution with channels first."""
LAYOUT_WEIGHT = 6
"""Of its weight: two passes at a third of a copy's rate."""
FLASH_QUERIES, FLASH_QUERIES_BACKWARD = 4, 4
FLASH_KEYS, FLASH_KEYS_BACKWARD = 24, 16
"""Of keys and of as many values."""
FLASH_JOIN = 8
FLASH = "flash_"
"""Begins the names of the package's kernels."""
_PASSES, _BACKWARD = "_passes", "_bw"
_PASS_KERNELS: Mapping[str, int] = {
    **{"quick_gelu": 2, "quick_gelu_bw": 4, "squared_relu": 1, "squared_relu_bw": 3},
    **{"rms_norm": 7, "rms_norm_bw": 15, "rope": 2, "rope_bw": 2, "layer_norm_bw": 0, "group_norm_bw": 1},
    **{"modulate": 1, "modulate_bw": 4, "gated_add": 1, "gated_add_bw": 2, "bias_bw": 1, "layout_bw": 1, "join_bw": 1},
}
"""Kernels of a module beyond the fused one (or two: a norm's backward); those of others: 1 forward and 2 backward."""
_KERNELS: Mapping[tuple[OpKind, Phase], int] = {
    (OpKind.ATTENTION_FORWARD, Phase.FORWARD): 4,
    (OpKind.ATTENTION_FORWARD, Phase.RECOMPUTE): 4,
    (OpKind.ATTENTION_BACKWARD, Phase.INPUT_GRADIENT): 6,
    (OpKind.NORM, Phase.INPUT_GRADIENT): 2,
}
ACCUMULATE = "accumulate_weight_grad"
"""Name of the kernel that adds a weight's gradient to its buffer."""
_COLLECTIVE = 10
_TRITON = 7
"""A kernel in Triton, launched from Python inside a function of autograd: scanned 5 to 8 on 51 runs of nanotron."""


class EagerKernels(Enum):
    """Whose kernels the modules of an eager framework call; the value is run.toml's word.

    PLAIN: PyTorch's own operators. FLASH_ATTN: norms and rotary embeddings of the package flash-attn.
    """

    PLAIN = "plain"
    FLASH_ATTN = "flash-attn"


class Autocast(Enum):
    """What ``torch.autocast`` does beside products in 16 bits; the value is run.toml's word.

    FP32_NORMS: layer and group norms compute in fp32 (PyTorch's list). LOW_PRECISION_NORMS: they are kept in 16 bits
    (Composer's ``low_precision_layernorm`` and ``low_precision_groupnorm``).
    """

    FP32_NORMS = "fp32_norms"
    LOW_PRECISION_NORMS = "low_precision_norms"

    @property
    def has_fp32_norms(self) -> bool:
        """Whether norms compute in fp32."""
        return self is Autocast.FP32_NORMS


def eager_moves(
    x: Tensor, passes: int, name: str, phase: Phase | None = None, kind: OpKind = OpKind.ADD, *, keeps: bool = False
) -> list[Tensor]:
    """``eager_passes`` by reads and writes of an element of ``x``, in its own type."""
    return eager_passes(x, passes * x.dtype.size_bytes, name, phase, kind, keeps=keeps)


def eager_passes(
    x: Tensor,
    bytes_per_element: int,
    name: str,
    phase: Phase | None = None,
    kind: OpKind = OpKind.ADD,
    *,
    keeps: bool = False,
) -> list[Tensor]:
    """Append the extra traffic of an unfused module; nothing where modules are fused.

    Args:
        x: what the kernels read; its elements count. bytes_per_element: beyond the fused kernel. name: of the kernel.
        phase: default: the trace's current phase. kind: whose rate the kernels have.
        keeps: one of the kernels writes a tensor like ``x`` that the backward reads.
    Returns:
        That tensor, if any.
    """
    if not x.trace.options.eager_modules:
        return []
    mem_bytes, like = bytes_per_element * x.numel, x if keeps else None
    made = x.trace.emit(kind, [x], like=like, mem_bytes=mem_bytes, key=(x.numel,), phase=phase, name=f"{name}{_PASSES}")
    return [made] if keeps else []


def launches_of(operator: Operator) -> int:
    """Launches of kernels that an operator's are like for the host, in eager mode."""
    if operator.kind.is_communication:
        return _COLLECTIVE
    name = operator.path.rpartition(".")[2]
    if name.startswith(FLASH):
        return _TRITON
    if name.endswith(_PASSES):
        name = name.removesuffix(_PASSES)
        return _PASS_KERNELS.get(name, 2 if name.endswith(_BACKWARD) else 1)
    return _KERNELS.get((operator.kind, operator.phase), 1)

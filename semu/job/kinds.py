"""Words of run.toml's ``[training]`` table, as enums."""

from __future__ import annotations

from enum import Enum

from semu.hardware.kinds import DType


class Precision(Enum):
    """Arithmetic of the matrix products; the value is run.toml's word."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    TF32 = "tf32"
    FP32 = "fp32"

    @property
    def compute_dtype(self) -> DType:
        """Which peak of the device applies."""
        return DType(self.value)

    @property
    def tensor_dtype(self) -> DType:
        """Element type of parameters and activations."""
        if self in (Precision.TF32, Precision.FP32):
            return DType.FP32
        return DType.FP16 if self is Precision.FP16 else DType.BF16


class Recompute(Enum):
    """Which activations are computed again in the backward pass instead of kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class RecomputePolicy(Enum):
    """What full recomputation keeps of a layer beside its input: torchtitan's policy (``semu.nn.trace.keep``)."""

    EVERY_SECOND_MATMUL = "every_second_matmul"


class CrossEntropy(Enum):
    """How the token loss is made: PyTorch's kernels over fp32 copies of the logits; one fp32 copy that becomes the
    softmax (Megatron-LM); the same in pieces that PyTorch compiles, where copy and softmax are two tensors
    (``--cross-entropy-loss-fusion``); or one kernel that writes the gradient over the logits (Transformer Engine,
    Liger)."""

    UNFUSED = "unfused"
    IN_PLACE = "in_place"
    COMPILED = "compiled"
    FUSED = "fused"


class Dispatcher(Enum):
    """How rows reach their experts' ranks: an all-to-all of every row; DeepEP's kernels, in which a token crosses to
    each node once, however many of its experts are there (2412.19437 §3.2.2); or an all-gather of all tokens, of which
    every rank takes what its experts need (Megatron-LM's ``MoEAllGatherTokenDispatcher``)."""

    ALLTOALL = "alltoall"
    DEEPEP = "deepep"
    ALLGATHER = "allgather"


class GatheredInputs(Enum):
    """What a column-split linear under sequence parallelism reads for its weight's gradient: the gathered input, kept
    from the forward pass, or the rank's own part, gathered again (2205.05198 §4.2.2)."""

    KEPT = "kept"
    AGAIN = "again"


class RecomputeMethod(Enum):
    """Which layers of a stage full recomputation covers (Megatron-LM's ``--recompute-method``)."""

    UNIFORM = "uniform"
    BLOCK = "block"


class Attention(Enum):
    """How attention is computed: one FlashAttention kernel, or separate kernels that keep the scores."""

    FUSED = "fused"
    UNFUSED = "unfused"


class Optimizer(Enum):
    """The optimizer whose step ends the iteration.

    ADAM keeps two moments, SGD (with momentum) and LION (2302.06675) one. MUON keeps the momentum of a layer's
    matrices, which Newton-Schulz products make orthogonal (2502.16982 §2), and steps all else as ADAM does.
    """

    ADAM = "adam"
    SGD = "sgd"
    LION = "lion"
    MUON = "muon"

    @property
    def title(self) -> str:
        """Its name in a sentence."""
        return str(self.value.upper() if self is Optimizer.SGD else self.value.capitalize())

    @property
    def fewest_moments(self) -> int:
        """Moments of every element at least."""
        return 2 if self is Optimizer.ADAM else 1


class SplitMatrices(Enum):
    """How Muon steps matrices that are split over tensor-parallel ranks, as Megatron-LM's ``--muon-tp-mode`` names it.

    BLOCKWISE: every rank its own part, as if it were a matrix. DUPLICATED: every rank the whole, which it gathers.
    DISTRIBUTED: every rank its part of the whole; the small product of every step is summed over the ranks.
    """

    BLOCKWISE = "blockwise"
    DUPLICATED = "duplicated"
    DISTRIBUTED = "distributed"


class Workspaces(Enum):
    """Which libraries' workspaces count as allocated memory: none, PyTorch's for cuBLAS, Transformer Engine's too."""

    NONE = "none"
    TORCH = "torch"
    TRANSFORMER_ENGINE = "transformer_engine"


class Fp8Weights(Enum):
    """How often fp8 linears cast their weights.

    ITERATION: once, after the step; both copies (plain and transposed) are kept, 2 bytes per element. Megatron-LM's
    default: it tells Transformer Engine the first microbatch, which fills the layer's weight workspace.
    PRIMARY: there are no 16-bit weights to cast: the optimizer writes fp8, the gather after it moves fp8, and only the
    transposed copy is made, once an iteration (Megatron-LM's ``--fp8-param-gather``).
    MICROBATCH: in every forward; nothing is kept but the transposed copy until the backward (Megatron-LM's
    ``disable_parameter_transpose_cache``, and torchao's float8 linears).
    """

    ITERATION = "iteration"
    PRIMARY = "primary"
    MICROBATCH = "microbatch"


class ParameterSync(Enum):
    """How ZeRO-1's ranks get the parameters that others stepped: all at once, or by a broadcast of every owner's, one
    after another behind the step (InternEvo's hybrid ZeRO, DeepSpeed before 2020)."""

    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"


class OptimizerKernels(Enum):
    """How a step runs: one fused kernel (Apex, Transformer Engine, PyTorch's ``fused=True``), or one kernel for each
    operation over lists of parameters (PyTorch's ``foreach``, its default)."""

    FUSED = "fused"
    FOREACH = "foreach"

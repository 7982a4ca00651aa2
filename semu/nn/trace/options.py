"""``TraceOptions``: how a model is traced, as far as its modules do not say."""

from __future__ import annotations

from dataclasses import field

from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.hardware.packed import FrozenWeights
from semu.nn.masked_kernel import Masking
from semu.nn.routing import ExpertPlan
from semu.nn.trace.eager import Autocast, EagerKernels
from semu.nn.trace.recompute_plan import RecomputePlan
from semu.nn.trace.sharding import ContextKind, ShardingPlan
from semu.records import dataclass


@dataclass(frozen=True)
class TraceOptions:
    """How a model is traced.

    Attributes:
        plan: sharding styles by module path.
        tp_group: placement of the tensor-parallel group.
        compute_dtype: precision of the matrix products; FP8: of the linears in an ``fp8_region`` only.
        tensor_dtype: element type of parameters and activations.
        grad_dtype: element type of the gradient buffers.
        overlap_tp: tensor-parallel collectives run beside independent kernels; false: compute waits for each.
        fused_attention: attention is one FlashAttention kernel; false: separate kernels that write the scores.
        separate_softmax: unfused attention's softmax is PyTorch's kernels, never Megatron-LM's one.
        head_dims: sizes of a head that this kernel is compiled for; empty: any.
        recompute: parts of the block that are computed again in the backward pass.
        cast_weights: under fp8, every microbatch casts the weights; false: they are cast once an iteration.
        transpose_weights: every microbatch transposes weights that come in fp8, where a product wants them so.
        experts: expert parallelism, and how tokens are routed.
        cp_group: placement of the context-parallel group. cp_kind: how attention works across it.
        cp_levels: of a ring between groups: one group, and the ring.
        cp_parts: groups of neighbouring context ranks in which keys travel, of every size; empty: among all.
        cross_entropy: ``unfused``, ``in_place``, ``compiled`` or ``fused``, see ``semu.nn.rules.loss``.
        fused_accumulation: products for weight gradients add into the gradient buffers themselves.
        sums_gradients_twice: without fused accumulation, see ``accumulate_weight_gradient``.
        fp8_recipe: how fp8 tensors are scaled. fp8_copies: of an operand of two products.
        fp8_gates: gated activations keep their input in fp8 for the backward.
        frozen_weights: how frozen weights of linears in an ``fp8_region`` are stored; None: as all others.
        replica_group: the data-parallel replicas, where a module reads them (``Module.reads_replicas``).
        keep_products: blocks that are recomputed keep some outputs, see ``semu.nn.trace.keep``.
        stop_early: recomputation ends with the last kernel whose output the backward needs, see
            ``semu.nn.trace.early_stop``.
        has_dtensor: sequence and context parallelism are DTensor's, whose kernels around collectives
            ``semu.nn.rules.collective`` and ``semu.nn.rules.attention.torch_ring`` count.
        keeps_gathered: column-split linears keep their gathered inputs for the weight gradient; false: gather again.
        eager_modules: norms, gated activations and rotations run operator by operator, see ``semu.nn.trace.eager``.
        eager_kernels: whose kernels these modules then call.
        masking: the mask of attention over text, and how context ranks share it.
        gang_group: ranks that run the block together, each with its part; what arrives is at one of them.
        gang_gathers: these ranks run the same; of what arrives every tensor is at another one of them.
        channels_first: in eager mode, convolutions copy their operands to channels last and back.
        convolves_patches: embeddings of image patches are convolutions, see ``semu.nn.rules.few_channels``.
        bias_kernels: linear layers without row split add their bias behind the product, as Megatron-LM's own do.
        autocast: 16-bit products under ``torch.autocast``; None: all tensors have one type.
        casts_parameters: under autocast, parameters are fp32 and copied to 16 bits in every forward.
    """

    plan: ShardingPlan = field(default_factory=ShardingPlan)
    tp_group: CommGroup = field(default_factory=lambda: CommGroup("tp", 1, 1))
    compute_dtype: DType = DType.BF16
    tensor_dtype: DType = DType.BF16
    grad_dtype: DType = DType.FP32
    overlap_tp: bool = False
    fused_attention: bool = True
    separate_softmax: bool = False
    head_dims: tuple[int, ...] = ()
    recompute: RecomputePlan = field(default_factory=RecomputePlan)
    cast_weights: bool = False
    transpose_weights: bool = False
    experts: ExpertPlan = field(default_factory=ExpertPlan)
    cp_group: CommGroup = field(default_factory=lambda: CommGroup("cp", 1, 1))
    cp_kind: ContextKind = ContextKind.RING
    cp_levels: tuple[CommGroup, CommGroup] | None = None
    cp_parts: tuple[CommGroup, ...] = ()
    replica_group: CommGroup = field(default_factory=lambda: CommGroup("replicas", 1, 1))
    keep_products: bool = False
    stop_early: bool = False
    eager_modules: bool = False
    eager_kernels: EagerKernels = EagerKernels.PLAIN
    channels_first: bool = False
    convolves_patches: bool = False
    bias_kernels: bool = False
    autocast: Autocast | None = None
    casts_parameters: bool = False
    has_dtensor: bool = False
    keeps_gathered: bool = False
    cross_entropy: str = "in_place"
    fused_accumulation: bool = True
    sums_gradients_twice: bool = False
    fp8_recipe: Fp8Recipe = Fp8Recipe.TENSORWISE
    fp8_copies: int = 2
    fp8_gates: bool = False
    frozen_weights: FrozenWeights | None = None
    masking: Masking = field(default_factory=Masking)
    gang_group: CommGroup | None = None
    gang_gathers: bool = False

    @property
    def calls_flash(self) -> bool:
        """Whether eager modules call the kernels of the package flash-attn."""
        return self.eager_modules and self.eager_kernels is EagerKernels.FLASH_ATTN

    @property
    def plain_dtype(self) -> DType:
        """Precision of what does not run in fp8."""
        return self.tensor_dtype if self.compute_dtype is DType.FP8 else self.compute_dtype

"""Kernel names of real libraries fall into their families."""

from __future__ import annotations

import pytest

from semu.fitting.kernel_names import FAMILY_OF_KIND, PATTERNS, Family, family_of, family_of_kind
from semu.graph.operator import OpKind
from tests.validation.own_runs import KERNELS

_NSYS_COPIES = [
    "[CUDA memcpy HtoD]",
    "[CUDA memcpy Device-to-Host]",
    "[CUDA Unified Memory memcpy HtoD]",
    "[CUDA memset]",
]
NAMES = {
    Family.MATMUL: [
        "ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x128x16",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_nn_align8>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16>",
        "void deep_gemm::fp8_gemm_kernel<7168u, 4096u, 128u>",
        "triton_mm",
        "triton_tem_fused_addmm_3",
    ],
    Family.ATTENTION_FORWARD: [
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t>>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<cutlass::gemm::Foo>>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128_4x1x1_kernel0_0",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<...>)",
        "triton_tem_fused_flex_attention_0",
    ],
    Family.ATTENTION_BACKWARD: [
        "void flash_bwd_dot_do_o_kernel<true, Flash_bwd_kernel_traits<128>>",
        "void flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<128>>",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdPostprocessConvertdQ<cutlass::X>>>",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_31_64x64x128_1x1x1_kernel0_0",
        "fmha_cutlassB_bf16_aligned_128x64_k128_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<...>)",
    ],
    Family.NORM: [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>",
        "void transformer_engine::normalization::ln_bwd_finalize_tuned_kernel<...>",
        "void cuApplyRMSNorm<float, float>",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3",
        "void scaled_upper_triang_masked_softmax_warp_forward<__nv_bfloat16, float, 11>",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, true>",
    ],
    Family.ELEMENTWISE: [
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<BinaryFunctor<float>>>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<OpaqueType<2u>, 2>",
        "triton_poi_fused__to_copy_mul_silu_5",
        "triton_poi_fused_mm_silu_1",
        "Memcpy DtoD (Device -> Device)",
        "[CUDA memcpy DtoD]",
        "[CUDA memcpy Device-to-Device]",
        "void transformer_engine::gated_act_kernel<...swiglu...>",
        "void transformer_engine::fused_rope_backward_kernel<float>",
    ],
    Family.EMBEDDING: [
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<float, long>",
        "void at::native::(anonymous namespace)::compute_grad_weight<c10::BFloat16>",
        "void at::native::index_elementwise_kernel<128, 4>",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float>",
    ],
    Family.CROSS_ENTROPY: [
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>",
        "void at::native::cunn_SoftMaxForward<4, float, at::native::LogSoftMaxForwardEpilogue>",
        "cross_entropy_kernel",
    ],
    Family.REDUCTION: ["void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "triton_red_fused_sum_3"],
    Family.OPTIMIZER: [
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<__nv_bfloat16>>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>>",
    ],
    Family.MEMCPY: [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pinned)",
        "Memset (Device)",
        *_NSYS_COPIES,
    ],
    Family.ALL_REDUCE: ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork)"],
    Family.ALL_GATHER: ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"],
    Family.REDUCE_SCATTER: ["ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "ncclKernel_ReduceScatter_RING_SIMPLE"],
    Family.ALL_TO_ALL: [
        "void deep_ep::internode::dispatch<false, 2, true>",
        "deep_ep::intranode::cached_notify_combine",
    ],
    Family.P2P: [
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "Memcpy PtoP (Device -> Device)",
        "[CUDA memcpy Peer-to-Peer]",
    ],
    Family.BROADCAST: ["ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_Reduce_Sum_f32_RING_LL"],
    Family.UNMATCHED: ["my_own_kernel", "void do_something<int>"],
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in NAMES.items() for name in names])
def test_names_fall_into_their_families(family: Family, name: str) -> None:
    assert family_of(name) is family


def test_every_family_but_the_last_has_a_pattern() -> None:
    assert {family for _, family in PATTERNS} == set(Family) - {Family.UNMATCHED}
    assert set(NAMES) == set(Family)


def test_every_operator_kind_has_a_family_of_its_side() -> None:
    assert set(FAMILY_OF_KIND) == set(OpKind)
    for kind, family in FAMILY_OF_KIND.items():
        assert kind.is_communication == family.is_communication
        assert kind.is_communication != family.is_compute
        assert family_of_kind(kind.value) is family
        if kind is not OpKind.ALL_TO_ALL:  # NCCL's kernel does not tell, see below
            assert family_of(KERNELS[kind]) is family
    assert family_of_kind("matmull") is None


def test_the_collective_that_pytorch_names_wins() -> None:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    assert family_of(name, "all_to_allv") is Family.ALL_TO_ALL
    assert family_of(name, "send") is Family.P2P
    assert family_of(name, "of another version") is Family.P2P
    assert family_of("ncclDevKernel_Generic", "_reduce_scatter_base") is Family.REDUCE_SCATTER

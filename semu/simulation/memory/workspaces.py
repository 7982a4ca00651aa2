"""What libraries keep of a device's memory beside tensors, inside the framework's allocator: ``workspace_bytes``."""

from __future__ import annotations

from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType
from semu.job.kinds import Workspaces

MIB = 2**20
CUBLAS_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
"""PyTorch's cuBLAS workspace per handle and stream (``CUBLAS_WORKSPACE_CONFIG`` = ``:4096:2:16:8``, the default; ATen,
``CUDABlas``/``CublasHandlePool``, ``parseChosenWorkspaceSize``)."""
CUBLAS_BYTES_HOPPER = 32 * MIB
"""The same from compute capability 9 on, and under ``:4096:8``, which deterministic runs ask for."""
CUBLAS_HANDLES = 2
"""One for the thread that runs forward passes, one for autograd's thread: handles belong to threads (ATen)."""
TRANSFORMER_ENGINE_BYTES = 4 * MIB
"""Transformer Engine's own workspace (``transformer_engine.pytorch.module.base.get_cublas_workspace_size_bytes``)."""
TRANSFORMER_ENGINE_BYTES_HOPPER = 32 * MIB
"""The same from compute capability 9 on."""
GROUPED_STREAMS = 4
"""Streams of Transformer Engine's grouped products, each with a workspace of its own
(``transformer_engine.pytorch.module.base.get_multi_stream_cublas_workspace``)."""


def cublas_bytes(profile: DeviceProfile) -> int:
    """cuBLAS workspace of one handle and stream [bytes]; a device with fp8 arithmetic has compute capability >= 9."""
    return CUBLAS_BYTES_HOPPER if DType.FP8 in profile.flop_per_s else CUBLAS_BYTES


def workspace_bytes(kind: Workspaces, profile: DeviceProfile, *, has_experts: bool = False) -> int:
    """Bytes that stay allocated from the first iteration on.

    Megatron-LM's published CI runs on H100 confirm the sum: with Transformer Engine, what is allocated between
    iterations is parameters, gradients, optimizer state and 96.0 MiB.

    Args:
        kind: which libraries. profile: the device.
        has_experts: grouped products run.
    """
    if kind is Workspaces.NONE:
        return 0
    size = CUBLAS_HANDLES * cublas_bytes(profile)
    if kind is Workspaces.TRANSFORMER_ENGINE:
        is_hopper = DType.FP8 in profile.flop_per_s
        each = TRANSFORMER_ENGINE_BYTES_HOPPER if is_hopper else TRANSFORMER_ENGINE_BYTES
        size += each * (1 + (GROUPED_STREAMS if has_experts else 0))
    return size

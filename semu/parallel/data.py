"""Data parallelism: gradient buckets, the bytes of their reduction, what each rank stores (ZeRO-0 to ZeRO-3)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

from semu.hardware.kinds import DType
from semu.records import dataclass

MIN_BUCKET_ELEMENTS = 40_000_000
"""Smallest gradient bucket: max(40 million, 1 million x dp) elements, Megatron-LM's default (--ddp-bucket-size)."""
BUCKET_ELEMENTS_PER_RANK = 1_000_000
DDP_BUCKET_BYTES = 25 << 20
"""Parameters of a bucket of PyTorch's DistributedDataParallel (``bucket_cap_mb``), but for the first, of 1 MiB."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together.

    Attributes:
        elements: local elements. members: numbers of the parameters in it, in order of readiness.
    """

    elements: int
    members: tuple[int, ...]


def gradient_buckets(
    elements: Sequence[int],
    dp: int,
    *,
    overlapped: bool,
    slots: Sequence[int] | None = None,
    limit: int | None = None,
) -> list[Bucket]:
    """Group parameters, in the order in which their gradients become ready, into buckets.

    Args:
        elements: local elements of each trainable parameter.
        dp: ranks over which gradients are reduced (data x context).
        overlapped: false: one bucket (nothing is gained by several).
        slots: virtual stage of each parameter; each has buckets of its own (Megatron-LM wraps each model chunk alone),
            also where gradients of several become ready in turns.
        limit: elements that fill a bucket; None: Megatron-LM's.
    Returns:
        Buckets in the order in which they are complete.
    """
    if limit is None:
        limit = max(MIN_BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * dp)
    buckets: list[Bucket] = []
    filling: dict[int, tuple[list[int], int]] = {}
    for number, count in enumerate(elements):
        slot = 0 if slots is None else slots[number]
        members, size = filling.pop(slot, ([], 0))
        members.append(number)
        size += count
        if overlapped and size >= limit:
            buckets.append(Bucket(size, tuple(members)))
        else:
            filling[slot] = members, size
    buckets += [Bucket(size, tuple(members)) for members, size in filling.values()]
    return sorted(buckets, key=lambda bucket: bucket.members[-1])


@dataclass(frozen=True)
class StaticBytes:
    """What a rank stores for its parameters all the time [bytes]; on the host: ``host``: optimizer state,
    ``host_weights``: weights."""

    parameters: int
    gradients: int
    optimizer: int
    host: int = 0
    host_weights: int = 0

    @property
    def total(self) -> int:
        """All three, on the device."""
        return self.parameters + self.gradients + self.optimizer

    def __add__(self, other: StaticBytes) -> StaticBytes:
        return StaticBytes(*map(add, vars(self).values(), vars(other).values()))


def static_bytes(
    elements: int,
    trainable: int,
    *,
    dp: int,
    zero: int,
    tensor_dtype: DType,
    grad_dtype: DType,
    master_dtype: DType = DType.FP32,
    state_dtype: DType = DType.FP32,
    fp8_elements: int = 0,
    fp8_copies: int = 2,
    fp8_primary: int = 0,
    shards_are_masters: bool = False,
    fp8_scale_bytes: int = 0,
    bucket_dtype: DType | None = None,
    has_two_gradients: bool = False,
    moments: int = 2,
) -> StaticBytes:
    """Static memory of mixed-precision training.

    Args:
        elements, trainable: local elements of all, and of the trainable, parameters.
        dp: ranks over which ZeRO shards (data x context, or of a group).
        zero: 0: all is replicated; sharded over dp: 1: the optimizer, 2: gradients too, 3: parameters too.
        tensor_dtype, grad_dtype: types of parameters and gradient buffers.
        master_dtype, state_dtype: types of master weights and moments.
        fp8_elements: local elements of weights of which fp8 copies stay. fp8_copies: plain and transposed, or one.
        fp8_primary: those of them that have no other copy in ``tensor_dtype``.
        shards_are_masters: ZeRO-3 keeps one copy of its shards, in ``master_dtype``, and casts what it gathers.
        fp8_scale_bytes: scales of one such copy of all of them [bytes].
        bucket_dtype: gradients that are reduced whole are copied into buckets of this type that stay, as PyTorch's
            DistributedDataParallel does with ``gradient_as_bucket_view = False``, its default; None: they are not.
        has_two_gradients: gradients of the parameters' type stay beside the buffers, as under DeepSpeed's
            BF16_Optimizer.
        moments: of every trained element; Adam has two.
    Returns:
        Parameters; gradient buffers; master weights (only where their type is another one) and moments.
    Source:
        1910.02054 §3.1 (K = 12 bytes), with Megatron-LM's fp32 gradient buffers: 18 bytes per parameter, and
        6 + 12 / dp under the distributed optimizer; ZeRO-2 2 + 16 / dp, ZeRO-3 18 / dp (1910.02054 Table 1, there with
        2-byte gradients). Shards are rounded up.
    """
    master = 0 if tensor_dtype is master_dtype else master_dtype.size_bytes
    share = -(-trainable // dp)
    gradient = grad_dtype.size_bytes + (tensor_dtype.size_bytes if has_two_gradients else 0)
    bucket = bucket_dtype.size_bytes if bucket_dtype is not None and dp > 1 and zero <= 1 else 0
    held = (-(-elements // dp) if zero >= 3 else elements) - fp8_primary
    if shards_are_masters and zero >= 3 and master:
        held -= share
    return StaticBytes(
        parameters=held * tensor_dtype.size_bytes
        + fp8_copies * (fp8_elements * DType.FP8.size_bytes + fp8_scale_bytes),
        gradients=(share if zero >= 2 else trainable) * gradient + trainable * bucket,
        optimizer=(share if zero >= 1 else trainable) * (master + moments * state_dtype.size_bytes),
    )

"""Data parallelism: what each rank stores, and gradient buckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.hardware.kinds import DType
from semu.parallel.data import DDP_BUCKET_BYTES, Bucket, StaticBytes, gradient_buckets, static_bytes

MILLION = 1_000_000


def stored(
    elements: int,
    trainable: int | None = None,
    *,
    dp: int = 1,
    zero: int = 0,
    tensor: DType = DType.BF16,
    grad: DType = DType.FP32,
) -> StaticBytes:
    count = elements if trainable is None else trainable
    return static_bytes(elements, count, dp=dp, zero=zero, tensor_dtype=tensor, grad_dtype=grad)


# -- static memory -----------------------------------------------------------------------------------------------
@pytest.mark.paper
@pytest.mark.parametrize("dp", [1, 2, 8, 64])
def test_mixed_precision_adam_stores_18_bytes_a_parameter(dp: int) -> None:
    """Megatron-LM: bf16 parameter 2, fp32 gradient 4, fp32 master weight 4, two fp32 moments 8."""
    held = stored(MILLION, dp=dp)
    assert (held.parameters, held.gradients, held.optimizer) == (2 * MILLION, 4 * MILLION, 12 * MILLION)
    assert held.total == 18 * MILLION


@pytest.mark.paper
@pytest.mark.parametrize("dp", [1, 2, 8, 64])
def test_the_distributed_optimizer_stores_6_and_12_over_dp(dp: int) -> None:
    assert stored(MILLION, dp=dp, zero=1).total == 6 * MILLION + 12 * MILLION // dp


@pytest.mark.paper
@pytest.mark.parametrize("dp", [1, 2, 8, 64])
def test_sharded_gradients_and_parameters(dp: int) -> None:
    """1910.02054 Table 1: 2 + (2 + 12) / dp and (2 + 2 + 12) / dp; with fp32 gradients 4 instead of the second 2."""
    assert stored(64 * MILLION, dp=dp, zero=2, grad=DType.BF16).total == 64 * MILLION * 2 + 64 * MILLION * 14 // dp
    assert stored(64 * MILLION, dp=dp, zero=3, grad=DType.BF16).total == 64 * MILLION * 16 // dp
    assert stored(64 * MILLION, dp=dp, zero=3).total == 64 * MILLION * 18 // dp
    assert stored(10, 4, dp=4, zero=3) == StaticBytes(2 * 3, 4 * 1, 12 * 1)


@pytest.mark.paper
def test_zero_paper_baseline_with_half_precision_gradients() -> None:
    """1910.02054 §3.1: 2 + 2 + K, K = 12."""
    assert stored(MILLION, grad=DType.BF16).total == 16 * MILLION


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_the_shards_hold_everything_and_little_more(trainable: int, dp: int) -> None:
    shard = stored(trainable, dp=dp, zero=1).optimizer
    whole = stored(trainable, dp=dp, zero=0).optimizer
    assert whole <= dp * shard < whole + 12 * dp
    assert shard % 12 == 0


def test_single_precision_has_no_master_weights() -> None:
    held = stored(1000, tensor=DType.FP32)
    assert (held.parameters, held.gradients, held.optimizer) == (4000, 4000, 8000)


def test_frozen_parameters_are_stored_and_nothing_else() -> None:
    assert stored(1000, 0, dp=4, zero=1) == StaticBytes(2000, 0, 0)
    assert stored(1000, 400) == StaticBytes(2000, 1600, 4800)


@pytest.mark.parametrize(("zero", "dp", "is_held"), [(0, 4, True), (1, 4, True), (0, 1, False), (2, 4, False)])
def test_gradients_that_are_reduced_whole_lie_in_buckets_once_more(zero: int, dp: int, is_held: bool) -> None:
    def _held(bucket: DType | None) -> StaticBytes:
        return static_bytes(
            1000, 600, dp=dp, zero=zero, tensor_dtype=DType.BF16, grad_dtype=DType.FP32, bucket_dtype=bucket
        )

    plain = _held(None)
    for dtype, size in ((DType.BF16, 2), (DType.FP32, 4)):
        held = _held(dtype)
        assert held.gradients - plain.gradients == is_held * 600 * size
        assert (held.parameters, held.optimizer) == (plain.parameters, plain.optimizer)


# -- buckets -----------------------------------------------------------------------------------------------------
counts = st.lists(st.integers(0, 60 * MILLION), max_size=30)


@given(counts, st.sampled_from([1, 8, 40, 64, 512]))
def test_buckets_cover_every_parameter_once_and_in_order(elements: list[int], dp: int) -> None:
    buckets = gradient_buckets(elements, dp, overlapped=True)
    assert [member for bucket in buckets for member in bucket.members] == list(range(len(elements)))
    for bucket in buckets:
        assert bucket.elements == sum(elements[member] for member in bucket.members)


@given(counts, st.sampled_from([1, 8, 40, 64, 512]))
def test_a_bucket_closes_as_soon_as_it_is_large_enough(elements: list[int], dp: int) -> None:
    """Megatron-LM: max(40 million, 1 million x dp) elements."""
    limit = max(40 * MILLION, MILLION * dp)
    buckets = gradient_buckets(elements, dp, overlapped=True)
    for bucket in buckets:
        assert bucket.elements - elements[bucket.members[-1]] < limit
    for bucket in buckets[:-1]:
        assert bucket.elements >= limit


def test_pytorch_s_buckets_are_smaller() -> None:
    """``bucket_cap_mb`` of DistributedDataParallel: 25 MiB of parameters, one larger than that alone."""
    limit = DDP_BUCKET_BYTES // 2
    found = gradient_buckets([8_000_000, 8_000_000, 50_000_000, 1000], 1024, overlapped=True, limit=limit)
    assert limit == 13_107_200
    assert [bucket.members for bucket in found] == [(0, 1), (2,), (3,)]


def test_nothing_is_gained_by_several_buckets_without_overlap() -> None:
    elements = [50 * MILLION, 30 * MILLION, 70 * MILLION]
    assert gradient_buckets(elements, 8, overlapped=False) == [Bucket(150 * MILLION, (0, 1, 2))]
    assert gradient_buckets(elements, 8, overlapped=True) == [
        Bucket(50 * MILLION, (0,)),
        Bucket(100 * MILLION, (1, 2)),
    ]
    assert gradient_buckets([], 8, overlapped=False) == gradient_buckets([], 8, overlapped=True) == []


def test_virtual_stages_whose_gradients_come_in_turns_fill_buckets_of_their_own() -> None:
    turns = gradient_buckets([25 * MILLION] * 4, 2, overlapped=True, slots=[1, 0, 1, 0])
    assert turns == [Bucket(50 * MILLION, (0, 2)), Bucket(50 * MILLION, (1, 3))]

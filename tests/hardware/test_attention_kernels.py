"""Attention kernels: which one a run calls, and what it costs."""

from __future__ import annotations

import pytest

import semu
from semu.errors import ConfigError
from semu.hardware.attention_kernels import (
    DETERMINISTIC_BACKWARD,
    AttentionKernel,
    computed_head_dim,
    head_dims,
    usual_kernel,
)
from semu.hardware.kinds import DType, OpKind, Provenance
from semu.hardware.profile import load_profile
from semu.hardware.software import Software
from semu.runfile import load_run

PASSES = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)


def slower(
    run: str, forward: float, backward: float, *settings: str, short: tuple[float, float] | None = None
) -> float:
    """The iteration under attention coefficients that are so much slower: rates divided, nothing else changed; with
    ``short``, tokens that short sequences lose, forward and backward: of a kernel with a curve of its own."""
    base = load_run(run, settings)
    numbers: dict[str, object] = {}
    for kind, factor, lost in zip(PASSES, (forward, backward), short or (0.0, 0.0), strict=True):
        for name, section in base.cluster.profile.sections().items():
            if name.startswith(f"efficiency.{kind.value}"):
                numbers |= {f"{name}.{rate}": getattr(section, rate) / factor for rate in ("flop", "mem")}
                if short is not None:
                    own = {"mem": 0.8, "p": 3.0, "tile_rest": 0.0, "s0_tokens": lost}
                    numbers |= {f"{name}.{key}": value for key, value in own.items()}
    changed = [f"cluster.override.{name}={value!r}" for name, value in numbers.items()]
    return semu.evaluate(load_run(run, [*settings, *changed])).iteration_time_s


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run", ["lm-7b", "t2v-s"])
def test_a_kernel_slows_attention_and_nothing_else(run: str) -> None:
    settings = ("cluster.device=h100", "training.software=kernels")
    fa2 = load_profile("h100").attention_factors(AttentionKernel.FA2)
    assert fa2.forward_s0_tokens is not None and fa2.backward_s0_tokens is not None
    short = (fa2.forward_s0_tokens.value, fa2.backward_s0_tokens.value)
    found = semu.evaluate(load_run(run, [*settings, "training.attention_kernel=fa2"])).iteration_time_s
    assert found == slower(run, fa2.forward.value, fa2.backward.value, *settings, short=short)
    assert found > semu.evaluate(load_run(run, settings)).iteration_time_s
    fixed = semu.evaluate(
        load_run(run, [*settings, "training.attention_kernel=fa2", "training.attention_deterministic=true"])
    ).iteration_time_s
    late = fa2.backward.value * DETERMINISTIC_BACKWARD.value
    assert fixed == slower(run, fa2.forward.value, late, *settings, short=short)


def test_a_kernel_without_factors_is_its_relative() -> None:
    profile = load_profile("h100")
    fa2 = profile.attention_factors(AttentionKernel.FA2)
    assert fa2.forward.value > 1.5 and fa2.forward.provenance is Provenance.FITTED
    assert profile.attention_factors(AttentionKernel.SDPA) == profile.attention_factors(AttentionKernel.FLEX) == fa2
    assert profile.attention_factors(AttentionKernel.TE) == profile.attention_factors(AttentionKernel.CUDNN)
    for kernel in (AttentionKernel.FA3, None):
        assert profile.attention_factors(kernel).backward.value == 1
    assert load_profile("a100-80g").attention_factors(AttentionKernel.TE).backward.value == 1


def test_one_kernel_is_compared_with_another() -> None:
    """Factors of the first FlashAttention in Triton are of FlashAttention-2's time, and so are its short sequences."""
    profile = load_profile("h100")
    triton = profile.attention_kernels[AttentionKernel.TRITON_FA1]
    fa2 = profile.attention_factors(AttentionKernel.FA2)
    found = profile.attention_factors(AttentionKernel.TRITON_FA1)
    assert found.forward.value == triton.forward.value * fa2.forward.value
    assert found.backward.value == triton.backward.value * fa2.backward.value
    assert found.backward_s0_tokens == fa2.backward_s0_tokens is not None
    for device in ("a100-80g", "h100"):
        kernels = load_profile(device).attention_kernels
        assert kernels[AttentionKernel.TRITON_FA1].forward.value == triton.forward.value, "a property of the kernels"


@pytest.mark.parametrize(
    ("device", "heads", "length", "tflops"),
    [
        ("a100-80g", 16, 1024, 133.0),
        ("a100-80g", 16, 8192, 182.0),
        ("h100", 16, 512, 163.0),
        ("h100", 16, 16384, 328.0),
    ],
)
def test_flash_attention_2_reaches_its_figure(device: str, heads: int, length: int, tflops: float) -> None:
    """Bars of the paper's figure, causal, 128 features a head, 16k tokens, forward and backward: within 20 %, which is
    what sustained load takes; by formulas of this test."""
    profile, tokens = load_profile(device).under(Software.KERNELS, AttentionKernel.FA2), 16384
    seconds = 0.0
    for kind, times in zip(PASSES, (1.0, 2.5), strict=True):
        own = profile.efficiency(kind, dtype=DType.BF16)
        flop = times * 2 * tokens * length * heads * 128 * (1 + own.s0_tokens / length)
        compute = flop / (own.flop * profile.peak_flop_per_s(DType.BF16) / (1 + own.power))
        moved = (4 if times == 1.0 else 8) * tokens * heads * 128 * 2 / (own.mem * profile.mem_bytes_per_s.value)
        seconds += own.t0_s + (compute**own.p + moved**own.p) ** (1 / own.p)
    reached = 3.5 * 2 * tokens * length * heads * 128 / seconds / 1e12
    assert 0.8 * tflops < reached < 1.03 * tflops


@pytest.mark.parametrize(
    ("software", "date", "kernel"),
    [
        (Software.MEGATRON, None, AttentionKernel.TE),
        (Software.MEGATRON, "2024-07", AttentionKernel.TE),
        (Software.MEGATRON, "2024-06", AttentionKernel.FA2),
        (Software.MEGATRON, "2023-07", AttentionKernel.FA1),
        (Software.TORCH, None, AttentionKernel.SDPA),
        (Software.TORCH, "2024-01", AttentionKernel.SDPA),
        (Software.TORCH, "2023-12", AttentionKernel.FA1),
        (Software.KERNELS, "2023-10", None),
    ],
)
def test_what_a_software_called_at_a_date(software: Software, date: str | None, kernel: AttentionKernel | None) -> None:
    assert usual_kernel(software, date) is kernel
    settings = [f"training.software={software.value}"]
    job = load_run("lm-7b", settings if date is None else [*settings, f"training.software_date={date}"])
    assert job.attention_kernel is kernel
    assert load_run("lm-7b", [*settings, "training.attention_kernel=fa3"]).attention_kernel is AttentionKernel.FA3


@pytest.mark.parametrize(
    ("setting", "where"),
    [("attention_kernel=fa4", "training.attention_kernel"), ("software_date=2024-13", "training.software_date")],
)
def test_what_is_no_kernel_and_no_month_is_refused(setting: str, where: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_run("lm-7b", [f"training.{setting}"])
    assert str(error.value.where).endswith(where)


def test_a_device_s_own_factors() -> None:
    job = load_run("lm-7b", ["cluster.device=h100", "cluster.override.attention_kernel.fa2.backward=2.5"])
    assert job.cluster.profile.attention_factors(AttentionKernel.FA2).backward.value == 2.5
    with pytest.raises(ConfigError):
        load_run("lm-7b", ["cluster.device=h100", "cluster.override.attention_kernel.fa2.backward=0"])


def test_the_first_flash_attention_takes_twice_its_successor_s_time() -> None:
    for device in ("h100", "a100-80g"):
        profile = load_profile(device)
        fa1, fa2 = (profile.attention_factors(kernel) for kernel in (AttentionKernel.FA1, AttentionKernel.FA2))
        assert (fa1.forward.value, fa1.backward.value) == (2 * fa2.forward.value, 2 * fa2.backward.value)


@pytest.mark.parametrize(
    ("kernel", "head_dim", "computed"),
    [
        (AttentionKernel.FA2, 72, 96),
        (AttentionKernel.SDPA, 88, 96),
        (AttentionKernel.FA2, 128, 128),
        (AttentionKernel.FA1, 80, 128),
        (AttentionKernel.FA1, 160, 160),  # none that large
        (AttentionKernel.TRITON_FA1, 72, 128),
        (AttentionKernel.FA3, 40, 64),
        (AttentionKernel.CUDNN, 72, 72),
        (None, 72, 72),
    ],
)
def test_a_head_is_computed_as_the_next_size_that_a_kernel_has(
    kernel: AttentionKernel | None, head_dim: int, computed: int
) -> None:
    assert computed_head_dim(head_dims(kernel), head_dim) == computed

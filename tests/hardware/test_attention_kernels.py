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
from semu.hardware.kinds import OpKind, Provenance
from semu.hardware.profile import load_profile
from semu.hardware.software import Software
from semu.runfile import load_run

PASSES = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)


def slower(run: str, forward: float, backward: float, *settings: str) -> float:
    """The iteration under attention coefficients that are so much slower: rates divided, nothing else changed."""
    base = load_run(run, settings)
    numbers: dict[str, object] = {}
    for kind, factor in zip(PASSES, (forward, backward), strict=True):
        for name, section in base.cluster.profile.sections().items():
            if name.startswith(f"efficiency.{kind.value}"):
                numbers |= {f"{name}.{rate}": getattr(section, rate) / factor for rate in ("flop", "mem")}
    changed = [f"cluster.override.{name}={value!r}" for name, value in numbers.items()]
    return semu.evaluate(load_run(run, [*settings, *changed])).iteration_time_s


@pytest.mark.parametrize("run", ["lm-7b", "t2v-s"])
def test_a_kernel_slows_attention_and_nothing_else(run: str) -> None:
    settings = ("cluster.device=h100", "training.software=kernels")
    fa2 = load_profile("h100").attention_factors(AttentionKernel.FA2)
    found = semu.evaluate(load_run(run, [*settings, "training.attention_kernel=fa2"])).iteration_time_s
    assert found == slower(run, fa2.forward.value, fa2.backward.value, *settings)
    assert found > semu.evaluate(load_run(run, settings)).iteration_time_s
    fixed = semu.evaluate(
        load_run(run, [*settings, "training.attention_kernel=fa2", "training.attention_deterministic=true"])
    ).iteration_time_s
    assert fixed == slower(run, fa2.forward.value, fa2.backward.value * DETERMINISTIC_BACKWARD.value, *settings)


def test_a_kernel_without_factors_is_its_relative() -> None:
    profile = load_profile("h100")
    fa2 = profile.attention_factors(AttentionKernel.FA2)
    assert fa2.forward.value > 1.5 and fa2.forward.provenance is Provenance.FITTED
    assert profile.attention_factors(AttentionKernel.SDPA) == profile.attention_factors(AttentionKernel.FLEX) == fa2
    for kernel in (AttentionKernel.TE, AttentionKernel.CUDNN, AttentionKernel.FA3, None):
        assert profile.attention_factors(kernel).backward.value == 1
    assert load_profile("a100-80g").attention_factors(AttentionKernel.SDPA).forward.value == 1


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

"""Every shipped device: complete, labelled, and physically sane."""

from __future__ import annotations

import math

import pytest

from semu.errors import ConfigError
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.profile import list_profiles, load_profile

SOLD_GB = {
    "a100-40g": 40,
    "a100-80g": 80,
    "a100-pcie": 80,
    "a40": 48,
    "a800": 80,
    "b200": 180,
    "b300": 270,
    "gb200-nvl72": 186,
    "gb300-nvl72": 279,
    "h100": 80,
    "h100-96g": 96,
    "h20": 96,
    "h200": 141,
    "h800": 80,
    "h800-400g": 80,
    "l40s": 48,
    "mi300x": 192,
    "rtx4090": 24,
}
NAMES = list(SOLD_GB)
WITHOUT_FP8 = {"a100-40g", "a100-80g", "a100-pcie", "a40", "a800"}
FP8 = {*NAMES} - WITHOUT_FP8
UNMEASURED = {"a800", "b300", "gb200-nvl72", "gb300-nvl72", "l40s", "mi300x", "rtx4090"}
"""Of whose kernels nothing is fitted: peaks of the data sheet, coefficients of a sister device."""
WITHOUT_NVLINK = {"l40s", "rtx4090"}


@pytest.fixture(params=NAMES)
def profile(request: pytest.FixtureRequest) -> DeviceProfile:
    return load_profile(request.param)


def test_all_devices_are_there() -> None:
    assert list_profiles() == NAMES


@pytest.mark.sampled(2)
def test_numbers_are_labelled(profile: DeviceProfile) -> None:
    numbers = dict(profile.numbers())
    assert len(numbers) > 100
    for key, number in numbers.items():
        assert isinstance(number.provenance, Provenance), key
        assert number.source.strip() and number.source != "user", key
    for key in [*numbers][::10]:
        assert profile.provenance_of(key) is numbers[key].provenance
    counted = profile.by_provenance()
    assert sorted(key for keys in counted.values() for key in keys) == sorted(numbers)
    assert profile.description


def test_peaks_carry_no_default(profile: DeviceProfile) -> None:
    for key in ("memory_bytes", "mem_bytes_per_s", "nvlink_bytes_per_s"):
        assert profile.provenance_of(key) in (Provenance.SPEC, Provenance.MEASURED)
    for kind in ("matmul", "attention_forward", "attention_backward", "norm", "optimizer"):
        assert profile.provenance_of(f"efficiency.{kind}") is not Provenance.DEFAULT
    for link in ("link.nvlink", "link.nic"):
        assert profile.provenance_of(link) is not Provenance.DEFAULT


def test_sections_have_the_worst_provenance_of_their_numbers() -> None:
    h100 = load_profile("h100")
    assert h100.provenance_of("efficiency.matmul.flop") is Provenance.FITTED
    assert h100.provenance_of("efficiency") is Provenance.DEFAULT
    assert h100.provenance_of("link.nic") is Provenance.TRANSFERRED
    with pytest.raises(ConfigError, match="did you mean"):
        h100.provenance_of("efficiency.matmal")


def test_reported_memory_is_what_is_sold_or_a_little_less(profile: DeviceProfile) -> None:
    """Sold GB count as GiB of chips; the driver keeps up to 4 % (more with ECC in GDDR6), HBM parts less."""
    sold_bytes = SOLD_GB[profile.name] * 2**30
    lowest = 0.92 if profile.name in ("a40", "l40s") else 0.97
    assert lowest * sold_bytes <= profile.memory_bytes.value < sold_bytes


def test_h100_memory_is_79_gib() -> None:
    assert load_profile("h100").memory_bytes.value / 2**30 == pytest.approx(79.1, abs=0.05)


def test_arithmetic(profile: DeviceProfile) -> None:
    bf16 = profile.peak_flop_per_s(DType.BF16)
    assert 100e12 < bf16 < 3e15
    assert profile.peak_flop_per_s(DType.FP16) == bf16
    assert profile.peak_flop_per_s(DType.TF32) == pytest.approx(bf16 / 2, rel=0.02)
    assert profile.peak_flop_per_s(DType.FP32) < bf16
    assert (DType.FP8 in profile.flop_per_s) == (profile.name in FP8)
    if profile.name in FP8:
        assert profile.peak_flop_per_s(DType.FP8) == pytest.approx(2 * bf16, rel=0.02)
        assert profile.efficiency(OpKind.MATMUL, dtype=DType.FP8) is profile.variants[OpKind.MATMUL, DType.FP8]


def test_bandwidths_are_bytes_per_second_in_one_direction(profile: DeviceProfile) -> None:
    assert 500e9 < profile.mem_bytes_per_s.value < 10e12
    if profile.name in WITHOUT_NVLINK:
        assert (profile.nvlink_gpus.value, profile.nvlink_bytes_per_s.value) == (1, profile.pcie_bytes_per_s.value)
    else:
        assert 50e9 < profile.nvlink_bytes_per_s.value <= 900e9
    assert 20e9 <= profile.nic_bytes_per_s.value <= 100e9
    assert 30e9 < profile.pcie_bytes_per_s.value <= 225e9
    assert profile.nvlink_gpus.value in (1, 2, 8, 72)


def test_what_nobody_measured_is_never_called_measured_or_fitted() -> None:
    for name in UNMEASURED:
        profile = load_profile(name)
        named = {number.provenance for _, number in profile.numbers()}
        assert not named & {Provenance.MEASURED, Provenance.FITTED}, name


def test_coefficients_are_sane(profile: DeviceProfile) -> None:
    sections = [*profile.efficiencies.items(), *((kind, item) for (kind, _), item in profile.variants.items())]
    for kind, item in sections:
        assert 0 < item.flop <= 1 and 0 < item.mem <= 1 and 0 <= item.t0_s < 1e-4 and item.p >= 1
        assert item.relative_error is None or (item.provenance is Provenance.FITTED and item.relative_error < 0.35)
        is_attention = kind in (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
        assert is_attention or item.s0_tokens == 0
    for port in Port:
        for kind, link in profile.links[port].kinds.items():
            assert 0.1 < link.net <= 1 and link.t0_s < 1e-4 and link.hop_s < 2e-5 and link.c_s < 1e-4, (port, kind)
    assert math.isinf(profile.efficiencies[OpKind.ADD].p)


def test_backward_attention_is_not_faster_than_forward_of_the_same_library() -> None:
    for name in ("h20", "b200", "a100-pcie"):
        profile = load_profile(name)
        assert (
            profile.efficiencies[OpKind.ATTENTION_BACKWARD].flop < profile.efficiencies[OpKind.ATTENTION_FORWARD].flop
        )


def test_attention_uses_the_nearest_head_dimension() -> None:
    h100 = load_profile("h100")
    forward = OpKind.ATTENTION_FORWARD
    main = h100.efficiencies[forward]
    by_dim = {64: h100.variants[forward, 64], 72: h100.variants[forward, 64], 80: h100.variants[forward, 64]}
    by_dim |= {96: main, 128: main, 160: h100.variants[forward, 192], 512: h100.variants[forward, 256]}
    for head_dim, expected in by_dim.items():
        assert h100.efficiency(forward, head_dim=head_dim) is expected
    assert h100.efficiency(forward) is main


def test_devices_differ_as_their_sheets_say() -> None:
    profiles = {name: load_profile(name) for name in NAMES}
    assert profiles["h800"].nvlink_bytes_per_s.value == 200e9
    assert profiles["h800"].nic_bytes_per_s.value * 2 == profiles["h800-400g"].nic_bytes_per_s.value
    assert profiles["h100-96g"].mem_bytes_per_s.value == 2.4e12
    assert profiles["h100-96g"].efficiencies[OpKind.MATMUL].flop < profiles["h100"].efficiencies[OpKind.MATMUL].flop
    assert profiles["h200"].peak_flop_per_s(DType.BF16) == profiles["h100"].peak_flop_per_s(DType.BF16)
    effective = profiles["h800"].nvlink_bytes_per_s.value * profiles["h800"].links[Port.NVLINK].of(OpKind.P2P).net
    assert effective == pytest.approx(163e9)

"""Reading a user's profile file: inheritance, provenance, errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.profile import load_profile

TEN_LINES = """
name = "mine"
memory_bytes = 60e9
mem_bytes_per_s = 2.5e12
nvlink_bytes_per_s = 250e9
nic_bytes_per_s = 12.5e9

[flop_per_s]
bf16 = 400e12
fp8 = 800e12
"""


def load(folder: Path, text: str, name: str = "device.toml") -> DeviceProfile:
    path = folder / name
    path.write_text(text)
    return load_profile(str(path))


def test_ten_lines_are_a_device(tmp_path: Path) -> None:
    profile = load(tmp_path, TEN_LINES)
    assert profile.name == "mine"
    assert profile.nic_bytes_per_s.value == 12.5e9
    assert (profile.nic_bytes_per_s.provenance, profile.nic_bytes_per_s.source) == (Provenance.SPEC, "user")
    assert profile.peak_flop_per_s(DType.FP8) == 800e12
    assert profile.peak_flop_per_s(DType.FP16) == 400e12
    assert profile.peak_flop_per_s(DType.TF32) == 200e12
    assert profile.provenance_of("flop_per_s.fp16") is Provenance.DEFAULT
    given = {"memory_bytes", "mem_bytes_per_s", "nvlink_bytes_per_s", "nic_bytes_per_s"}
    given |= {"flop_per_s.bf16", "flop_per_s.fp8"}
    for key, number in profile.numbers():
        assert number.provenance is (Provenance.SPEC if key in given else Provenance.DEFAULT), key


def test_no_fp8_where_none_is_given(tmp_path: Path) -> None:
    profile = load(tmp_path, TEN_LINES.replace("fp8 = 800e12", ""))
    with pytest.raises(ConfigError, match="has no fp8 arithmetic"):
        profile.peak_flop_per_s(DType.FP8)


def test_base_transfers(tmp_path: Path) -> None:
    profile = load(tmp_path, 'base = "h100"\nmem_bytes_per_s = 4e12\nmemory_bytes = 100e9\n')
    h100 = load_profile("h100")
    assert profile.name == "device"
    changed = {"memory_bytes", "mem_bytes_per_s"}
    moved = {Provenance.FITTED: Provenance.TRANSFERRED, Provenance.MEASURED: Provenance.TRANSFERRED}
    theirs = dict(profile.numbers())
    assert theirs.keys() == dict(h100.numbers()).keys()
    for key, number in h100.numbers():
        if key not in changed:
            assert theirs[key].value == number.value
            assert theirs[key].provenance is moved.get(number.provenance, number.provenance)
            assert theirs[key].source == f"from h100: {number.source}"
    assert theirs["memory_bytes"].value == 100e9


@pytest.mark.parametrize(
    "peaks", ["", "memory_bytes = 79e9\n", "mem_bytes_per_s = 3.35e12\n[flop_per_s]\nbf16 = 9.894e14\n"]
)
def test_a_base_of_the_same_device_keeps_what_its_numbers_are_worth(tmp_path: Path, peaks: str) -> None:
    profile, h100 = load(tmp_path, 'base = "h100"\n' + peaks), load_profile("h100")
    theirs = dict(profile.numbers())
    for key, number in h100.numbers():
        if f"{key.split('.')[-1]} = " not in peaks:
            assert theirs[key].provenance is number.provenance, key
            assert theirs[key].source == f"from h100: {number.source}"
            assert theirs[key].relative_error == number.relative_error
    assert profile.efficiencies[OpKind.MATMUL].relative_error == h100.efficiencies[OpKind.MATMUL].relative_error


def test_another_card_transfers_what_was_fitted_on_the_card(tmp_path: Path) -> None:
    profile = load(tmp_path, 'base = "h100"\nnic_bytes_per_s = 25e9\n')
    assert profile.links[Port.NIC].of(OpKind.P2P).provenance is Provenance.TRANSFERRED
    assert profile.links[Port.NVLINK].of(OpKind.P2P).provenance is Provenance.FITTED
    assert profile.efficiencies[OpKind.MATMUL].provenance is Provenance.FITTED


def test_base_may_be_a_file_beside(tmp_path: Path) -> None:
    load(tmp_path, TEN_LINES, "first.toml")
    second = load(tmp_path, 'base = "first.toml"\n[flop_per_s]\nbf16 = 500e12\n', "second.toml")
    assert second.peak_flop_per_s(DType.BF16) == 500e12
    assert second.peak_flop_per_s(DType.FP8) == 800e12


def test_partial_section_inherits_from_a_base_only(tmp_path: Path) -> None:
    section = "\n[efficiency.matmul]\nflop = 0.6\n"
    h100 = load_profile("h100").efficiencies[OpKind.MATMUL]
    on_base = load(tmp_path, 'base = "h100"' + section, "a.toml").efficiencies[OpKind.MATMUL]
    assert (on_base.flop, on_base.mem, on_base.t0_s, on_base.p) == (0.6, h100.mem, h100.t0_s, h100.p)
    assert on_base.provenance is Provenance.SPEC
    assert on_base.relative_error is None
    alone = load(tmp_path, TEN_LINES + section, "b.toml").efficiencies[OpKind.MATMUL]
    assert (alone.flop, alone.mem, alone.t0_s, alone.p) == (0.6, 1.0, 0.0, float("inf"))
    assert (alone.provenance, alone.source) == (Provenance.SPEC, "user")


def test_a_measured_value_over_a_transferred_rest_is_transferred(tmp_path: Path) -> None:
    text = (
        'base = "h100"\nnic_bytes_per_s = 25e9\n[link.nic.p2p]\nnet = 0.5\nprovenance = "measured"\nsource = "my own"\n'
    )
    link = load(tmp_path, text).links[Port.NIC].of(OpKind.P2P)
    assert link.net == 0.5
    assert link.provenance is Provenance.TRANSFERRED
    assert link.source.startswith("my own; the rest from h100")


def test_whole_section_keeps_its_label(tmp_path: Path) -> None:
    text = TEN_LINES + (
        '\n[efficiency.matmul]\nflop = 0.6\nmem = 0.7\nt0_s = 1e-6\np = inf\nprovenance = "fitted"\nsource = "mine"\n'
        "relative_error = 0.04\n[efficiency.matmul.fp8]\nflop = 0.5\n"
        "[efficiency.attention_forward.head_dim_80]\nflop = 0.4\n"
    )
    profile = load(tmp_path, text)
    matmul = profile.efficiencies[OpKind.MATMUL]
    assert (matmul.provenance, matmul.source, matmul.relative_error) == (Provenance.FITTED, "mine", 0.04)
    assert profile.efficiency(OpKind.MATMUL, dtype=DType.FP8).flop == 0.5
    assert profile.efficiency(OpKind.MATMUL, dtype=DType.BF16).flop == 0.6
    assert profile.efficiency(OpKind.ATTENTION_FORWARD, head_dim=72).flop == 0.4
    assert profile.efficiency(OpKind.ATTENTION_FORWARD, head_dim=128) == profile.efficiencies[OpKind.ATTENTION_FORWARD]


def test_number_as_a_table(tmp_path: Path) -> None:
    number = '{ value = 1.25e10, provenance = "measured", source = "iperf" }'
    profile = load(tmp_path, TEN_LINES.replace("12.5e9", number))
    assert profile.nic_bytes_per_s.provenance is Provenance.MEASURED
    assert profile.nic_bytes_per_s.source == "iperf"


@pytest.mark.parametrize(
    ("old", "new", "where", "nearest"),
    [
        ("nic_bytes_per_s = 12.5e9", "", "nic_bytes_per_s", None),
        ("bf16 = 400e12", "", "flop_per_s.bf16", None),
        ("12.5e9", "-1.0", "nic_bytes_per_s", 0.0),
        ("12.5e9", "0", "nic_bytes_per_s", None),
        ("12.5e9", "nan", "nic_bytes_per_s", None),
        ("12.5e9", "inf", "nic_bytes_per_s", None),
        ("12.5e9", '"fast"', "nic_bytes_per_s", None),
        ("12.5e9", "true", "nic_bytes_per_s", None),
        ("12.5e9", "{ valu = 3 }", "nic_bytes_per_s.valu", "value"),
        ("12.5e9", '{ source = "x" }', "nic_bytes_per_s.value", None),
        ("12.5e9", '{ value = 3, provenance = "fited" }', "nic_bytes_per_s.provenance", "fitted"),
        ("12.5e9", '{ value = 3, source = "" }', "nic_bytes_per_s.source", None),
        ("nic_bytes_per_s", "nics_bytes_per_s", "nics_bytes_per_s", "nic_bytes_per_s"),
        ("fp8 = 800e12", "fp9 = 800e12", "flop_per_s.fp9", "fp8"),
        ("[flop_per_s]", "nvlink_gpus = 2.5\n[flop_per_s]", "nvlink_gpus", None),
        ("fp8 = 800e12", "[efficiency.matmull]\nflop = 1", "efficiency.matmull", "matmul"),
        ("fp8 = 800e12", "[efficiency.all_reduce]\nflop = 1", "efficiency.all_reduce", None),
        ("fp8 = 800e12", "[efficiency.matmul]\nflop = 1.5", "efficiency.matmul.flop", 1.0),
        ("fp8 = 800e12", "[efficiency.matmul]\nflop = 0", "efficiency.matmul.flop", None),
        ("fp8 = 800e12", "[efficiency.matmul]\nflops = 0.5", "efficiency.matmul.flops", "flop"),
        ("fp8 = 800e12", "[efficiency.matmul.fp9]\nflop = 0.5", "efficiency.matmul.fp9", "fp8"),
        ("fp8 = 800e12", "[efficiency.matmul.fp8]\np = 0.1", "efficiency.matmul.fp8.p", 1.0),
        ("fp8 = 800e12", "[link.nvlnk.p2p]\nnet = 1", "link.nvlnk", "nvlink"),
        ("fp8 = 800e12", "[link.nic.matmul]\nnet = 1", "link.nic.matmul", None),
        ("fp8 = 800e12", "[link.nic.p2p]\nnet = 2", "link.nic.p2p.net", 1.0),
        ("fp8 = 800e12", "[link.nic.p2p]\nhop_s = -1", "link.nic.p2p.hop_s", 0.0),
        ("fp8 = 800e12", "[link]\nnic = 3", "link.nic", None),
        ("fp8 = 800e12", "[host]\nlaunch = 3", "host.launch", "launch_s"),
        ('name = "mine"', "name = 3", "name", None),
        ('name = "mine"', "description = 3", "description", None),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, old: str, new: str, where: str, nearest: object) -> None:
    assert old in TEN_LINES
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, TEN_LINES.replace(old, new, 1))
    assert caught.value.where == f"device.toml {where}"
    if nearest is not None:
        assert caught.value.nearest == nearest


def test_files_that_are_not_there_or_not_toml(tmp_path: Path) -> None:
    load(tmp_path, TEN_LINES, "mine.toml")
    with pytest.raises(ConfigError, match="no such profile file") as caught:
        load_profile(str(tmp_path / "mime.toml"))
    assert caught.value.nearest == "mine.toml"
    with pytest.raises(ConfigError, match="no such profile file"):
        load_profile(str(tmp_path / "nowhere" / "x.toml"))
    with pytest.raises(ConfigError, match="not a TOML file"):
        load(tmp_path, "a = = 3")
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        load_profile("h10")
    with pytest.raises(ConfigError, match="unknown device"):
        load_profile("_default")


@pytest.mark.parametrize("base", ['"h10"', '"_default"', "3", '"device.toml"', '"gone.toml"'])
def test_bad_bases(tmp_path: Path, base: str) -> None:
    with pytest.raises(ConfigError):
        load(tmp_path, f"base = {base}\n")


def test_parsing_is_cached_until_the_file_changes(tmp_path: Path) -> None:
    assert load_profile("h100") is load_profile("h100")
    first = load(tmp_path, TEN_LINES)
    path = tmp_path / "device.toml"
    assert load_profile(str(path)) is first
    path.write_text(TEN_LINES.replace("60e9", "70e9"))
    os.utime(path, ns=(1, 1))
    assert load_profile(str(path)).memory_bytes.value == 70e9

"""Kinds that a profile need not name take the coefficients of a related kind, worth no more than transferred."""

from __future__ import annotations

from pathlib import Path

import pytest

from semu.hardware.kinds import DType, OpKind, Provenance
from semu.hardware.profile import list_profiles, load_profile

RELATIVES = {OpKind.GROUPED_MATMUL: OpKind.MATMUL, OpKind.PERMUTE: OpKind.COPY, OpKind.TOP_K: OpKind.NORM}
MEASURED_GROUPS = ("a100-pcie", "b200")
SISTERS = dict.fromkeys(("b300", "gb200-nvl72", "gb300-nvl72"), "b200")
"""Devices that take over grouped products measured on another."""


@pytest.mark.parametrize("name", list_profiles())
def test_shipped_profiles(name: str) -> None:
    profile = load_profile(name)
    for kind, relative in RELATIVES.items():
        if kind is OpKind.GROUPED_MATMUL and name in SISTERS:
            assert profile.efficiencies[kind].flop == load_profile(SISTERS[name]).efficiencies[kind].flop
            continue
        if profile.efficiencies[kind].provenance is Provenance.FITTED:
            assert kind is OpKind.GROUPED_MATMUL and name in MEASURED_GROUPS
            continue
        own, theirs = profile.efficiencies[kind], profile.efficiencies[relative]
        assert (own.flop, own.mem, own.t0_s, own.p) == (theirs.flop, theirs.mem, theirs.t0_s, theirs.p)
        assert f"as {relative.value}" in own.source
        assert own.provenance not in (Provenance.MEASURED, Provenance.FITTED)
    variants = {key for kind, key in profile.variants if kind is OpKind.MATMUL}
    assert variants == {key for kind, key in profile.variants if kind is OpKind.GROUPED_MATMUL}


def test_a_profile_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'base = "h100"\n[efficiency.grouped_matmul]\nflop = 0.5\n[efficiency.grouped_matmul.fp8]\nflop = 0.25\n'
    )
    profile = load_profile(str(path))
    assert profile.efficiencies[OpKind.GROUPED_MATMUL].flop == 0.5
    assert profile.efficiencies[OpKind.GROUPED_MATMUL].provenance is Provenance.SPEC
    assert profile.efficiency(OpKind.GROUPED_MATMUL, dtype=DType.FP8).flop == 0.25
    assert profile.override({"efficiency.permute.mem": 0.3}).efficiencies[OpKind.PERMUTE].mem == 0.3

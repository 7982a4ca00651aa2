"""``coefficients_of``: a section's coefficients in a profile, as the formulas take them."""

from __future__ import annotations

from semu.fitting.forms import QUANTISE
from semu.hardware.capabilities import DeviceProfile, VariantKey, parse_variant
from semu.hardware.efficiency import CollectiveEfficiency, Efficiency, coefficient_names
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import OpKind, Port


def coefficients_of(profile: DeviceProfile, section: str) -> dict[str, float]:
    """All coefficients of a section, from the nearest one where the profile has no such variant.

    Args:
        profile: the device. section: as in a profile.
    """
    group, name, *rest = section.split(".")
    if group == "link":
        return _values(profile.links[Port(name)].of(OpKind(rest[0])))
    kind, variant = OpKind(name), parse_variant(rest[0]) if rest else None
    values = _values(_efficiency(profile, kind, variant))
    if variant is Fp8Recipe.BLOCKWISE:
        cast = profile.variants.get((OpKind.CAST, Fp8Recipe.BLOCKWISE), profile.efficiencies[OpKind.CAST])
        values[QUANTISE] = cast.mem
    return values


def _efficiency(profile: DeviceProfile, kind: OpKind, variant: VariantKey | None) -> Efficiency:
    if variant is None:
        return profile.efficiencies[kind]
    if (kind, variant) in profile.variants:
        return profile.variants[kind, variant]
    if isinstance(variant, int):
        return profile.efficiency(kind, head_dim=variant)
    if isinstance(variant, Fp8Recipe):
        return profile.scaled(variant).efficiencies[kind]
    return profile.efficiencies[kind]


def _values(section: Efficiency | CollectiveEfficiency) -> dict[str, float]:
    return {name: float(getattr(section, name)) for name in coefficient_names(type(section))}

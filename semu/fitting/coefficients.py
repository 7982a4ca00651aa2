"""``coefficients_of``: a section's coefficients in a profile, by name."""

from __future__ import annotations

from semu.fitting.forms import QUANTISE
from semu.hardware.capabilities import DeviceProfile, parse_variant
from semu.hardware.efficiency import Efficiency, coefficient_names
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import OpKind, Port


def coefficients_of(profile: DeviceProfile, section: str) -> dict[str, float]:
    """All coefficients of a section; a variant that the profile lacks takes those of the nearest variant.

    Args:
        profile: the device. section: as in a profile.
    """
    group, name, *rest = section.split(".")
    if group == "link":
        return dict(profile.links[Port(name)].of(OpKind(rest[0])).numbers)
    kind, variant = OpKind(name), parse_variant(rest[0]) if rest else None
    efficiency = profile.efficiency(kind, head_dim=variant if isinstance(variant, int) else None)
    if variant is not None:
        efficiency = profile.variants.get((kind, variant), efficiency)
    values = {name: float(getattr(efficiency, name)) for name in coefficient_names(Efficiency)}
    if variant is Fp8Recipe.BLOCKWISE:
        cast = profile.variants.get((OpKind.CAST, Fp8Recipe.BLOCKWISE), profile.efficiencies[OpKind.CAST])
        values[QUANTISE] = cast.mem
    return values

"""Factors that a profile file holds beside its coefficients.

``[site.SOURCE]`` in a profile: section -> factors of that source of measurements (``load_sites``). They tell how a rig
differs; a simulation uses the base. Factors from training runs of a site are in ``semu.fitting.site_runs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from semu.checks import check_number, check_word
from semu.errors import ConfigError
from semu.files import read_toml
from semu.fitting.models import FLOOR, TIME, defaults_of
from semu.hardware.known_devices import KNOWN_DEVICES, profile_names
from semu.hardware.profile import PROFILE_DIR, list_profiles


def profile_path(name_or_path: str) -> Path:
    """The file of a profile."""
    return PROFILE_DIR / f"{name_or_path}.toml" if name_or_path in list_profiles() else Path(name_or_path)


def load_sites(name_or_path: str) -> dict[str, dict[str, dict[str, float]]]:
    """A profile's factors: section -> source -> ``time`` or coefficient -> factor, ``floor_s`` -> least time [s].

    A profile without any takes those of its base, where that is the same device with other network cards.

    Raises:
        ConfigError: a table that is none, an unknown name, a factor that is not positive.
    """
    path = profile_path(name_or_path)
    document = read_toml(path, path.name, "a device profile")
    table, base = document.get("site"), document.get("base")
    siblings = profile_names(KNOWN_DEVICES[base].aliases[0]) if isinstance(base, str) and base in KNOWN_DEVICES else ()
    if table is None and path.stem in siblings:
        return load_sites(str(base))
    table = table or {}
    result: dict[str, dict[str, dict[str, float]]] = {}
    for source, sections in table.items():
        where = f"{path.name} site.{source}"
        if not isinstance(sections, Mapping):
            raise ConfigError("not a table", where=where, expected="section -> factors", got=repr(sections))
        for section, factors in sections.items():
            if not isinstance(factors, Mapping) or section.count(".") < 1:
                raise ConfigError("not a table of factors", where=f"{where}.{section}", expected="{ time = 1.02 }")
            checked: dict[str, float] = {}
            for name, value in factors.items():
                legal = [TIME, FLOOR, "rows", *defaults_of(section)]
                check_word(name, legal, "factor", f"{where}.{section}")
                if name != "rows":
                    checked[name] = check_number(value, f"{where}.{section}.{name}", is_above=True)
            result.setdefault(section, {})[source] = checked
    return result

"""``profile_text``: a calibration as a profile in TOML; ``update_profile``: its sections into a profile that is there.

Numbers are written with four digits; equal input gives equal bytes, the date apart, which the caller gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from semu.files import toml_string
from semu.fitting.calibration import CAST, CalibratedSection, Calibration
from semu.fitting.forms import QUANTISE
from semu.fitting.models import CACHE, RATES, SMALL_BYTES, SMALL_PRODUCT, defaults_of
from semu.fitting.samples import HELD_OUT_RULE, Family
from semu.hardware.attention_kernels import PASSES, AttentionKernel
from semu.hardware.kinds import OpKind, Port, Provenance
from semu.hardware.network import COEFFICIENTS
from semu.records import dataclass

_ROOFLINE = ("flop", "mem", "t0_s", "p")
_NAMES: Mapping[Family, tuple[str, ...]] = {
    Family.PRODUCT: (*_ROOFLINE, "tiles_at_once", "tile_k0", "tile_rest", "tile_128", "power", "weight_gradient"),
    Family.ATTENTION: (*_ROOFLINE, "s0_tokens", "tiles_at_once", "tile_rest", "power"),
    Family.MEMORY: ("mem", "t0_s", "row0", "cached", "cache_bytes"),
    Family.LINK: tuple(COEFFICIENTS),
}
_ROW_WISE = ("efficiency.norm", "efficiency.softmax", "efficiency.cross_entropy")
_STAND_IN = "/triad"


@dataclass(frozen=True, slots=True)
class Provenances:
    """How a profile was made: the command, and the day (``YYYY-MM-DD``), if any."""

    command: str
    date: str | None = None


def number_text(value: float) -> str:
    """A number as TOML has it, four digits."""
    if value == float("inf"):
        return "inf"
    text = repr(float(f"{value:.4g}"))
    return text[:-2] if text.endswith(".0") else text


def profile_text(calibration: Calibration, name: str, base: str, origin: Provenances) -> str:
    """A new profile: the fitted sections on top of a base.

    The base's factors of attention kernels are relative to the base's attention. Where attention was measured, the new
    profile says that a run's kernel is what was measured, whichever of FlashAttention-2 and cuDNN that is.

    Args:
        calibration: the fits. name: of the profile. base: name or path of the profile that has the rest.
    """
    kept = ", ".join(f"{section} ({provenance})" for section, provenance in calibration.kept.items())
    lines = [
        f"# Made by {origin.command}",
        f"# Not measured here, as in the base: {kept or 'nothing'}.",
        f"name = {toml_string(name)}",
        f"base = {toml_string(base)}",
        "",
    ]
    blocks = _blocks(calibration, origin) | _kernel_blocks(calibration)
    return "\n".join(lines) + "\n" + "\n".join(f"{block}\n" for block in blocks.values())


def update_profile(text: str, calibration: Calibration, origin: Provenances, *, has_factors: bool = True) -> str:
    """A profile's text with the fitted sections replaced; everything else stays, comments included.

    Args:
        text: of the profile. calibration: the fits. has_factors: attention that was measured is what runs call, as in
            ``profile_text``; false: the profile's factors of attention kernels stay.
    """
    blocks = _blocks(calibration, origin) | (_kernel_blocks(calibration) if has_factors else {})
    return replace_blocks(text, blocks, drop=("site.", "calibration"))


def replace_blocks(text: str, blocks: Mapping[str, str], *, drop: Sequence[str] = ()) -> str:
    """Tables of a TOML text replaced by header; new ones come after the last one of their kind.

    Args:
        text: TOML with one header a line. blocks: header -> the table's text, header included.
        drop: beginnings of headers that go.
    """
    parts = re.split(r"(?m)^(?=\[)", text)
    head, tables = parts[0], parts[1:]
    result: list[tuple[str, str]] = []
    for table in tables:
        header = table[1 : table.index("]")]
        if header in blocks or not header.startswith(tuple(drop)):
            result.append((header, f"{blocks[header].rstrip()}\n\n" if header in blocks else table))
    present = {header for header, _ in result}
    for header, block in blocks.items():
        if header not in present:
            result.insert(_place(header, [name for name, _ in result]), (header, f"{block.rstrip()}\n\n"))
    return (head + "".join(f"{table.rstrip()}\n\n" for _, table in result)).rstrip() + "\n"


_ORDER = ("flop_per_s", "host", "efficiency", "link", "attention_kernel", "software", "site", "calibration")


def _place(header: str, headers: Sequence[str]) -> int:
    """After the last table that shares the longest beginning with the new one, else by the order of groups."""
    path = header.split(".")
    for length in range(len(path) - 1, 0, -1):
        same = [i for i, other in enumerate(headers) if other.split(".")[:length] == path[:length]]
        if same:
            return same[-1] + 1
    rank = _ORDER.index(path[0])
    return sum(1 for other in headers if _ORDER.index(other.split(".")[0]) <= rank)


def _blocks(calibration: Calibration, origin: Provenances) -> dict[str, str]:
    blocks: dict[str, str] = {}
    for name, section in calibration.sections.items():
        if not section.fit.fitted:
            continue
        blocks[name] = _section_text(name, section)
        if QUANTISE in section.fit.fitted:
            blocks[CAST] = _cast_text(section)
    sites: dict[str, list[str]] = {}
    for name, section in calibration.sections.items():
        for source, factors in section.fit.sites.items():
            rows = section.fit.num_rows[source]
            listed = ", ".join(f"{key} = {number_text(value)}" for key, value in factors.items())
            sites.setdefault(source, []).append(f"{toml_string(name)} = {{ {listed}, rows = {rows} }}")
    for source in sorted(sites):
        header = f"site.{source if re.fullmatch(r'[A-Za-z0-9_-]+', source) else toml_string(source)}"
        blocks[header] = "\n".join([f"[{header}]", *sites[source]])
    blocks["calibration"] = _calibration_text(calibration, origin)
    blocks["calibration.sections"] = "\n".join(
        [
            "[calibration.sections]",
            *(
                _errors_text(name, section, files_of(section, calibration))
                for name, section in calibration.sections.items()
            ),
        ]
    )
    return blocks


def _kernel_blocks(calibration: Calibration) -> dict[str, str]:
    """Factors of 1 for the passes of attention that were measured; other kernels keep theirs relative to these two."""
    numbers = []
    for name in PASSES:
        section = calibration.sections.get(f"efficiency.attention_{name}")
        if section is not None and section.fit.fitted:
            numbers.append(f'{name} = {{ value = 1, provenance = "measured", source = "attention as measured here" }}')
    if not numbers:
        return {}
    kernels = (AttentionKernel.FA2, AttentionKernel.CUDNN)
    headers = [f"attention_kernel.{kernel.value}" for kernel in kernels]
    return {header: "\n".join([f"[{header}]", *numbers]) for header in headers}


def _section_text(name: str, section: CalibratedSection) -> str:
    neutral = defaults_of(name)
    values = section.fit.values
    lines = [f"[{name}]"]
    for key in _NAMES[section.samples.family]:
        if values[key] != neutral[key] or _concerns(key, name):
            lines.append(f"{key} = {number_text(values[key])}")
    provenance = _provenance(name, section)
    lines.append(f"provenance = {toml_string(provenance.value)}")
    lines.append(f"source = {toml_string(_source(name, section))}")
    if provenance is Provenance.FITTED:
        lines.append(f"relative_error = {number_text(round(section.spread, 4))}")
    return "\n".join(lines)


def _concerns(key: str, section: str) -> bool:
    """Whether a coefficient is written even where it is neutral, so that the base's value does not apply."""
    if key == "row0":
        return section in _ROW_WISE
    if key in CACHE:
        return section == "efficiency.norm"
    group, name, *rest = section.split(".")
    return group != "link" or COEFFICIENTS[key].is_in(Port(name), OpKind(rest[0]))


def _cast_text(section: CalibratedSection) -> str:
    rows = int((section.samples.column("quantised") > 0).sum())
    return "\n".join(
        [
            f"[{CAST}]",
            f"mem = {number_text(section.fit.values[QUANTISE])}",
            "t0_s = 0",
            'provenance = "fitted"',
            f"source = {toml_string(f'quantisation into 1x128 tiles, as a part of {rows:,} measured products')}",
            f"relative_error = {number_text(round(section.spread, 4))}",
        ]
    )


def _provenance(name: str, section: CalibratedSection) -> Provenance:
    if all(source.endswith(_STAND_IN) for source in section.fit.num_rows):
        return Provenance.TRANSFERRED
    return Provenance.MEASURED if _is_rate(name, section) else Provenance.FITTED


def _is_rate(name: str, section: CalibratedSection) -> bool:
    """Whether the section is nothing but a measured rate."""
    return name in RATES and len(section.fit.fitted) == 1


def _source(name: str, section: CalibratedSection) -> str:
    samples, errors = section.samples, section.error
    sources = sorted({str(source) for source in samples.sources})
    limit = {
        Family.PRODUCT: f" with m, n, k >= {SMALL_PRODUCT}",
        Family.MEMORY: f" of {SMALL_BYTES / 1e6:g} MB and more",
        Family.ATTENTION: "",
        Family.LINK: "",
    }[samples.family]
    text = f"{len(samples):,} rows{limit} ({', '.join(sources)})"
    if all(source.endswith(_STAND_IN) for source in sources):
        return f"{text}: a triad, for want of a fused optimizer's step"
    free = [free for free in section.fit.fitted if free != QUANTISE]
    if len(free) <= 2 and samples.family in (Family.PRODUCT, Family.ATTENTION):
        text = f"{text}; {' and '.join(free)} only, the curve's shape is not theirs"
    if _is_rate(name, section):
        return text
    on = f"{section.num_spread:,} {'held-out rows' if section.is_spread_held_out else 'rows'}"
    with_factor = ""
    if section.fit.sites:
        others = "" if errors.n == section.num_spread else f" on {errors.n:,}"
        with_factor = f" ({errors.mape:.1%} with the source's factors{others})"
    return f"{text}; {section.spread:.1%} on {on}{with_factor}"


def files_of(section: CalibratedSection, calibration: Calibration) -> list[str]:
    """Names of the files that a section's rows are from."""
    where = section.samples.where
    starts = {file.name: (f"{file.name}:", f"{file.name} ") for file in calibration.files}
    return [name for name, start in starts.items() if any(place.startswith(start) for place in where)]


def _errors_text(name: str, section: CalibratedSection, files: Sequence[str]) -> str:
    errors = section.error
    held = int(section.samples.held_out.sum()) if errors is section.held_out else 0
    counts = ", ".join(f"{source} {count}" for source, count in section.fit.num_rows.items())
    entries = {
        "rows": str(len(section.samples)),
        "held_out": str(held),
        "mape": number_text(errors.mape),
        "p95": number_text(errors.p95),
        "time_weighted": number_text(errors.time_weighted),
        "mape_without_site_factor": number_text(errors.base_mape),
        "fitted_on": toml_string(counts),
        "files": f"[{', '.join(map(toml_string, files))}]",
    }
    return f"{toml_string(name)} = {{ {', '.join(f'{key} = {value}' for key, value in entries.items())} }}"


def _calibration_text(calibration: Calibration, origin: Provenances) -> str:
    lines = ["[calibration]", f"command = {toml_string(origin.command)}"]
    if origin.date is not None:
        lines.append(f"date = {toml_string(origin.date)}")
    lines.append(f"held_out = {toml_string(HELD_OUT_RULE)}")
    lines.append("files = [")
    for file in calibration.files:
        software = "" if file.software is None else f", software = {toml_string(file.software)}"
        name, digest = toml_string(file.name), toml_string(file.sha256)
        lines.append(f"    {{ name = {name}, sha256 = {digest}, rows = {file.rows}{software} }},")
    return "\n".join([*lines, "]"])

"""Reading device profiles and networks from TOML: ``load_profile``, ``list_profiles``, ``load_fabric``.

A profile file holds peaks, ``[flop_per_s]``, ``[host]``, ``[efficiency.KIND]``, ``[link.PORT.KIND]``,
``[software.NAME]`` and ``[attention_kernel.NAME]`` tables. A plain number is ``{ value = ..., provenance = "spec",
source = "..." }`` or, short, a bare number (provenance spec, source "user"). An efficiency table has bare numbers, one
``provenance`` and one ``source``; the coefficients of ``[link.PORT.KIND]`` are those of
``semu.hardware.network.COEFFICIENTS``.

With ``base = "h100"`` the file inherits all numbers that it does not give. Inherited spec and default numbers keep
their provenance; measured and fitted numbers become ``transferred``, unless the device is the same: the file changes no
peak but the memory size and the network card. With another card the coefficients of the card are transferred. Without a
base the file inherits ``profiles/_default.toml``, provenance ``default``; but an efficiency table that is given
defaults to the paper's form, alpha = 1 without fixed time. A user's device needs five numbers::

    name = "mine"
    memory_bytes = 84e9
    mem_bytes_per_s = 3.0e12
    nvlink_bytes_per_s = 400e9      # one direction
    nic_bytes_per_s = 50e9          # per GPU, one direction
    [flop_per_s]
    bf16 = 800e12
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from semu import memo
from semu.checks import check_member, check_number, check_word
from semu.errors import ConfigError, nearest_name, unknown_name
from semu.files import read_toml
from semu.hardware.attention_kernels import PASSES, SAME, SHORT, AttentionFactors, AttentionKernel
from semu.hardware.capabilities import PEAKS, DeviceProfile, Fabric, Host, VariantKey, parse_variant
from semu.hardware.efficiency import CollectiveEfficiency, Efficiency, LinkEfficiency, Section, coefficient_names
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.known_devices import profile_name
from semu.hardware.number import Number, located, worst_provenance
from semu.hardware.software import FACTORS, Software, SoftwareFactors
from semu.records import dataclass

PROFILE_DIR = Path(__file__).parent / "profiles"
"""Where the shipped profiles are."""

NOTES = ("site", "calibration")
"""Tables that ``semu calibrate`` writes beside the coefficients, and simulations ignore: factors per source of
measurements, and how the fit was made."""

_DEFAULT = "_default"
_HOST = ("launch_s", "memory_bytes", "eager_launch_s", "blocking_launch_s", "transfer_stall")
_REQUIRED = ("memory_bytes", "mem_bytes_per_s", "nvlink_bytes_per_s", "nic_bytes_per_s", "flop_per_s.bf16")
_DERIVED_PEAKS = {DType.FP16: 1.0, DType.TF32: 1 / 2, DType.FP32: 1 / 16}
"""Fractions of the bf16 peak for precisions that a file without base leaves out: those of the A100."""


_FABRIC_DIR = Path(__file__).parent / "fabrics"


def list_fabrics() -> list[str]:
    """Names of the shipped networks, sorted."""
    return sorted(path.stem for path in _FABRIC_DIR.glob("*.toml"))


@memo.remembered(8)
def load_fabric(name: str) -> Fabric:
    """A shipped network: ``[link.nic.KIND]`` and ``host.transfer_stall`` as in a profile, ``trees``, ``description``.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in list_fabrics():
        raise unknown_name("fabric", name, list_fabrics(), where="cluster.fabric")
    table = _read(_FABRIC_DIR / f"{name}.toml")
    has_trees = bool(table.pop("trees"))
    parts = _parse(table, _Parts())
    links = {kind: link for (_, kind), link in parts.links.items()}
    return Fabric(name, has_trees, links, parts.numbers["host.transfer_stall"])


def list_profiles() -> list[str]:
    """Names of the shipped devices, sorted."""
    return sorted(path.stem for path in PROFILE_DIR.glob("*.toml") if not path.stem.startswith("_"))


def load_profile(name_or_path: str) -> DeviceProfile:
    """The profile of a shipped device or of a TOML file.

    Args:
        name_or_path: a name of ``list_profiles()`` or what ``known_devices`` takes for one, or a path (it ends in
            ``.toml`` or has a directory part).
    Raises:
        ConfigError: unknown device (did you mean), no such file, bad TOML, an unknown or missing key, a number out of
            its range; ``where`` is the file and the key.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and path.name == name_or_path:
        path = PROFILE_DIR / f"{profile_name(name_or_path, where=None)}.toml"
    path = _existing(path)
    stat = path.stat()
    return _load_cached(path, stat.st_mtime_ns, stat.st_size)


@dataclass
class _Parts:
    """The numbers of one file, or all numbers of a profile."""

    numbers: dict[str, Number] = field(default_factory=dict)
    efficiencies: dict[tuple[OpKind, VariantKey | None], Efficiency] = field(default_factory=dict)
    links: dict[tuple[Port, OpKind], CollectiveEfficiency] = field(default_factory=dict)
    description: str = ""


def _existing(path: Path) -> Path:
    if path.is_file():
        return path.resolve()
    siblings = [other.name for other in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    raise ConfigError(
        "no such profile file",
        where=str(path),
        expected=f"a TOML file, or one of {', '.join(list_profiles())}",
        nearest=nearest_name(path.name, siblings),
    )


@memo.remembered(64)
def _load_cached(path: Path, mtime_ns: int, size: int) -> DeviceProfile:
    table = _read(path)
    parts = _resolve(path, table, ())
    name = table.get("name", path.stem)
    if not isinstance(name, str) or not name:
        raise ConfigError("not a name", where=f"{path.name} name", expected="a string", got=name)
    with located(path.name, " "):
        return _build(name, parts)


def _read(path: Path) -> dict[str, object]:
    return read_toml(path, path.name, "a device profile")


def _resolve(path: Path, table: dict[str, object], chain: tuple[Path, ...]) -> _Parts:
    """The file's numbers on top of its base's, or of the defaults."""
    if path in chain:
        names = " -> ".join(item.name for item in (*chain, path))
        raise ConfigError("a profile is its own base", where=f"{path.name} base", got=names)
    below = _base_parts(path, table, (*chain, path))
    with located(path.name, " "):
        return _parse(table, below)


def _base_parts(path: Path, table: dict[str, object], chain: tuple[Path, ...]) -> _Parts:
    if "base" not in table:
        below = _Parts()
        with located(f"{_DEFAULT}.toml", " "):
            return _parse(_read(PROFILE_DIR / f"{_DEFAULT}.toml"), below)
    base = table["base"]
    if not isinstance(base, str) or base.startswith("_"):
        raise ConfigError("not a base", where=f"{path.name} base", expected="a device or a TOML file", got=base)
    if base in list_profiles():
        base_path = PROFILE_DIR / f"{base}.toml"
    elif base.endswith(".toml"):
        base_path = path.parent / base
    else:
        raise unknown_name("device", base, list_profiles(), where=f"{path.name} base")
    base_path = _existing(base_path)
    parts = _resolve(base_path, _read(base_path), chain)
    with located(path.name, " "):
        return _transfer(parts, base_path.stem, _other_peaks(table, parts))


_SITE_PEAKS = ("memory_bytes", "nic_bytes_per_s", "memory_margin")
"""Peaks in which two profiles of one device may differ."""


def _other_peaks(table: Mapping[str, object], base: _Parts) -> set[str]:
    """The peaks in which a file differs from its base."""
    flop_per_s = _table(table, "flop_per_s", "flop_per_s")
    given = {key: table[key] for key in PEAKS if key in table}
    given |= {f"flop_per_s.{name}": value for name, value in flop_per_s.items()}
    return {
        key
        for key, value in given.items()
        if key not in base.numbers or _number(value, key).value != base.numbers[key].value
    }


def _transfer(parts: _Parts, base: str, others: set[str]) -> _Parts:
    """A base's numbers, with their provenance on a device that differs in the peaks ``others``."""
    is_same = others <= set(_SITE_PEAKS)
    has_card = "nic_bytes_per_s" not in others

    def _source(text: str) -> str:
        return text if text.startswith("from ") else f"from {base}: {text}"

    def _label(old: Number | Section, keeps: bool) -> dict[str, Any]:
        if keeps:
            return {"provenance": old.provenance, "source": _source(old.source), "relative_error": old.relative_error}
        is_fitted = old.provenance in (Provenance.MEASURED, Provenance.FITTED)
        return {
            "provenance": Provenance.TRANSFERRED if is_fitted else old.provenance,
            "source": _source(old.source),
        }

    def _section(old: Section, keeps: bool) -> Section:
        values = {name: getattr(old, name) for name in coefficient_names(type(old))}
        return type(old)(**values, **_label(old, keeps))

    return _Parts(
        {key: Number(old.value, **_label(old, is_same)) for key, old in parts.numbers.items()},
        {key: _section(efficiency, is_same) for key, efficiency in parts.efficiencies.items()},
        {key: _section(link, is_same and (has_card or key[0] is not Port.NIC)) for key, link in parts.links.items()},
    )


def _parse(table: Mapping[str, object], below: _Parts) -> _Parts:
    """Check a file's table and lay it over the numbers below."""
    groups = ("flop_per_s", "host", "efficiency", "link", "software", "attention_kernel")
    _refuse_unknown(table, {"name", "description", "base", *PEAKS, *groups, *NOTES}, "")
    description = table.get("description", "")
    if not isinstance(description, str):
        raise ConfigError("not a text", where="description", expected="a string", got=description)
    parts = _Parts(dict(below.numbers), dict(below.efficiencies), dict(below.links), description)
    for key in PEAKS:
        if key in table:
            parts.numbers[key] = _number(table[key], key)
    for group, names in (("flop_per_s", [dtype.value for dtype in DType]), ("host", _HOST)):
        numbers = _table(table, group, group, names)
        parts.numbers.update({f"{group}.{name}": _number(numbers[name], f"{group}.{name}") for name in numbers})
    frameworks = [item.value for item in Software if item is not Software.KERNELS]
    kernels = [item.value for item in AttentionKernel]
    for group, names, keys in (("software", frameworks, FACTORS), ("attention_kernel", kernels, (*PASSES, *SHORT))):
        tables = _table(table, group, group, names)
        for name in tables:
            header = f"{group}.{name}"
            numbers = _table(tables, name, header, keys)
            if group == "attention_kernel":  # a pass's factor and what it loses on short sequences are one curve
                for way in numbers.keys() & set(PASSES):
                    parts.numbers.pop(f"{header}.{way}_s0_tokens", None)
            parts.numbers.update({f"{header}.{key}": _number(numbers[key], f"{header}.{key}") for key in numbers})
    compute = [kind.value for kind in OpKind if not kind.is_communication]
    efficiency = _table(table, "efficiency", "efficiency", compute)
    for name in efficiency:
        _parse_efficiency(OpKind(name), _table(efficiency, name, f"efficiency.{name}"), parts)
    links = _table(table, "link", "link", [port.value for port in Port])
    collectives = [kind.value for kind in OpKind if kind.is_communication]
    for port in links:
        kinds = _table(links, port, f"link.{port}", collectives)
        for name in kinds:
            pair, where = (Port(port), OpKind(name)), f"link.{port}.{name}"
            numbers = _table(kinds, name, where)
            with located(where):
                parts.links[pair] = _section(numbers, parts.links.get(pair), CollectiveEfficiency)
    return parts


def _parse_efficiency(kind: OpKind, table: Mapping[str, object], parts: _Parts) -> None:
    where = f"efficiency.{kind.value}"
    variants = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    main = {name: value for name, value in table.items() if name not in variants}
    with located(where):
        if main:
            parts.efficiencies[kind, None] = _section(main, parts.efficiencies.get((kind, None)), Efficiency)
        for name, variant in variants.items():
            key = kind, parse_variant(name)
            with located(name):
                parts.efficiencies[key] = _section(variant, parts.efficiencies.get(key), Efficiency)


def _section(table: Mapping[str, object], below: Section | None, kind: type[Section]) -> Section:
    """One efficiency table over the coefficients below it; inherited ones keep their provenance in the mix."""
    coefficients: tuple[str, ...] = coefficient_names(kind)
    _refuse_unknown(table, [*coefficients, "provenance", "source", "relative_error"], "")
    neutral = kind()
    # A given section inherits from a base, but never from a default: alpha = 1 is the paper's form.
    inherited = neutral if below is None or below.provenance is Provenance.DEFAULT else below
    provenance, source = _label(table)
    values: dict[str, object] = {name: table.get(name, getattr(inherited, name)) for name in coefficients}
    if any(name not in table and values[name] != getattr(neutral, name) for name in coefficients):
        provenance = worst_provenance(provenance, inherited.provenance)
        source = f"{source}; the rest {inherited.source}"
    checked = {name: check_number(value, name, is_infinite_ok=True) for name, value in values.items()}
    error = table.get("relative_error")
    return kind(
        **checked,
        provenance=provenance,
        source=source,
        relative_error=None if error is None else check_number(error, "relative_error"),
    )


def _number(value: object, where: str) -> Number:
    if not isinstance(value, Mapping):
        return Number(check_number(value, where), Provenance.SPEC, "user")
    _refuse_unknown(value, ["value", "provenance", "source", "relative_error"], f"{where}.")
    if "value" not in value:
        raise ConfigError("missing key", where=f"{where}.value", expected="a number")
    with located(where):
        provenance, source = _label(value)
        error = value.get("relative_error")
        checked = None if error is None else check_number(error, "relative_error")
    return Number(check_number(value["value"], where), provenance, source, checked)


def _label(table: Mapping[str, object]) -> tuple[Provenance, str]:
    provenance, source = table.get("provenance", Provenance.SPEC.value), table.get("source", "user")
    if not isinstance(source, str) or not source:
        raise ConfigError("not a source", where="source", expected="a text", got=repr(source))
    return check_member(provenance, Provenance, "provenance"), source


def _table(
    table: Mapping[str, object], key: str, where: str, legal: Collection[str] | None = None
) -> Mapping[str, object]:
    """The table of a key, empty where the key is absent. ``legal``: its keys; None: checked by what reads it."""
    value = table.get(key, {})
    if not isinstance(value, Mapping):
        raise ConfigError("not a table", where=where, expected=f"[{where}]", got=repr(value))
    if legal is not None:
        _refuse_unknown(value, legal, f"{where}.")
    return value


def _refuse_unknown(table: Mapping[str, object], legal: Collection[str], prefix: str) -> None:
    for key in table:
        check_word(key, legal, "key", f"{prefix}{key}")


_RELATIVES = {OpKind.GROUPED_MATMUL: OpKind.MATMUL, OpKind.PERMUTE: OpKind.COPY, OpKind.TOP_K: OpKind.NORM}
"""Kinds that a profile may leave out -> the kind whose coefficients they then take."""


def _take_relatives(parts: _Parts) -> None:
    """Fill in kinds that no file of the chain names, each from its relative, provenance transferred at best."""
    for kind, relative in _RELATIVES.items():
        for (of, variant), item in list(parts.efficiencies.items()):
            if of is relative and (kind, variant) not in parts.efficiencies:
                values = {key: getattr(item, key) for key in coefficient_names(Efficiency)}
                provenance = worst_provenance(item.provenance, Provenance.TRANSFERRED)
                source = f"as {relative.value}: {item.source}"
                if item.source.startswith("from "):  # a base's: its name stays in front
                    source = item.source.replace(": ", f": as {relative.value}: ", 1)
                parts.efficiencies[kind, variant] = Efficiency(**values, provenance=provenance, source=source)


def _build(name: str, parts: _Parts) -> DeviceProfile:
    numbers = parts.numbers
    for key in _REQUIRED:
        if key not in numbers:
            raise ConfigError("missing key", where=key, expected="a number (or base = a device that has it)")
    bf16 = numbers["flop_per_s.bf16"].value
    flop_per_s = {
        dtype: Number(bf16 * fraction, Provenance.DEFAULT, f"{fraction:g} of bf16, as on an A100")
        for dtype, fraction in _DERIVED_PEAKS.items()
    }
    given = {dtype: numbers[f"flop_per_s.{dtype.value}"] for dtype in DType if f"flop_per_s.{dtype.value}" in numbers}
    _take_relatives(parts)
    efficiencies = {kind: item for (kind, variant), item in parts.efficiencies.items() if variant is None}
    variants = {(kind, key): item for (kind, key), item in parts.efficiencies.items() if key is not None}
    links = {
        port: LinkEfficiency({kind: item for (of, kind), item in parts.links.items() if of is port}) for port in Port
    }
    software: dict[Software, SoftwareFactors] = {}
    for framework in Software:
        if framework is not Software.KERNELS:
            prefix = f"software.{framework.value}"
            factors = {name: numbers[f"{prefix}.{name}"] for name in FACTORS if f"{prefix}.{name}" in numbers}
            if factors or framework.kernels is framework:
                with located(prefix):
                    software[framework] = SoftwareFactors.of(factors)
    attention_kernels: dict[AttentionKernel, AttentionFactors] = {}
    for kernel in AttentionKernel:
        prefix = f"attention_kernel.{kernel.value}"
        if any(f"{prefix}.{name}" in numbers for name in PASSES):
            with located(prefix):
                attention_kernels[kernel] = AttentionFactors(
                    *(numbers.get(f"{prefix}.{name}", getattr(SAME, name)) for name in (*PASSES, *SHORT))
                )
    return DeviceProfile(
        name=name,
        flop_per_s={**flop_per_s, **given},
        efficiencies=efficiencies,
        variants=variants,
        links=links,
        host=Host(**{name: numbers[f"host.{name}"] for name in _HOST}),
        description=parts.description,
        software=software,
        attention_kernels=attention_kernels,
        interference=0.0,
        transfer_s=0.0,
        has_trees=True,
        has_aggregated_trees=False,
        **{key: numbers[key] for key in PEAKS},
    )

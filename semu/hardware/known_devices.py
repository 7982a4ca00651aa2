"""``KNOWN_DEVICES``: names of a device on command lines and in files, and its multiprocessors; ``profile_name``.

Measurements name a device by its product and form (``H100-SXM``), PyTorch by what the driver says (``NVIDIA H100 80GB
HBM3``), profiles by the names of ``semu list devices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from semu.checks import known_spelling
from semu.errors import unknown_name
from semu.records import dataclass


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A device.

    Attributes:
        aliases: names of the device, in any spelling; semu writes the first one into files.
        multiprocessors: of one GPU; data sheets.
        cache_bytes: its level 2 cache [bytes]; data sheets.
        has_switch_reduction: whether NVSwitch adds up an all-reduce of all its GPUs (NVLink SHARP, since H100).
    """

    aliases: tuple[str, ...]
    multiprocessors: int
    cache_bytes: float
    has_switch_reduction: bool = False


_A100 = ("A100-SXM", "A100", "A100-80GB", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
_H100 = ("H100-SXM", "H100", "H100-80GB", "NVIDIA H100 80GB HBM3")
_H800 = ("H800-SXM", "H800", "NVIDIA H800")

KNOWN_DEVICES: Mapping[str, KnownDevice] = MappingProxyType(
    {
        "a100-80g": KnownDevice(_A100, 108, 40e6),
        "a100-40g": KnownDevice(("A100-SXM-40GB", "A100-40GB", "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"), 108, 40e6),
        "a100-pcie": KnownDevice(("A100-PCIe", "A100-PCIe-80GB", "NVIDIA A100 80GB PCIe"), 108, 40e6),
        "a40": KnownDevice(("A40", "NVIDIA A40"), 84, 6e6),
        "a800": KnownDevice(("A800-SXM", "A800", "NVIDIA A800-SXM4-80GB"), 108, 40e6),
        "b200": KnownDevice(("B200-SXM", "B200", "NVIDIA B200"), 148, 126e6, True),
        # b300 and gb300-nvl72 as b200, whose kernels they take: nobody here has read them from one
        "b300": KnownDevice(("B300-SXM", "B300", "NVIDIA B300"), 148, 126e6, True),
        "gb200-nvl72": KnownDevice(("GB200", "GB200-NVL", "NVIDIA GB200"), 148, 126e6, True),
        "gb300-nvl72": KnownDevice(("GB300", "GB300-NVL", "NVIDIA GB300"), 148, 126e6, True),
        "h100": KnownDevice(_H100, 132, 50e6, True),
        "h100-96g": KnownDevice(("H100-96GB", "NVIDIA H100"), 132, 50e6, True),
        "h20": KnownDevice(("H20", "NVIDIA H20"), 78, 60e6, True),
        "h200": KnownDevice(("H200-SXM", "H200", "NVIDIA H200"), 132, 50e6, True),
        "h800": KnownDevice(_H800, 132, 50e6, True),
        "h800-400g": KnownDevice(_H800, 132, 50e6, True),
        "l40s": KnownDevice(("L40S", "NVIDIA L40S"), 142, 96e6),
        "mi300x": KnownDevice(("MI300X", "MI300", "AMD Instinct MI300X"), 304, 256e6),
        "rtx4090": KnownDevice(("RTX 4090", "4090", "NVIDIA GeForce RTX 4090"), 128, 72e6),
    }
)
"""Profile name -> device. Two profiles may share a device that differs in its network cards alone."""


def profile_names(device: str) -> tuple[str, ...]:
    """The profiles that a device's name may mean; empty: none.

    Args:
        device: a profile's name or an alias, in any spelling.
    """
    return tuple(
        name
        for name, item in KNOWN_DEVICES.items()
        if known_spelling(device.strip(), (name, *item.aliases)) is not None
    )


def profile_name(device: str, *, where: str | None = "--device") -> str:
    """The profile that a device's name means; of two that share the device, the one of that name in any
    spelling, else the last.

    Raises:
        ConfigError: no such device.
    """
    if (spelt := known_spelling(device.strip(), KNOWN_DEVICES)) is not None:
        return spelt
    names = profile_names(device)
    if not names:
        aliases = {alias for item in KNOWN_DEVICES.values() for alias in item.aliases}
        error = unknown_name("device", device, {*KNOWN_DEVICES, *aliases}, where=where)
        error.expected = "one of " + ", ".join(KNOWN_DEVICES)
        raise error
    return names[-1]


def named_device(names: Iterable[str], profile: str) -> str:
    """What a file calls its GPUs; the profile where the file names none, or where semu does not ship the profile.

    Args:
        names: of the GPUs, some of them empty. profile: name of the device's profile.
    """
    named = next((name.strip() for name in names if name.strip()), "")
    return named if named and profile in KNOWN_DEVICES else profile


def is_device(text: str, profile: str) -> bool:
    """Whether a file's device name means the device of a profile."""
    return text == profile or profile in profile_names(text)

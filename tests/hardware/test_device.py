"""Devices, streams and numbers."""

from __future__ import annotations

import math

import pytest

from semu.errors import ConfigError
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import Port, Provenance
from semu.hardware.number import Number, worst_provenance


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (Device(DeviceKind.COMPUTE), "gpu0"),
        (Device(DeviceKind.LINK, 3, Port.NVLINK, Direction.OUT), "gpu3.nvlink.out"),
        (Device(DeviceKind.LINK, 12, Port.NIC, Direction.IN), "gpu12.nic.in"),
        (Device(DeviceKind.HOST, 1), "host1"),
    ],
)
def test_names(device: Device, name: str) -> None:
    assert device.name == name


@pytest.mark.parametrize(
    ("kind", "port", "direction"),
    [
        (DeviceKind.LINK, None, None),
        (DeviceKind.LINK, Port.NIC, None),
        (DeviceKind.LINK, None, Direction.IN),
        (DeviceKind.COMPUTE, Port.NIC, Direction.OUT),
        (DeviceKind.COMPUTE, Port.NIC, None),
        (DeviceKind.HOST, None, Direction.IN),
    ],
)
def test_only_links_have_ports(kind: DeviceKind, port: Port | None, direction: Direction | None) -> None:
    with pytest.raises(ConfigError, match="port and a direction"):
        Device(kind, 0, port, direction)


def test_negative_rank() -> None:
    with pytest.raises(ConfigError, match="negative rank") as caught:
        Device(DeviceKind.COMPUTE, -1)
    assert caught.value.nearest == 0


def test_streams_are_values() -> None:
    gpu = Device(DeviceKind.COMPUTE, 2)
    assert Stream(gpu, "compute") == Stream(Device(DeviceKind.COMPUTE, 2), "compute")
    assert len({Stream(gpu, "compute"), Stream(gpu, "compute"), Stream(gpu, "offload")}) == 2


@pytest.mark.parametrize("value", [-1.0, math.nan, -math.inf, True, "3"])
def test_number_refuses(value: object) -> None:
    with pytest.raises(ConfigError):
        Number(value, Provenance.SPEC, "test")  # type: ignore[arg-type]


def test_number_needs_a_source() -> None:
    with pytest.raises(ConfigError, match="without a source"):
        Number(1.0, Provenance.SPEC, "")


def test_worst_provenance_follows_the_order_of_trust() -> None:
    assert worst_provenance(Provenance.FITTED, Provenance.MEASURED) is Provenance.FITTED
    assert worst_provenance(Provenance.SPEC, Provenance.TRANSFERRED, Provenance.MEASURED) is Provenance.SPEC
    assert worst_provenance(*Provenance) is Provenance.DEFAULT

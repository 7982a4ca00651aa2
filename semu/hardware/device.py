"""Devices and streams: ``DeviceKind``, ``Direction``, ``Device``, ``Stream``.

A GPU is one compute device and, per port (NVLink, NIC, PCIe), two link devices, out and in; each node has a host
(DESIGN §3.1).
"""

from __future__ import annotations

from enum import Enum

from semu.errors import ConfigError
from semu.hardware.kinds import Port
from semu.records import dataclass


class DeviceKind(Enum):
    """What a device executes: arithmetic and memory traffic, transfers, or CPU launches and host memory."""

    COMPUTE = "compute"
    LINK = "link"
    HOST = "host"


class Direction(Enum):
    """Which of the two link devices of a port, seen from the GPU."""

    OUT = "out"
    IN = "in"


@dataclass(frozen=True, slots=True)
class Device:
    """One place where operators run.

    Attributes:
        kind: compute, link or host.
        rank: number of the GPU, or of the node for a host; >= 0.
        port: which port, links only.
        direction: out or in, links only.
    Raises:
        ConfigError: a link without port or direction, another device with one, a negative rank.
    """

    kind: DeviceKind
    rank: int = 0
    port: Port | None = None
    direction: Direction | None = None

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ConfigError(
                "negative rank", where="Device.rank", expected="an integer >= 0", got=self.rank, nearest=0
            )
        has_both = self.port is not None and self.direction is not None
        has_none = self.port is None and self.direction is None
        if not (has_both if self.kind is DeviceKind.LINK else has_none):
            raise ConfigError(
                "links, and only links, have a port and a direction",
                where=f"Device({self.kind.value})",
                expected="port and direction" if self.kind is DeviceKind.LINK else "neither port nor direction",
                got=f"port={self.port}, direction={self.direction}",
            )

    @property
    def name(self) -> str:
        """``gpu0``, ``gpu0.nvlink.out`` or ``host0``."""
        if self.kind is DeviceKind.HOST:
            return f"host{self.rank}"
        if self.port is None or self.direction is None:
            return f"gpu{self.rank}"
        return f"gpu{self.rank}.{self.port.value}.{self.direction.value}"


@dataclass(frozen=True, slots=True)
class Stream:
    """An in-order queue on a device: an order, not a capacity.

    Attributes:
        device: where its operators run.
        name: ``compute``, or the communicator's name (``tp``, ``dp``, ``pp``).
    """

    device: Device
    name: str


OFFLOAD = Stream(Device(DeviceKind.LINK, port=Port.PCIE, direction=Direction.OUT), "offload")
"""Copies from the GPU to its host."""
RELOAD = Stream(Device(DeviceKind.LINK, port=Port.PCIE, direction=Direction.IN), "reload")
"""Copies from the host to its GPU."""
HOST_COPIES = (OFFLOAD.name, RELOAD.name)
"""Streams of copies: a kernel waits for the data that a copy brings, never for the stream."""

"""``check_costs``: which costs an operator may have on which kind of device (DESIGN §3.1)."""

from __future__ import annotations

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.hardware.device import DeviceKind, Stream


def check_costs(stream: Stream, flop: Dim, mem_bytes: Dim, net_bytes: Dim, where: str) -> None:
    """Refuse what the stream's device cannot serve.

    Raises:
        GraphError: a negative cost, network bytes on a device without network, arithmetic on a link.
    """
    for name, cost in (("flop", flop), ("mem_bytes", mem_bytes), ("net_bytes", net_bytes)):
        if isinstance(cost, int) and cost < 0:
            raise GraphError(f"negative {name}", where=where, expected=">= 0", got=cost, nearest=0)
    kind = stream.device.kind
    if kind is not DeviceKind.LINK and net_bytes != 0:
        raise GraphError(
            "network bytes on a device that has no network",
            where=where,
            expected=f"a link, or net_bytes = 0 on {stream.device.name}",
            got=net_bytes,
            nearest=0,
        )
    if kind is not DeviceKind.COMPUTE and flop != 0:
        raise GraphError(
            "arithmetic on a link" if kind is DeviceKind.LINK else "arithmetic on a host, which launches and stores",
            where=where,
            expected=f"a compute device, or flop = 0 on {stream.device.name}",
            got=flop,
            nearest=0,
        )

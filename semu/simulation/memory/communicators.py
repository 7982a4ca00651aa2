"""What NCCL's communicators hold of a device, outside the allocator.

A connection between two ranks has a buffer for each protocol, and every channel has connections for every algorithm
that is set up. Until NCCL 2.22 a communicator connects rings and trees when it is made; later ones connect what is used
when it is used.

Source: NCCL, ``devcomm.h`` (sizes of buffers), ``transport/p2p.cc`` (the simple buffer lies at the sender of a pair
over NVLink, both sides are rounded up to 2 MiB), ``transport/net.cc`` (both sides have all of them), release notes of
2.22; channels as it prints them on nodes of eight A100 or H100. PyTorch 2.7 is the first with a later NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from semu.hardware.cluster import Cluster
from semu.hardware.software import Software
from semu.job.training import Training

MIB = 1 << 20
CONNECTED_BYTES = 32 * (4 << 20)
"""A communicator that connects what it uses: NCCL_BUFFSIZE = 4 MiB (its default) for each of at most 32 channels (NCCL
user guide, environment variables)."""
CONNECTS_LATE_SINCE = "2025-04"
"""Month of PyTorch 2.7, which comes with NCCL 2.26."""
ALGORITHM_LINKS = 3
"""Connections that a rank receives over in a channel: one of the ring, two of the trees (its parent and a child)."""
NEAR_BYTES = 12 * MIB
"""A connection within a node, both ends: 0.5 (LL) + 4.7 MiB (LL128) here, 4 MiB (Simple) there, each with its header
rounded up to 2 MiB."""
FAR_BYTES = 2 * (8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 4 * MIB)
"""A connection across nodes: buffers of LL, LL128 and Simple for what is sent and for what is received."""
SWITCHED_CHANNELS, SHARED_CHANNELS, LONE_CHANNELS = 24, 16, 4
"""Channels of a communicator within NVLink's reach, of one with several ranks a node, of one with one rank a node or
without NVLink."""


class GpuAxes(Protocol):
    """Sizes of the axes whose ranks need a communicator."""

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks."""

    @property
    def pp(self) -> int:
        """Pipeline ranks."""


def communicators_bytes(training: Training, sizes: GpuAxes, cluster: Cluster) -> int:
    """What all communicators of a rank hold [bytes], ranks as Megatron-LM orders them (tensor, data, pipeline)."""
    date = training.software_date
    spans = [*_spans(training.software, sizes)]
    if date is None or date >= CONNECTS_LATE_SINCE:
        return CONNECTED_BYTES * len(spans)
    return sum(_connected_whole(ranks, stride, cluster) for ranks, stride in spans)


def _spans(software: Software, sizes: GpuAxes) -> Iterator[tuple[int, int]]:
    """Ranks of every communicator, and the distance between two of them. DeepSpeed's engine has one of all ranks, and
    in a pipeline one with either neighbour, since it sends one message at a time, one of a replica's ranks (norms) and
    one more of the tensor-parallel ranks (parts of messages)."""
    tp, dp, pp = sizes.tp, sizes.dp, sizes.pp
    spans = [(tp, 1), (dp, tp), (pp, tp * dp)]
    if software is Software.MEGATRON_DEEPSPEED:
        spans.append((tp * dp * pp, 1))
        if pp > 1:
            spans += [(pp, tp * dp), (tp, 1), (tp * pp, 1)]
    return ((ranks, stride) for ranks, stride in spans if ranks > 1)


def _connected_whole(ranks: int, stride: int, cluster: Cluster) -> int:
    """A communicator with rings and trees [bytes]."""
    node = cluster.gpus_per_node
    if ranks * stride <= max(cluster.island, node):
        channels = SWITCHED_CHANNELS if ranks * stride <= int(cluster.profile.nvlink_gpus.value) else LONE_CHANNELS
        return channels * ALGORITHM_LINKS * NEAR_BYTES
    if stride < node:
        return SHARED_CHANNELS * ALGORITHM_LINKS * NEAR_BYTES
    return LONE_CHANNELS * ALGORITHM_LINKS * FAR_BYTES

"""Weights that live on the host (``training.offload = "weights"``): which, and what of a rank's memory and step moves.

The parameters of the chosen layers lie in host memory. Ahead of a layer's forward, and again of its backward, they are
copied to the device over the GPU's PCIe in-link, on the stream on which offloaded activations come back too; the
layer's kernels wait for them, and they go with its last kernel (``semu.compile.join``). The copy for the next chosen
layer begins with the layer before it, so two of them are there at most. The first copy of a stage begins with the
stage: nothing is prefetched across stages, as torch FSDP does not across passes.

What is followed: DeepSpeed's ZeRO-Infinity (2104.07857 §5.1, §6.2: parameters on the host, fetched layer by layer
ahead of their use) and PyTorch's FSDP2 ``CPUOffloadPolicy``: with ZeRO-3 the host has the rank's shard, copied in front
of the all-gather; where the shards are the master weights, as in torch with mixed precision, the 4 bytes a parameter of
those cross, and are cast as they are gathered.

Where semu differs: both also keep gradients and optimizer state on the host and step there. Here gradients stay on the
device, the state does unless it is offloaded too, and the step runs on the device, which then writes the new weights
back, through the two layers' buffers, not hidden behind the step (without master weights it reads them first). Without
sharding (ZeRO-0 to ZeRO-2) the host has all that the rank holds of a layer; DeepSpeed offers that under ZeRO-3 alone.
With ZeRO-1 and ZeRO-2 these layers' parameters are gathered behind the step whatever ``overlap.param_gather`` says,
because their way leads to the host. Parameters that several blocks share, and those of blocks that are no layers
(embeddings, head and loss), stay on the device. With activations offloaded too, both are of the same layers.
"""

from __future__ import annotations

from typing import NamedTuple

from semu.compile.layout import Layout
from semu.compile.parameter_pools import ParameterPool


class HostWeights(NamedTuple):
    """What a rank does not have on the device because layers are on the host [bytes].

    Attributes:
        parameters: of its parameters. masters: of its master weights, where they are the shards of ZeRO-3.
        read, written: by the step, over PCIe.
    """

    parameters: int = 0
    masters: int = 0
    read: int = 0
    written: int = 0


def host_weights(layout: Layout, rank: int) -> HostWeights:
    """Bytes of a rank's weights on the host, and bytes that its step moves."""
    if not layout.cut.on_host:
        return HostWeights()
    by_pool = [_of_pool(layout, pool) for pool in layout.pools(rank)]
    return HostWeights(*map(sum, zip(*by_pool, strict=True)))


def _of_pool(layout: Layout, pool: ParameterPool) -> HostWeights:
    job, on_host = layout.job, layout.cut.on_host
    training, zero = job.training, job.parallel.zero
    size = training.precision.tensor_dtype.size_bytes
    away = sum(held.elements for held in pool.held if held.parameter in on_host)
    trained = trained_on_host(layout, pool)

    def _share(elements: int) -> int:
        return -(-elements // pool.shards)

    has_master = training.master_dtype is not training.precision.tensor_dtype
    if zero < 3:
        stepped = _share(trained) if zero else trained
        return HostWeights(away * size, 0, 0 if has_master else stepped * size, trained * size)
    shards = _share(pool.elements) - _share(pool.elements - away)
    masters = _share(pool.trained_elements) - _share(pool.trained_elements - trained)
    if not job.shards_are_masters:
        return HostWeights(shards * size, 0, 0 if has_master else masters * size, masters * size)
    moved = 0 if training.offload_plan.optimizer else masters * training.master_dtype.size_bytes
    return HostWeights((shards - masters) * size, moved, moved, moved)


def trained_on_host(layout: Layout, pool: ParameterPool) -> int:
    """Trained elements of a pool that live on the host."""
    return sum(held.elements for held in pool.trained if held.parameter in layout.cut.on_host)

"""Offload of saved activations: copies out behind a block's forward pass, copies in ahead of its backward.

A block is differentiated once to learn which forward tensors the backward operators read. A copy out waits for the
kernel that made its tensor, a copy in for its turn on the link; a tensor leaves the device when its last reader in the
forward pass and its copy have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.graph.graph import Graph
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import TensorNode
from semu.hardware.device import OFFLOAD, RELOAD, Stream
from semu.hardware.kinds import Port
from semu.hardware.network import CommGroup
from semu.nn.trace.tracing import Trace

HOST_LINK = {stream: CommGroup(stream.name, 2, 1, local_port=Port.PCIE) for stream in (OFFLOAD, RELOAD)}
"""GPU and host as the two ends of a transfer over PCIe."""


def saved_storages(graph: Graph, num_forward: int) -> tuple[int, ...]:
    """Storages that backward operators read of the forward pass and do not write, in the order of their making."""
    forward, backward = graph.operators[:num_forward], graph.operators[num_forward:]
    made = {graph.tensors[tensor].storage for op in forward for tensor in (*op.inputs, *op.outputs)}
    read = {graph.tensors[tensor].storage for op in backward for tensor in op.inputs}
    written = {graph.tensors[tensor].storage for op in backward for tensor in op.outputs}
    return tuple(s for s in sorted((made & read) - written) if not graph.storages[s].role.is_static)


def copy_out(trace: Trace, saved: Sequence[int]) -> None:
    """Append a copy to the host for each saved storage."""
    for storage in saved:
        _copy(trace, OFFLOAD, storage, Phase.FORWARD, inputs=[_first_tensor(trace.graph, storage).index])


def copy_in(trace: Trace, saved: Sequence[int]) -> None:
    """Append a copy from the host for each saved storage, in reverse order: the backward reads the last one first.

    Later operators read the copy.
    """
    graph = trace.graph
    for storage in reversed(saved):
        base = _first_tensor(graph, storage)
        node = graph.add_tensor(base.shape, base.dtype, graph.storages[storage].role, name="reload")
        _copy(trace, RELOAD, storage, Phase.INPUT_GRADIENT, outputs=[node])
        trace.reloaded[storage] = node


def _first_tensor(graph: Graph, storage: int) -> TensorNode:
    return next(tensor for tensor in graph.tensors if tensor.storage == storage)


def _copy(
    trace: Trace, stream: Stream, storage: int, phase: Phase, inputs: Sequence[int] = (), outputs: Sequence[int] = ()
) -> None:
    trace.groups[stream] = HOST_LINK[stream]
    trace.graph.add_operator(
        OpKind.P2P,
        stream,
        inputs=inputs,
        outputs=outputs,
        net_bytes=trace.graph.storages[storage].size_bytes,
        key=(2, 1),
        path=stream.name,
        phase=phase,
    )

"""Context ranks that send one another only the keys and values that are needed (DCP, SOSP '25).

A tile of keys travels to the ranks that have a tile of queries under whose mask it is not empty: an all-to-all of
different sizes, within the node and between nodes at once, as the ports differ. The kernel over a rank's own keys runs
meanwhile; the one over all that arrived follows, and the two outputs are merged by their log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn.masked_kernel import MaskedKernel
from semu.nn.rules.attention.context import Exchanged, add_into, merge, parted
from semu.nn.rules.attention.fused import AttentionKernel
from semu.nn.rules.views import copy_both
from semu.nn.trace.tensor import Tensor, laid_out_like


def near_and_far(group: CommGroup) -> dict[str, CommGroup]:
    """The peers of a context rank in its node and in other nodes, each as a group; those without peers are left out."""
    if group.num_nodes == 1:
        return {"near": replace(group, name="cp_near")}
    ranks, outside = group.ranks_per_node, group.num_ranks - group.ranks_per_node + 1
    found = {"far": replace(group, name="cp_far", num_ranks=outside, num_nodes=outside, ranks_per_node=1)}
    if ranks > 1:
        found["near"] = replace(group, name="cp_near", num_ranks=ranks, num_nodes=1, ranks_per_node=ranks)
    return found


def with_needed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: CommGroup,
    own: AttentionKernel,
    others: AttentionKernel,
    into: tuple[Tensor, Tensor] | None = None,
) -> Exchanged:
    """Attention to the rank's own keys, and to those of other ranks that its tiles read.

    Args:
        q, k, v: of one rank. group: all context ranks. own, others: kernels. into: as ``around_ring``.

    Saves q, K and V joined, the output and its log-sum-exp; the backward has keys and values sent again, and dK and dV
    of what arrived are sent back and added up where the keys are.
    """
    tiles = others.tiles
    assert tiles is not None
    peers = near_and_far(group)
    kv = copy_both(k, v, (*k.shape[:2], k.shape[2] + v.shape[2]), "join_kv")
    arrived = _sent(kv, peers, tiles, "send_kv", [])
    y, statistics = own.forward(q, [kv], "attention", into)
    own.aggregate(q, y)
    part, part_statistics = others.forward(q, arrived, "attention_others")
    others.aggregate(q, part)
    merged = tiles.size("merged")
    a_row = others.heads * (others.d_v * q.dtype.size_bytes + 4)
    merge(q, [y, statistics], [part, part_statistics], merged * a_row)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        reads = [q, y, statistics, grad]
        here = _sent(kv, peers, tiles, "send_kv_bw", [grad])
        grad_q, (grad_kv,) = own.backward(q, [*reads, kv], "attention_bw", [(kv.local_shape, kv.dtype)])
        grad_kv = laid_out_like(grad_kv, kv)
        written = [(x.local_shape, x.dtype) for x in here]
        part_q, parts = others.backward(q, [*reads, *here], "attention_others_bw", written)
        add_into(grad_q, part_q, merged * (others.heads * others.d * q.dtype.size_bytes))
        after = q.trace.last_kernel
        for way, one in zip(peers, parts, strict=True):
            like = replace(kv, shape=(tiles.size(f"{way}_out"), *kv.shape[1:]), sequences=None)
            back = _move([laid_out_like(one, like)], like, peers[way], tiles, way, "return_grad_kv", after)
            add_into(grad_kv, back, back.size_bytes)
        return [grad_q, *parted(grad_kv, k, v)]

    return y, _backward


def _sent(
    kv: Tensor, peers: Mapping[str, CommGroup], tiles: MaskedKernel, name: str, behind: Sequence[Tensor]
) -> list[Tensor]:
    """What arrives of other ranks' keys and values: the rank's own are packed by peer, and all travel at once, beside
    the kernels that follow. ``behind``: further tensors that the packing waits for."""
    packed = []
    for way in peers:
        like = replace(kv, shape=(tiles.size(f"{way}_out"), *kv.shape[1:]), sequences=None)
        traffic = 2 * like.size_bytes
        packed.append(
            kv.trace.emit(
                OpKind.COPY,
                [kv, *behind],
                like=like,
                role=Role.COMMUNICATION,
                mem_bytes=traffic,
                key=(like.numel,),
                name=f"{name}_pack_{way}",
            )
        )
    after = kv.trace.last_kernel
    found = []
    for (way, group), own in zip(peers.items(), packed, strict=True):
        like = replace(own, shape=(tiles.size(f"{way}_in"), *kv.shape[1:]))
        found.append(_move([own], like, group, tiles, way, name, after))
    return found


def _move(
    parts: Sequence[Tensor], like: Tensor, group: CommGroup, tiles: MaskedKernel, way: str, name: str, after: int
) -> Tensor:
    """An all-to-all of different sizes. Its wire bytes are those of the fuller direction of the rank's port.

    Args:
        parts: what is sent. like: what arrives. group: the peers. tiles: whose sizes. way: near or far.
        name: of the operator. after: the kernel that it waits for.
    """
    trace = like.trace
    a_token = tiles.size(way) * (like.local_shape[1] * like.local_shape[2] * like.dtype.size_bytes)
    return trace.emit(
        OpKind.ALL_TO_ALL,
        parts,
        like=like,
        net_bytes=a_token,
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        role=Role.COMMUNICATION,
        name=f"{name}_{way}",
        beside=[after],
    )

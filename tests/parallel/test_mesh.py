"""Ranks and groups against an explicit list of all GPUs in either of Megatron's orders: tensor fastest, and the
pipeline or data slowest."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import Port
from semu.hardware.network import CommGroup
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh

SHAPES = [
    (Parallel(dp=2, tp=2, pp=4), 2, 8),
    (Parallel(dp=8, tp=1, pp=2), 2, 8),
    (Parallel(dp=3, tp=4, pp=2, cp=2), 6, 8),
    (Parallel(dp=2, tp=8, pp=2, cp=2), 8, 8),
    (Parallel(dp=2, tp=16, pp=1), 4, 8),
    (Parallel(dp=2, tp=3, pp=2), 3, 4),
    (Parallel(), 1, 1),
]
SHAPES += [(replace(parallel, rank_order="tp-cp-pp-dp"), nodes, gpus) for parallel, nodes, gpus in SHAPES]
IDS = [f"{parallel.label()} {parallel.rank_order} on {nodes}x{gpus}" for parallel, nodes, gpus in SHAPES]


def coordinates(parallel: Parallel) -> list[tuple[int, int, int, int]]:
    """(pp, dp, cp, tp) of GPU 0, 1, 2, ..."""
    pp, dp, cp, tp = (range(getattr(parallel, axis)) for axis in ("pp", "dp", "cp", "tp"))
    if parallel.rank_order == "tp-cp-pp-dp":
        return [(p, d, c, t) for d, p, c, t in product(dp, pp, cp, tp)]
    return list(product(pp, dp, cp, tp))


def spread(ranks: list[int], gpus_per_node: int) -> tuple[int, int, int]:
    """Ranks, nodes, and ranks on the emptiest node."""
    nodes = Counter(rank // gpus_per_node for rank in ranks)
    return len(ranks), len(nodes), min(nodes.values())


def farthest(groups: list[list[int]], gpus_per_node: int) -> tuple[int, int, int]:
    """The group on the most nodes, among those the one with the emptiest node: it is the slowest."""
    return max((spread(ranks, gpus_per_node) for ranks in groups), key=lambda found: (found[1], -found[2]))


def shape(group: CommGroup) -> tuple[int, int, int]:
    return group.num_ranks, group.num_nodes, group.ranks_per_node


@pytest.mark.parametrize(("parallel", "nodes", "gpus"), SHAPES, ids=IDS)
def test_every_rank_is_where_the_order_puts_it(parallel: Parallel, nodes: int, gpus: int) -> None:
    mesh = Mesh(parallel, Cluster("h100", nodes, gpus))
    assert [mesh.gpu(pp=p, dp=d, cp=c, tp=t) for p, d, c, t in coordinates(parallel)] == list(range(parallel.num_gpus))
    assert parallel.num_gpus == mesh.cluster.num_gpus


@pytest.mark.parametrize(("parallel", "nodes", "gpus"), SHAPES, ids=IDS)
def test_groups_hold_the_ranks_that_agree_in_all_other_coordinates_and_the_worst_peer_stands_for_all(
    parallel: Parallel, nodes: int, gpus: int
) -> None:
    mesh = Mesh(parallel, Cluster("h100", nodes, gpus))
    ranks = list(enumerate(coordinates(parallel)))
    for p, d in product(range(parallel.pp), range(parallel.dp)):
        tensor = [rank for rank, (pp, dp, cp, _) in ranks if (pp, dp, cp) == (p, d, 0)]
        assert shape(mesh.tp_group(p, d)) == spread(tensor, gpus)
        assert mesh.tp_group(p, d).name == "tp"
    for p in range(parallel.pp):
        data = [[r for r, (pp, _, _, tp) in ranks if (pp, tp) == (p, t)] for t in range(parallel.tp)]
        assert shape(mesh.dp_group(p)) == farthest(data, gpus)
        assert mesh.dp_group(p).num_ranks == parallel.dp * parallel.cp
    for source, target, d in product(range(parallel.pp), range(parallel.pp), range(parallel.dp)):
        if source != target:
            pairs = [
                [r for r, (pp, dp, cp, tp) in ranks if pp in (source, target) and (dp, cp, tp) == (d, c, t)]
                for c, t in product(range(parallel.cp), range(parallel.tp))
            ]
            assert shape(mesh.pp_pair(source, target, d)) == farthest(pairs, gpus)


WORST = [*SHAPES, (Parallel(tp=2, cp=3), 2, 3), (Parallel(tp=2, dp=3), 2, 3)]


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp"])
@pytest.mark.parametrize(
    ("sizes", "inner", "nodes", "gpus"),
    [
        ({"cp": 4}, 2, 1, 4),
        ({"cp": 8, "dp": 2}, 2, 2, 8),
        ({"cp": 8, "tp": 2, "pp": 2}, 4, 4, 8),
        ({"cp": 6, "tp": 2, "dp": 2}, 3, 3, 8),
        ({"cp": 4, "tp": 4, "dp": 2, "pp": 2}, 2, 16, 4),
    ],
)
def test_levels_of_context_parallelism(sizes: dict[str, int], inner: int, nodes: int, gpus: int, order: str) -> None:
    """Context ranks that differ in nothing else: neighbours form groups, and equal places of the groups rings."""
    parallel = Parallel(**sizes, cp_inner=inner, rank_order=order)  # type: ignore[arg-type]
    levels = Mesh(parallel, Cluster("h100", nodes, gpus)).worst_context_levels
    assert levels is not None
    groups: dict[tuple[int, ...], list[int]] = {}
    rings: dict[tuple[int, ...], list[int]] = {}
    for rank, (p, d, c, t) in enumerate(coordinates(parallel)):
        groups.setdefault((p, d, t, c // inner), []).append(rank)
        rings.setdefault((p, d, t, c % inner), []).append(rank)
    assert [shape(level) for level in levels] == [
        farthest(list(groups.values()), gpus),
        farthest(list(rings.values()), gpus),
    ]
    assert [level.name for level in levels] == ["cp_group", "cp_ring"]


@pytest.mark.parametrize("parallel", [Parallel(cp=4), Parallel(cp=4, cp_inner=4), Parallel()])
def test_one_level_of_context_parallelism(parallel: Parallel) -> None:
    assert Mesh(parallel, Cluster("h100", 1, parallel.num_gpus)).worst_context_levels is None


@pytest.mark.parametrize(("parallel", "nodes", "gpus"), WORST, ids=[f"{p.label()} on {n}x{g}" for p, n, g in WORST])
def test_the_worst_tensor_parallel_group_spans_the_most_nodes(parallel: Parallel, nodes: int, gpus: int) -> None:
    mesh = Mesh(parallel, Cluster("h100", nodes, gpus))
    groups: dict[tuple[int, int, int], set[int]] = {}
    for rank, (p, d, c, _) in enumerate(coordinates(parallel)):
        groups.setdefault((p, d, c), set()).add(rank // gpus)
    assert mesh.worst_tp_group.num_nodes == max(len(held) for held in groups.values())


def test_replicas_are_neighbours_where_the_pipeline_comes_first() -> None:
    """Two replicas of 2 x 4 GPUs on two nodes: by Megatron-LM's order stages lie apart, by the other one replicas."""
    ports = {}
    for order in ("tp-cp-dp-pp", "tp-cp-pp-dp"):
        mesh = Mesh(Parallel(dp=2, tp=2, pp=4, rank_order=order), Cluster("h100", 2, 8))
        ports[order] = [mesh.pp_pair(stage, stage + 1).port for stage in range(3)], mesh.dp_group(0).port
    assert ports["tp-cp-dp-pp"] == ([Port.NVLINK, Port.NIC, Port.NVLINK], Port.NVLINK)
    assert ports["tp-cp-pp-dp"] == ([Port.NVLINK] * 3, Port.NIC)


def test_neighbours_in_a_node_meet_over_nvlink_and_others_over_the_nic() -> None:
    mesh = Mesh(Parallel(dp=2, tp=4, pp=2), Cluster("h100", 2, 8))
    assert mesh.tp_group().port is Port.NVLINK
    assert mesh.dp_group(0).port is Port.NVLINK
    assert mesh.pp_pair(0, 1).port is Port.NIC


def test_neighbours_that_nvlink_does_not_join_meet_over_pcie() -> None:
    """Bridges join GPUs 0 and 1, and 2 and 3."""
    mesh = Mesh(Parallel(pp=4), Cluster("h100", 1, 4, {"nvlink_gpus": 2}))
    ports = {(a, b): mesh.pp_pair(a, b).port for a in range(4) for b in range(4) if a != b}
    joined = {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert ports == {pair: Port.NVLINK if pair in joined else Port.PCIE for pair in ports}


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 2), st.integers(1, 4))


@given(SIZES, st.integers(1, 8), st.integers(1, 8), st.sampled_from(["tp-cp-dp-pp", "tp-cp-pp-dp"]))
def test_groups_are_those_of_the_farthest_peers(
    sizes: tuple[int, int, int, int], per_node: int, reach: int, order: str
) -> None:
    """Against the placement of every peer, on nodes that the dimensions need not divide, with NVLink islands."""
    dp, tp, cp, pp = sizes
    parallel = Parallel(dp=dp, tp=tp, pp=pp, cp=cp, rank_order=order)
    nodes = -(-parallel.num_gpus // per_node)
    cluster = Cluster("h100", nodes, per_node, {"nvlink_gpus": reach})
    mesh = Mesh(parallel, cluster)
    ranks = list(enumerate(coordinates(parallel)))

    def slowest(name: str, groups: list[list[int]]) -> CommGroup:
        placed = [cluster.place_group(name, group) for group in groups]
        return max(placed, key=lambda g: (g.num_nodes, g.local_port is Port.PCIE, -g.ranks_per_node))

    tensor: dict[tuple[int, int, int], list[int]] = {}
    for rank, (p, d, c, _) in ranks:
        tensor.setdefault((p, d, c), []).append(rank)
    assert mesh.worst_tp_group == slowest("tp", list(tensor.values()))
    context: dict[tuple[int, int, int], list[int]] = {}
    for rank, (p, d, _, t) in ranks:
        context.setdefault((p, d, t), []).append(rank)
    assert mesh.worst_cp_group == slowest("cp", list(context.values()))
    for p in range(pp):
        data = [[r for r, (own, _, _, t) in ranks if (own, t) == (p, peer)] for peer in range(tp)]
        assert mesh.dp_group(p) == slowest("dp", data)
        for d, c in product(range(dp), range(cp)):
            assert mesh.tp_group(p, d, c) == cluster.place_group("tp", tensor[p, d, c])
    for source, target, d in product(range(pp), range(pp), range(dp)):
        if source != target:
            pairs = [
                [mesh.gpu(pp=source, dp=d, cp=c, tp=t), mesh.gpu(pp=target, dp=d, cp=c, tp=t)]
                for c, t in product(range(cp), range(tp))
            ]
            assert mesh.pp_pair(source, target, d) == slowest("pp", pairs)


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp"])
@pytest.mark.parametrize(("dp", "cp", "size"), [(4, 2, 2), (6, 3, 2), (4, 1, 2), (8, 4, 4)])
def test_sharding_groups_are_consecutive_replicas_with_their_context_ranks(
    dp: int, cp: int, size: int, order: str
) -> None:
    parallel = Parallel(dp=dp, cp=cp, tp=2, pp=2, zero=3, zero_group=size, rank_order=order)
    cluster = Cluster("h100", -(-parallel.num_gpus // 4), 4)
    mesh = Mesh(parallel, cluster)
    ranks = list(enumerate(coordinates(parallel)))
    inside: dict[tuple[int, int], list[int]] = {}
    across: dict[tuple[int, int, int], list[int]] = {}
    for rank, (p, d, c, t) in ranks:
        if p == 0:
            inside.setdefault((d // size, t), []).append(rank)
            across.setdefault((d % size, c, t), []).append(rank)
    assert shape(mesh.shard_group(0)) == farthest(list(inside.values()), 4)
    assert shape(mesh.replica_group(0)) == farthest(list(across.values()), 4)


def test_a_group_beyond_the_cluster_is_refused_each_time() -> None:
    mesh = Mesh(Parallel(tp=4, dp=4), Cluster("h100", 1, 8))
    assert mesh.tp_group(dp=1).num_ranks == 4
    for _ in range(2):
        with pytest.raises(ConfigError, match="no such GPU"):
            mesh.tp_group(dp=2)
        with pytest.raises(ConfigError, match="no such GPU"):
            mesh.dp_group(0)


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "nodes", "cards", "spans"),
    [(2, 2, 1, 2, 3, 2), (3, 2, 1, 2, 4, 2), (3, 3, 2, 3, 8, 3), (4, 2, 1, 2, 6, 2), (2, 2, 2, 2, 4, 2)],
)
def test_the_pipeline_that_spans_the_most_nodes(tp: int, pp: int, dp: int, nodes: int, cards: int, spans: int) -> None:
    """Another tensor rank than the first may have it: on nodes of 3 cards, ranks 0 and 2 share one, 1 and 3 do not."""
    mesh = Mesh(Parallel(tp=tp, pp=pp, dp=dp), Cluster("h100", nodes, cards))
    every = [{mesh.gpu(dp=d, tp=t, pp=p) // cards for p in range(pp)} for d in range(dp) for t in range(tp)]
    assert mesh.worst_pipeline_group.num_nodes == max(map(len, every)) == spans

"""Clusters: names, overrides, where ranks sit."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.reference.network import collective_seconds

from semu.errors import ConfigError
from semu.hardware.cluster import Cluster, said_of_cluster
from semu.hardware.device import Direction
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.known_devices import KNOWN_DEVICES
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_latency
from semu.hardware.profile import list_profiles, load_profile
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh


@pytest.mark.parametrize("device", list_profiles())
def test_label_round_trips(device: str) -> None:
    cluster = Cluster(device, nodes=3, gpus_per_node=4)
    assert cluster.label() == f"{device}:3x4"
    assert Cluster.parse(cluster.label()) == cluster
    assert cluster.num_gpus == 12


@pytest.mark.parametrize("text", ["h800", "h800:8x", "h800:x8", ":8x8", "h800:8x8x8", "h800:-1x8", ""])
def test_not_a_cluster(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster.parse(text)
    assert caught.value.where is not None
    assert caught.value.where.startswith("cluster")


@pytest.mark.parametrize(
    ("said", "device"),
    [
        ("A100", "a100-80g"),
        ("a100-SXM4-40GB", "a100-40g"),
        ("H800", "h800"),
        ("4090", "rtx4090"),
        ("gb200", "gb200-nvl72"),
        ("GB300", "gb300-nvl72"),
        ("NVIDIA B300", "b300"),
    ],
)
def test_what_people_call_a_device_is_its_profile(said: str, device: str) -> None:
    assert Cluster(said) == Cluster(device)
    assert Cluster.parse(f"{said}:2x8").label() == f"{device}:2x8"


def test_a_shipped_profile_has_a_known_device_and_the_other_way_round() -> None:
    assert sorted(KNOWN_DEVICES) == list_profiles()


def test_unknown_device_suggests() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h800'") as caught:
        Cluster.parse("h80O:8x8")
    assert caught.value.nearest == "h800"
    assert caught.value.where == "cluster.device"


@pytest.mark.parametrize(("name", "value"), [("nodes", 0), ("gpus_per_node", -8), ("nodes", 2.0), ("nodes", True)])
def test_counts(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster("h100", **{name: value})  # type: ignore[arg-type]
    assert caught.value.where == f"cluster.{name}"


def test_override() -> None:
    cluster = Cluster(
        "h100",
        override={
            "nvlink_bytes_per_s": 1e11,
            "flop_per_s.bf16": 5e14,
            "host": {"launch_s": 0},
            "efficiency.matmul": {"flop": 0.5},
            "efficiency.attention_forward.head_dim_64.flop": 0.3,
            "link.nic.p2p.net": 0.25,
        },
    )
    profile, shipped = cluster.profile, load_profile("h100")
    assert profile.nvlink_bytes_per_s.value == 1e11
    assert (profile.nvlink_bytes_per_s.provenance, profile.nvlink_bytes_per_s.source) == (Provenance.SPEC, "override")
    assert profile.peak_flop_per_s(DType.BF16) == 5e14
    assert profile.host.launch_s.value == 0
    assert profile.efficiencies[OpKind.MATMUL].flop == 0.5
    assert profile.efficiencies[OpKind.MATMUL].mem == shipped.efficiencies[OpKind.MATMUL].mem
    assert profile.provenance_of("efficiency.matmul.flop") is Provenance.SPEC
    assert profile.variants[OpKind.ATTENTION_FORWARD, 64].flop == 0.3
    assert profile.links[Port.NIC].of(OpKind.P2P).net == 0.25
    assert profile.links[Port.NIC].of(OpKind.ALL_GATHER) == shipped.links[Port.NIC].of(OpKind.ALL_GATHER)
    assert shipped.nvlink_bytes_per_s.value == 450e9


@pytest.mark.slow
def test_every_number_can_be_overridden() -> None:
    shipped = load_profile("h100")
    for key, number in shipped.numbers():
        changed = shipped.override({key: number.value})
        assert changed.number(key).value == number.value
        assert "override" in changed.number(key).source
        others = [(name, item.value) for name, item in changed.numbers()]
        assert others == [(name, item.value) for name, item in shipped.numbers()]


@pytest.mark.parametrize(
    ("key", "value", "nearest"),
    [
        ("nvlink_byte_per_s", 1e11, "nvlink_bytes_per_s"),
        ("flop_per_s.bf61", 1e15, "flop_per_s.bf16"),
        ("efficiency.matmul.flops", 0.5, "efficiency.matmul.flop"),
    ],
)
def test_unknown_override_suggests(key: str, value: float, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster("h100", override={key: value})
    assert caught.value.nearest == nearest
    assert caught.value.where == f"cluster.override.{key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nic_bytes_per_s", 0),
        ("nic_bytes_per_s", -1.0),
        ("nic_bytes_per_s", float("nan")),
        ("mem_bytes_per_s", float("inf")),
        ("mem_bytes_per_s", "fast"),
        ("memory_bytes", True),
        ("efficiency.matmul.flop", 1.2),
        ("link.nvlink.p2p.net", 0.0),
        ("nvlink_gpus", 2.5),
    ],
)
def test_bad_override_is_located(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster("h100", override={key: value})
    assert caught.value.where == f"cluster.override.{key}"


def test_nodes_hosts_and_links() -> None:
    cluster = Cluster("h100", nodes=2, gpus_per_node=4)
    assert [cluster.node_of(gpu) for gpu in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [host.name for host in cluster.hosts] == ["host0", "host1"]
    assert [gpu.name for gpu in cluster.gpus] == [f"gpu{gpu}" for gpu in range(8)]
    assert cluster.host_of(5).name == "host1"
    assert cluster.link(5, Port.NIC, Direction.OUT).name == "gpu5.nic.out"
    for gpu in (-1, 8):
        with pytest.raises(ConfigError, match="no such GPU"):
            cluster.node_of(gpu)


@given(data=st.data(), nodes=st.integers(1, 6), gpus_per_node=st.integers(1, 8))
def test_placement_counts_nodes(data: st.DataObject, nodes: int, gpus_per_node: int) -> None:
    cluster = Cluster("h100", nodes, gpus_per_node)
    members = data.draw(st.lists(st.integers(0, cluster.num_gpus - 1), min_size=1, unique=True))
    group = cluster.place_group("dp", members)
    by_node = [[gpu for gpu in members if gpu // gpus_per_node == node] for node in range(nodes)]
    occupied = [len(found) for found in by_node if found]
    assert (group.num_ranks, group.num_nodes) == (len(members), len(occupied))
    assert group.ranks_per_node == min(occupied)
    assert group.port is (Port.NVLINK if len(occupied) == 1 else Port.NIC)


def test_bridged_pairs_meet_over_pcie() -> None:
    cluster = Cluster("a100-pcie", nodes=2, gpus_per_node=8)
    assert cluster.place_group("tp", [0, 1]).port is Port.NVLINK
    assert cluster.place_group("tp", [1, 2]).port is Port.PCIE
    assert cluster.place_group("tp", [8, 9, 10, 11]).port is Port.PCIE
    assert cluster.place_group("dp", [0, 8]).local_port is Port.NVLINK
    assert cluster.place_group("dp", [0, 1, 8, 10]).local_port is Port.PCIE


@pytest.mark.slow
@given(data=st.data(), trays=st.sampled_from([1, 2, 6, 18]), per_tray=st.sampled_from([1, 4]), nodes=st.integers(1, 40))
def test_an_nvlink_domain_is_a_node_for_placement(data: st.DataObject, trays: int, per_tray: int, nodes: int) -> None:
    """Ranks are placed as on nodes of whole domains; the last domain may have fewer trays."""
    domain = trays * per_tray
    cluster = Cluster("gb200-nvl72", nodes, per_tray, nvlink_domain=domain)
    members = data.draw(st.lists(st.integers(0, cluster.num_gpus - 1), min_size=1, max_size=12, unique=True))
    same = Cluster("gb200-nvl72", -(-cluster.num_gpus // domain), domain, {"nvlink_gpus": domain})
    assert cluster.place_group("dp", members) == same.place_group("dp", members)
    assert cluster.num_gpus == nodes * per_tray and len(cluster.hosts) == nodes


def test_an_nvlink_domain_is_whole_nodes() -> None:
    assert Cluster("h100", 2, 4).place_group("tp", [0, 4]).port is Port.NIC
    assert Cluster("h100", 2, 4, nvlink_domain=8).place_group("tp", [0, 4]).port is Port.NVLINK
    with pytest.raises(ConfigError) as caught:
        Cluster("gb200-nvl72", 18, 4, nvlink_domain=70)
    assert (caught.value.where, caught.value.nearest) == ("cluster.nvlink_domain", 68)
    with pytest.raises(ConfigError):
        Cluster("gb200-nvl72", 18, 4, nvlink_domain=0)


@pytest.mark.parametrize("members", [[], [0, 0], [0, 99]])
def test_impossible_members(members: list[int]) -> None:
    with pytest.raises(ConfigError):
        Cluster("h100").place_group("tp", members)


def test_a_profile_or_a_file_as_device(tmp_path: Path) -> None:
    profile = load_profile("h200")
    assert Cluster(profile).label() == "h200:1x8"
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\nnic_bytes_per_s = 1e11\n')
    cluster = Cluster.parse(f"{path}:2x4")
    assert (cluster.profile.name, cluster.profile.nic_bytes_per_s.value) == ("mine", 1e11)
    with pytest.raises(ConfigError, match="not a device"):
        Cluster(3)  # type: ignore[arg-type]


def test_clusters_are_values() -> None:
    cluster = Cluster("h100", 2, override={"nic_bytes_per_s": 1e10})
    assert hash(cluster) == hash(Cluster("h100", 2, override={"nic_bytes_per_s": 1e10}))
    assert cluster != Cluster("h100", 2)
    assert pickle.loads(pickle.dumps(cluster)) == cluster


@pytest.mark.parametrize(
    ("text", "sizes"), [("h800:8", (1, 8)), ("a100-80g:64", (8, 8)), ("h100:4", (1, 4)), ("h100:1000000", (125_000, 8))]
)
def test_a_number_of_gpus_is_nodes_of_eight(text: str, sizes: tuple[int, int]) -> None:
    cluster = Cluster.parse(text)
    assert (cluster.nodes, cluster.gpus_per_node) == sizes
    assert cluster.num_gpus == int(text.partition(":")[2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h100", {"device": "h100"}),
        (":64", {"nodes": 8, "gpus_per_node": 8}),
        ("my profiles/x.toml:2x4", {"device": "my profiles/x.toml", "nodes": 2, "gpus_per_node": 4}),
        ("x.toml", {"device": "x.toml"}),
        ("c:/mine/x.toml:3x8", {"device": "c:/mine/x.toml", "nodes": 3, "gpus_per_node": 8}),
        ("h20:1x6", {"device": "h20", "nodes": 1, "gpus_per_node": 6}),
    ],
)
def test_a_short_form_may_say_a_part(text: str, said: dict[str, Any]) -> None:
    assert said_of_cluster(text) == said
    if len(said) < 3:
        with pytest.raises(ConfigError, match="not a cluster"):
            Cluster.parse(text)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("h100:12", "h100:16"),
        (":9", "16"),
        ("8xh100", "h100:8"),
        ("8x8xh100", "h100:8x8"),
        ("", None),
        ("64", None),
        ("a:h100:2x8", None),
    ],
)
def test_what_says_no_cluster(text: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        said_of_cluster(text)
    assert caught.value.nearest == nearest


# -- cards, leaves, domains ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "gbit_per_gpu"),
    [
        ({"nics_per_node": 4, "nic_gbit": 100}, 4 * 100 / 8),  # Omni-Path of a node of BLOOM's
        ({"nic_gbit": 200}, 200),
        ({"nics_per_node": 4}, 4 * 400 / 8),
        ({"nics_per_node": 1, "nic_gbit": 400, "gpus_per_node": 4}, 400 / 4),
        ({"nics_per_node": 8, "oversubscription": 2}, 400 / 2),
        ({"nics_per_node": 8, "oversubscription": 2, "leaf_nodes": 2}, 400),
    ],
)
def test_cards_are_shared_by_the_gpus_of_a_node(options: dict[str, Any], gbit_per_gpu: float) -> None:
    cluster = Cluster("h100", **{"nodes": 4, **options})
    assert cluster.profile.nic_bytes_per_s.value == gbit_per_gpu * 1e9 / 8


def test_leaves_are_not_oversubscribed() -> None:
    cluster = Cluster("h100", 8, 2, oversubscription=4, leaf_nodes=4)
    assert cluster.place_group("dp", range(0, 8, 2)).nic_slowdown == 1
    assert cluster.place_group("dp", [0, 8]).nic_slowdown == 4
    assert cluster.place_group("dp", [7, 8]).nic_slowdown == 4
    assert Cluster("h100", 8, 2, oversubscription=4).place_group("dp", [0, 8]).nic_slowdown == 1  # in the card


def test_a_domain_is_a_node_of_several_trays() -> None:
    rack = Cluster("gb200-nvl72", 36, 4, nvlink_domain=72)
    whole = rack.place_group("ep", range(72))
    assert (whole.port, whole.num_nodes, whole.ranks_per_node) == (Port.NVLINK, 1, 72)
    across = rack.place_group("dp", [0, 71, 72])
    assert (across.port, across.num_nodes, across.ranks_per_node) == (Port.NIC, 2, 1)
    trays = Cluster("gb200-nvl72", 36, 4).place_group("ep", range(72))
    assert (trays.port, trays.num_nodes) == (Port.NIC, 18)
    assert rack.host_of(5).name == "host1"  # a tray has its own


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"nics_per_node": 0}, "cluster.nics_per_node"),
        ({"nic_gbit": 0}, "cluster.nic_gbit"),
        ({"nic_gbit": float("nan")}, "cluster.nic_gbit"),
        ({"leaf_nodes": 1.5}, "cluster.leaf_nodes"),
        ({"nvlink_domain": 12}, "cluster.nvlink_domain"),
        ({"nics_per_node": 4, "override": {"nic_bytes_per_s": 1e9}}, "cluster.override.nic_bytes_per_s"),
    ],
)
def test_wrong_cards_leaves_and_domains(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster("h100", 2, **options)
    assert caught.value.where == where


@given(data=st.data())
def test_a_group_is_as_slow_as_its_widest(data: st.DataObject) -> None:
    """Meshes look at some places only: against all groups, one by one."""
    tp, dp, pp = (data.draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (2, 3, 4), (1, 2, 3)))
    gpus = tp * dp * pp
    per_node = data.draw(st.sampled_from([size for size in range(1, 9) if gpus % size == 0]))
    trays = data.draw(st.sampled_from([None, 1, 2, 3]))
    cluster = Cluster(
        "h100",
        gpus // per_node,
        per_node,
        oversubscription=2,
        leaf_nodes=data.draw(st.sampled_from([None, 1, 2, 3])),
        nvlink_domain=None if trays is None else trays * per_node,
    )
    mesh = Mesh(Parallel(tp=tp, dp=dp, pp=pp), cluster)

    def _seconds(kind: OpKind, groups: Iterable[Sequence[int]]) -> float:
        placed = (cluster.place_group("dp", group) for group in groups)
        return max(collective_seconds(cluster.profile, kind, group, 1e9) for group in placed)

    def _takes(kind: OpKind, group: CommGroup) -> float:
        return collective_latency(cluster.profile, kind, replace(group, name="dp"), 1e9)

    for rank in range(pp):
        first = rank * tp * dp
        replicas = [range(first + peer, first + tp * dp, tp) for peer in range(tp)]
        assert _takes(OpKind.ALL_GATHER, mesh.dp_group(rank)) == pytest.approx(_seconds(OpKind.ALL_GATHER, replicas))
    for rank in range(pp - 1):
        for replica in range(dp):
            places = [rank * tp * dp + replica * tp + peer for peer in range(tp)]
            pairs = [(place, place + tp * dp) for place in places]
            found = _takes(OpKind.P2P, mesh.pp_pair(rank, rank + 1, replica))
            assert found == pytest.approx(_seconds(OpKind.P2P, pairs))

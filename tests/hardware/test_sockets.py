"""Machines whose GPUs meet over PCIe below two sockets: a published one, and groups that cross at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.reference.network import collective_seconds

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import wire_factor

NO_BRIDGES = {"nvlink_gpus": 1}
RINGS = (OpKind.ALL_REDUCE, OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER)


def bus_gb_per_s(cluster: Cluster, kind: OpKind, gpus: range) -> float:
    """Bus bandwidth of 1 GB, as nccl-tests prints it."""
    group, size = cluster.place_group("x", gpus), 10**9
    wire = size * wire_factor(kind, len(gpus))
    return float(wire) / collective_latency(cluster.profile, kind, group, float(wire)) / 1e9


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize(("gpus", "low", "high"), [(2, 20, 21), (4, 20, 21), (8, 11, 13.5)])
def test_rings_of_a_published_machine(kind: OpKind, gpus: int, low: float, high: float) -> None:
    """20.7 GB/s for 2 to 4 ranks, 11 to 13.5 for 8."""
    assert low < bus_gb_per_s(Cluster("a100-pcie", 1, 8, NO_BRIDGES), kind, range(gpus)) < high


def test_all_to_alls_of_a_published_machine() -> None:
    """8.3 GB/s for 8 ranks, and 15.5 across the sockets in all: 16 of 56 messages each way. Both figures are one only
    if the first counts a rank's message to itself: 8.3 x 7/8 = 7.3."""
    found = bus_gb_per_s(Cluster("a100-pcie", 1, 8, NO_BRIDGES), OpKind.ALL_TO_ALL, range(8))
    assert found * 4 / 7 * 4 == pytest.approx(15.5, rel=0.01)
    assert found == pytest.approx(8.3 * 7 / 8, rel=0.08)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_that_cross_at_once_share_the_link(groups: int) -> None:
    cluster = Cluster("a100-pcie", 1, 8, NO_BRIDGES)
    members = range(0, 8, groups)
    placed = cluster.place_group("dp", members)
    assert placed.socket_groups == groups
    assert bus_gb_per_s(cluster, OpKind.ALL_REDUCE, members) == pytest.approx(15.5 * 0.79 / groups, rel=0.02)


def test_what_crosses_no_socket_shares_nothing() -> None:
    cluster = Cluster("a100-pcie", 2, 8)
    assert cluster.place_group("tp", range(4)).socket_groups == 0
    assert cluster.place_group("tp", range(2, 6)).socket_groups == 2
    assert cluster.place_group("tp", [0, 1]).socket_groups == 0  # a bridge
    assert cluster.place_group("dp", [0, 8]).socket_groups == 0
    assert Cluster("h100", 1, 8).place_group("tp", range(8)).socket_groups == 0
    assert Cluster("a100-pcie", 1, 8, {"nvlink_gpus": 8}).place_group("tp", range(8)).port is Port.NVLINK


@given(data=st.data(), kind=st.sampled_from([*RINGS, OpKind.ALL_TO_ALL, OpKind.P2P]), nodes=st.integers(1, 3))
def test_times_as_the_reference(data: st.DataObject, kind: OpKind, nodes: int) -> None:
    step = data.draw(st.sampled_from([1, 2, 4, 8]))
    count = data.draw(st.sampled_from([2, 4, 8])) if kind is not OpKind.P2P else 2
    cluster = Cluster("a100-pcie", nodes, 8, data.draw(st.sampled_from([{}, NO_BRIDGES, {"socket_gpus": 2}])))
    if step * (count - 1) >= cluster.num_gpus:
        return
    group = cluster.place_group("x", range(0, step * count, step))
    size = data.draw(st.integers(1, 10**9))
    found = collective_latency(cluster.profile, kind, group, size)
    assert found == pytest.approx(collective_seconds(cluster.profile, kind, group, size), rel=1e-9)


def test_a_job_over_two_sockets_is_slower_than_below_one() -> None:
    def _seconds(**options: object) -> float:
        run = semu.load_run("llama3-8b", cluster="a100-pcie:1x8", parallel="tp8", overrides=["training.global_batch=1"])
        return semu.simulate(
            semu.TrainingJob(run.model, Cluster("a100-pcie", 1, 8, options), run.parallel, run.training)
        ).iteration_time_s

    assert _seconds() > 1.2 * _seconds(socket_gpus=8)
    assert _seconds(socket_bytes_per_s=1e12) == _seconds(socket_gpus=8)


@pytest.mark.parametrize("override", [{"socket_gpus": 2.5}, {"socket_gpus": 0}, {"socket_bytes_per_s": 0}])
def test_wrong_sockets(override: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as caught:
        Cluster("a100-pcie", 1, 8, override)
    assert "socket" in str(caught.value)

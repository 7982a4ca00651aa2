"""Rows that cross to a node once: what that saves, against draws and against the ports' rates."""

from __future__ import annotations

from random import Random

import pytest

import semu
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_route, links_of
from semu.hardware.profile import load_profile
from semu.job.experts import dispatch_group
from semu.job.kinds import Dispatcher


def measured_share(nodes: int, top_k: int, rng: Random) -> float:
    """Different nodes of a token's experts / experts, over many tokens."""
    tokens = 20_000
    return sum(len({rng.randrange(nodes) for _ in range(top_k)}) for _ in range(tokens)) / (tokens * top_k)


@pytest.mark.parametrize(("nodes", "top_k"), [(2, 8), (4, 8), (8, 2), (3, 1)])
def test_a_token_is_wanted_on_as_many_nodes_as_draws_say(nodes: int, top_k: int) -> None:
    group = CommGroup("ep", nodes * 8, nodes)
    share = dispatch_group(group, top_k, Dispatcher.DEEPEP).nic_share
    assert share == pytest.approx(measured_share(nodes, top_k, Random(nodes)), rel=0.01)
    assert dispatch_group(group, top_k, Dispatcher.ALLTOALL) == group


@pytest.mark.parametrize("share", [1.0, 0.6, 0.25, 0.01])
def test_ports_carry_what_crosses_and_what_is_forwarded(share: float) -> None:
    """16 ranks on two nodes, row by row: 8 of 15 peers are elsewhere; the NIC carries a row once, NVLink the rest."""
    profile, group = load_profile("h100"), CommGroup("ep", 16, 2, nic_share=share)
    route, links = collective_route(profile, OpKind.ALL_TO_ALL, group), links_of(profile, OpKind.ALL_TO_ALL, group)
    assert route is not None
    nic, nvlink = 8 / 15 * share, 7 / 15 + (8 / 15 * 7 / 8 if share < 1 else 0)
    longest = max(nic / links.nic_bytes_per_s, nvlink / links.local_bytes_per_s)
    assert route.bytes_per_s == pytest.approx(1 / longest)
    assert route.over[Port.NIC] == pytest.approx(nic / longest)
    assert route.over[Port.NVLINK] == pytest.approx(nvlink / longest)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-20b"])
@pytest.mark.parametrize(("ep", "is_less"), [(8, False), (16, True)])
def test_it_saves_time_between_nodes_and_none_within(model: str, ep: int, is_less: bool) -> None:
    times = []
    for word in ("alltoall", "deepep"):
        numbers = [f"parallel.ep={ep}", "parallel.tp=1", "training.global_batch=16"]
        overrides = [*numbers, f'training.moe_dispatcher="{word}"']
        times.append(semu.evaluate(model, overrides=overrides, cluster="h100:2x8").iteration_time_s)
    assert (times[1] < times[0]) is is_less
    assert is_less or times[0] == times[1]

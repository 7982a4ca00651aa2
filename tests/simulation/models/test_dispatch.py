"""Dispatchers other than the all-to-all: rows that cross to a node once, against draws and against the ports' rates; an
all-gather of all tokens, against sums of collectives and a count of rows."""

from __future__ import annotations

from random import Random

import pytest

import semu
from semu.errors import ConfigError
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_latency, collective_route, links_of
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
    found = dispatch_group(group, top_k, Dispatcher.DEEPEP)
    assert found.nic_share == pytest.approx(measured_share(nodes, top_k, Random(nodes)), rel=0.01)
    assert found.rank_share == pytest.approx(measured_share(nodes * 8, top_k, Random(nodes)), rel=0.01)
    assert dispatch_group(group, top_k, Dispatcher.ALLTOALL) == group


@pytest.mark.parametrize("ranks", [1.0, 0.7])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.25, 0.01])
def test_ports_carry_what_crosses_and_what_is_forwarded(share: float, ranks: float) -> None:
    """16 ranks on two nodes, row by row: 8 of 15 peers are elsewhere; the NIC carries a row once, NVLink the rest, of
    which rows for several experts of a rank are one."""
    profile, group = load_profile("h100"), CommGroup("ep", 16, 2, nic_share=share, rank_share=ranks)
    route, links = collective_route(profile, OpKind.ALL_TO_ALL, group), links_of(profile, OpKind.ALL_TO_ALL, group)
    assert route is not None
    nic, nvlink = 8 / 15 * share, ranks * (7 / 15 + (8 / 15 * 7 / 8 if share < 1 else 0))
    longest = max(nic / links.nic_bytes_per_s, nvlink / links.local_bytes_per_s)
    assert route.bytes_per_s == pytest.approx(1 / longest)
    assert route.over[Port.NIC] == pytest.approx(nic / longest)
    assert route.over[Port.NVLINK] == pytest.approx(nvlink / longest)


@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_within_a_node_a_row_is_sent_once_to_a_rank(top_k: int) -> None:
    profile, plain = load_profile("h100"), CommGroup("ep", 8, 1)
    found = dispatch_group(plain, top_k, Dispatcher.DEEPEP)
    routes = [collective_route(profile, OpKind.ALL_TO_ALL, group) for group in (plain, found)]
    assert routes[0] is not None and routes[1] is not None
    share = 8 * (1 - (7 / 8) ** top_k) / top_k
    assert routes[0].bytes_per_s / routes[1].bytes_per_s == pytest.approx(share)
    assert routes[0].over == routes[1].over  # the port's rate is what it was


@pytest.mark.parametrize(("model", "sorts"), [("qwen3-30b-a3b", 4 * 48), ("gpt-oss-20b", 4 * 24)])
@pytest.mark.parametrize("ep", [8, 16])
def test_it_saves_time_and_sorts(model: str, sorts: int, ep: int) -> None:
    times, found = [], []
    for word in ("alltoall", "deepep"):
        numbers = [f"parallel.ep={ep}", "parallel.tp=1", "training.global_batch=16", 'training.recompute="none"']
        overrides = [*numbers, f'training.moe_dispatcher="{word}"', "training.micro_batch=1"]
        report = semu.simulate(model, overrides=overrides, cluster="h100:2x8")
        times.append(report.iteration_time_s)
        rank = report.timeline.ranks[0]
        paths = [path for number in range(len(rank.stages)) for path in rank.expand(number).table.paths]
        found.append(sum(path.endswith(".sort") for path in paths))
    assert times[1] < times[0]
    assert found == [sorts, 0]


@pytest.mark.parametrize(
    ("model", "layers", "hidden", "experts"), [("qwen3-30b-a3b", 48, 2048, 128), ("gpt-oss-20b", 24, 2880, 32)]
)
@pytest.mark.parametrize(("ep", "nodes"), [(8, 1), (16, 2)])
def test_an_all_gather_takes_what_its_collectives_do(
    model: str, layers: int, hidden: int, experts: int, ep: int, nodes: int
) -> None:
    """Forward mask, probabilities and tokens are gathered, sums scattered; backward the opposite but for the mask."""
    numbers = [f"parallel.ep={ep}", "parallel.tp=1", "training.global_batch=16", "training.micro_batch=1"]
    numbers += ["training.seq_len=2048", 'training.recompute="none"', 'training.moe_dispatcher="allgather"']
    report = semu.simulate(model, overrides=numbers, cluster="h100:2x8")
    profile, group, others = load_profile("h100"), CommGroup("experts", ep, nodes), (ep - 1) * 2048
    takes = {
        (kind, size): collective_latency(profile, kind, group, others * size)
        for kind in (OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER)
        for size in (experts, 4 * experts, 2 * hidden)
    }
    gather, scatter = OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER
    once = takes[gather, experts] + takes[gather, 4 * experts] + takes[scatter, 4 * experts]
    whole = layers * (once + 2 * takes[gather, 2 * hidden] + 2 * takes[scatter, 2 * hidden])
    rank = report.timeline.ranks[0]
    taken = 0.0
    for number in range(len(rank.stages)):
        stage = rank.expand(number)
        taken += sum(
            (stage.end_s - stage.start_s)[
                ["all_gather" in path or "reduce_scatter" in path for path in stage.table.paths]
            ]
        )
    assert len(rank.stages) == 2  # one microbatch
    assert taken == pytest.approx(whole, rel=1e-6)
    exposed = report.breakdown_s["exposed_communication"][
        "experts"
    ]  # columns of gradients are filled beside a collective
    assert 0.98 * whole < exposed <= whole


def test_an_all_gather_refuses_a_capacity() -> None:
    numbers = ["training.moe_capacity_factor=1.0", 'training.moe_dispatcher="allgather"']
    with pytest.raises(ConfigError, match="a capacity of experts, where all tokens are gathered"):
        semu.evaluate("gpt-oss-20b", overrides=numbers, cluster="h100:2x8")

"""Network cards that GPUs of a node share, at the boundaries of modules on GPUs of their own: the slow reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.effects.test_contention import assert_contended
from simulation.jobs import overlap, valm, vlm
from simulation.test_own_gpus import job as on_nodes
from simulation.test_own_gpus import own

from semu.compile.module_sharding import ModuleSetting, port_loads
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh
from semu.simulation import simulate
from semu.simulation.module_transfers import messages

SLOW = {"nic_gbit": 4.0}
PLACES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "narrow encoder": (8, 4, {"tp": 4, "modules": {"vit": own(gpus=4, tp=1), "llm": own(tp=4)}}),
    "one GPU to four": (
        8,
        4,
        {"tp": 2, "modules": {"vit": own(gpus=2, tp=2), "llm": own(tp=2, gpus=6, pp=3)}},
    ),
    "wide encoder": (8, 2, {"tp": 1, "modules": {"vit": own(gpus=4, tp=4), "llm": own(tp=2, gpus=4, pp=2)}}),
    "one sender": (8, 4, {"tp": 1, "modules": {"vit": own(gpus=4, tp=1, pp=4), "llm": own(gpus=4, tp=1, pp=4)}}),
    "replicas on a node": (12, 4, {"tp": 2, "modules": {"vit": own(gpus=4, tp=1), "llm": own(gpus=8, tp=2, pp=2)}}),
    "six to two": (12, 4, {"tp": 2, "modules": {"vit": own(gpus=6, tp=1), "llm": own(gpus=6, tp=2, pp=3)}}),
}


def placed(name: str, nics: int, *, encoders: int = 1, **options: Any) -> TrainingJob:
    gpus, per_node, parallel = PLACES[name]
    if encoders == 2:
        parallel = {**parallel, "modules": {**parallel["modules"], "audio": own(gpus=per_node, tp=1)}}
        gpus += per_node
    made = on_nodes((valm if encoders == 2 else vlm)(), gpus, parallel=parallel, gpus_per_node=1, **options)
    cluster = Cluster("h800", gpus // per_node, per_node, nics_per_node=nics, **SLOW)  # type: ignore[arg-type]
    return TrainingJob(made.model, cluster, made.parallel, made.training, made.batch)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("sequence_parallel", [True, False], ids=["sp", "no_sp"])
@pytest.mark.parametrize("nics", [1, 2])
@pytest.mark.parametrize("name", PLACES)
def test_messages_of_a_transfer_share_a_card(name: str, nics: int, sequence_parallel: bool) -> None:
    made = placed(name, nics)
    assert_tails_equal(replace(made, parallel=replace(made.parallel, sequence_parallel=sequence_parallel)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "encoders"),
    [
        ("narrow encoder", 1),
        ("narrow encoder", 2),
        ("one GPU to four", 1),
        ("one sender", 1),
        ("one sender", 2),
        ("replicas on a node", 1),
    ],
)
def test_transfers_at_once_share_a_card(name: str, encoders: int) -> None:
    """Of two encoders on a node, too, and beside the reductions of gradients; groups of one rank or all of a node, as
    the reference knows no others under contention."""
    assert_contended(placed(name, 1, encoders=encoders, overlap=overlap(pipeline=True, gradients=True)))


def test_a_card_is_the_sender_s_alone_where_nobody_else_sends() -> None:
    """One GPU of four sends to another node: its transfers last as long as over a card of its own of the same rate."""
    shared, alone = (placed("one sender", nics) for nics in (1, 4))
    assert shared.profile.nic_bytes_per_s.value == alone.profile.nic_bytes_per_s.value / 4
    sends = [
        [(p.start_s, p.end_s) for rank in simulate(made).timeline.ranks for p in rank.outer if p.kind is OpKind.P2P]
        for made in (shared, alone)
    ]
    assert sends[0] == sends[1]


def test_two_encoders_on_a_node_wait_for_their_card() -> None:
    """Without contention each has it for itself; with it, they share it and the iteration is longer."""
    made = placed("narrow encoder", 1, encoders=2, overlap=overlap(pipeline=True))
    plain, shared = simulate(made), simulate(made, contention=True)
    assert shared.contention is not None and shared.contention.lost_s["pp"] > 0
    assert shared.makespan_s > plain.makespan_s


@pytest.mark.parametrize("nics", [1, 2])
def test_collectives_of_a_stage_over_nodes_share_cards_with_sends(nics: int) -> None:
    """An encoder of four GPUs on two nodes: its collectives and its sends of the microbatch before meet on the cards,
    and the pipeline waits for what the collectives lose. Sends that nothing runs beside lose nothing."""
    hidden, waited = (placed("wide encoder", nics, overlap=overlap(pipeline=hides)) for hides in (True, False))
    plain, shared = simulate(hidden), simulate(hidden, contention=True)
    assert shared.contention is not None and shared.contention.lost_s["tp"] > 0
    assert shared.makespan_s - plain.makespan_s == pytest.approx(shared.contention.lost_s["tp"], rel=1e-6)
    assert simulate(waited, contention=True).makespan_s == simulate(waited).makespan_s


@pytest.mark.parametrize(
    ("vit", "llm"),
    [*product((own(gpus=4, tp=1), own(gpus=4, tp=2), own(gpus=4, tp=4)), (own(gpus=2, tp=2), own(gpus=6, tp=2, pp=3)))],
)
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_messages_make_the_load_of_the_busiest_port(vit: Any, llm: Any, sequence_parallel: bool) -> None:
    """Every part arrives where it is wanted, and the busiest GPU sends or gets as many as ``port_loads`` says."""
    gpus = vit.gpus + llm.gpus
    modules = {"vit": replace(vit, pp=1, first_rank=0), "llm": replace(llm, pp=llm.pp or 1, first_rank=1)}
    parallel = Parallel(tp=2, dp=1, pp=1 + (llm.pp or 1), segments="apart", sequence_parallel=sequence_parallel)
    mesh = Mesh(replace(parallel, modules=modules), Cluster("h800", 1, gpus))
    giver, taker = (ModuleSetting.of(name, mesh) for name in ("vit", "llm"))
    for is_gradient in (False, True):
        sent = messages(giver, taker, is_gradient=is_gradient)
        load = port_loads(giver, taker)[is_gradient]
        most = max(max(sum(a == gpu for a, _ in sent), sum(b == gpu for _, b in sent)) for gpu in range(8))
        got = {gpu: sum(b == gpu for _, b in sent) for _, gpu in sent}
        assert len(set(got.values())) == 1 and len(got) == (giver if is_gradient else taker).width
        assert load.busiest / load.received == most / next(iter(got.values()))

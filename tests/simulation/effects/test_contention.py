"""Contention: against the slow reference bit for bit, nothing changes where nothing is shared, and cases by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulation.comparison import assert_memory_equal, assert_sends_equal, assert_stages_equal
from simulation.jobs import ListedBatch, gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items, wide
from simulation.reference.contention import contended

from semu.engine.timeline import OuterSlice
from semu.errors import ConfigError
from semu.hardware.device import Direction
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup
from semu.hardware.network.cost import collective_cost, collective_latency, port_shares
from semu.hardware.profile import load_profile
from semu.job import TrainingJob
from semu.nn import MixtureOfExperts, Model, TransformerLayer
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.present.report import Report
from semu.simulation import simulate
from semu.simulation.context import TouchedStage
from semu.simulation.effects import contention as contending
from semu.simulation.effects import link_units
from semu_models.text.decoder import Decoder, decoder_model

ALL = overlap(tensor=True, pipeline=True, gradients=True, parameters=True)
SLOW_NVLINK: dict[str, object] = {"nvlink_bytes_per_s": 1e10}
REDUCED = ("gradients", "replicated", "tied")


def test_every_port_of_every_gpu_has_a_number_of_its_own() -> None:
    """Two replicas of three ranks, then what cards they share."""
    writer = object.__new__(link_units.UnitWriter)
    writer.num_replicas, writer.cards = 2, SimpleNamespace(count=4)
    writer.layout = SimpleNamespace(job=SimpleNamespace(parallel=SimpleNamespace(pp=3)))
    sides = [(port, way) for port in Port for way in Direction]
    numbers = [int(writer._port(r, rank, side)) for r in range(2) for rank in range(3) for side in sides]
    assert sorted(numbers) == list(range(len(numbers)))
    assert writer.num_ports == len(numbers) + 4


def test_stages_count_as_touched_on_the_replica_that_is_told() -> None:
    """Of three stages that do not run as their templates say, one waits for long on that replica."""
    nothing = np.zeros((1, 1))
    inside = {
        (0, 1): TouchedStage(nothing, nothing, 0.0, nothing),
        (0, 2): TouchedStage(nothing, nothing, 1e-3, nothing),
        (1, 3): TouchedStage(nothing, nothing, 1e-3, nothing),
    }
    shape = SimpleNamespace(num_microbatches=1)
    units = SimpleNamespace(size=4, num_stages=4, num_units=4, shape=shape)
    problem = SimpleNamespace(num_stages=4)
    writer = SimpleNamespace(units=units, gathers={}, reductions=[], run=SimpleNamespace(problem=problem))
    job = SimpleNamespace(written=[], gathers=8, reductions=8)
    for replica, count in ((0, 1), (1, 1), (2, 0)):
        found = contending._summary(None, writer, job, inside, np.zeros(16), replica)
        assert (found.touched_stages, found.stages, found.slowed) == (count, 4, 0)


def experts() -> Model:
    """Two layers with experts."""

    def layer(_: int) -> TransformerLayer:
        return TransformerLayer(64, 128, 4, rms_norm=True, bias=False, mlp=MixtureOfExperts(64, 48, 8, 2))

    return decoder_model("experts", Decoder(2, 64, 256, layer, rms_norm=True))


JOBS: dict[str, Callable[[], TrainingJob]] = {
    "text pp3": lambda: job_of(gpt(), text_items(4), Parallel(pp=3), overlap=overlap(pipeline=True)),
    "text pp2 dp2": lambda: job_of(gpt(), text_items(4), Parallel(pp=2, dp=2)),
    "text pp2 dp2 on NICs": lambda: job_of(
        gpt(), text_items(6), Parallel(pp=2, dp=2), overlap=overlap(pipeline=True, gradients=True), gpus_per_node=1
    ),
    "text tp2": lambda: job_of(
        gpt(), text_items(4), Parallel(pp=2, tp=2, sequence_parallel=True), overlap=overlap(tensor=True, pipeline=True)
    ),
    "text cp2": lambda: job_of(gpt(), text_items(2), Parallel(cp=2, tp=2), overlap=overlap(tensor=True)),
    "text zero3": lambda: job_of(
        gpt(),
        text_items(4),
        Parallel(dp=2, tp=2, zero=3),
        overlap=overlap(tensor=True, gradients=True, parameters=True),
    ),
    "text zero2": lambda: job_of(
        gpt(), text_items(4), Parallel(dp=2, tp=2, zero=2), overlap=overlap(tensor=True, gradients=True)
    ),
    "vlm pp2 dp2": lambda: job_of(
        vlm(), vlm_items(6, seed=3), Parallel(pp=2, dp=2, zero=1), overlap=overlap(pipeline=True, gradients=True)
    ),
    "vlm gpipe": lambda: job_of(
        vlm(), vlm_items(4), Parallel(pp=4), overlap=overlap(pipeline=True), schedule="gpipe", recompute="full"
    ),
    "vlm interleaved": lambda: job_of(
        vlm(), vlm_items(4), Parallel(pp=2, vpp=2, dp=2), overlap=overlap(pipeline=True, gradients=True)
    ),
    "t2v": lambda: job_of(t2v(), t2v_items(4), Parallel(pp=2, tp=2, dp=2), overlap=overlap(tensor=True, pipeline=True)),
    "offload": lambda: job_of(
        wide(2), text_items(2), Parallel(pp=2), overlap=overlap(pipeline=True), offload=["activations"]
    ),
    "weights from the host": lambda: job_of(
        wide(2),
        text_items(4),
        Parallel(pp=2, dp=2, zero=1),
        overlap=overlap(pipeline=True, gradients=True),
        offload=["weights", "activations"],
    ),
    "parameters": lambda: job_of(
        wide(3),
        text_items(4),
        Parallel(pp=2, dp=2, zero=1),
        overlap=overlap(gradients=True, parameters=True, pipeline=True),
        override={"nvlink_bytes_per_s": 4e10},
    ),
    "parameters beside tensors": lambda: job_of(
        vlm(),
        vlm_items(4),
        Parallel(dp=2, tp=2, zero=1, sequence_parallel=True),
        overlap=ALL,
        override={"nvlink_bytes_per_s": 2e9},
    ),
    "gradients beside tensor ranks": lambda: job_of(
        wide(3), text_items(2), Parallel(dp=2, tp=2, zero=1), overlap=overlap(gradients=True), override=SLOW_NVLINK
    ),
    "ring beside tensors": lambda: job_of(
        gpt(), text_items(2), Parallel(cp=2, tp=2, sequence_parallel=True), overlap=ALL, override=SLOW_NVLINK
    ),
    "ring beside parameters": lambda: job_of(
        gpt(), text_items(2), Parallel(cp=2, dp=2, zero=3), overlap=ALL, override=SLOW_NVLINK
    ),
    "gradients beside tensors": lambda: job_of(
        wide(2), text_items(4), Parallel(dp=2, tp=2, zero=2, sequence_parallel=True), overlap=ALL, override=SLOW_NVLINK
    ),
    "everything": lambda: job_of(
        vlm(layers=4),
        vlm_items(4),
        Parallel(pp=2, dp=2, tp=2, zero=1, sequence_parallel=True),
        overlap=ALL,
        override=SLOW_NVLINK,
    ),
    "everything, wide": lambda: job_of(
        wide(3),
        text_items(4),
        Parallel(pp=2, dp=2, tp=2, zero=1, sequence_parallel=True),
        overlap=ALL,
        override=SLOW_NVLINK,
    ),
    "experts": lambda: job_of(
        experts(),
        text_items(8),
        Parallel(pp=2, dp=2, tp=2, ep=2, etp=1, sequence_parallel=True),
        overlap=ALL,
        override=SLOW_NVLINK,
    ),
    "experts on two nodes": lambda: job_of(
        experts(),
        text_items(8),
        Parallel(pp=2, dp=4, ep=2, zero=1),
        overlap=overlap(pipeline=True, gradients=True, tensor=True),
        gpus_per_node=1,
        override={"nic_bytes_per_s": 1e9},
    ),
    "sharded pipeline": lambda: job_of(
        gpt(), text_items(4), Parallel(pp=2, dp=2, zero=3), overlap=ALL, override={"nvlink_bytes_per_s": 2e9}
    ),
    "kept pipeline": lambda: job_of(
        vlm(),
        vlm_items(4),
        Parallel(pp=2, dp=2, tp=2, zero=3, reshard_after_forward=False),
        overlap=ALL,
        override={"nvlink_bytes_per_s": 2e9},
    ),
    "kept pipeline, nothing hidden": lambda: job_of(
        gpt(),
        text_items(4),
        Parallel(pp=2, dp=2, zero=3, reshard_after_forward=False),
        overlap=overlap(pipeline=True, tensor=True),
        override=SLOW_NVLINK,
    ),
    "sharded experts": lambda: job_of(
        experts(), text_items(8), Parallel(pp=2, dp=4, ep=2, zero=3), overlap=ALL, override=SLOW_NVLINK
    ),
    "sharded experts, kept": lambda: job_of(
        experts(),
        text_items(8),
        Parallel(pp=2, dp=4, ep=2, zero=3, reshard_after_forward=False),
        overlap=ALL,
        override=SLOW_NVLINK,
    ),
    "modules": lambda: job_of(
        vlm(),
        vlm_items(8),
        Parallel(pp=2, dp=2, tp=2, sequence_parallel=True, zero=1, modules={"vit": ModuleParallel(tp=1)}),
        overlap=ALL,
        override=SLOW_NVLINK,
    ),
    "modules, t2v": lambda: job_of(
        t2v(),
        t2v_items(4),
        Parallel(pp=2, dp=1, tp=4, zero=0, modules={"dit": ModuleParallel(tp=2)}),
        overlap=ALL,
        override=SLOW_NVLINK,
    ),
    "peak in a slowed stage": lambda: job_of(
        gpt(2),
        text_items(4, seed=1),
        Parallel(dp=2, tp=2, cp=2, zero=3, sequence_parallel=True),
        overlap=overlap(pipeline=True, gradients=True, parameters=True),
        recompute="full",
        override={"nvlink_bytes_per_s": 1e8},
    ),
    "peak in a slowed stage, no ring": lambda: job_of(
        gpt(2),
        text_items(2, seed=1),
        Parallel(dp=2, tp=2, zero=3, sequence_parallel=True),
        overlap=overlap(pipeline=True, gradients=True, parameters=True),
        recompute="full",
        override={"nvlink_bytes_per_s": 3e7},
    ),
    "slow NICs": lambda: job_of(
        gpt(),
        text_items(8),
        Parallel(pp=4, dp=2),
        overlap=ALL,
        gpus_per_node=1,
        override={"nic_bytes_per_s": 1e9},
    ),
    "slow NICs, vlm": lambda: job_of(
        vlm(),
        vlm_items(6),
        Parallel(pp=3, dp=2, tp=2),
        overlap=ALL,
        gpus_per_node=2,
        override={"nic_bytes_per_s": 5e8, "nvlink_bytes_per_s": 5e9},
    ),
    "slow NICs, t2v": lambda: job_of(
        t2v(), t2v_items(4), Parallel(pp=4), overlap=ALL, gpus_per_node=1, override={"nic_bytes_per_s": 7e8}
    ),
}
"""Jobs of all kinds; groups cross one port each."""


def reductions(report: Report, rank: int) -> list[OuterSlice]:
    """Gradient collectives of a rank in order."""
    return [piece for piece in report.timeline.ranks[rank].outer if piece.name.startswith(REDUCED)]


def test_reductions_share_links_with_collectives_of_the_stage_before_them() -> None:
    assert_contended(JOBS["gradients beside tensor ranks"]())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", JOBS)
def test_everything_is_as_the_slow_reference_has_it(name: str) -> None:
    """Times of every operator, memory of every rank at every moment, and the gradient collectives."""
    assert_contended(JOBS[name]())


def assert_contended(job: TrainingJob) -> None:
    report = simulate(job, contention=True)
    expected, reduced = contended(job)
    makespans = [replica.makespan_s for replica in expected.replicas]
    assert report.makespan_s == max(makespans)
    slowest = expected.replicas[makespans.index(max(makespans))]
    for rank, timeline in enumerate(report.timeline.ranks):
        assert_stages_equal(timeline, slowest, slowest.orders[rank])
        assert_sends_equal(timeline, slowest, rank, expected)
        assert_memory_equal(timeline.memory, slowest.memory[rank], expected.static[rank].total)
        seen = sorted((piece.start_s, piece.end_s) for piece in reductions(report, rank))
        assert seen == sorted((item.start_s, item.end_s) for item in reduced if rank in item.ranks)
    assert list(report.peak_memory_bytes) == expected.peak_bytes


def test_the_jobs_above_share_something() -> None:
    """Else they would show little: all kinds of communicators lose time somewhere."""
    seen = [simulate(make(), contention=True).contention for make in JOBS.values()]
    assert {name for one in seen if one is not None for name in one.lost_s} >= {"cp", "dp", "fsdp", "pp", "tp"}
    assert sum(one.touched_stages for one in seen if one is not None) > 20


def test_a_slowed_stage_may_hold_the_peak() -> None:
    """Slower gathers and reductions overlap more, so whole parameters and whole gradients lie in memory together."""
    job = JOBS["peak in a slowed stage"]()
    report, usual = simulate(job, contention=True), simulate(job)
    assert report.peak_memory_bytes[0] > usual.peak_memory_bytes[0]
    assert report.peak_memory_bytes[0] >= int(report.timeline.ranks[0].memory.total.max())


@pytest.mark.parametrize("name", ["text pp2 dp2 on NICs", "vlm pp2 dp2", "slow NICs", "everything"])
def test_the_summary_is_of_the_replica_that_ends_last(name: str) -> None:
    """The same summary wherever the longer data is: replicas are alike but for it.

    What ``pp`` lost is what the sends of that replica's timeline take longer than they do alone.
    """
    job = JOBS[name]()
    assert job.parallel.dp == 2 and isinstance(job.batch, ListedBatch)
    items = job.batch.items
    swapped = [items[number ^ 1] for number in range(len(items))]
    seen = []
    for batch in (ListedBatch(items), ListedBatch(tuple(swapped))):
        report = simulate(replace(job, batch=batch), contention=True)
        assert report.contention is not None
        pairs = CommGroup("pp", 2, 2 if job.cluster.gpus_per_node == 1 else 1)
        lost = 0.0
        for rank in report.timeline.ranks:
            assert rank.replica == report.slowest_replica
            for piece in rank.outer:
                if piece.stream == "pp" and piece.kind is OpKind.P2P:
                    lost += piece.end_s - piece.start_s - sum(alone(job, OpKind.P2P, pairs, piece.net_bytes))
        assert lost > 0
        assert report.contention.lost_s["pp"] == pytest.approx(lost, rel=1e-6)
        seen.append((report.slowest_replica, report.contention))
    (first, one), (second, other) = seen
    assert {first, second} == {0, 1}
    assert one.lost_s == pytest.approx(other.lost_s, rel=1e-9)
    assert (one.transfers, one.slowed, one.touched_stages) == (other.transfers, other.slowed, other.touched_stages)


def assert_same(report: Report, usual: Report) -> None:
    """Everything but the summary of what was shared: the document, all operators and memory at every moment."""
    document = report.to_json()
    assert document.pop("contention") is not None
    assert document == usual.to_json()
    for rank, other in zip(report.timeline.ranks, usual.timeline.ranks, strict=True):
        assert (rank.stages, rank.outer) == (other.stages, other.outer)
        assert rank.memory.times_s.tolist() == other.memory.times_s.tolist()
        assert rank.memory.by_role.tolist() == other.memory.by_role.tolist()
        for number in range(len(rank.stages)):
            seen, written = rank.expand(number), other.expand(number)
            assert seen.start_s.tolist() == written.start_s.tolist()
            assert seen.end_s.tolist() == written.end_s.tolist()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", JOBS)
def test_nothing_changes_where_ports_have_room_for_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is written out and timed together, and bit for bit what it is without contention."""

    def little(*arguments: Any) -> dict[Port, float]:
        return {port: share / 1024 for port, share in port_shares(*arguments).items()}

    monkeypatch.setattr(link_units, "port_shares", little)
    job = JOBS[name]()
    report = simulate(job, contention=True)
    assert report.contention is not None
    assert report.contention.slowed == report.contention.touched_stages == 0
    assert report.contention.iteration_time_alone_s == report.iteration_time_s
    assert_same(report, simulate(job))


QUIET: dict[str, Callable[[], TrainingJob]] = {
    "text": lambda: job_of(gpt(4), text_items(6), Parallel(pp=4)),
    "text, one GPU": lambda: job_of(gpt(), text_items(3)),
    "vlm": lambda: job_of(vlm(), vlm_items(6), Parallel(pp=2, tp=2), overlap=overlap(tensor=True)),
    "t2v": lambda: job_of(t2v(), t2v_items(6), Parallel(pp=2, dp=2), gpus_per_node=2),
}


@pytest.mark.parametrize("name", QUIET)
def test_nothing_changes_where_nothing_is_shared(name: str) -> None:
    job = QUIET[name]()
    report = simulate(job, contention=True)
    assert report.contention is not None
    assert (report.contention.slowed, report.contention.lost_s) == (0, {})
    assert_same(report, simulate(job))


@pytest.mark.parametrize("name", JOBS)
def test_sharing_makes_nothing_earlier_and_its_cost_adds_up(name: str) -> None:
    job = JOBS[name]()
    report, usual = simulate(job, contention=True), simulate(job)
    assert report.contention is not None
    assert report.contention.iteration_time_alone_s == usual.iteration_time_s
    assert report.iteration_time_s >= usual.iteration_time_s
    assert report.slowest_replica == usual.slowest_replica
    for rank, other in zip(report.timeline.ranks, usual.timeline.ranks, strict=True):
        for stage, before in zip(rank.stages, other.stages, strict=True):
            assert stage.start_s >= before.start_s
            assert stage.end_s >= before.end_s
    parts = report.breakdown_s
    exposed = parts["exposed_communication"]
    assert isinstance(exposed, dict)
    flat = [*exposed.values(), *(v for k, v in parts.items() if k not in ("exposed_communication", "other"))]
    assert sum(flat) == pytest.approx(report.iteration_time_s, rel=1e-12)
    assert report.bubble_ratio >= -1e-12
    assert parts["compute"] == pytest.approx(usual.breakdown_s["compute"], rel=1e-12)
    assert (report.contention.slowed > 0) == bool(report.contention.lost_s)


MODELS: dict[str, tuple[Callable[[], Model], Callable[..., Sequence[Any]]]] = {
    "text": (gpt, text_items),
    "vlm": (vlm, vlm_items),
    "t2v": (t2v, t2v_items),
}


def alone(job: TrainingJob, kind: OpKind, group: CommGroup, net_bytes: int) -> tuple[float, float]:
    """Latency before the bytes move and time of the bytes [s], on the time grid."""
    cost = collective_cost(job.profile, kind, group)
    fixed, total = (
        round(seconds * 2**40) / 2**40
        for seconds in (cost.latency_s, collective_latency(job.profile, kind, group, net_bytes))
    )
    return fixed, total - fixed


@pytest.mark.parametrize("name", MODELS)
def test_a_send_and_a_reduction_over_one_nic(name: str) -> None:
    """Rank 1's last stage ends: its gradients go to rank 0, and those of its weights to the other replica.

    Both leave by the NIC of rank 1. The reduction begins to move first and moves alone until the send does; then each
    has half of the NIC until one of them is through.
    """
    model, items = MODELS[name]
    both = [item for item in items(3) for _ in range(2)]
    job = job_of(model(), both, Parallel(pp=2, dp=2, zero=0), gpus_per_node=1)
    quick = {"link.nic.all_reduce": {"hop_s": 4e-6, "between": 1.0, "short_net": 0.0}}  # before a send's latency ends
    job = replace(job, cluster=replace(job.cluster, override=quick))
    rank = simulate(job, contention=True).timeline.ranks[1]
    end = rank.stages[-1].end_s
    send = max((p for p in rank.outer if p.kind is OpKind.P2P), key=lambda piece: piece.start_s)
    reduction = next(p for p in rank.outer if p.name.startswith("gradients"))
    assert send.start_s == reduction.start_s == end
    pair, group = CommGroup("pp", 2, 2), CommGroup("dp", 2, 2)
    fixed, moves = alone(job, OpKind.P2P, pair, send.net_bytes)
    group_fixed, group_moves = alone(job, OpKind.ALL_REDUCE, group, reduction.net_bytes)
    speed = 0.5 / port_shares(job.profile, OpKind.ALL_REDUCE, group)[Port.NIC]
    assert port_shares(job.profile, OpKind.P2P, pair) == {Port.NIC: 1.0}
    assert group_fixed < fixed < group_fixed + group_moves
    left = group_moves - (fixed - group_fixed)
    if 2 * moves < left / speed:  # the send ends first
        send_end = end + fixed + 2 * moves
        reduction_end = send_end + left - speed * 2 * moves
    else:
        reduction_end = end + fixed + left / speed
        send_end = reduction_end + moves - left / speed / 2
    assert send.end_s == pytest.approx(send_end, abs=2**-38)
    assert reduction.end_s == pytest.approx(reduction_end, abs=2**-38)


@pytest.mark.parametrize(("name", "nic"), [("text", 1.7e9), ("vlm", 5e8), ("t2v", 7e8)])
def test_two_sends_over_one_nic_take_twice_as_long_where_they_meet(name: str, nic: float) -> None:
    """The middle one of three ranks sends, or gets, activations and gradients at the same time, once."""
    model, items = MODELS[name]
    job = job_of(
        model(),
        items(3),
        Parallel(pp=3),
        overlap=overlap(pipeline=True),
        gpus_per_node=1,
        override={"nic_bytes_per_s": nic},
    )
    timeline = simulate(job, contention=True).timeline
    pair = CommGroup("pp", 2, 2)
    slowed = []
    for rank in timeline.ranks:
        for piece in rank.outer:
            if piece.kind is OpKind.P2P:
                fixed, moves = alone(job, OpKind.P2P, pair, piece.net_bytes)
                if piece.end_s - piece.start_s > fixed + moves:
                    slowed.append((piece.start_s + fixed, moves, piece.end_s))
    (first, first_moves, first_end), (second, second_moves, second_end) = sorted(slowed)
    left = first_moves - (second - first)
    assert left > 0
    if left <= second_moves:
        assert (first_end, second_end) == (second + 2 * left, second + left + second_moves)
    else:
        assert (first_end, second_end) == (first + first_moves + second_moves, second + 2 * second_moves)


def test_shares_of_ports() -> None:
    """By hand: h800 has 200 GB/s NVLink at 0.815 and a NIC of 25 GB/s, of which sends reach 0.94 and rings 0.9334."""
    even = {"net": 0.815, "few_ranks": 0.0}
    rings = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), even)
    profile = load_profile("h800").override(
        {
            "link": {
                "nvlink": {**rings, "all_reduce": {**even, "switch": 1.0, "switch_s": 0.0}, "p2p": {"net": 0.815}},
                "nic": {kind: {"net": 0.9334} for kind in (*rings, "all_reduce")},
            }
        }
    )
    pair, node, rails = CommGroup("pp", 2, 2), CommGroup("tp", 8), CommGroup("dp", 4, 4)
    wide_ring = CommGroup("dp", 16, 2)
    assert port_shares(profile, OpKind.P2P, pair) == {Port.NIC: 1.0}
    assert port_shares(profile, OpKind.P2P, CommGroup("pp", 2)) == {Port.NVLINK: 1.0}
    assert port_shares(profile, OpKind.ALL_GATHER, node) == {Port.NVLINK: 1.0}
    assert port_shares(profile, OpKind.ALL_REDUCE, rails) == pytest.approx({Port.NIC: 0.9334 / 0.94})
    # 163 GB/s over NVLink, an eighth of it over each NIC
    expected = {Port.NVLINK: 1.0, Port.NIC: 163 / 8 / (25 * 0.94)}
    assert port_shares(profile, OpKind.ALL_REDUCE, wide_ring) == pytest.approx(expected)
    # 8 of 15 peers are on the other node: the NIC limits, and 7/8 of what it carries crosses NVLink
    expected = {Port.NIC: 0.9334 / 0.94, Port.NVLINK: 25 * 0.9334 * 7 / 8 / 163}
    assert port_shares(profile, OpKind.ALL_TO_ALL, wide_ring) == pytest.approx(expected)
    assert port_shares(profile, OpKind.ALL_REDUCE, CommGroup("dp", 1)) == {}


def test_stages_that_last_longer_leave_no_bubble() -> None:
    """One pipeline rank works all the time, however slowly its collectives go."""
    report = simulate(JOBS["ring beside parameters"](), contention=True)
    assert report.contention is not None
    assert report.contention.touched_stages > 0
    assert report.bubble_ratio == pytest.approx(0.0, abs=1e-12)


def test_samples_are_refused() -> None:
    job = QUIET["text"]()
    with pytest.raises(ConfigError, match="samples with contention") as caught:
        simulate(job, samples=3, contention=True)
    assert caught.value.nearest == 0


def test_the_report_says_what_was_shared() -> None:
    """In the text and in the document, and only where contention was asked for."""
    job = JOBS["text zero3"]()
    report, usual = simulate(job, contention=True), simulate(job)
    seen = report.to_json()["contention"]
    assert report.contention is not None
    assert seen == report.contention.to_json()
    assert set(report.contention.to_json()) == {
        "transfers",
        "slowed",
        "lost_s",
        "stages",
        "touched_stages",
        "iteration_time_alone_s",
        "scope",
    }
    assert "transfers slowed" in repr(report)
    assert "transfers lost: fsdp " in report.details()
    assert "contention" not in usual.to_json()
    assert "contention" not in repr(usual)


@pytest.mark.parametrize(("options", "where"), [({"launch": True}, "training.launch")], ids=["launch"])
def test_what_contention_does_not_know_is_refused(options: dict[str, Any], where: str) -> None:
    for job in (
        job_of(gpt(), text_items(2), Parallel(pp=2), **options),
        job_of(vlm(), vlm_items(2), Parallel(pp=2), **options),
    ):
        with pytest.raises(ConfigError) as caught:
            simulate(job, contention=True)
        assert caught.value.where == where

"""``assert_equal``: everything that a report says of the pipeline, against the slow reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from simulation.reference.expansion import HOST, Expansion, Replica, StageName, expand
from simulation.reference.memory import Curve
from simulation.reference.modules import gpu_shares
from simulation.reference.tail import tail_of

from semu.engine.timeline import MemoryCurve, RankTimeline
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.present.report import Report
from semu.simulation import simulate

STREAMS = {
    "links": ("tp", "cp", "cp_group", "cp_ring", "dp", "fsdp", "hsdp", "ep", "etp", "edp", "efsdp", "replicas"),
    "replicas": ("tp", "replicas"),
    "experts": ("tp", "ep", "etp"),
}
"""Streams inside stages that the reference counts together."""


def assert_equal(report: Report, expected: Expansion) -> None:
    """Times of the slowest replica, memory of every rank, FLOP, and where the time goes."""
    makespans = [replica.makespan_s for replica in expected.replicas]
    assert report.makespan_s == max(makespans)
    assert report.slowest_replica == makespans.index(max(makespans))
    slowest = expected.replicas[report.slowest_replica]
    for rank, timeline in enumerate(report.timeline.ranks):
        assert timeline.replica == report.slowest_replica
        order = [stage for stage in slowest.orders[rank] if stage[1] not in "IW" or slowest.operators[stage]]
        assert_stages_equal(timeline, slowest, order)
        assert_sends_equal(timeline, slowest, rank, expected)
        assert_memory_equal(timeline.memory, slowest.memory[rank], expected.static[rank].total)
    assert list(report.static_memory_bytes) == [static.total for static in expected.static]
    assert list(report.peak_memory_bytes) == expected.peak_bytes
    if slowest.exposed_s:
        assert_attribution_equal(report, expected)
        busy = sum(
            share * (slowest.span(stage)[1] - slowest.span(stage)[0])
            for order, share in zip(slowest.orders, gpu_shares(expected.model.job), strict=True)
            for stage in order
        )
        assert report.bubble_ratio == pytest.approx(1 - busy / slowest.makespan_s, rel=1e-9, abs=1e-12)
        assert report.timeline.bubble_ratio == pytest.approx(report.bubble_ratio, rel=1e-9, abs=1e-12)


def assert_stages_equal(timeline: RankTimeline, replica: Replica, order: list[StageName]) -> None:
    """Order, times and operators of a rank's stages."""
    if not hasattr(replica, "parts"):
        seen = [(stage.chunk, stage.phase.value, stage.microbatch) for stage in timeline.stages]
        assert seen == order
    else:  # under a plan
        names = [(*replica.parts[chunk], phase) for chunk, phase, _ in order]
        assert [stage.label for stage in timeline.stages] == [f"{c}{phase}{part}" for c, _, _, part, phase in names]
        assert [stage.microbatch for stage in timeline.stages] == [microbatch for _, microbatch, *_ in names]
    for number, (stage, name) in enumerate(zip(timeline.stages, order, strict=True)):
        assert (stage.start_s, stage.end_s) == replica.span(name), name
        operators = timeline.expand(number)
        written = replica.operators[name]
        assert operators.start_s.tolist() == [replica.nodes[o.key].start_s for o in written], name
        assert operators.end_s.tolist() == [replica.nodes[o.key].end_s for o in written], name
        assert operators.flop.tolist() == [o.flop for o in written], name
        assert operators.net_bytes.tolist() == [o.net_bytes for o in written], name
        assert operators.table.kinds == tuple(o.operator.kind for o in written)
        assert operators.table.streams == tuple(o.operator.stream.name for o in written)


def assert_sends_equal(timeline: RankTimeline, replica: Replica, rank: int, expected: Expansion) -> None:
    """Times and bytes of a rank's sends."""
    seen = sorted(
        (piece.start_s, piece.end_s, piece.net_bytes)
        for piece in timeline.outer
        if piece.kind is OpKind.P2P and piece.stream not in HOST
    )
    written = sorted(
        (node.start_s, node.end_s, replica.sent_bytes[key])
        for key, node in replica.nodes.items()
        if key[0] == "send" and replica.sent_bytes[key] and expected.model.chunk(key[1])[0].rank == rank  # type: ignore[arg-type]
    )
    assert seen == written


def assert_memory_equal(curve: MemoryCurve, expected: Curve, static: int) -> None:
    """The curve at every moment at which either changes; it ends where it began and no role is ever negative."""
    moments = sorted({0.0, *curve.times_s.tolist(), *expected.times})
    seen = curve.total[np.searchsorted(curve.times_s, moments, side="right") - 1] - static
    written = [expected.at(moment) for moment in moments]
    assert seen.tolist() == written
    assert written[-1] == 0
    assert curve.by_role.min() >= 0
    assert curve.total[-1] == static


def assert_attribution_equal(report: Report, expected: Expansion) -> None:
    """Kernels and exposed communication inside the pipeline, as means over the replicas.

    Collectives of the gradients are in the same two groups of the report; they are taken off with the slices of the
    timeline, which are the same on every replica.
    """
    replicas = expected.replicas
    breakdown = report.breakdown_s
    exposed = dict(breakdown["exposed_communication"])  # type: ignore[call-overload]
    assert breakdown["compute"] == pytest.approx(sum(r.compute_s for r in replicas) / len(replicas), rel=1e-12)
    for name in replicas[0].exposed_s:
        streams = STREAMS.get(name, (name,))
        if name == "modules":
            streams = ("tp", "cp", "replicas", *(stream for stream in exposed if stream.startswith("reshard")))
        outside = sum(
            share * (piece.end_s - piece.start_s)
            for rank, share in zip(report.timeline.ranks, gpu_shares(expected.model.job), strict=True)
            for piece in rank.outer
            if piece.stream in streams and piece.kind is not OpKind.P2P
        )
        written = sum(r.exposed_s[name] for r in replicas) / len(replicas) + outside
        found = sum(exposed.get(stream, 0.0) for stream in streams)
        assert found == pytest.approx(written, rel=1e-9, abs=1e-15), name


def assert_tails_equal(job: TrainingJob) -> None:
    """Everything of ``assert_equal``, and what surrounds the pipeline: reductions, optimizer, gathers."""
    assert_all_equal(simulate(job), expand(job))


def assert_all_equal(report: Report, expansion: Expansion) -> None:
    """``assert_tails_equal`` of a report that is there."""
    assert_equal(report, expansion)
    tail = tail_of(expansion)
    for rank, slices in zip(report.timeline.ranks, tail.slices, strict=True):
        seen = [p for p in rank.outer if p.kind is not OpKind.P2P or p.stream in HOST]
        assert sorted((p.start_s, p.end_s, p.net_bytes, p.kind.value) for p in seen) == sorted(
            (p.start_s, p.end_s, p.net_bytes, p.kind.value) for p in slices
        )
    assert report.iteration_time_s == tail.iteration_s

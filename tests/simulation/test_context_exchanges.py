"""Exchanges of keys between context ranks: rings between groups, what is needed, the fastest of several."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from masks.dense import dense_mask
from simulation.test_masked_context import BATCH, SIZES, _batch, _model_flop, job, timed_one_by_one

from semu.costs.phases import program_of
from semu.graph.operator import Phase
from semu.graph.rounding import with_rounded
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.masks.mask import MaskKind
from semu.nn import Model
from semu.nn.rules.attention.needed import near_and_far
from semu.nn.trace.sharding import EXCHANGES
from semu.parallel.config import Parallel
from semu.schedule.phases import BACKWARD, FORWARD
from semu.simulation import simulate
from semu.simulation.preparation import prepare
from semu_models.text.mixtral import Mixtral, MixtralConfig

WIDE = replace(SIZES, kv_heads=4)


def test_peers_in_the_node_and_beyond() -> None:
    """Eight ranks on two nodes: three peers over NVLink, four over the card."""
    found = near_and_far(CommGroup("cp", 8, 2))
    assert {way: (group.num_ranks - 1, group.num_nodes) for way, group in found.items()} == {
        "near": (3, 1),
        "far": (4, 5),
    }
    assert {*near_and_far(CommGroup("cp", 4))} == {"near"}
    assert {*near_and_far(CommGroup("cp", 4, 4))} == {"far"}


def _sent_tokens(mask: str, ranks: int) -> list[int]:
    """Per microbatch, the most tokens in or out of a rank in zigzag chunks, tile by tile of the dense mask."""
    found = []
    for item in BATCH.items:
        spans = item.spans()
        dense = dense_mask(MaskKind(mask), spans)
        owner = np.zeros(spans.num_tokens, int)
        for begin, end in pairwise(spans.starts.tolist()):
            chunk = np.arange(end - begin) // -(-(end - begin) // (2 * ranks))
            owner[begin:end] = np.minimum(chunk, 2 * ranks - 1 - chunk)
        moved = np.zeros((ranks, ranks), int)
        for begin, end in pairwise(spans.starts.tolist()):
            for source in range(ranks):
                mine = begin + np.flatnonzero(owner[begin:end] == source)
                for first in range(0, len(mine), 128):
                    tile = mine[first : first + 128]
                    for reader in {*range(ranks)} - {source}:
                        moved[reader, source] += len(tile) * bool(dense[owner == reader][:, tile].any())
        found.append(int(max(moved.sum(axis=0).max(), moved.sum(axis=1).max())))
    return found


@pytest.mark.parametrize("mask", ["document", "multimodal"])
def test_bytes_are_those_of_tiles_that_are_read(mask: str) -> None:
    """Forward K and V of needed tokens once, backward again and their gradients back."""
    prepared = prepare(job(mask, cp=4, cp_kind="needed"))
    library, shapes = prepared.layout.library, prepared.evaluation.shapes
    most = []
    for rank in range(4):
        given = {**shapes.columns, **{name: table[rank] for name, table in shapes.ranks.items()}}
        evaluated = library.evaluate(with_rounded(given, library.symbols))
        rows = [n for n, group in enumerate(library.groups) if group is not None and group.name == "cp_near"]
        most.append(evaluated.net_bytes[rows])
    a_token = SIZES.kv_heads * 2 * (SIZES.hidden // SIZES.heads) * 2
    expected = [tokens * a_token for tokens in _sent_tokens(mask, 4)]
    found = np.max(most, axis=0)
    assert len(found) == 3
    for row in found:
        np.testing.assert_array_equal(row[shapes.index[0]], expected)


@pytest.mark.parametrize("policy", ["zigzag", "local", "lpt"])
@pytest.mark.parametrize("mask", ["document", "multimodal"])
def test_the_fastest_exchange_of_every_microbatch(mask: str, policy: str) -> None:
    """A stage takes as long as under the chosen exchange alone, but for what the two gradients of a gather wait for one
    another; the chosen one is the fastest."""
    batch = _batch([[2048]], [[128] * 16], [[1024, 512, 512]])
    seconds = {}
    for kind in (*(kind.value for kind in EXCHANGES), "auto"):
        prepared = prepare(
            job(mask, batch=batch, model=replace(SIZES, hidden=1024), cp=4, cp_kind=kind, cp_balance=policy)
        )
        stages = [s.latency for chunk in prepared.evaluation.chunks for s in (chunk.forward, chunk.backward) if s]
        seconds[kind] = np.sum(stages, axis=0)[prepared.evaluation.shapes.index[0]]
    fastest = np.min([seconds[kind.value] for kind in EXCHANGES], axis=0)
    assert (seconds["auto"] >= fastest).all()
    assert (seconds["auto"] <= 1.03 * fastest).all()


def test_auto_says_what_it_chose() -> None:
    report = simulate(job("document", cp=4, cp_kind="auto"))
    (note,) = [note for note in report.warnings if "fastest exchange" in note]
    assert sum(int(word) for word in note.replace(",", "").split() if word.isdigit()) == len(BATCH.items)


@pytest.mark.parametrize("policy", ["zigzag", "hybrid"])
def test_only_the_chosen_exchange_is_launched(policy: str) -> None:
    """Operators that take time, which are those that a host launches: as many as under the chosen exchange alone."""
    batch = _batch([[2048]], [[128] * 16], [[1024, 512, 512]])
    issued = {}
    for kind in (*(kind.value for kind in EXCHANGES), "auto"):
        found = prepare(job("document", batch=batch, model=SIZES, cp=4, cp_kind=kind, cp_balance=policy))
        rows = np.concatenate([program_of(found.layout, 0, code).rows for code in (FORWARD, BACKWARD)])
        index = found.evaluation.shapes.index[0]
        issued[kind] = (found.evaluation.by_shape.latency[index][:, rows] > 0).sum(axis=1)
        if kind == "auto":
            gates = {name: table.any(axis=0)[index] for name, table in found.evaluation.shapes.ranks.items()}
    runs = np.array(
        [np.any([own for name, own in gates.items() if f"@{kind.value}" in name], axis=0) for kind in EXCHANGES]
    )
    assert (runs.sum(axis=0) == 1).all()
    expected = np.array([issued[kind.value] for kind in EXCHANGES])[runs.argmax(axis=0), np.arange(len(batch.items))]
    np.testing.assert_array_equal(issued["auto"], expected)


def test_a_note_where_few_keys_are_needed() -> None:
    """Eight documents on four ranks, gathered whole: that needed keys alone would do is said, and is so."""
    batch = _batch(*[[[256] * 32]] * 3)
    gathered = {"batch": batch, "cp": 4, "cp_kind": "all_gather"}
    report = simulate(job("document", **gathered))
    (note,) = [note for note in report.warnings if "wait" in note and "for keys" in note]
    assert note.endswith("parallel.cp_kind = needed and cp_balance = local: it may win back some of that")
    other = simulate(job("document", **{**gathered, "cp_kind": "needed", "cp_balance": "local"}))
    assert other.iteration_time_s < report.iteration_time_s
    assert not [note for note in other.warnings if "for keys" in note]


@pytest.mark.parametrize("mask", ["document", "multimodal", "prefix"])
@pytest.mark.parametrize(("cp", "inner"), [(4, 2), (8, 2), (8, 4)])
def test_rings_between_groups_count_pairs(mask: str, cp: int, inner: int) -> None:
    """Refused before: FLOP of the model are those of one ring."""
    wide = replace(WIDE, kv_heads=4)
    one, several = (simulate(job(mask, model=wide, cp=cp, cp_inner=own)) for own in (1, inner))
    assert _model_flop(one) == pytest.approx(_model_flop(several), rel=1e-12)


@pytest.mark.parametrize("policy", ["zigzag", "contiguous", "striped"])
def test_a_stage_with_a_ring_between_groups_ends_when_its_last_rank_does(policy: str) -> None:
    cp, inner = 4, 2
    prepared = prepare(job("multimodal", model=WIDE, cp=cp, cp_inner=inner, cp_balance=policy))
    shapes, library = prepared.evaluation.shapes, prepared.layout.library
    for code, costs in (
        (FORWARD, prepared.evaluation.chunks[0].forward),
        (BACKWARD, prepared.evaluation.chunks[0].backward),
    ):
        program = program_of(prepared.layout, 0, code)
        assert costs is not None
        exchange = []
        for row in program.rows.tolist():
            operator, group = library.operators[row], library.groups[row]
            name = group.name if group is not None else ""
            way = "next" if operator.phase is Phase.FORWARD else "back"
            exchange.append({"cp_ring": way, "cp_group": "pair"}.get(name, ""))
            assert (operator.kind is OpKind.P2P) == (name == "cp_ring")
        assert {"pair", "next" if code == FORWARD else "back"} == set(exchange) - {""}
        for shape in range(prepared.evaluation.num_shapes):
            of_rank = []
            for rank in range(cp):
                columns = {name: column[[shape]] for name, column in shapes.columns.items()}
                columns |= {name: table[rank, [shape]] for name, table in shapes.ranks.items()}
                evaluated = library.evaluate(with_rounded(columns, library.symbols))
                of_rank.append(prepared.cost_model.latencies(evaluated)[program.rows, 0])
            end = timed_one_by_one(program, np.array(of_rank), exchange, [inner] * program.num_ops)
            assert costs.latency[shape] == end.max()


def _mixture(**parallel: Any) -> TrainingJob:
    """A mixture of experts over the batch, its experts over the context ranks."""
    config = MixtralConfig(layers=2, hidden=256, ffn=512, heads=4, kv_heads=2, vocab=512, experts=4, top_k=2)
    sizes, base = Parallel(dp=1, **parallel), job("document")
    return TrainingJob(
        model=Model.from_module(Mixtral(config), name="llm"),
        cluster=Cluster("h100", nodes=1, gpus_per_node=sizes.num_gpus),
        parallel=sizes,
        training=base.training,
        batch=base.batch,
    )


def test_experts_wait_for_the_last_of_their_context_ranks() -> None:
    """An exchange of rows between the context ranks that share the experts begins when the last of them is there."""
    prepared = prepare(_mixture(cp=4, ep=2, cp_balance="contiguous"))
    by_shape, program = prepared.evaluation.by_shape, program_of(prepared.layout, 0, FORWARD)
    groups = [prepared.layout.library.groups[row] for row in program.rows.tolist()]
    spans = {
        (group.name, *of) for group, of in zip(groups, by_shape.exchange.T[program.rows].tolist(), strict=True) if group
    }  # type: ignore[attr-defined]
    assert ("ep", 1, 2, 4) in spans and ("cp", 2, 1, 4) in spans
    alone = prepare(_mixture(cp=4, ep=1, cp_balance="contiguous"))
    assert not [group for group in alone.layout.library.groups if group is not None and group.name == "ep"]

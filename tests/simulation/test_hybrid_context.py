"""Keys that travel in groups of context ranks, through ``simulate``: against fewer context ranks, and rank by rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulation.test_masked_context import _batch, _model_flop, job, timed_one_by_one

import semu
from semu.costs.evaluation import CostedJob
from semu.costs.phases import program_of
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.graph.rounding import with_rounded
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, WEIGHT
from semu.simulation import simulate
from semu.simulation.contexts.loads import Loads
from semu.simulation.preparation import prepare

MIXED = _batch([[1024, *[128] * 8]], [[512, 512], [256] * 4], [[2048]])
KINDS = ("ring", "all_gather")


def _hybrid(mask: str = "document", **options: Any) -> TrainingJob:
    return job(mask, **{"batch": MIXED, "cp": 4, "cp_balance": "hybrid", **options})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["document", "multimodal", "causal"])
@pytest.mark.parametrize("cp", [4, 6])
def test_a_stage_ends_when_its_last_rank_does(kind: str, mask: str, cp: int) -> None:
    """Exchanges wait for the ranks of their group alone."""
    prepared = prepare(_hybrid(mask, cp=cp, cp_kind=kind))
    shapes, library = prepared.evaluation.shapes, prepared.layout.library
    for code, costs in (
        (FORWARD, prepared.evaluation.chunks[0].forward),
        (BACKWARD, prepared.evaluation.chunks[0].backward),
    ):
        program = program_of(prepared.layout, 0, code)
        assert costs is not None
        exchange, groups = [], []
        for row in program.rows.tolist():
            operator, group = library.operators[row], library.groups[row]
            is_part = group is not None and group.name.startswith("cp_part")
            way = "group next" if operator.phase is Phase.FORWARD else "group back"
            exchange.append("" if not is_part else way if operator.kind is OpKind.P2P else "pair")
            groups.append(group.num_ranks if is_part and group is not None else 1)
        assert {*groups} == {n for n in range(1, cp + 1) if cp % n == 0}
        for shape in range(prepared.evaluation.num_shapes):
            of_rank = []
            for rank in range(cp):
                columns = {name: column[[shape]] for name, column in shapes.columns.items()}
                columns |= {name: table[rank, [shape]] for name, table in shapes.ranks.items()}
                evaluated = library.evaluate(with_rounded(columns, library.symbols))
                of_rank.append(prepared.cost_model.latencies(evaluated)[program.rows, 0])
            end = timed_one_by_one(program, np.array(of_rank), exchange, groups)
            assert costs.latency[shape] == end.max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", ["document", "multimodal", "prefix"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_groups_of_ranks_are_fewer_context_ranks(kind: str, mask: str, ranks: int) -> None:
    """As many equal documents as groups: each group's stages last as long, hold and leave as much, and send as many
    bytes, as those of so many context ranks with one document; only the gradients of gathered keys and of values wait
    for one another."""
    several = prepare(_hybrid(mask, batch=_batch(*[[[2048]] * (4 // ranks)] * 3), cp_kind=kind, cp_slack=0.0))
    few = prepare(job(mask, batch=_batch(*[[[2048]]] * 3), cp=ranks, cp_kind=kind))
    for mine, other in zip(several.evaluation.chunks, few.evaluation.chunks, strict=True):
        for name in ("forward", "backward"):
            ours, theirs = getattr(mine, name), getattr(other, name)
            waits = name == "backward" and kind == "all_gather" and ranks > 1
            if waits:
                assert (theirs.latency <= ours.latency).all() and (ours.latency <= 1.02 * theirs.latency).all()
            for field in ("net", "peak", *([] if waits else ["latency"])):
                np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), err_msg=f"{name} {field}")
    wire = [Loads.of(CostedJob(found.layout, found.evaluation)).wire_bytes for found in (several, few)]
    np.testing.assert_array_equal(*wire)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [*KINDS, "needed", "auto"])
@pytest.mark.parametrize("mask", ["document", "multimodal", "prefix"])
def test_model_flop_stay(kind: str, mask: str) -> None:
    one, several = (simulate(_hybrid(mask, cp_kind=kind, cp_balance=policy)) for policy in ("contiguous", "hybrid"))
    assert _model_flop(one) == pytest.approx(_model_flop(several), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_that_are_shorter_than_the_ranks(kind: str) -> None:
    """Cut over all ranks they are refused; on one rank each they are not."""
    batch = _batch(*[[[3]] * 700] * 3)
    with pytest.raises(ConfigError, match="fewer than cp = 4"):
        simulate(job("document", batch=batch, cp=4, cp_kind=kind, cp_balance="zigzag"))
    assert simulate(_hybrid(batch=batch, cp_kind=kind)).iteration_time_s > 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cp_inner": 2}, "cp_inner = 1"),
        ({"cp_kind": "all_gather", "cp_overlap": "heads"}, 'cp_overlap = "none"'),
        ({"cp_kind": "all_to_all"}, "zigzag"),
    ],
)
def test_what_does_not_go_with_groups(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _hybrid(**options)
    assert (caught.value.where, caught.value.nearest) == ("parallel.cp_balance", "zigzag")
    assert expected in str(caught.value.expected)


def test_fewer_ranks_for_short_documents_are_faster() -> None:
    """64 documents of 1,024 tokens over eight ranks: nothing travels, where zigzag sends every document around."""
    words = ["training.attention_mask=document", "training.seq_len=65536", "training.global_batch=1"]
    runs = [run for _ in range(64) for run in (("document", 0, 0), ("text", -1, 1024))]
    spans = semu.masks.Spans.of_runs([runs])
    base = semu.load_run("llama3-8b", words, cluster="h100:1x8", parallel="cp8-tp1")
    lengths = np.array([65536])
    lengths.flags.writeable = False
    from semu.workload.batch import Microbatch
    from semu.workload.listed import ListedBatch

    batch = ListedBatch((Microbatch.from_arrays({"text": lengths}, 1, places=spans),))
    found = semu.context(replace(base, batch=batch), policies=["zigzag", "document-zigzag", "hybrid"])
    rows = {row.policy: row for row in found.rows}
    assert rows["hybrid"].wire_bytes == 0 < rows["zigzag"].wire_bytes
    assert rows["hybrid"].tokens == rows["hybrid"].tiles == 1.0
    assert rows["hybrid"].iteration_s == min(row.iteration_s for row in found.rows)


@pytest.mark.parametrize(("cp", "options"), [(1, {}), (4, {"cp_balance": "hybrid"}), (4, {"cp_kind": "auto"})])
@pytest.mark.parametrize("mask", ["document", "multimodal"])
def test_parts_of_microbatches_are_masked(mask: str, cp: int, options: dict[str, Any]) -> None:
    """A sequence that is a sub-microbatch costs what it costs as a microbatch; whole microbatches as without a plan."""
    sequences = [[512, 512], [256] * 4]
    whole = job(mask, batch=_batch(*[sequences] * 2, [[2048]]), cp=cp, **options)
    plan = semu.StagePlan(parts={"llm": (2, 1, 1)})
    cut, alone = (
        prepare(whole, plan=plan),
        prepare(job(mask, batch=_batch(*([own] for own in sequences), [[2048]]), cp=cp, **options)),
    )
    together = prepare(whole)

    def _stages(found: Any, shapes: Any) -> list[Any]:
        (chunk,) = found.evaluation.chunks
        return [
            getattr(stage, name)[shapes]
            for stage in (chunk.forward, chunk.backward)
            for name in ("latency", "net", "peak")
        ]

    shapes = cut.evaluation.shapes.index[0]
    for ours, theirs in (
        (_stages(cut, shapes[3:5]), _stages(alone, alone.evaluation.shapes.index[0][:2])),
        (_stages(cut, shapes[5:7]), _stages(together, together.evaluation.shapes.index[0][1:])),
    ):
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, other)
    assert cut.report().iteration_time_s > 0


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("kind", ["ring", "needed"])
def test_shards_are_gathered_by_all_context_ranks(kind: str, zero: int) -> None:
    """ZeRO-3's gathers and the reductions inside stages begin when the last context rank is there."""
    prepared = prepare(job("document", cp=4, cp_kind=kind, cp_balance="contiguous", zero=zero))
    shapes, library = prepared.evaluation.shapes, prepared.layout.library
    seen = set()
    for code, costs in (
        (FORWARD, prepared.evaluation.chunks[0].forward),
        (BACKWARD, prepared.evaluation.chunks[0].backward),
    ):
        program = program_of(prepared.layout, 0, code)
        assert costs is not None
        exchange = []
        for row in program.rows.tolist():
            operator, group = library.operators[row], library.groups[row]
            way = "next" if operator.phase is Phase.FORWARD else "back"
            exchange.append("" if group is None else way if operator.kind is OpKind.P2P else "all")
            seen.add((group.name, operator.kind) if group is not None else None)
        for shape in range(prepared.evaluation.num_shapes):
            of_rank = []
            for rank in range(4):
                columns = {name: column[[shape]] for name, column in shapes.columns.items()}
                columns |= {name: table[rank, [shape]] for name, table in shapes.ranks.items()}
                evaluated = library.evaluate(with_rounded(columns, library.symbols))
                of_rank.append(prepared.cost_model.latencies(evaluated)[program.rows, 0])
            end = timed_one_by_one(program, np.array(of_rank), exchange)
            assert costs.latency[shape] == end.max()
    assert ("dp", OpKind.REDUCE_SCATTER) in seen and (("dp", OpKind.ALL_GATHER) in seen) is (zero == 3)


@pytest.mark.parametrize("options", [{"cp_balance": "lpt"}, {"cp_balance": "hybrid"}, {"cp_kind": "needed"}])
def test_split_backwards_on_all_ranks(options: dict[str, Any]) -> None:
    """Gradients of inputs and of weights as stages of their own, rank by rank."""
    own = job("document", batch=MIXED, cp=4, pp=3, **options)
    prepared = prepare(replace(own, training=replace(own.training, schedule="zb-h1")))
    shapes, library = prepared.evaluation.shapes, prepared.layout.library
    for chunk in range(3):
        for code in (INPUT, WEIGHT):
            program = program_of(prepared.layout, chunk, code)
            stage = prepared.evaluation.by_shape.stage(program)
            exchange, groups = [], []
            for row in program.rows.tolist():
                operator, group = library.operators[row], library.groups[row]
                is_part = group is not None and group.name.startswith("cp_part")
                way = "all" if operator.kind is not OpKind.P2P else "back"
                exchange.append("" if group is None else {"all": "pair"}.get(way, f"group {way}") if is_part else way)
                groups.append(group.num_ranks if is_part and group is not None else 1)
            for shape in range(prepared.evaluation.num_shapes):
                of_rank = []
                for rank in range(4):
                    columns = {name: column[[shape]] for name, column in shapes.columns.items()}
                    columns |= {name: table[rank, [shape]] for name, table in shapes.ranks.items()}
                    evaluated = library.evaluate(with_rounded(columns, library.symbols))
                    of_rank.append(prepared.cost_model.latencies(evaluated)[program.rows, 0])
                end = timed_one_by_one(program, np.array(of_rank), exchange, groups)
                assert stage.latency[shape] == end.max(initial=0.0)

"""Masks and policies of context ranks through ``simulate``: against tables of pairs and ranks timed one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from masks.dense import dense_mask
from numpy.typing import NDArray

from semu.compile.join import build_stages
from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.costs.ranked import RankedCosts
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.graph.rounding import with_rounded
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.job import Training, TrainingJob
from semu.masks.mask import MaskKind
from semu.masks.spans import Spans
from semu.nn import Model
from semu.nn.window import Window
from semu.parallel.config import Parallel
from semu.schedule.phases import BACKWARD, FORWARD
from semu.simulation import simulate
from semu.simulation.preparation import prepare
from semu.workload.batch import Microbatch
from semu.workload.listed import ListedBatch
from semu_models.text.llama import Llama, LlamaConfig

SIZES = LlamaConfig(layers=3, hidden=256, ffn=512, heads=4, kv_heads=2, vocab=512)


def _spans(sequences: list[list[int]]) -> Spans:
    """Documents of so many tokens, a third of them an image."""
    runs = [
        [run for n in own for run in (("document", 0, 0), ("vision", 0, n // 3), ("text", -1, n - n // 3))]
        for own in sequences
    ]
    return Spans.of_runs(runs)


def _batch(*microbatches: list[list[int]]) -> ListedBatch:
    items = []
    for sequences in microbatches:
        lengths = np.array([sum(own) for own in sequences])
        lengths.flags.writeable = False
        items.append(Microbatch.from_arrays({"text": lengths}, len(sequences), places=_spans(sequences)))
    return ListedBatch(tuple(items))


BATCH = _batch([[700, 324], [1024]], [[100, 924], [512, 512]], [[1024], [300, 300, 424]])


def job(
    mask: str = "causal", *, model: LlamaConfig = SIZES, batch: ListedBatch = BATCH, **parallel: Any
) -> TrainingJob:
    """A small language model over the batch."""
    sizes = Parallel(dp=1, **parallel)
    return TrainingJob(
        model=Model.from_module(Llama(model), name="llm"),
        cluster=Cluster("h100", nodes=1, gpus_per_node=sizes.num_gpus),
        parallel=sizes,
        training=Training(micro_batch=1, global_batch=3, seq_len=2048, attention_mask=mask),
        batch=batch,
    )


KINDS = ("ring", "all_gather", "needed")
POLICIES = ("zigzag", "document-zigzag", "contiguous", "striped", "lpt", "lpt-equal", "snake", "random", "local")


def timed_one_by_one(
    program: StageProgram, latency: NDArray[np.float64], exchange: list[str], groups: list[int] | None = None
) -> NDArray[np.float64]:
    """Ends of operators on every rank, each again and again until nothing changes: float64[cp, num_ops] [s].

    ``groups``: neighbours that form a group, by operator; None: 1. An exchange is between all ranks ("all"), around the
    ring of all ranks or of groups ("next", "back"), in a group ("pair"), or around the ring in a group ("group next",
    "group back")."""
    ranks, ops = latency.shape
    end = np.zeros((ranks, ops))
    after = [list(program.pred[program.pred_ptr[op] : program.pred_ptr[op + 1]]) for op in range(ops)]
    for stream in range(program.num_streams):
        own = np.flatnonzero(program.stream == stream)
        for first, second in pairwise(own):
            after[second].append(first)
    while True:
        before = end.copy()
        for op in range(ops):
            step = 1 if groups is None else groups[op]
            ready = np.array([max([0.0, *(end[rank, other] for other in after[op])]) for rank in range(ranks)])
            lasts = latency[:, op].copy()
            if exchange[op] == "all":
                ready[:], lasts[:] = ready.max(), lasts.max()
            elif exchange[op] == "next":
                ready, lasts[:] = np.maximum(ready, np.roll(ready, step)), lasts.max()
            elif exchange[op] == "back":
                ready, lasts[:] = np.maximum(ready, np.roll(ready, -step)), lasts.max()
            elif exchange[op] in ("pair", "group next", "group back"):
                for group in range(0, ranks, step):
                    own = slice(group, group + step)
                    if not lasts[own].any():  # nobody of the group calls it
                        continue
                    before_it = {"pair": 0, "group next": 1, "group back": -1}[exchange[op]]
                    others = np.roll(ready[own], before_it) if before_it else ready[own].max()
                    ready[own], lasts[own] = np.maximum(ready[own], others), lasts[own].max()
            end[:, op] = ready + lasts
        if np.array_equal(before, end):
            return end


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 2)])
def test_a_stage_ends_when_its_last_rank_does(kind: str, policy: str, cp: int, tp: int) -> None:
    prepared = prepare(job("multimodal", cp=cp, tp=tp, cp_kind=kind, cp_balance=policy))
    shapes, model = prepared.evaluation.shapes, prepared.cost_model
    library = prepared.layout.library
    assert isinstance(prepared.evaluation.by_shape, RankedCosts)
    for code, costs in (
        (FORWARD, prepared.evaluation.chunks[0].forward),
        (BACKWARD, prepared.evaluation.chunks[0].backward),
    ):
        program = program_of(prepared.layout, 0, code)
        assert costs is not None
        exchange = []
        for row in program.rows.tolist():
            operator, group = library.operators[row], library.groups[row]
            is_context = group is not None and group.name in ("cp", "cp_near")
            way = "next" if operator.phase is Phase.FORWARD else "back"
            exchange.append("" if not is_context else way if operator.kind is OpKind.P2P else "all")
        assert {"all" if kind != "ring" else "next" if code == FORWARD else "back"} == set(exchange) - {""}
        for shape in range(prepared.evaluation.num_shapes):
            of_rank = []
            for rank in range(cp):
                columns = {name: column[[shape]] for name, column in shapes.columns.items()}
                columns |= {name: table[rank, [shape]] for name, table in shapes.ranks.items()}
                evaluated = library.evaluate(with_rounded(columns, library.symbols))
                of_rank.append(model.latencies(evaluated)[program.rows, 0])
            end = timed_one_by_one(program, np.array(of_rank), exchange)
            assert costs.latency[shape] == end.max()
            shown = end[shapes.shown[shape]]
            np.testing.assert_array_equal(prepared.evaluation.by_shape.ends(program, [shape])[0], shown)
            busy = float(np.array(of_rank)[shapes.shown[shape]][program.stream == 0].sum())
            assert costs.latency[shape] - costs.exposed[shape].sum() == pytest.approx(busy, rel=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["zigzag", "contiguous", "lpt"])
def test_layers_and_cuts_by_latency_see_all_ranks(kind: str, policy: str) -> None:
    """A layer's forward, backward and recomputation in the report, by which stages are cut, are those of a stage of the
    layer alone that ends when its last rank does: every rank timed by itself, mean of the batch."""
    made = job("multimodal", cp=4, pp=2, cp_kind=kind, cp_balance=policy, partition="latency")
    made = replace(made, training=replace(made.training, recompute="full"))
    prepared = prepare(made)
    shapes, model, library = prepared.evaluation.shapes, prepared.cost_model, prepared.layout.library
    uses = np.bincount(shapes.index.ravel(), minlength=prepared.evaluation.num_shapes)

    def alone(program: StageProgram | None) -> tuple[float, float]:
        """A stage of the last rank, and what of it is recomputed on the rank with most to do [s]."""
        if program is None:
            return 0.0, 0.0
        exchange, again = [], np.zeros(len(program.rows), dtype=bool)
        for number, row in enumerate(program.rows.tolist()):
            operator, group = library.operators[row], library.groups[row]
            is_context = group is not None and group.name in ("cp", "cp_near")
            way = "back" if operator.phase in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT) else "next"
            exchange.append("" if not is_context else way if operator.kind is OpKind.P2P else "all")
            again[number] = operator.phase is Phase.RECOMPUTE
        total = recomputed = 0.0
        for shape in range(prepared.evaluation.num_shapes):
            of_rank = []
            for rank in range(4):
                columns = {name: column[[shape]] for name, column in shapes.columns.items()}
                columns |= {name: table[rank, [shape]] for name, table in shapes.ranks.items()}
                of_rank.append(
                    model.latencies(library.evaluate(with_rounded(columns, library.symbols)))[program.rows, 0]
                )
            total += float(uses[shape]) * timed_one_by_one(program, np.array(of_rank), exchange).max()
            recomputed += float(uses[shape]) * np.array(of_rank)[:, again].sum(axis=1).max()
        return total / uses.sum(), recomputed / uses.sum()

    report = simulate(made)
    blocks = {block.path: block for chunk in prepared.layout.chunks for block in chunk.blocks}
    weights = []
    for row in report.layer_times:
        block = blocks[row.first]
        stages = build_stages(
            library, [block.template], prepared.layout.streams, serial=not made.overlaps_tensor_parallel
        )
        (forward, _), (backward, recomputed) = (alone(stage) for stage in stages)
        assert (row.forward_s, row.backward_s) == pytest.approx((forward, backward), rel=1e-9)
        assert (row.recompute_s > 0) == (recomputed > 0)
        weights += [forward + backward] * row.layers
    chunks = [chunk.chunk for chunk in prepared.layout.chunks]
    heaviest = max(sum(weights[chunk.first : chunk.last]) for chunk in chunks)
    cuts = [max(sum(weights[:k]), sum(weights[k:])) for k in range(1, len(weights))]
    assert heaviest == pytest.approx(min(cuts), rel=1e-9)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", [*KINDS, "all_to_all"])
@pytest.mark.parametrize("mask", ["document", "multimodal", "prefix"])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_model_flop_are_those_of_allowed_pairs(kind: str, mask: str, cp: int) -> None:
    """Against the causal job's: what masks change is 2 pairs heads (d + d_v) forward and twice that backward."""
    if kind == "all_to_all" and cp > 2:
        return  # two heads of keys cannot be dealt to four ranks
    masked = simulate(job(mask, cp=cp, cp_kind=kind))
    pairs = sum(int(dense_mask(MaskKind(mask), item.spans()).sum()) for item in BATCH.items)
    whole = sum(int((item.lengths["text"] ** 2).sum()) for item in BATCH.items)
    causal = simulate(job(cp=cp, cp_kind="ring" if kind == "needed" else kind))  # which counts no tiles
    per_pair = 3 * 2 * SIZES.layers * SIZES.heads * 2 * (SIZES.hidden // SIZES.heads)
    assert _model_flop(causal) - _model_flop(masked) == pytest.approx(per_pair * (whole / 2 - pairs), rel=1e-9)


def _model_flop(report: Any) -> float:
    return float(report.model_tflop_per_s_per_gpu * 1e12 * report.iteration_time_s * report.num_gpus)


def test_policies_change_the_time_and_keep_the_work() -> None:
    found = {policy: simulate(job("document", cp=4, cp_balance=policy)) for policy in POLICIES}
    assert len({round(report.iteration_time_s, 12) for report in found.values()}) > 4
    flop = [_model_flop(report) for report in found.values()]
    np.testing.assert_allclose(flop, flop[0], rtol=1e-12)
    for report in found.values():
        parts = report.breakdown_s
        total = sum(sum(v.values()) if isinstance(v, dict) else v for v in parts.values())
        assert total == pytest.approx(report.iteration_time_s, rel=1e-12)


def test_causal_attention_in_chunks_is_as_before() -> None:
    """No counter is asked where formulas say all: symbols, stage costs and memory are those without masks."""
    for kind in ("ring", "all_gather"):
        prepared = prepare(job(cp=4, cp_kind=kind))
        assert not prepared.evaluation.shapes.ranks
        assert not any("#" in name for name in prepared.layout.library.symbols)


def test_tokens_of_the_fullest_rank_are_held() -> None:
    """One long document and short ones: a rank with few heavy blocks has fewer tokens than another."""
    batch = _batch(*[[[2048, *[128] * 8]]] * 3)
    even = simulate(job("document", batch=batch, cp=3, cp_balance="contiguous"))
    prepared = prepare(job("document", batch=batch, cp=3, cp_balance="lpt"))
    tokens = prepared.evaluation.shapes.ranks["text.shard"][:, 0]
    assert tokens.max() > tokens.mean()
    dealt = simulate(job("document", batch=batch, cp=3, cp_balance="lpt"))
    assert max(dealt.peak_memory_bytes) > max(even.peak_memory_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_under_context_parallelism(kind: str) -> None:
    """They were refused; model FLOP are those of pairs in reach, whatever the number of ranks."""
    window = Window.sliding(200)
    model = replace(SIZES, window=window.size)
    one, four = (simulate(job("document", model=model, cp=cp, cp_kind=kind)) for cp in (1, 4))
    assert _model_flop(one) == pytest.approx(_model_flop(four), rel=1e-12)
    pairs = sum(int(dense_mask(MaskKind.DOCUMENT, item.spans(), window).sum()) for item in BATCH.items)
    plain = sum(int(dense_mask(MaskKind.DOCUMENT, item.spans()).sum()) for item in BATCH.items)
    per_pair = 3 * 2 * SIZES.layers * SIZES.heads * 2 * (SIZES.hidden // SIZES.heads)
    whole = _model_flop(simulate(job("document")))
    assert whole - _model_flop(one) == pytest.approx(per_pair * (plain - pairs), rel=1e-9)


def test_heads_one_by_one_hide_their_gathers() -> None:
    plain = simulate(job("document", cp=4, cp_kind="all_gather"))
    by_head = simulate(job("document", cp=4, cp_kind="all_gather", cp_overlap="heads"))
    queries = simulate(job("document", cp=4, cp_kind="all_gather", cp_overlap="heads", cp_gather_heads="query"))
    assert _model_flop(by_head) == pytest.approx(_model_flop(plain), rel=1e-12)
    assert _model_flop(queries) == pytest.approx(_model_flop(plain), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "where", "nearest"),
    [
        ({"cp_kind": "all_to_all", "cp_balance": "lpt"}, "parallel.cp_balance", "zigzag"),
        ({"cp_block": 100}, "parallel.cp_block", 64),
        ({"cp_balance": "lptt"}, "parallel.cp_balance", "lpt"),
        ({"cp_overlap": "heads"}, "parallel.cp_overlap", "none"),
        ({"cp_kind": "all_gather", "cp_gather_heads": "query"}, "parallel.cp_gather_heads", "kv"),
        ({"attention_split": -1}, "parallel.attention_split", 0),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        job(cp=2, **options)
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_fewer_blocks_than_ranks() -> None:
    batch = _batch(*[[[256]]] * 3)
    with pytest.raises(ConfigError, match="fewer than cp = 4 ranks"):
        simulate(job("document", batch=batch, cp=4, cp_balance="lpt"))

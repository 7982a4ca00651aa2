"""ZeRO-2, ZeRO-3 and HSDP in pipelines: against the slow reference, bytes and timelines by hand."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from simulation.comparison import assert_tails_equal
from simulation.data_parallel.test_sharding import MATMUL_S, OVERLAPS, Loss, traffic
from simulation.jobs import (
    WIDTH,
    chain,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)

from semu.costs.roofline import LatencyRules
from semu.engine.timeline import RankTimeline
from semu.graph.operator import Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.nn import Linear, Model
from semu.parallel.config import Parallel
from semu.present.report import Report
from semu.simulation import simulate
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig


# -- against the slow reference ----------------------------------------------------------------------------------------
@pytest.mark.sampled(6)
@pytest.mark.parametrize("hidden", ["none", "reduce", "both"])
@pytest.mark.parametrize("resharded", [True, False], ids=["resharded", "kept"])
@pytest.mark.parametrize(("pp", "vpp", "group"), [(2, 1, None), (4, 1, 2), (2, 2, 2)])
def test_zero_3(pp: int, vpp: int, group: int | None, resharded: bool, hidden: str) -> None:
    parallel = Parallel(dp=4 if group else 2, pp=pp, vpp=vpp, zero=3, zero_group=group, reshard_after_forward=resharded)
    assert_tails_equal(
        job_of(gpt(5), text_items(parallel.dp * pp), parallel, overlap=OVERLAPS[hidden], gpus_per_node=pp)
    )
    small = Parallel(dp=2, tp=2, pp=pp, vpp=vpp, zero=3, reshard_after_forward=resharded)
    model = vlm(frozen=["vit"], layers=4)
    assert_tails_equal(job_of(model, vlm_items(2 * pp, empty=(1,)), small, overlap=OVERLAPS[hidden], recompute="full"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hidden", ["none", "reduce"])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (3, 1), (2, 2)])
def test_zero_2(pp: int, vpp: int, hidden: str) -> None:
    parallel = Parallel(dp=2, tp=2, pp=pp, vpp=vpp, zero=2)
    assert_tails_equal(job_of(gpt(5), text_items(2 * pp), parallel, overlap=OVERLAPS[hidden]))
    assert_tails_equal(job_of(t2v(frozen=["llm"], layers=4), t2v_items(2 * pp), parallel, overlap=OVERLAPS[hidden]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("resharded", [True, False], ids=["resharded", "kept"])
@pytest.mark.parametrize("pp", [1, 3])
def test_all_forwards_first(pp: int, resharded: bool) -> None:
    parallel = Parallel(dp=2, pp=pp, zero=3, reshard_after_forward=resharded)
    for options in (OVERLAPS["none"], OVERLAPS["both"]):
        assert_tails_equal(job_of(gpt(), text_items(6), parallel, overlap=options, schedule="gpipe"))


def random_job(seed: int) -> TrainingJob:
    random = Random(seed)
    model, items = random.choice([(gpt, text_items), (vlm, vlm_items), (t2v, t2v_items)])
    dp, tp, pp, vpp = random.choice(
        [(2, 1, 2, 1), (4, 1, 3, 1), (2, 2, 2, 1), (2, 1, 2, 2), (4, 1, 2, 2), (3, 1, 2, 1)]
    )
    zero = random.choice([2, 3, 3, 3])
    return job_of(
        model(layers=random.randint(4, 5)),
        items(dp * pp * random.randint(1, 2), seed=seed),
        Parallel(
            dp=dp,
            tp=tp,
            pp=pp,
            vpp=vpp,
            zero=zero,
            zero_group=random.choice([None, 2]) if dp == 4 and zero == 3 else None,
            reshard_after_forward=random.random() < 0.5,
        ),
        overlap=overlap(
            tensor=random.random() < 0.3,
            pipeline=random.random() < 0.5,
            gradients=random.random() < 0.5,
            parameters=zero == 3 and random.random() < 0.5,
        ),
        schedule=random.choice(["1f1b", "gpipe"]),
        recompute=random.choice(["none", "full"]),
        gpus_per_node=random.choice([0, dp * tp]),
        gradient_clipping=random.random() < 0.5,
        software=random.choice(["megatron", "torch"]),
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(12))
def test_random_jobs(seed: int) -> None:
    assert_tails_equal(random_job(seed))


# -- bytes by hand -----------------------------------------------------------------------------------------------------
DP = 4
LLAMA_LAYER = 2 * 64 + 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96  # norms, queries and output, keys and values, MLP
LLAMA_TABLE = 128 * 64
GPT_LAYER = 4 * 64 + 4 * 64 * 64 + 4 * 64 + 8 * 64 * 64 + 5 * 64  # layer norms, attention, MLP of 4 x 64, biases
GPT_TABLE = (128 + 256) * 64  # tokens, positions


def llama() -> Model:
    """Llama with a table for the output of its own."""
    config = LlamaConfig(layers=4, hidden=64, ffn=96, heads=4, kv_heads=2, vocab=128)
    return Model.from_module(Llama(config), name="llm")


def tied() -> Model:
    """GPT: the first and the last rank hold the token table."""
    return Model.from_module(GPT(GPTConfig(layers=4, hidden=64, heads=4, vocab=128, positions=256)), name="llm")


HELD = {
    (llama, 2): [LLAMA_TABLE + 2 * LLAMA_LAYER, 2 * LLAMA_LAYER + 64 + LLAMA_TABLE],
    (llama, 4): [LLAMA_TABLE + LLAMA_LAYER, LLAMA_LAYER, LLAMA_LAYER, LLAMA_LAYER + 64 + LLAMA_TABLE],
    (tied, 2): [GPT_TABLE + 2 * GPT_LAYER, 2 * GPT_LAYER + 2 * 64 + 128 * 64],
    (tied, 4): [GPT_TABLE + GPT_LAYER, GPT_LAYER, GPT_LAYER, GPT_LAYER + 2 * 64 + 128 * 64],
}
"""Parameters of every pipeline rank, layers shared out evenly."""
LARGEST = {
    (llama, 2): [LLAMA_LAYER] * 2,
    (llama, 4): [LLAMA_LAYER] * 4,
    (tied, 2): [GPT_LAYER] * 2,
    (tied, 4): [GPT_LAYER] * 4,
}
"""Parameters of the largest block of every rank."""
CASES = pytest.mark.parametrize(("model", "pp"), HELD, ids=lambda value: getattr(value, "__name__", str(value)))


def role(rank: RankTimeline, which: Role) -> tuple[int, int]:
    """Least and most bytes of a role."""
    row = rank.memory.by_role[rank.memory.roles.index(which)]
    return int(row.min()), int(row.max())


def run(model: object, pp: int, microbatches: int, **sizes: object) -> Report:
    """Equal microbatches; no collective hides."""
    parallel = Parallel(dp=DP, pp=pp, partition="layers", **sizes)  # type: ignore[arg-type]
    return simulate(job_of(model(), text_items(1) * (DP * microbatches), parallel))  # type: ignore[operator]


@CASES
@pytest.mark.parametrize("microbatches", [1, 5])
def test_a_stage_gathers_and_reduces(model: object, pp: int, microbatches: int) -> None:
    """Shards of 2 + 4 + 12 bytes; a microbatch gathers all twice and reduces it once, (dp - 1) / dp of it on wires."""
    report = run(model, pp, microbatches, zero=3)
    assert report.static_memory_bytes == tuple(18 * count // DP for count in HELD[model, pp])  # type: ignore[index]
    for rank, count, largest in zip(report.timeline.ranks, HELD[model, pp], LARGEST[model, pp], strict=True):  # type: ignore[index]
        moved: Counter[OpKind] = Counter()
        for _, operators in rank.stage_operators():
            for stream, kind, size in zip(
                operators.table.streams, operators.table.kinds, operators.net_bytes.tolist(), strict=True
            ):
                moved[kind] += size if stream == "fsdp" else 0
        assert moved[OpKind.ALL_GATHER] == microbatches * 2 * 2 * count * (DP - 1) // DP
        assert moved[OpKind.REDUCE_SCATTER] == microbatches * 4 * count * (DP - 1) // DP
        assert role(rank, Role.PARAMETER) == (2 * count // DP, 2 * count // DP + 2 * largest)
        assert role(rank, Role.GRADIENT) == (4 * count // DP, 4 * count // DP + 4 * largest)


@CASES
@pytest.mark.parametrize("microbatches", [1, 5])
def test_what_is_kept_is_gathered_and_reduced_once(model: object, pp: int, microbatches: int) -> None:
    """All parameters and all gradients are there at once, on top of the shards; nothing moves inside stages."""
    report = run(model, pp, microbatches, zero=3, reshard_after_forward=False)
    assert report.static_memory_bytes == tuple(18 * count // DP for count in HELD[model, pp])  # type: ignore[index]
    assert not traffic(report)
    for rank, count in zip(report.timeline.ranks, HELD[model, pp], strict=True):  # type: ignore[index]
        wire: Counter[OpKind] = Counter()
        for piece in rank.outer:
            wire[piece.kind] += piece.net_bytes if piece.stream == "dp" else 0
        assert wire[OpKind.ALL_GATHER] == 2 * count * (DP - 1) // DP
        assert wire[OpKind.REDUCE_SCATTER] == 4 * count * (DP - 1) // DP
        assert role(rank, Role.PARAMETER) == (2 * count // DP, 2 * count // DP + 2 * count)
        assert role(rank, Role.GRADIENT) == (4 * count // DP, 4 * count // DP + 4 * count)


@CASES
def test_zero_2_reduces_every_microbatch(model: object, pp: int) -> None:
    """2 bytes and shards of 4 + 12; a bucket of everything on the wire at the end of each backward stage."""
    report = run(model, pp, 5, zero=2)
    counts = HELD[model, pp]  # type: ignore[index]
    assert report.static_memory_bytes == tuple(2 * count + 16 * count // DP for count in counts)
    assert traffic(report) == {("dp", "reduce_scatter"): 5 * 4 * sum(counts) * (DP - 1) // DP}
    for rank, count in zip(report.timeline.ranks, counts, strict=True):
        assert role(rank, Role.GRADIENT) == (4 * count // DP, 4 * count // DP + 4 * count)


@pytest.mark.parametrize("resharded", [True, False], ids=["resharded", "kept"])
def test_shards_of_tied_gradients_are_summed(resharded: bool) -> None:
    report = run(tied, 2, 2, zero=3, reshard_after_forward=resharded)
    summed = [p for rank in report.timeline.ranks for p in rank.outer if p.name == "tied gradients"]
    assert [piece.net_bytes for piece in summed] == [4 * 128 * 64 // DP] * 2  # 2 (n - 1) / n = 1 over two ranks


def test_memory_in_order_of_what_is_kept() -> None:
    """ZeRO-1 needs more than ZeRO-3 with everything kept, that more than ZeRO-3 without."""
    kept = run(llama, 2, 4, zero=3, reshard_after_forward=False)
    resharded, whole = run(llama, 2, 4, zero=3), run(llama, 2, 4, zero=1)
    for most, middle, least in zip(
        whole.peak_memory_bytes, kept.peak_memory_bytes, resharded.peak_memory_bytes, strict=True
    ):
        assert least < middle
        assert middle <= most + 6 * max(HELD[llama, 2]) // DP  # the shards beside the whole


# -- timelines by hand -------------------------------------------------------------------------------------------------
GATHER, REDUCE = 2**-13, 2**-12
FORWARD, BACKWARD = MATMUL_S[Phase.FORWARD], MATMUL_S[Phase.WEIGHT_GRADIENT]


def timed(parallel: Parallel, microbatches: int, *, hidden: bool) -> Report:
    """Two projections a rank (and a loss); products and data-parallel collectives take given times, all else none."""
    rules: LatencyRules = {
        kind: (lambda row: 0.0)
        for kind in (
            OpKind.CROSS_ENTROPY,
            OpKind.ADD,
            OpKind.ACTIVATION,
            OpKind.COPY,
            OpKind.CUSTOM,
            OpKind.NORM,
            OpKind.P2P,
        )
    }
    rules[OpKind.MATMUL] = lambda row: MATMUL_S[row.operator.phase]
    rules[OpKind.ALL_GATHER] = lambda row: GATHER
    rules[OpKind.REDUCE_SCATTER] = lambda row: REDUCE
    model = chain(*[Linear(WIDTH, WIDTH) for _ in range(2 * parallel.pp)], Loss())
    items = text_items(1) * (parallel.dp * microbatches)
    return simulate(
        job_of(model, items, parallel, overlap=overlap(parameters=hidden, gradients=hidden)), latency_rules=rules
    )


@pytest.mark.parametrize("microbatches", [1, 2, 5])
@pytest.mark.parametrize("pp", [2, 3])
def test_every_stage_is_longer_by_its_collectives(pp: int, microbatches: int) -> None:
    """Without overlap all of them; with it the first gather of each stage and the last reduction."""
    turns = microbatches + pp - 1
    late = timed(Parallel(dp=2, pp=pp, zero=3), microbatches, hidden=False)
    assert late.makespan_s == turns * 2 * (FORWARD + BACKWARD + 2 * GATHER + REDUCE)
    early = timed(Parallel(dp=2, pp=pp, zero=3), microbatches, hidden=True)
    assert early.makespan_s == turns * (2 * (FORWARD + BACKWARD) + 2 * GATHER + REDUCE)


@pytest.mark.parametrize("microbatches", [1, 2, 5])
@pytest.mark.parametrize("pp", [2, 3])
def test_what_is_kept_costs_once(pp: int, microbatches: int) -> None:
    """The gathers before everything (with overlap the first of them), the reductions behind everything."""
    turns = microbatches + pp - 1
    parallel = Parallel(dp=2, pp=pp, zero=3, reshard_after_forward=False)
    late, early = (timed(parallel, microbatches, hidden=hidden) for hidden in (False, True))
    assert late.makespan_s == 2 * GATHER + turns * 2 * (FORWARD + BACKWARD)
    assert early.makespan_s == GATHER + turns * 2 * (FORWARD + BACKWARD)
    for report, behind in ((late, 2 * REDUCE), (early, REDUCE)):
        reductions = [p for p in report.timeline.ranks[0].outer if p.kind is OpKind.REDUCE_SCATTER]
        assert len(reductions) == 2
        assert reductions[-1].end_s == report.makespan_s + behind
        last = report.timeline.ranks[0].stages[-1]
        assert (reductions[0].start_s < last.end_s) == (report is early)

"""ZeRO-2 and ZeRO-3: against the slow reference, closed forms of bytes and traffic, timelines by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import (
    WIDTH,
    Distance,
    chain,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
    wide,
)
from simulation.reference.expansion import expand
from simulation.reference.model import CutModel
from simulation.reference.tail import gather_times

from semu.costs.roofline import LatencyRules
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind
from semu.hardware.profile import load_profile
from semu.nn import Linear, Model, Module, Tensor
from semu.nn import functional as F
from semu.parallel.config import Overlap, Parallel
from semu.present.report import Report
from semu.simulation import simulate
from semu.workload import Microbatch

OVERLAPS = {
    "none": overlap(),
    "gather": overlap(parameters=True),
    "reduce": overlap(gradients=True),
    "both": overlap(parameters=True, gradients=True),
    "tp": overlap(parameters=True, gradients=True, tensor=True),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hidden", OVERLAPS)
@pytest.mark.parametrize("tp", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "options",
    [{}, {"reshard_after_forward": False}, {"zero_group": 2}],
    ids=["sharded", "kept", "groups"],
)
def test_zero_3_against_the_reference(options: dict[str, object], tp: int, hidden: str) -> None:
    parallel = Parallel(dp=4, tp=tp, zero=3, **options)  # type: ignore[arg-type]
    assert_tails_equal(job_of(gpt(), text_items(8), parallel, overlap=OVERLAPS[hidden]))
    assert_tails_equal(job_of(vlm(frozen=["vit"]), vlm_items(4, empty=(1,)), parallel, overlap=OVERLAPS[hidden]))
    assert_tails_equal(job_of(t2v(frozen=["llm"]), t2v_items(8), parallel, overlap=OVERLAPS[hidden], recompute="full"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("hidden", OVERLAPS)
@pytest.mark.parametrize("tp", [1, 2])
def test_zero_2_against_the_reference(tp: int, hidden: str) -> None:
    parallel = Parallel(dp=2, tp=tp, zero=2)
    if not OVERLAPS[hidden].param_gather:  # the tail's comparison knows no gathers before the iteration
        assert_tails_equal(job_of(gpt(), text_items(6), parallel, overlap=OVERLAPS[hidden]))
        assert_tails_equal(job_of(vlm(frozen=["llm"]), vlm_items(4), parallel, overlap=OVERLAPS[hidden]))
    alone = Overlap(grad_reduce=OVERLAPS[hidden].grad_reduce, param_gather=False)
    assert_tails_equal(job_of(wide(), text_items(4), parallel, overlap=alone, schedule="gpipe"))


# -- bytes and traffic -------------------------------------------------------------------------------------------------
MODELS = {"text": (gpt, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}


@pytest.mark.paper
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dp", [2, 4, 8])
def test_static_bytes_of_a_rank(name: str, dp: int) -> None:
    """1910.02054 Table 1 with fp32 gradients: 2 + (4 + 12) / dp, (2 + 4 + 12) / dp; shards rounded up."""
    model, items = MODELS[name]
    count = model().num_parameters()
    share = -(-count // dp)
    for zero, size in ((2, 2 * count + 16 * share), (3, 18 * share)):
        report = simulate(job_of(model(), items(dp), Parallel(dp=dp, zero=zero)))
        assert report.static_memory_bytes == (size,)
    if dp > 2:
        report = simulate(job_of(model(), items(dp), Parallel(dp=dp, zero=3, zero_group=2)))
        assert report.static_memory_bytes == (18 * -(-count // 2),)


def traffic(report: Report) -> Counter[tuple[str, str]]:
    """Wire bytes of a rank's collectives inside stages: (stream, kind) -> bytes."""
    total: Counter[tuple[str, str]] = Counter()
    for rank in report.timeline.ranks:
        for _, operators in rank.stage_operators():
            for stream, kind, size in zip(
                operators.table.streams, operators.table.kinds, operators.net_bytes.tolist(), strict=True
            ):
                if stream != "compute":
                    total[stream, kind.value] += size
    return total


@pytest.mark.sampled(4)
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_traffic_of_an_iteration(name: str, microbatches: int, hidden: bool) -> None:
    """Per microbatch two gathers of what is resharded, one of what is kept, one reduction: (dp - 1) / dp of each."""
    model, items = MODELS[name]
    dp = 4
    made = model()
    blocks = [body for module in made.modules for _, body in module.blocks()]
    users = Counter(id(p) for body in blocks for _, p in body.named_parameters())
    kept = sum(p.numel for _, p in blocks[-1].named_parameters() if users[id(p)] == 1)
    kept += sum(p.numel for _, p in made.named_parameters() if users[id(p)] > 1)
    count = made.num_parameters()
    unused = count_unused(made)
    options = overlap(parameters=hidden, gradients=hidden)
    drawn = items(1) * (dp * microbatches)
    for reshards, gathered in ((True, 2 * count - kept), (False, count)):
        parallel = Parallel(dp=dp, zero=3, reshard_after_forward=reshards)
        found = traffic(simulate(job_of(made, drawn, parallel, overlap=options)))
        slack = 2 * microbatches * len(blocks)  # a collective's wire bytes are rounded down
        assert found["fsdp", "all_gather"] == pytest.approx(microbatches * 2 * gathered * 3 / 4, abs=slack)
        assert found["fsdp", "reduce_scatter"] == pytest.approx(microbatches * 4 * (count - unused) * 3 / 4, abs=slack)
        assert len(found) == 2
    found = traffic(simulate(job_of(made, drawn, Parallel(dp=dp, zero=2), overlap=options)))
    assert found.keys() == {("dp", "reduce_scatter")}
    assert found["dp", "reduce_scatter"] == pytest.approx(microbatches * 4 * (count - unused) * 3 / 4, abs=slack)
    grouped = simulate(job_of(made, drawn, Parallel(dp=dp, zero=3, zero_group=2), overlap=options))
    found = traffic(grouped)
    assert found["fsdp", "reduce_scatter"] == pytest.approx(microbatches * 4 * (count - unused) / 2, abs=slack)
    # all-reduce of half the gradients over two groups moves 2 x 1 / 2 of them
    assert found["hsdp", "all_reduce"] == pytest.approx(microbatches * 2 * (count - unused), abs=2 * slack)


def count_unused(model: Model) -> int:
    """Elements of trainable parameters that no gradient reaches (heads of modules whose output nobody reads)."""
    cut = CutModel(job_of(model, MODELS[{"llm": "text"}.get(model.name, model.name.removeprefix("tiny-"))][1](1)))
    written = {
        id(use.parameter)
        for block in cut.blocks
        for use in block.trace.parameters
        if use.gradient is not None and any(use.gradient in o.outputs for o in block.operators("B"))
    }
    return sum(p.numel for _, p in model.named_parameters() if id(p) not in written)


# -- by hand: two equal blocks and a loss ------------------------------------------------------------------------------
FORWARD_S, BACKWARD_S = 2**-10, 2**-9
COUNT = WIDTH * WIDTH + WIDTH
MATMUL_S = {Phase.FORWARD: FORWARD_S, Phase.INPUT_GRADIENT: 0.0, Phase.WEIGHT_GRADIENT: BACKWARD_S}


class Loss(Module):
    """A loss without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return F.mean_squared_error(x)


def hand(gather_s: float, reduce_s: float, *, hidden: bool, blocks: int = 2, microbatches: int = 1) -> Report:
    """``blocks`` equal projections, then a loss; matrix products and collectives take given times."""
    rules: LatencyRules = {
        OpKind.MATMUL: lambda row: MATMUL_S[row.operator.phase],
        OpKind.CROSS_ENTROPY: lambda row: 0.0,
        OpKind.ADD: lambda row: 0.0,
        OpKind.ACTIVATION: lambda row: 0.0,
        OpKind.COPY: lambda row: 0.0,
        OpKind.CUSTOM: lambda row: 0.0,
        OpKind.NORM: lambda row: 0.0,
        OpKind.ALL_GATHER: lambda row: gather_s,
        OpKind.REDUCE_SCATTER: lambda row: reduce_s,
    }
    model = chain(*[Linear(WIDTH, WIDTH) for _ in range(blocks)], Loss())
    options = overlap(parameters=hidden, gradients=hidden)
    items = text_items(1) * (2 * microbatches)
    return simulate(job_of(model, items, Parallel(dp=2, zero=3), overlap=options), latency_rules=rules)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_without_overlap_everything_is_exposed(blocks: int, microbatches: int) -> None:
    """No block is kept (the loss comes last): each is gathered twice and reduced once, one after the other."""
    gather, reduce = 3 * 2**-12, 5 * 2**-12
    report = hand(gather, reduce, hidden=False, blocks=blocks, microbatches=microbatches)
    exposed = report.breakdown_s["exposed_communication"]
    assert report.makespan_s == microbatches * blocks * (FORWARD_S + BACKWARD_S + 2 * gather + reduce)
    assert exposed == {"fsdp": microbatches * blocks * (2 * gather + reduce)}


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_short_collectives_hide_but_for_the_ends(blocks: int) -> None:
    """The first gather of each pass and the last reduction have nothing to hide behind."""
    gather, reduce = 2**-13, 2**-12
    report = hand(gather, reduce, hidden=True, blocks=blocks)
    assert report.makespan_s == blocks * (FORWARD_S + BACKWARD_S) + 2 * gather + reduce
    assert report.breakdown_s["exposed_communication"] == {"fsdp": 2 * gather + reduce}


def test_long_collectives_in_turn() -> None:
    """Two blocks, gather g > forward f, reduce r, backward b < g + r: computing hides, links are the chain.

    Forward: gathers end at g, 2 g; the second block computes from 2 g to 2 g + f. Backward: gathers end at g, 2 g; the
    last block computes from g to g + b, its reduction waits for the second gather: max(2 g, g + b) to that + r; the
    first block computes from max(2 g, g + b) on for b, and its reduction follows both.
    """
    gather, reduce = 2**-9, 2**-8
    report = hand(gather, reduce, hidden=True)
    forward, backward = report.timeline.ranks[0].stages
    assert forward.end_s == 2 * gather + FORWARD_S
    second = max(2 * gather, gather + BACKWARD_S)
    assert backward.end_s - backward.start_s == max(second + reduce, second + BACKWARD_S) + reduce
    operators = report.timeline.ranks[0].expand(1)
    links = [
        (kind.value, start - backward.start_s)
        for kind, stream, start in zip(
            operators.table.kinds, operators.table.streams, operators.start_s.tolist(), strict=True
        )
        if stream == "fsdp"
    ]
    assert links == [
        ("all_gather", 0.0),
        ("all_gather", gather),
        ("reduce_scatter", second),
        ("reduce_scatter", second + reduce),
    ]


def test_at_most_two_blocks_are_gathered() -> None:
    """With four blocks and slow computing, a gather waits until the block two before it is done."""
    gather = 2**-14
    report = hand(gather, 2**-14, hidden=True, blocks=4)
    operators = report.timeline.ranks[0].expand(0)
    starts = [
        start
        for stream, start in zip(operators.table.streams, operators.start_s.tolist(), strict=True)
        if stream == "fsdp"
    ]
    done = gather + FORWARD_S
    assert starts == [0.0, gather, done, done + FORWARD_S]
    curve = report.timeline.ranks[0].memory
    parameters = curve.by_role[curve.roles.index(Role.PARAMETER)]
    shard = -(-4 * COUNT // 2) * 2
    assert parameters.max() == shard + 2 * 2 * COUNT
    assert parameters.min() == shard


@pytest.mark.parametrize("hidden", [False, True])
def test_the_peak_by_hand(hidden: bool) -> None:
    """Shards, two gathered blocks and the gradients of two where collectives hide, else one of each.

    Long reductions pile up no further: the next block but one is gathered behind them, on the same stream.
    """
    report = hand(2**-14, 2**-6, hidden=hidden, blocks=3)
    static = report.static_memory_bytes[0]
    assert static == 18 * (3 * COUNT // 2)
    curve = report.timeline.ranks[0].memory
    gradients = curve.by_role[curve.roles.index(Role.GRADIENT)]
    parameters = curve.by_role[curve.roles.index(Role.PARAMETER)]
    in_flight = 2 if hidden else 1
    assert gradients.max() == 4 * (3 * COUNT // 2) + in_flight * 4 * COUNT
    assert parameters.max() == 2 * (3 * COUNT // 2) + in_flight * 2 * COUNT
    # while the last block goes back: the inputs of the three blocks, the gradient that arrives, the one that leaves
    activations = 5 * text_items(1)[0].tokens("text") * WIDTH * 2
    assert report.peak_memory_bytes[0] == static + in_flight * 2 * COUNT + 4 * COUNT + activations


def test_the_gradients_of_zero_2_are_a_shard_and_the_buckets_on_the_wire() -> None:
    """A layer of 50 million parameters fills a bucket; without overlap there is one bucket of everything."""
    layer = 12 * 2048**2 + 13 * 2048
    for hidden in (False, True):
        report = simulate(
            job_of(
                wide(),
                text_items(1) * 2,
                Parallel(dp=2, zero=2),
                overlap=overlap(gradients=hidden),
                override={"nvlink_bytes_per_s": 1e12},  # a bucket is away before the next one is full
            )
        )
        count = wide().num_parameters()
        curve = report.timeline.ranks[0].memory
        gradients = curve.by_role[curve.roles.index(Role.GRADIENT)]
        assert gradients.min() == 4 * (count // 2)
        extra = int(gradients.max()) - 4 * (count // 2)
        assert extra >= 4 * layer
        assert extra == 4 * count if not hidden else extra < 4 * count


def test_a_kept_block_is_gathered_once_and_stays() -> None:
    model = chain(Linear(WIDTH, WIDTH), Distance())
    report = simulate(job_of(model, text_items(1) * 2, Parallel(dp=2, zero=3), overlap=overlap()))
    paths = [
        path
        for _, operators in report.timeline.ranks[0].stage_operators()
        for path, stream in zip(operators.table.paths, operators.table.streams, strict=True)
        if stream == "fsdp"
    ]
    assert paths == [
        "chain.0.all_gather",
        "chain.1.all_gather",
        "chain.1.reduce_scatter",
        "chain.0.all_gather",
        "chain.0.reduce_scatter",
    ]
    curve = report.timeline.ranks[0].memory
    parameters = curve.by_role[curve.roles.index(Role.PARAMETER)]
    turn = report.timeline.ranks[0].stages[1].start_s
    at_turn = int(parameters[(curve.times_s < turn).sum() - 1])
    assert at_turn == 2 * COUNT + 2 * COUNT  # two shards of a half, and the last block


def test_a_frozen_block_is_gathered_and_not_reduced() -> None:
    first, last = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)
    model = chain(first, last, Loss()).freeze(["chain.0"])
    found = traffic(simulate(job_of(model, text_items(2), Parallel(dp=2, zero=3), overlap=overlap())))
    assert found["fsdp", "reduce_scatter"] == 4 * COUNT // 2
    assert found["fsdp", "all_gather"] == 2 * 3 * COUNT // 2  # the frozen one has no backward


@pytest.mark.parametrize("zero", [2, 3])
def test_what_is_frozen_inside_a_block_is_not_reduced(zero: int) -> None:
    model = gpt().freeze(["llm.layers.1.mlp"])
    found = traffic(simulate(job_of(model, text_items(2), Parallel(dp=2, zero=zero), overlap=overlap())))
    trained = model.num_parameters(trainable_only=True)
    assert trained < model.num_parameters()
    assert found["fsdp" if zero == 3 else "dp", "reduce_scatter"] == pytest.approx(4 * trained / 2, abs=10)


# -- around the stages -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("zero", [2, 3])
def test_the_optimizer_steps_a_shard(zero: int) -> None:
    steps = {}
    for dp in (1, 4):
        report = simulate(job_of(gpt(), text_items(1) * dp, Parallel(dp=dp, zero=zero)))
        steps[dp] = next(p for p in report.timeline.ranks[0].outer if p.kind is OpKind.OPTIMIZER)
        gathers = [p for p in report.timeline.ranks[0].outer if p.kind is OpKind.ALL_GATHER]
        assert len(gathers) == (1 if zero == 2 and dp > 1 else 0)
    t0 = load_profile("h800").efficiency(OpKind.OPTIMIZER).t0_s
    whole, share = (steps[dp].end_s - steps[dp].start_s - t0 for dp in (1, 4))
    assert whole / share == pytest.approx(4, rel=1e-4)


@pytest.mark.parametrize("zero", [2, 3])
def test_one_replica_shards_nothing(zero: int) -> None:
    sharded, plain = (simulate(job_of(gpt(), text_items(2), Parallel(zero=z))) for z in (zero, 1))
    assert sharded.iteration_time_s == plain.iteration_time_s
    assert sharded.peak_memory_bytes == plain.peak_memory_bytes


def test_unequal_microbatches_are_warned_about() -> None:
    def warned(items: list[Microbatch], zero: int) -> bool:
        report = simulate(job_of(gpt(), items, Parallel(dp=2, zero=zero)))
        return any("unequal microbatches" in note for note in report.warnings)

    assert warned(text_items(2), 3)
    assert not warned(text_items(2), 1)
    assert not warned(text_items(1) * 2, 3)


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "nearest"), [(3, 2), (5, 4), (1, 2), (16, 8), (True, 2), ("2", None)])
def test_a_sharding_group_divides_dp(size: object, nearest: int | None) -> None:
    with pytest.raises(ConfigError, match="does not divide into sharding groups") as caught:
        Parallel(dp=8, zero=3, zero_group=size)  # type: ignore[arg-type]
    assert (caught.value.where, caught.value.nearest) == ("parallel.zero_group", nearest)


def test_sharding_groups_and_resharding_are_checked() -> None:
    with pytest.raises(ConfigError, match="sharding groups are of ZeRO-1 and ZeRO-3"):
        Parallel(dp=8, zero=2, zero_group=2)
    with pytest.raises(ConfigError) as caught:
        Parallel(reshard_after_forward=1)  # type: ignore[arg-type]
    assert caught.value.where == "parallel.reshard_after_forward"
    assert Parallel(dp=8, zero=3, zero_group=2).shard_ranks == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("hidden", ["none", "reduce"])
@pytest.mark.parametrize(
    ("dp", "tp", "group", "gpus_per_node"), [(4, 1, 2, 0), (4, 2, 2, 4), (6, 2, 3, 6), (4, 1, 4, 2)]
)
def test_zero_1_in_groups_against_the_reference(dp: int, tp: int, group: int, gpus_per_node: int, hidden: str) -> None:
    parallel = Parallel(dp=dp, tp=tp, pp=2, zero=1, zero_group=group)
    for model, items in ((gpt(), text_items(2 * dp)), (vlm(frozen=["vit"]), vlm_items(dp, empty=(1,)))):
        job = job_of(
            model,
            items,
            parallel,
            overlap=OVERLAPS[hidden],
            gpus_per_node=gpus_per_node,
            gradient_clipping=hidden == "reduce",
        )
        assert_tails_equal(job)


@pytest.mark.parametrize("made", [gpt, wide])
def test_zero_1_in_groups_by_hand(made: Callable[[], Model]) -> None:
    """States of a group's share; every bucket is scattered in the group, and its share is summed across the groups."""
    model = made()
    parameters = model.num_parameters()
    report = simulate(job_of(model, text_items(4), Parallel(dp=4, zero=1, zero_group=2)))
    assert report.static_memory_bytes == (6 * parameters + 12 * -(-parameters // 2),)
    moved = Counter(s.kind for s in report.timeline.ranks[0].outer if s.stream == "dp")
    assert moved[OpKind.REDUCE_SCATTER] == moved[OpKind.ALL_REDUCE] > 0
    wire = {kind: sum(s.net_bytes for s in report.timeline.ranks[0].outer if s.kind is kind) for kind in moved}
    assert wire[OpKind.REDUCE_SCATTER] == 4 * parameters // 2
    assert abs(wire[OpKind.ALL_REDUCE] - 4 * parameters // 2) <= moved[OpKind.ALL_REDUCE]


def test_overlapped_gathers_of_zero_1_in_groups() -> None:
    job = job_of(wide(), text_items(8), Parallel(dp=4, pp=2, zero=1, zero_group=2), overlap=overlap(parameters=True))
    free = expand(job)
    assert_equal(simulate(job), expand(job, gather_times(free)))

"""Context parallelism through ``semu.simulate`` against paper and pencil: bytes, FLOP, times, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import LANGUAGE, MERGED, PATCHES, gpt, job_of, t2v, vlm

from semu.costs.roofline import LatencyRules, RuleInput
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.present.report import Report
from semu.simulation import simulate
from semu.workload import Microbatch
from semu_models.text.decoder import decoder_model
from semu_models.text.llama import Llama, LlamaConfig

KINDS = ("ring", "all_gather", "all_to_all")
HEADS, KV_HEADS, HEAD = LANGUAGE.heads, LANGUAGE.kv_heads, LANGUAGE.hidden // LANGUAGE.heads
VIDEO_HEADS, VIDEO_HEAD = 4, 24


def llama(layers: int = LANGUAGE.layers) -> Model:
    """Grouped queries: 8 heads, 4 key heads of 16."""
    config = LlamaConfig(layers, LANGUAGE.hidden, LANGUAGE.ffn, LANGUAGE.heads, LANGUAGE.kv_heads, LANGUAGE.vocab)
    return decoder_model("llama", Llama(config))


def text(*lengths: int) -> list[Microbatch]:
    return [Microbatch({"text": lengths}, samples=1)]


def clips(text_lengths: Sequence[int], video_lengths: Sequence[int]) -> list[Microbatch]:
    return [Microbatch({"text": text_lengths, "video": video_lengths}, samples=len(video_lengths))]


def images(count: int, *text_lengths: int) -> list[Microbatch]:
    streams = {"text": text_lengths, "vision": [PATCHES] * count, "vision_tokens": [MERGED] * count}
    return [Microbatch(streams, samples=1)]


def on_stream(report: Report, stream: str, phase: Phase) -> list[tuple[OpKind, float, float, int, int]]:
    """(kind, start, end, wire bytes, FLOP) of the operators of one stream in all stages of a phase."""
    found = []
    for rank in report.timeline.ranks:
        for number, stage in enumerate(rank.stages):
            if stage.phase is phase:
                ops = rank.expand(number)
                rows = zip(
                    ops.table.kinds,
                    ops.start_s.tolist(),
                    ops.end_s.tolist(),
                    ops.net_bytes.tolist(),
                    ops.flop.tolist(),
                    strict=True,
                )
                found += [row for row, name in zip(rows, ops.table.streams, strict=True) if name == stream]
    return found


def wire_bytes(report: Report, phase: Phase) -> dict[OpKind, int]:
    """Bytes that a rank sends over the context group."""
    total: dict[OpKind, int] = {}
    for kind, _, _, size, _ in on_stream(report, "cp", phase):
        total[kind] = total.get(kind, 0) + size
    return total


# -- wire bytes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (2, 2), (4, 1), (4, 2)])
def test_bytes_of_a_language_model(cp: int, tp: int) -> None:
    """A rank has 1/cp of 512 tokens, and 1/tp of the heads; K and V together are one key head's 2 x 16 x 2 bytes."""
    tokens = 512 // cp
    keys = tokens * KV_HEADS // tp * 2 * HEAD * 2
    queries = tokens * HEADS // tp * HEAD * 2
    layers = LANGUAGE.layers
    expected = {
        "ring": ({OpKind.P2P: (cp - 1) * keys}, {OpKind.P2P: 2 * (cp - 1) * keys}),
        "all_gather": (
            {OpKind.ALL_GATHER: (cp - 1) * keys},
            {OpKind.ALL_GATHER: (cp - 1) * keys, OpKind.REDUCE_SCATTER: (cp - 1) * keys},
        ),
        "all_to_all": tuple([{OpKind.ALL_TO_ALL: (cp - 1) * (2 * queries + keys) // cp}] * 2),
    }
    if KV_HEADS // tp % cp:
        del expected["all_to_all"]
    for kind, (forward, backward) in expected.items():
        report = simulate(job_of(llama(), text(320, 192), Parallel(cp=cp, tp=tp, cp_kind=kind)))
        assert wire_bytes(report, Phase.FORWARD) == {op: layers * size for op, size in forward.items()}, kind
        assert wire_bytes(report, Phase.BACKWARD) == {op: layers * size for op, size in backward.items()}, kind


@pytest.mark.parametrize(("cp", "inner"), [(4, 2), (8, 2), (8, 4)])
def test_bytes_of_a_ring_between_groups(cp: int, inner: int) -> None:
    """In a group q, k, v and the output change heads for tokens; K and V of as many bytes then go around the groups."""
    tokens = 512 // cp
    keys, queries = tokens * KV_HEADS * 2 * HEAD * 2, tokens * HEADS * HEAD * 2
    report = simulate(job_of(llama(1), text(320, 192), Parallel(cp=cp, cp_inner=inner)))
    for phase, times in ((Phase.FORWARD, 1), (Phase.BACKWARD, 2)):
        passed = sum(size for _, _, _, size, _ in on_stream(report, "cp_ring", phase))
        assert passed == times * (cp // inner - 1) * keys
        assert wire_bytes(report, phase) == {}
        exchanged = [(kind, size) for kind, _, _, size, _ in on_stream(report, "cp_group", phase)]
        assert {kind for kind, _ in exchanged} == {OpKind.ALL_TO_ALL} and len(exchanged) == 4
        assert sum(size for _, size in exchanged) == (inner - 1) * (2 * queries + keys) // inner
    whole = simulate(job_of(llama(1), text(320, 192), Parallel(cp=cp)))
    assert attention_flop(report) == attention_flop(whole) > 0


def attention_flop(report: Report) -> int:
    """FLOP of the attention kernels of a rank."""
    kinds = (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
    phases = (Phase.FORWARD, Phase.BACKWARD)
    return sum(row[4] for phase in phases for row in on_stream(report, "compute", phase) if row[0] in kinds)


def test_a_group_of_all_context_ranks_leaves_no_ring() -> None:
    reports = [
        simulate(job_of(llama(), text(320, 192), Parallel(cp=4, **options)))  # type: ignore[arg-type]
        for options in ({"cp_inner": 4}, {"cp_kind": "all_to_all"})
    ]
    assert reports[0].iteration_time_s == reports[1].iteration_time_s
    assert reports[0].peak_memory_bytes == reports[1].peak_memory_bytes


def test_heads_that_a_group_does_not_divide() -> None:
    with pytest.raises(ConfigError, match="kv_heads = 4 cannot be split over a context-parallel group of 8"):
        simulate(job_of(llama(), text(512), Parallel(cp=16, cp_inner=8)))


def test_bytes_of_a_ring_are_messages_of_keys_and_of_their_gradients() -> None:
    """Forward cp - 1 times K and V; backward K and V alone, cp - 2 times with dK and dV, dK and dV alone."""
    report = simulate(job_of(llama(1), text(512), Parallel(cp=4)))
    keys = 128 * KV_HEADS * 2 * HEAD * 2
    assert [size for *_, size, _ in on_stream(report, "cp", Phase.FORWARD)] == [keys] * 3
    assert [size for *_, size, _ in on_stream(report, "cp", Phase.BACKWARD)] == [keys, 2 * keys, 2 * keys, keys]


@pytest.mark.parametrize("cp", [2, 4])
def test_bytes_of_a_text_to_video_model(cp: int) -> None:
    """Captions in the language model; in the diffusion transformer videos to videos, and videos to captions."""
    captions, videos = 96 // cp, 640 // cp
    items = clips([32, 64], [256, 384])
    language = captions * KV_HEADS * 2 * HEAD * 2
    own, cross = videos * 96 * 2 * 2, captions * 96 * 2 * 2
    exchanged = captions * (2 * HEADS + 2 * KV_HEADS) * HEAD * 2 + 6 * videos * 96 * 2 + 2 * captions * 96 * 2
    layers = 3
    moved = layers * (cp - 1) * (language + own + cross)
    for kind, forward, backward in (
        ("ring", {OpKind.P2P: moved}, {OpKind.P2P: 2 * moved}),
        ("all_gather", {OpKind.ALL_GATHER: moved}, {OpKind.ALL_GATHER: moved, OpKind.REDUCE_SCATTER: moved}),
        ("all_to_all", *[{OpKind.ALL_TO_ALL: layers * (cp - 1) * exchanged // cp}] * 2),
    ):
        report = simulate(job_of(t2v(), items, Parallel(cp=cp, cp_kind=kind)))
        assert wire_bytes(report, Phase.FORWARD) == forward, kind
        assert wire_bytes(report, Phase.BACKWARD) == backward, kind


def test_image_tokens_go_to_the_ranks_that_have_their_places() -> None:
    """8 images of 4 tokens: each rank has half of them in two-byte features, of which half moves, each way."""
    report = simulate(job_of(vlm(), images(8, 64, 32), Parallel(cp=2)))
    half = 8 * MERGED // 2 * LANGUAGE.hidden * 2 // 2
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        assert wire_bytes(report, phase)[OpKind.ALL_TO_ALL] == half
    frozen = simulate(job_of(vlm(frozen=("vit",)), images(8, 64, 32), Parallel(cp=2)))
    assert OpKind.ALL_TO_ALL not in wire_bytes(frozen, Phase.BACKWARD)


# -- FLOP --------------------------------------------------------------------------------------------------------------
def scores(rank: int, step: int, length: int, cp: int, *, causal: bool) -> float:
    """Scores of a rank's queries with the keys that it holds in a step of the ring, the diagonal counted half."""
    chunk = length // (2 * cp)

    def held(r: int) -> list[int]:
        return [i for part in (r, 2 * cp - 1 - r) for i in range(part * chunk, (part + 1) * chunk)]

    pairs = [(i, j) for i in held(rank) for j in held((rank - step) % cp)]
    return sum(1.0 if j < i or not causal else 0.5 if i == j else 0.0 for i, j in pairs)


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_every_rank_has_as_many_scores_in_every_step(cp: int) -> None:
    """... as the simulation gives the kernels of the rank that it costs: 2 (d + d) per score and head."""
    lengths = [24, 48]
    report = simulate(job_of(llama(1), text(*lengths), Parallel(cp=cp)))
    kernels = [op for op in on_stream(report, "compute", Phase.FORWARD) if op[0] is OpKind.ATTENTION_FORWARD]
    assert len(kernels) == cp
    for rank in range(cp):
        for step, (*_, flop) in enumerate(kernels):
            expected = sum(scores(rank, step, length, cp, causal=True) for length in lengths)
            assert flop == expected * HEADS * 2 * 2 * HEAD


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cp", "tp"), [(2, 2), (4, 1)])
def test_attention_of_a_rank_is_its_share(kind: str, cp: int, tp: int) -> None:
    """Causal: half of the squares, forward 4 and backward 10 per score, head and d, of which 2 d are no model FLOP."""
    squares = 256**2 + 128**2
    report = simulate(job_of(llama(), text(256, 128), Parallel(cp=cp, tp=tp, cp_kind=kind)))
    per_pass = LANGUAGE.layers * squares // 2 // cp * HEADS // tp * HEAD
    for phase, kernel, flop in (
        (Phase.FORWARD, OpKind.ATTENTION_FORWARD, 4),
        (Phase.BACKWARD, OpKind.ATTENTION_BACKWARD, 10),
    ):
        found = [op for op in on_stream(report, "compute", phase) if op[0] is kernel]
        assert sum(op[4] for op in found) == flop * per_pass
        assert len(found) == LANGUAGE.layers * (cp if kind == "ring" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_to_captions(kind: str) -> None:
    """Videos see their own captions, and themselves without a mask."""
    squares = 256**2 + 384**2 + 256 * 32 + 384 * 64
    report = simulate(job_of(t2v(), clips([32, 64], [256, 384]), Parallel(cp=4, cp_kind=kind)))
    found = [op for op in on_stream(report, "compute", Phase.FORWARD) if op[0] is OpKind.ATTENTION_FORWARD]
    language = (32**2 + 64**2) // 2 * HEADS * HEAD
    assert sum(op[4] for op in found) == 3 * 4 * (language + squares * VIDEO_HEADS * VIDEO_HEAD) // 4


MODELS: dict[str, tuple[Callable[[], Model], Callable[[Random, int], list[Microbatch]]]] = {
    "text": (llama, lambda random, n: text(*(n * random.randint(1, 9) for _ in range(random.randint(1, 3))))),
    "vlm": (vlm, lambda random, n: images(random.randint(1, 5) * n, n * random.randint(20, 29))),
    "t2v": (t2v, lambda random, n: clips(*[[n * random.randint(1, 9) for _ in range(2)] for _ in range(2)])),
}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(MODELS)),
    kind=st.sampled_from(KINDS),
    cp=st.sampled_from([2, 4]),
    tp=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "full", "selective"]),
    seed=st.integers(0, 99),
)
def test_flop_and_tokens_are_those_of_one_rank(
    name: str, kind: str, cp: int, tp: int, recompute: str, seed: int
) -> None:
    """Of sequences that divide: whatever is cut over the ranks adds up, and what all of them do counts once."""
    if name == "vlm" and cp == 4:
        cp = 2  # merged images of 4 tokens
    if kind == "all_to_all" and cp == 4:
        tp = 1  # 4 key heads
    model, make = MODELS[name]
    items = make(Random(seed), 2 * cp * tp)
    whole = simulate(job_of(model(), items, recompute=recompute))
    cut = simulate(job_of(model(), items, Parallel(cp=cp, tp=tp, cp_kind=kind), recompute=recompute))
    assert cut.model_flop == whole.model_flop
    assert cut.hardware_flop == whole.hardware_flop
    assert cut.mfu_full_attention / cut.mfu == pytest.approx(whole.mfu_full_attention / whole.mfu, rel=1e-12)
    assert cut.tokens == whole.tokens
    assert cut.tokens_per_s_per_gpu == pytest.approx(whole.tokens / cut.iteration_time_s / (cp * tp), rel=1e-12)


def test_padding_is_computed_but_no_token() -> None:
    """Sequences of 13 and 30 tokens become 16 and 32 in 8 chunks each."""
    odd = simulate(job_of(llama(), text(13, 30), Parallel(cp=4)))
    even = simulate(job_of(llama(), text(16, 32), Parallel(cp=4)))
    assert (odd.tokens, even.tokens) == (43, 48)
    assert (odd.model_flop, odd.iteration_time_s) == (even.model_flop, even.iteration_time_s)


def test_the_kind_means_nothing_without_context_parallelism() -> None:
    reports = [simulate(job_of(llama(), text(100), Parallel(tp=2, cp_kind=kind))).to_json() for kind in KINDS]
    assert reports[0] == reports[1] == reports[2]


# -- times -------------------------------------------------------------------------------------------------------------
def rules(kernel_s: float, send_s: float) -> LatencyRules:
    """Attention and transfers take a time each, everything else none."""

    def nothing(_: RuleInput) -> float:
        return 0.0

    taking = dict.fromkeys(OpKind, nothing)
    taking[OpKind.ATTENTION_FORWARD] = lambda _: kernel_s
    taking[OpKind.ATTENTION_BACKWARD] = lambda _: 2 * kernel_s
    taking[OpKind.P2P] = lambda _: send_s
    return taking


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("send", [0, 1, 3, 5, 9])
@pytest.mark.parametrize("cp", [2, 3, 5])
def test_the_ring_hides_what_kernels_cover(cp: int, send: int, tensor: bool) -> None:
    """Forward: the slower of kernel and transfer cp - 1 times, and a kernel; backward: the slower of both cp times."""
    unit = 2.0**-12
    kernel = 3
    job = job_of(llama(1), text(30 * cp), Parallel(cp=cp, zero=0))
    (timeline,) = simulate(job, latency_rules=rules(kernel * unit, send * unit)).timeline.ranks
    forward, backward = timeline.stages
    assert forward.end_s - forward.start_s == unit * ((cp - 1) * max(kernel, send) + kernel)
    assert backward.end_s - backward.start_s == unit * cp * max(2 * kernel, send)


def test_gathers_and_exchanges_are_exposed() -> None:
    for kind in ("all_gather", "all_to_all"):
        report = simulate(job_of(llama(), text(512), Parallel(cp=4, cp_kind=kind)))
        lasted = sum(
            end - start
            for phase in (Phase.FORWARD, Phase.BACKWARD)
            for _, start, end, *_ in on_stream(report, "cp", phase)
        )
        exposed = report.breakdown_s["exposed_communication"]
        assert isinstance(exposed, dict)
        assert exposed["cp"] == pytest.approx(lasted, rel=1e-12)


def test_a_ring_across_nodes_is_as_slow_as_its_slowest_link() -> None:
    inside = simulate(job_of(llama(), text(512), Parallel(cp=4), gpus_per_node=4))
    across = simulate(job_of(llama(), text(512), Parallel(cp=4), gpus_per_node=2))
    times = [[end - start for _, start, end, *_ in on_stream(r, "cp", Phase.FORWARD)] for r in (inside, across)]
    assert len(set(times[0])) == len(set(times[1])) == 1
    assert times[1][0] > times[0][0]


# -- memory ------------------------------------------------------------------------------------------------------------
def kept_by_a_layer(parallel: Parallel, *lengths: int) -> int:
    """What the peak grows by with one more layer, parameters apart."""
    reports = [simulate(job_of(llama(layers), text(*lengths), parallel)) for layers in (3, 4)]
    few, many = (r.peak_memory_bytes[0] - r.static_memory_bytes[0] for r in reports)
    return many - few


@pytest.mark.parametrize("cp", [2, 4])
def test_what_a_layer_keeps(cp: int) -> None:
    """Of half the tokens: half. RoPE makes new q and k, v is a view of the projection's output.

    Gathering keeps q, k, v, the output: as without context parallelism. The ring keeps q, the K and V that came last
    and the output: neither k nor the projection's output q + k + v. Ulysses keeps q, k and v as exchanged, its output
    before and after the exchange.
    """
    tokens = 2048 // cp
    q, k = tokens * HEADS * HEAD * 2, tokens * KV_HEADS * HEAD * 2
    alone = kept_by_a_layer(Parallel(), tokens)
    assert kept_by_a_layer(Parallel(), 2048) == cp * alone
    for kind, difference in (
        ("all_gather", 0),
        ("ring", 2 * k - k - (q + 2 * k)),
        ("all_to_all", (q + 2 * k + 2 * q) - (q + k + q + 2 * k + q)),
    ):
        assert kept_by_a_layer(Parallel(cp=cp, cp_kind=kind), 2048) - alone == difference, kind


def peak(kind: str, cp: int) -> int:
    """Dynamic peak of one wide attention with 2048 tokens on a rank."""
    config = LlamaConfig(1, hidden=256, ffn=64, heads=16, kv_heads=16, vocab=8)
    report = simulate(job_of(decoder_model("llama", Llama(config)), text(2048 * cp), Parallel(cp=cp, cp_kind=kind)))
    return report.peak_memory_bytes[0] - report.static_memory_bytes[0]


def test_the_ring_needs_two_buffers_however_long_it_is() -> None:
    """Of as many tokens on a rank, a ring of 8 needs what one of 4 does; gathered keys and values grow with it: in the
    backward K and V, as gathered and in order, or their gradients beside them, 2048 x 256 x 2 bytes a rank each."""
    assert peak("ring", 8) == peak("ring", 4)
    one = 2048 * 256 * 2
    assert peak("all_gather", 8) - peak("all_gather", 4) == 4 * (8 - 4) * one


@pytest.mark.parametrize(("kind", "forward", "backward"), [("ring", 1, 0), ("all_gather", 2, 4), ("all_to_all", 8, 8)])
def test_copies_beside_the_exchanges(kind: str, forward: int, backward: int) -> None:
    """K and V joined; gathered K and V put in order, dK and dV packed; four tensors packed and put in order."""
    alone = simulate(job_of(llama(1), text(512)))
    report = simulate(job_of(llama(1), text(512), Parallel(cp=2, cp_kind=kind)))
    for phase, more in ((Phase.FORWARD, forward), (Phase.BACKWARD, backward)):
        copies = [sum(op[0] is OpKind.COPY for op in on_stream(r, "compute", phase)) for r in (report, alone)]
        assert copies[0] - copies[1] == more


def test_optimizer_states_are_shared_over_data_and_context() -> None:
    """ZeRO-1: bf16 parameters and fp32 gradients whole, 12 bytes over dp x cp ranks."""
    report = simulate(job_of(llama(), text(512) * 2, Parallel(dp=2, cp=4)))
    count = report.parameters
    assert report.static_memory_bytes == (6 * count + 12 * -(-count // 8),)
    sizes = {piece.kind: piece.net_bytes for piece in report.timeline.ranks[0].outer if piece.stream == "dp"}
    assert sizes == {OpKind.REDUCE_SCATTER: 7 * 4 * count // 8, OpKind.ALL_GATHER: 7 * 2 * count // 8}


# -- what is refused ---------------------------------------------------------------------------------------------------
def refused(items: Sequence[Microbatch], parallel: Parallel, model: Model | None = None, **options: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(model if model is not None else llama(), items, parallel, **options))
    return caught.value


def test_heads_that_do_not_divide_by_the_group() -> None:
    error = refused(text(256), Parallel(cp=4, tp=2, cp_kind="all_to_all"))
    assert (error.got, error.nearest) == ("cp = 4", 2)
    assert "kv_heads / tp = 4 / 2 = 2" in str(error)
    error = refused(text(252), Parallel(cp=3, cp_kind="all_to_all"), gpt())
    assert (error.got, error.nearest) == ("cp = 3", 2)
    assert error.where == "llm.layers.0.attention"


def test_attention_in_separate_kernels() -> None:
    error = refused(text(256), Parallel(cp=2), attention="unfused")
    assert (error.where, error.nearest) == ("training.attention", "fused")


def test_sequences_with_fewer_tokens_than_ranks() -> None:
    error = refused(clips([3, 32], [64, 64]), Parallel(cp=4), t2v())
    assert (error.where, error.got, error.nearest) == ("parallel.cp", 4, 2)
    assert "'text'" in str(error)
    assert "llm" in str(error)
    error = refused(
        [Microbatch({"text": [64], "vision": [4] * 3, "vision_tokens": [1] * 3}, samples=1)], Parallel(cp=8), vlm()
    )
    assert "module vit" in str(error)
    assert error.nearest == 4
    assert simulate(job_of(vlm(), images(0, 64), Parallel(cp=2))).tokens == 64

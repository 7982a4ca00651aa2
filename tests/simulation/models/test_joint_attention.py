"""Joint attention over two streams, rows of sequences: costs by hand, and whole models against the slow reference."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Apply, F, run, spec
from simulation.comparison import assert_equal
from simulation.jobs import LANGUAGE, job_of, t2v_items
from simulation.reference.expansion import expand

import semu_models
from semu.errors import ConfigError, GraphError
from semu.graph.dim import Poly
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn import Model, Sequences
from semu.nn import functional as Fn
from semu.nn.rules.attention.joint import JointSequences
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu_models.generation.mmdit import make_mmdit
from semu_models.generation.mmdit_layers import MMDiTConfig
from semu_models.generation.video_dit import VideoDiTConfig, make_video_dit


@pytest.mark.parametrize(
    ("name", "parameters", "source"),
    [
        ("sd3-8b", 8_056_627_520, "diffusers 0.42.1, SD3Transformer2DModel, depth 38, RMS norm of queries and keys"),
        ("flux-12b", 11_901_408_320, "diffusers 0.42.1, FluxTransformer2DModel(guidance_embeds=True)"),
        ("hunyuan-video-13b", 12_821_012_544, "diffusers 0.42.1, HunyuanVideoTransformer3DModel()"),
    ],
)
def test_parameters(name: str, parameters: int, source: str) -> None:
    assert semu_models.build(name).num_parameters() == parameters, source


def test_parameters_of_models_with_cross_attention() -> None:
    h, layers = 6144, 48
    embedding = (64 * h + h) + (256 * h + h) + (h * h + h) + (6 * h * h + 6 * h) + (h * h + h)
    head = 2 * h + 64 * h + 64
    movie = layers * (8 * h * h + 3 * h * 16384 + 6 * h + 3 * h)
    assert semu_models.movie_gen_30b().num_parameters() == embedding + 4096 * h + h + movie + head
    step = layers * (16 * h * h + 6 * h + 2 * 2 * h + 4 * 128)
    assert semu_models.step_video_30b().num_parameters() == embedding + h * h + h + step + head


def test_pairs_of_a_joint_sequence() -> None:
    a, b = Sequences.of_stream("video"), Sequences.of_stream("text")
    joint = JointSequences.of(a, b, "here")
    lengths = {"video": [7, 3], "text": [2, 5]}
    symbols = {"video.pairs": 58, "text.pairs": 29, "video*text.pairs": 29, "video.shard": 10, "text.shard": 7}
    assert isinstance(joint.pairs, Poly)
    total = sum(
        coefficient * symbols[monomial[0]] for monomial, coefficient in joint.pairs.terms.items() if len(monomial) == 1
    )
    assert total == sum((x + y) ** 2 for x, y in zip(lengths["video"], lengths["text"], strict=True))


def test_concatenating_and_splitting_by_hand() -> None:
    a, b = Sequences.uniform(2, 8, "video"), Sequences.uniform(2, 4, "text")
    module = Apply(lambda x, y: Fn.split_tokens(Fn.concatenate_tokens(x, y)))
    block = run(module, spec(16, 4, sequences=a), spec(8, 4, sequences=b))
    rows = [(op.kind, op.phase, op.mem_bytes) for op in block.graph.operators]
    both, long, short = (2 * 2 * tokens * 4 for tokens in (24, 16, 8))
    backward = [(OpKind.COPY, Phase.INPUT_GRADIENT, size) for size in (both, long, short)]
    assert rows == [(OpKind.COPY, F, size) for size in (both, long, short)] + backward
    assert [s.shape for s in block.output_specs] == [(16, 4), (8, 4)]
    assert [s.sequences for s in block.output_specs] == [a, b]


def test_features_side_by_side() -> None:
    block = run(Apply(Fn.concatenate_features), spec(16, 8, shards=(1, 2)), spec(16, 32, shards=(1, 2)), tp=2)
    sizes = [op.mem_bytes for op in block.graph.operators if op.kind is OpKind.COPY]
    assert sizes == [2 * 2 * 16 * width for width in (20, 4, 16)]
    assert block.output_specs[0].shape == (16, 40)


@pytest.mark.parametrize("sp", [False, True])
def test_rows_are_whole_on_every_rank(sp: bool) -> None:
    packing = Sequences.uniform(2, 8)
    cut = (2, 1) if sp else (1, 1)
    block = run(Apply(Fn.mean_rows), spec(16, 4, shards=cut, sequences=packing), tp=2, sp=sp)
    rows = [(op.kind, op.mem_bytes, op.net_bytes) for op in block.graph.operators]
    size, tokens = 2 * 2 * 4, 2 * 16 * 4 // (2 if sp else 1)
    assert rows[0] == (OpKind.COPY, size + tokens, 0)
    assert rows[-1] == (OpKind.COPY, size + tokens, 0)
    assert (OpKind.ALL_REDUCE, 0, size) in rows if sp else len(rows) == 2


def test_what_cannot_be_joined() -> None:
    a, b = Sequences.uniform(2, 8, "video"), Sequences.uniform(3, 4, "text")
    with pytest.raises(GraphError, match="cannot pair"):
        run(Apply(Fn.concatenate_tokens), spec(16, 4, sequences=a), spec(12, 4, sequences=b))
    with pytest.raises(GraphError, match="alike"):
        run(Apply(Fn.concatenate_tokens), spec(16, 4, sequences=a), spec(8, 8, sequences=b))
    with pytest.raises(GraphError, match="alike"):
        run(Apply(Fn.concatenate_tokens), spec(16, 4), spec(16, 4))
    with pytest.raises(GraphError, match="nothing to split"):
        run(Apply(lambda x: Fn.split_tokens(x)), spec(16, 4, sequences=a))
    with pytest.raises(GraphError, match="different tokens"):
        run(Apply(Fn.concatenate_features), spec(16, 4), spec(8, 4))


def mmdit(single: int = 2, *, refiner: int = 1) -> Model:
    config = MMDiTConfig(
        dual=2,
        single=single,
        hidden=64,
        ffn=192,
        heads=4,
        context=48,
        pooled=24,
        refiner=refiner,
        latent_features=16,
        timestep_features=32,
        guidance=bool(single),
    )
    return make_mmdit("tiny", config)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("single", [0, 2])
@pytest.mark.parametrize(
    "parallel",
    [Parallel(), Parallel(tp=2, pp=3), Parallel(tp=2, pp=2, sequence_parallel=False), Parallel(cp=2, pp=2)],
    ids=["one", "tp2_pp3", "tp2_no_sp", "cp2"],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_in_context_conditioning_against_the_reference(parallel: Parallel, single: int, recompute: str) -> None:
    job = job_of(mmdit(single), t2v_items(3), parallel, recompute=recompute)
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize(
    "style", [{"gated": True, "rms_norm": True, "bias": False}, {"qk_norm": True, "cross_norm": False}]
)
def test_cross_attention_against_the_reference(style: dict[str, bool]) -> None:
    config = VideoDiTConfig(2, 64, 192, 4, 48, latent_features=16, timestep_features=32, **style)  # type: ignore[arg-type]
    job = job_of(make_video_dit("tiny", config), t2v_items(3), Parallel(tp=2, pp=2))
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("frozen", [(), ("llm",)], ids=["trained", "frozen"])
def test_behind_a_text_encoder_against_the_reference(joint: bool, frozen: tuple[str, ...]) -> None:
    width = LANGUAGE.hidden
    if joint:
        small = MMDiTConfig(1, 1, 64, 192, 4, width, 24, latent_features=16, timestep_features=32)
        model = make_mmdit("tiny", small, LANGUAGE)
    else:
        model = make_video_dit("tiny", VideoDiTConfig(2, 64, 192, 4, width, latent_features=16), LANGUAGE)
    job = job_of(model.freeze(frozen), t2v_items(3), Parallel(tp=2, pp=2))
    assert_equal(simulate(job), expand(job))
    with pytest.raises(ConfigError, match="does not fit"):
        make_video_dit("tiny", VideoDiTConfig(2, 64, 192, 4, 100), LANGUAGE)


def test_work_of_attention_in_closed_form() -> None:
    """Forward 4 (a + b)^2 h a layer and clip, backward twice that in model FLOP."""
    items = t2v_items(2)
    report = simulate(job_of(mmdit(refiner=0), items))
    pairs = sum(
        (a + b) ** 2 for item in items for a, b in zip(item.streams["video"], item.streams["text"], strict=True)
    )
    found = sum(
        int(flop) - int(again)
        for rank in report.timeline.ranks
        for number in range(len(rank.stages))
        for table in [rank.expand(number)]
        for kind, flop, again in zip(table.table.kinds, table.flop, _again(table), strict=True)
        if kind in (OpKind.ATTENTION_FORWARD, OpKind.ATTENTION_BACKWARD)
    )
    assert found == 4 * 3 * 4 * pairs * 64


def _again(table: object) -> list[int]:
    """Of the backward kernel's five products one is computed again."""
    kinds, flop = table.table.kinds, table.flop  # type: ignore[attr-defined]
    return [int(f) // 5 if kind is OpKind.ATTENTION_BACKWARD else 0 for kind, f in zip(kinds, flop, strict=True)]


def test_bad_sizes() -> None:
    with pytest.raises(ConfigError, match="not a size"):
        MMDiTConfig(dual=0, single=1, hidden=64, ffn=64, heads=4, context=8, pooled=8)
    with pytest.raises(ConfigError, match="divide"):
        VideoDiTConfig(1, 64, 64, 5, 8)
    assert DType.BF16.size_bytes == 2

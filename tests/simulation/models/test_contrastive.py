"""Dual encoders: parameters of transformers, the contrastive loss by hand, times and memory against the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import job_of, overlap
from simulation.reference.expansion import expand

import semu_models
from semu.errors import ConfigError, GraphError
from semu.graph.operator import OpKind, Phase
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.job import Training, TrainingJob
from semu.nn import LoRA, Model, add_lora
from semu.nn.layers.contrastive import ContrastiveKind, ContrastiveLoss
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.sharding import ShardingPlan
from semu.parallel.config import Parallel
from semu.runfile import load_run, resolve_run
from semu.simulation import simulate
from semu.workload import Microbatch, pair_batch
from semu_models.vision.clip import DualEncoderConfig, TextTowerConfig, make_dual_encoder
from semu_models.vision.clip_vision import ClipVisionConfig
from semu_models.vision.siglip import SiglipVisionConfig

SOFTMAX, SIGMOID = ContrastiveKind.SOFTMAX, ContrastiveKind.SIGMOID
PATCHES, CAPTION, WIDTH = 4, 6, 32


@pytest.mark.parametrize(
    ("name", "parameters", "vision", "text"),
    [
        ("clip-vit-b-32", 151_277_313, 87_456_000, 63_165_952),
        ("clip-vit-l-14", 427_616_513, 303_179_776, 123_060_480),
        ("siglip-so400m-dual", 877_960_498, 428_225_600, 449_734_896),
    ],
)
def test_parameters(name: str, parameters: int, vision: int, text: int) -> None:
    """transformers 5.23: CLIPModel and SiglipModel on the meta device, whole and tower by tower."""
    model = semu_models.build(name)
    assert model.num_parameters() == parameters
    assert [module.body.num_parameters() for module in model.modules[:2]] == [vision, text]


def test_adapters() -> None:
    """PEFT 0.21 on CLIPModel (ViT-B/32), r = 8, queries and values of both towers."""
    model = add_lora(semu_models.clip_vit_b_32(), LoRA(8, ("q_proj", "v_proj")))
    assert model.num_parameters(trainable_only=True) == 491_520


def loss_block(kind: ContrastiveKind, n: int, d: int, replicas: int, *, tp: int = 1) -> TracedBlock:
    options = TraceOptions(
        plan=ShardingPlan(tp, tp > 1), tp_group=CommGroup("tp", tp), replica_group=CommGroup("replicas", replicas)
    )
    specs = [CarrySpec((n, d), (tp, 1), DType.BF16, True, None)] * 2
    block = trace_block(ContrastiveLoss(kind), specs, options)
    block.graph.lint()
    return block


@pytest.mark.parametrize(("kind", "matrices"), [(SOFTMAX, 2), (SIGMOID, 1)])
@pytest.mark.parametrize("replicas", [1, 4])
def test_loss_by_hand(kind: ContrastiveKind, matrices: int, replicas: int) -> None:
    n, d = 16, 8
    block = loss_block(kind, n, d, replicas)
    everything = n * replicas
    products = [op for op in block.graph.operators if op.kind is OpKind.MATMUL]
    assert len(products) == 3 * matrices
    assert {op.flop for op in products} == {2 * n * everything * d}
    sent = [(op.kind, op.phase, op.net_bytes, op.stream.name) for op in block.graph.operators if op.net_bytes]
    wire = 2 * everything * d * (replicas - 1) // replicas
    gathers = [(OpKind.ALL_GATHER, Phase.FORWARD, wire, "replicas")] * matrices
    scatters = [(OpKind.REDUCE_SCATTER, Phase.INPUT_GRADIENT, wire, "replicas")] * matrices
    assert sent == ([*gathers, *scatters] if replicas > 1 else [])
    trained = [use.numel for use in block.parameters if use.gradient is not None]
    assert trained == ([1] if kind is SOFTMAX else [1, 1])


def test_rows_are_shared_out_under_sequence_parallelism() -> None:
    n, d, replicas, tp = 16, 8, 4, 2
    whole, shared = loss_block(SIGMOID, n, d, replicas), loss_block(SIGMOID, n, d, replicas, tp=tp)

    def work(block: TracedBlock) -> int:
        return sum(op.flop for op in block.graph.operators)  # type: ignore[misc]

    assert work(shared) * tp == work(whole)
    sent = [(op.kind, op.stream.name, op.net_bytes) for op in shared.graph.operators if op.net_bytes]
    across, inside = 2 * n * replicas * d // tp * 3 // 4, 2 * n * replicas * d // 2
    assert sent == [
        (OpKind.ALL_GATHER, "replicas", across),
        (OpKind.ALL_GATHER, "tp", inside),
        (OpKind.REDUCE_SCATTER, "tp", inside),
        (OpKind.REDUCE_SCATTER, "replicas", across),
    ]


def tiny(kind: ContrastiveKind = SOFTMAX) -> Model:
    text = TextTowerConfig(layers=2, hidden=WIDTH, ffn=64, heads=4, vocab=128, positions=CAPTION)
    if kind is SOFTMAX:
        vision = ClipVisionConfig(layers=2, hidden=64, ffn=128, heads=4, image_size=28)
        return make_dual_encoder("tiny-clip", DualEncoderConfig(vision, text, projection=16))
    tower = SiglipVisionConfig(layers=2, hidden=WIDTH, ffn=64, heads=4, image_size=28, patch_size=14)
    text = replace(text, causal=False, projection=WIDTH)
    return make_dual_encoder("tiny-siglip", DualEncoderConfig(tower, text, None, SIGMOID))


def items(count: int, pairs: int = 3) -> list[Microbatch]:
    return [Microbatch({"text": [CAPTION] * pairs, "vision": [PATCHES] * pairs}, samples=pairs)] * count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [SOFTMAX, SIGMOID])
@pytest.mark.parametrize(
    "parallel",
    [Parallel(dp=2), Parallel(tp=2, pp=2, dp=2), Parallel(tp=2, pp=5, sequence_parallel=False), Parallel(pp=3, dp=2)],
    ids=["dp2", "tp2_pp2_dp2", "tp2_pp5_no_sp", "pp3_dp2"],
)
def test_against_the_reference(parallel: Parallel, kind: ContrastiveKind) -> None:
    for recompute in ("none", "full"):
        job = job_of(tiny(kind), items(4), parallel, recompute=recompute)
        assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("zero", [0, 1])
def test_reductions_against_the_reference(zero: int) -> None:
    assert_tails_equal(job_of(tiny(), items(4), Parallel(dp=2, pp=2, zero=zero)))


def test_nodes_are_crossed_where_replicas_are() -> None:
    job = job_of(tiny(), items(4), Parallel(dp=4, tp=2), gpus_per_node=2)
    assert_equal(simulate(job), expand(job))


def test_frozen_towers_against_the_reference() -> None:
    """As in LiT (2111.07991): the image tower is locked."""
    job = job_of(tiny().freeze(["vision"]), items(4), Parallel(dp=2, pp=2))
    assert_equal(simulate(job), expand(job))


def test_hidden_reductions_against_the_reference() -> None:
    job = job_of(tiny(), items(4), Parallel(dp=2, pp=2), overlap=overlap(gradients=True))
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("modules", [{"vision": {"tp": 1}}, {"text": {"tp": 1}, "vision": {"tp": 1}}])
def test_towers_of_another_parallelism_against_the_reference(modules: dict[str, dict[str, int]]) -> None:
    job = job_of(tiny(), items(4, pairs=4), Parallel(tp=2, dp=2, modules=modules))
    assert_equal(simulate(job), expand(job))


def test_a_model_is_traced_anew_for_other_replicas() -> None:
    model = tiny()

    def similarity_work(dp: int) -> int:
        report = simulate(job_of(model, items(4), Parallel(dp=dp)))
        rank = report.timeline.ranks[0]
        tables = [rank.expand(number) for number in range(len(rank.stages))]
        work = [
            int(flop)
            for table in tables
            for flop, path in zip(table.flop, table.table.paths, strict=True)
            if path.endswith("similarities")
        ]
        return sum(work) * dp // 4

    assert [similarity_work(dp) for dp in (1, 2, 4)] == [2 * 2 * 3 * 3 * dp * 16 for dp in (1, 2, 4)]


def test_context_parallelism_is_refused() -> None:
    with pytest.raises(GraphError, match="contrastive loss over rows") as caught:
        simulate(job_of(tiny(), items(2), Parallel(cp=2)))
    assert caught.value.nearest == "cp = 1"


RUN = '[model]\nname = "clip-vit-l-14"\n[cluster]\ndevice = "h100"\n[parallel]\ndp = 8\n'


def test_run_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    run = resolve_run(path)
    assert run.config["batch"] == {"kind": "pairs"}
    job = load_run(path, ["training.micro_batch=32", "training.global_batch=512"])
    (first, *_) = job.batch.microbatches(2, 32)
    assert first.streams == {"text": (77,) * 32, "vision": (256,) * 32}
    report = simulate(job)
    assert report.breakdown_s["exposed_communication"]["replicas"] > 0  # type: ignore[index]
    assert any("compares 256 samples" in note for note in report.warnings)


def test_captions_and_images_must_fit(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    for change, got in (("training.seq_len=50", "50 tokens"), ("batch.patches_per_image=100", "100 patches")):
        with pytest.raises(ConfigError, match=got):
            simulate(load_run(path, [change]))
    with pytest.raises(ConfigError, match="not a valid number"):
        pair_batch(0)
    with pytest.raises(ConfigError, match="batch option"):
        load_run(path, ["batch.text_tokns=1"])


def test_the_shipped_model_by_work() -> None:
    """Towers: 6 FLOP a parameter of the layers and token, and attention; measured in closed form for one pair."""
    model = semu_models.clip_vit_l_14()
    n, h, t, p, c = 8, 1024, 768, 257, 77
    job = TrainingJob(
        model,
        Cluster("h100", 1, 1),
        Parallel(),
        Training(micro_batch=n, global_batch=n),
        pair_batch(),
    )
    vision = 24 * (24 * h * h * p + 4 * p * p * h) + 2 * 256 * 588 * h
    text = 12 * (24 * t * t * c + 2 * c * c * t)
    head = 2 * h * t + 2 * t * t + 2 * 2 * n * t
    first = 2 * 256 * 588 * h  # nothing flows into the pixels
    assert simulate(job).model_flop == n * (3 * (vision + text + head) - first)

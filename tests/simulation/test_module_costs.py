"""A parallelism per modality module: FLOP, bytes moved and stored against figures written out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from simulation.jobs import job_of, t2v, t2v_items, vlm, vlm_items

from semu.engine.timeline import StageSlice
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.present.report import Report
from semu.simulation import simulate
from semu.workload import Microbatch

BF16, FP32 = 2, 4
IMAGES = Microbatch({"text": [40, 24], "vision": [16] * 8, "vision_tokens": [4] * 8}, samples=2)
"""8 images of 16 patches, 4 tokens each; 64 tokens of text with them."""
CLIPS = Microbatch({"text": [8] * 4, "video": [64] * 4}, samples=4)
"""4 clips of 64 latent tokens with captions of 8 tokens."""


def vlm_job(own: ModuleParallel | None, *, sequence_parallel: bool = True, zero: int = 1, tp: int = 4) -> TrainingJob:
    modules = {"vit": own} if own is not None else {}
    return job_of(vlm(), [IMAGES], Parallel(tp=tp, sequence_parallel=sequence_parallel, zero=zero, modules=modules))


def t2v_job(own: ModuleParallel | None) -> TrainingJob:
    return job_of(t2v(), [CLIPS], Parallel(tp=4, modules={"dit": own} if own is not None else {}))


def operators(report: Report, module: str, phase: str) -> list[tuple[OpKind, str, int, int]]:
    """(kind, stream, FLOP, bytes sent) of a module's operators in the stages of one phase."""
    found: list[tuple[OpKind, str, int, int]] = []
    for rank in report.timeline.ranks:
        for number, stage in enumerate(rank.stages):
            assert isinstance(stage, StageSlice)
            if stage.module == module and stage.phase.value == phase:
                made = rank.expand(number)
                rows = zip(made.table.kinds, made.table.streams, made.flop, made.net_bytes, strict=True)
                found += [(kind, stream, int(flop), int(net)) for kind, stream, flop, net in rows]
    return found


def flop(report: Report, module: str) -> int:
    """FLOP of a rank in the module's forward stages."""
    return sum(row[2] for row in operators(report, module, "F"))


def exchanged(report: Report, module: str, phase: str) -> list[int]:
    """Bytes that a rank sends to spread tensors anew."""
    return [net for _, stream, _, net in operators(report, module, phase) if stream.startswith("reshard")]


def vit_flop(images: int) -> int:
    """Forward pass of the tiny vision transformer: 3 layers, hidden 64, ffn 192, patches of 588 numbers, width 128."""
    patches, hidden, ffn = 16, 64, 192
    layer = 2 * patches * hidden * (3 * hidden + hidden + 2 * ffn) + 4 * patches * patches * hidden
    merger = 2 * 4 * (4 * hidden) * 128 + 2 * 4 * 128 * 128
    return images * (2 * patches * 588 * hidden + 3 * layer + merger)


def vit_elements() -> int:
    """Parameters of the tiny vision transformer: embedding with positions, layers with biases and norms, merger."""
    hidden, ffn = 64, 192
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * ffn + ffn + hidden + 2 * 2 * hidden
    merger = 2 * hidden + (4 * hidden * 128 + 128) + (128 * 128 + 128)
    return (588 * hidden + hidden) + 16 * hidden + 3 * layer + merger


def llm_elements(tp: int) -> int:
    """A rank's parameters of the tiny language model: 3 layers, hidden 128, ffn 256, 8 heads with 4 for keys."""
    layer = 128 * (8 + 4 + 4) * 16 + 128 * 128 + 3 * 128 * 256
    return (2 * 384 * 128 + 3 * layer) // tp + (2 * 3 + 1) * 128


@pytest.mark.parametrize(("own", "images"), [(4, None), (2, 4), (1, 2)])
def test_images_are_spread_over_the_tensor_parallel_ranks(own: int, images: int | None) -> None:
    """Whole images on every group, and no work more or less than under one parallelism."""
    uniform, spread = simulate(vlm_job(None)), simulate(vlm_job(ModuleParallel(tp=own)))
    assert spread.model_flop == uniform.model_flop
    assert spread.hardware_flop == uniform.hardware_flop
    if images is not None:
        assert flop(spread, "vit") * own == vit_flop(images)
    assert flop(spread, "llm") == flop(uniform, "llm")


def test_the_busiest_rank_has_the_rest_of_the_images() -> None:
    """9 images on 4 groups: one has 3."""
    items = Microbatch({"text": [64], "vision": [16] * 9, "vision_tokens": [4] * 9}, samples=1)
    uniform = replace(vlm_job(None), batch=job_of(vlm(), [items]).batch)
    spread = replace(uniform, parallel=replace(uniform.parallel, modules={"vit": ModuleParallel(tp=1)}))
    report = simulate(spread)
    assert flop(report, "vit") == vit_flop(ceil(9 / 4))
    assert report.model_flop == simulate(uniform).model_flop


@pytest.mark.parametrize(("own", "gathered"), [(1, 4), (2, 4)])
def test_image_tokens_are_gathered_and_their_gradients_too(own: int, gathered: int) -> None:
    """With sequence parallelism each of 4 ranks has a fourth of 32 tokens of width 128, before and after."""
    report = simulate(vlm_job(ModuleParallel(tp=own)))
    part = 32 // gathered * 128 * BF16
    assert exchanged(report, "llm", "F") == [(gathered - 1) * part]
    assert exchanged(report, "llm", "B") == [(4 - 1) * 32 // 4 * 128 * BF16]
    assert not exchanged(report, "vit", "F")
    assert not exchanged(report, "vit", "B")


@pytest.mark.parametrize(("own", "parts"), [(1, 4), (2, 2)])
def test_without_sequence_parallelism_gradients_are_there_already(own: int, parts: int) -> None:
    report = simulate(vlm_job(ModuleParallel(tp=own), sequence_parallel=False))
    assert exchanged(report, "llm", "F") == [(parts - 1) * 32 // parts * 128 * BF16]
    assert exchanged(report, "llm", "B") == []


@pytest.mark.parametrize("zero", [0, 1])
def test_what_a_rank_stores_and_reduces(zero: int) -> None:
    """Whole weights of the vision transformer; ZeRO-1 shares its optimizer out to the 4 ranks that have them all."""
    vit, llm = vit_elements(), llm_elements(4)
    assert vit == vlm().modules[0].body.num_parameters()
    report = simulate(vlm_job(ModuleParallel(tp=1), zero=zero))
    assert report.ranks[0].parameters == vit + llm
    optimizer = (vit // 4 if zero else vit) + llm
    assert vit % 4 == 0
    assert report.static_memory_bytes == ((vit + llm) * (BF16 + FP32) + optimizer * 3 * FP32,)
    outer = [(piece.kind, piece.net_bytes, piece.group_ranks) for piece in report.timeline.ranks[0].outer]
    if zero:
        assert (OpKind.REDUCE_SCATTER, 3 * vit * FP32 // 4, 4) in outer
        assert (OpKind.ALL_GATHER, 3 * vit * BF16 // 4, 4) in outer
    else:
        assert (OpKind.ALL_REDUCE, 2 * 3 * vit * FP32 // 4, 4) in outer


def dit_flop(clips: int, tp: int) -> int:
    """A rank's forward pass of the tiny diffusion transformer: 3 layers, hidden 96, ffn 256; 64 tokens a clip, captions
    of 8; only what is done for a clip, and not for a token, is done on every rank."""
    hidden, ffn, tokens, text = 96, 256, 64 * clips, 8 * clips
    own = 2 * tokens * hidden * (3 * hidden + hidden) + 4 * clips * 64 * 64 * hidden
    cross = 2 * tokens * hidden * 2 * hidden + 2 * text * hidden * 2 * hidden + 4 * clips * 64 * 8 * hidden
    layers = 3 * (own + cross + 2 * tokens * hidden * 2 * ffn)
    ends = 2 * tokens * 16 * hidden + 2 * text * 128 * hidden + 2 * tokens * hidden * 16
    by_clip = 2 * clips * (32 * hidden + hidden * hidden + hidden * 6 * hidden)
    return (layers + ends) // tp + by_clip


@pytest.mark.parametrize(("own", "clips"), [(4, 4), (2, 2), (1, 1)])
def test_clips_and_their_captions_are_spread_together(own: int, clips: int) -> None:
    uniform, spread = simulate(t2v_job(None)), simulate(t2v_job(ModuleParallel(tp=own)))
    assert flop(spread, "dit") == dit_flop(clips, own)
    assert flop(spread, "llm") == flop(uniform, "llm")
    assert spread.model_flop == uniform.model_flop
    caption = 8 * 128 * BF16
    if own < 4:
        assert exchanged(spread, "dit", "F") == [3 * caption]
        assert exchanged(spread, "dit", "B") == [3 * caption]


def test_what_a_rank_stores_of_a_decoder() -> None:
    """One layer's parameters: a table, norms, fused and plain projections with biases; tp = 2 cuts the matrices."""

    def elements(tp: int) -> int:
        hidden, ffn = 96, 256
        columns = (hidden + 1) * (3 * hidden + hidden + 2 * hidden + ffn)
        rows = 2 * hidden * hidden + ffn * hidden
        layer = (columns + rows) // tp + 3 * hidden + 6 * hidden + 2 * hidden
        inputs = (16 + 128 + 32 + hidden) * hidden + 4 * hidden + 2 * hidden + (hidden + 1) * 6 * hidden
        return 3 * layer + inputs + 2 * hidden + (hidden + 1) * 16

    assert elements(1) == t2v().modules[1].body.num_parameters()
    llm = llm_elements(4) - 384 * 128 // 4
    for own in (1, 2, 4):
        report = simulate(t2v_job(ModuleParallel(tp=own)))
        assert report.ranks[0].parameters == elements(own) + llm
        share = ceil(elements(own) / (4 // own)) if own < 4 else elements(own)
        expected = (elements(own) + llm) * (BF16 + FP32) + (share + llm) * 3 * FP32
        assert report.static_memory_bytes == (expected,)


@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_the_job_s_own_sizes_change_no_bit(kind: str) -> None:
    model, items = (vlm, vlm_items) if kind == "vlm" else (t2v, t2v_items)
    parallel = Parallel(dp=2, tp=2, pp=2)
    plain = job_of(model(), items(6), parallel)
    own = {module.name: ModuleParallel(tp=2, cp=1, sequence_parallel=True, dp=2, pp=2) for module in model().modules}
    told = replace(plain, model=model(), parallel=replace(parallel, modules=own))
    one, other = simulate(plain).to_json(), simulate(told).to_json()
    assert one["job"]["parallel"].items() <= other["job"]["parallel"].items()  # type: ignore[index]
    for key in ("job",):
        del one[key], other[key]
    assert one == other

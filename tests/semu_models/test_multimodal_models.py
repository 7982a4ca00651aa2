"""Encoders and multimodal models: parameters of every module as transformers counts them, FLOP by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.jobs import job_of

import semu_models
from semu.errors import ConfigError
from semu.nn import Model, Module
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu.workload import Microbatch
from semu_models.multimodal.gemma_vl import SIGLIP_SO400M_896, Gemma3VLConfig
from semu_models.multimodal.intern_vl import InternVLConfig, make_intern_vl
from semu_models.multimodal.llava import LlavaConfig
from semu_models.multimodal.qwen_vl import QwenVLConfig
from semu_models.text.qwen import QWEN2_1_5B, QWEN2_7B, QwenConfig
from semu_models.vision.clip_vision import CLIP_VIT_L_14_336
from semu_models.vision.intern_vit import INTERN_VIT_6B, INTERN_VIT_300M, InternViTConfig
from semu_models.vision.qwen_vision import qwen2_5_vision, qwen2_vision
from semu_models.vision.siglip import SIGLIP_SO400M_384
from semu_models.vision.vit_classic import VIT_BASE_16, ClassicViT

MODULES: dict[str, dict[str, int]] = {
    "vit-base-patch16": {"vision": 86_567_656},
    "vit-large-patch16": {"vision": 304_326_632},
    "clip-vision-l-14-336": {"vision": 303_507_456},
    "siglip-so400m": {"vision": 428_225_600},
    "whisper-large-v3": {"audio": 636_968_960, "decoder": 906_521_600},
    "llava-1.5-7b": {"vision": 303_507_456 + 20_979_712, "llm": 6_607_605_760 + 32064 * 4096},
    "llava-1.5-13b": {"vision": 303_507_456 + 31_467_520, "llm": 12_852_352_000 + 32064 * 5120},
    "qwen2-vl-2b": {"vision": 665_271_296, "llm": 1_543_714_304},
    "qwen2-vl-7b": {"vision": 675_759_104, "llm": 7_070_619_136 + 152064 * 3584},
    "qwen2-vl-72b": {"vision": 699_356_672, "llm": 71_460_495_360 + 152064 * 8192},
    "qwen2.5-vl-3b": {"vision": 668_684_288, "llm": 3_085_938_688},
    "qwen2.5-vl-7b": {"vision": 676_550_144, "llm": 7_070_619_136 + 152064 * 3584},
    "qwen2.5-vl-32b": {"vision": 688_841_984, "llm": 31_985_308_672 + 152064 * 5120},
    "qwen2.5-vl-72b": {"vision": 704_573_696, "llm": 71_460_495_360 + 152064 * 8192},
    "internvl2.5-8b": {"vision": 304_012_288 + 33_570_816, "llm": 7_358_685_184 + 92553 * 4096},
    "internvl3-1b": {"vision": 304_012_288 + 4_482_816, "llm": 493_798_016},
    "internvl3-8b": {"vision": 304_012_288 + 27_540_480, "llm": 7_069_221_376 + 151674 * 3584},
    "internvl3-78b": {"vision": 5_536_496_000 + 172_008_448, "llm": 71_457_300_480 + 151674 * 8192},
    "gemma3-vl-4b": {"vision": 416_866_032 + 2_950_272, "llm": 3_880_263_168},
    "gemma3-vl-12b": {"vision": 416_866_032 + 4_424_832, "llm": 11_766_034_176},
    "gemma3-vl-27b": {"vision": 416_866_032 + 6_194_304, "llm": 27_009_346_304},
    "qwen2-audio-7b": {"audio": 636_968_960 + 5_246_976, "llm": 7_115_771_904 + 156032 * 4096},
    "qwen2.5-omni-7b": {"vision": 676_550_144, "audio": 639_647_232, "llm": 7_070_619_136 + 152064 * 3584},
}
"""From transformers 5.23.0's classes on the meta device: ``vision_tower`` or ``visual`` (+ ``multi_modal_projector``),
``audio_tower``, ``language_model`` (+ ``lm_head``, vocabulary x hidden, where it is not tied)."""

TOTALS = {
    "llava-1.5-7b": 7_063_427_072,
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2-vl-72b": 73_405_560_320,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-72b": 73_410_777_344,
    "internvl3-8b": 7_944_373_760,
    "gemma3-vl-4b": 4_300_079_472,
    "qwen2-audio-7b": 8_397_094_912,
    "whisper-large-v3": 1_543_490_560,
}
"""Sizes of the released checkpoints, as their model cards print them."""


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_the_parameters_of_the_framework(name: str) -> None:
    model = semu_models.build(name)
    assert {module.name: module.body.num_parameters() for module in model.modules} == MODULES[name]
    assert model.num_parameters() == sum(MODULES[name].values()) == TOTALS.get(name, model.num_parameters())


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (replace(VIT_BASE_16, labels=None, pooler=True), 86_389_248),  # ViTModel
        (replace(VIT_BASE_16, labels=None), 85_798_656),  # without its pooler
        (replace(VIT_BASE_16, labels=2), 85_800_194),  # ViTForImageClassification with two classes
    ],
)
def test_vit_with_and_without_its_heads(config: object, parameters: int) -> None:
    assert ClassicViT(config).num_parameters() == parameters  # type: ignore[arg-type]


def test_siglip_without_its_pooling_head() -> None:
    from semu_models.vision.siglip import siglip_vision_model

    assert siglip_vision_model("s", replace(SIGLIP_SO400M_384, head=False)).num_parameters() == 412_987_248


def test_intern_vit_without_biases() -> None:
    model = make_intern_vl("i", InternVLConfig(replace(INTERN_VIT_300M, qkv_bias=False), QWEN2_7B))
    tower = sum(
        p.numel for path, p in model.named_parameters() if path.startswith("vision.") and "projector" not in path
    )
    assert tower == 303_938_560


# -- FLOP --------------------------------------------------------------------------------------------------------------
def model_flop(model: Model, item: Microbatch, parallel: Parallel | None = None) -> int:
    return simulate(job_of(model, [item], parallel)).model_flop


def attention(width: int, pairs: int) -> int:
    """q k^T and p v, forward and the two gradients of each: 12 pairs x width."""
    return 12 * width * pairs


def decoder(c: QwenConfig, tokens: int, pairs: int) -> int:
    """6 FLOP a weight and token, causal attention counted half."""
    head = c.hidden // c.heads
    layer = c.hidden * head * (2 * c.heads + 2 * c.kv_heads) + 3 * c.hidden * c.ffn
    return c.layers * (6 * tokens * layer + attention(c.hidden, pairs) // 2) + 6 * tokens * c.hidden * c.vocab


IMAGES, TEXT = [256, 1024, 100], [600, 345 + 100]
MERGED = [n // 4 for n in IMAGES]


def qwen_item() -> Microbatch:
    return Microbatch({"text": TEXT, "vision": IMAGES, "vision_tokens": MERGED}, samples=2)


def squares(lengths: list[int]) -> int:
    return sum(n * n for n in lengths)


def qwen_encoder(mlp: int, pairs: list[int], out: int) -> int:
    """32 layers of width 1280 (``pairs``: of each), the merger, and the patches' projection, which has no gradient for
    its input."""
    patches, tokens = sum(IMAGES), sum(MERGED)
    layers = 32 * 6 * patches * (4 * 1280 * 1280 + mlp) + sum(attention(1280, n) for n in pairs)
    return layers + 6 * tokens * (5120 * 5120 + 5120 * out) + 4 * patches * 1176 * 1280


def test_flop_of_qwen2_vl() -> None:
    text = decoder(QWEN2_1_5B, sum(TEXT), squares(TEXT))
    vision = qwen_encoder(2 * 1280 * 5120, [squares(IMAGES)] * 32, 1536)
    assert model_flop(semu_models.qwen2_vl_2b(), qwen_item()) == text + vision


def test_flop_of_qwen2_5_vl_whose_windows_hold_64_patches() -> None:
    inside = sum(n // 64 * 64**2 + (n % 64) ** 2 for n in IMAGES)
    text = decoder(QWEN2_7B, sum(TEXT), squares(TEXT))
    vision = qwen_encoder(3 * 1280 * 3420, [inside] * 28 + [squares(IMAGES)] * 4, 3584)
    assert model_flop(semu_models.qwen2_5_vl_7b(), qwen_item()) == text + vision
    frozen = semu_models.qwen2_5_vl_7b().freeze(["encoder"])
    forward_only = vision - 4 * sum(IMAGES) * 1176 * 1280
    assert model_flop(frozen, qwen_item()) == text + forward_only // 3 + 2 * sum(IMAGES) * 1176 * 1280


@pytest.mark.parametrize(
    "parallel", [None, Parallel(tp=2), Parallel(tp=2, sequence_parallel=False)], ids=["alone", "sp", "no_sp"]
)
def test_flop_of_whisper(parallel: Parallel | None) -> None:
    h, ffn, vocab, clips, text = 1280, 5120, 51866, 3, [40, 17, 77]
    frames, tokens = 3000 * clips, 1500 * clips
    item = Microbatch({"text": text, "audio": [3000] * clips}, samples=clips)
    layer = 4 * h * h + 2 * h * ffn
    encoder = 32 * (6 * tokens * layer + attention(h, clips * 1500**2))
    convolutions = 4 * frames * 128 * 3 * h + 6 * tokens * 3 * h * h  # the first has no gradient for its input
    cross = 6 * (2 * h * h * sum(text) + 2 * h * h * tokens) + attention(h, 1500 * sum(text))
    decoder = 32 * (6 * sum(text) * layer + attention(h, squares(text)) // 2 + cross) + 6 * sum(text) * h * vocab
    model = semu_models.whisper_large_v3()
    table = next(p for path, p in model.named_parameters() if path.endswith("text.weight"))
    assert table.shape == (vocab, h)  # even: it is split two ways
    assert model_flop(model, item, parallel) == encoder + convolutions + decoder


def test_flop_of_llava_is_that_of_23_layers_over_577_tokens() -> None:
    h, ffn, images, text = 1024, 4096, 2, [1300]
    item = Microbatch({"text": text, "vision": [576] * images, "vision_tokens": [576] * images}, samples=1)
    patches, tokens = 576 * images, 577 * images
    vision = 23 * (6 * tokens * (4 * h * h + 2 * h * ffn) + attention(h, images * 577**2))
    vision += 4 * patches * 588 * h + 6 * patches * (h * 4096 + 4096 * 4096)
    language = QwenConfig(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32064)
    assert model_flop(semu_models.llava_1_5_7b(), item) == vision + decoder(language, sum(text), squares(text))


def test_flop_of_a_pooling_head() -> None:
    """One query for each image attends to all its patches."""
    h, ffn, images = 1152, 4304, 3
    patches = 729 * images
    item = Microbatch({"text": [9], "vision": [729] * images, "vision_tokens": [729] * images}, samples=1)
    body = 27 * (6 * patches * (4 * h * h + 2 * h * ffn) + attention(h, images * 729**2)) + 4 * patches * 588 * h
    head = 6 * images * (2 * h * h + 2 * h * ffn) + 6 * patches * 2 * h * h + attention(h, patches)
    with_head = semu_models.siglip_so400m()
    assert with_head.num_parameters() == 428_225_600
    assert model_flop(with_head, replace_text(item, 2187)) == body + head


def replace_text(item: Microbatch, tokens: int) -> Microbatch:
    return Microbatch({**item.streams, "text": [tokens]}, samples=item.samples)


@pytest.mark.parametrize("name", ["qwen2-vl-2b", "internvl3-8b", "gemma3-vl-4b", "qwen2-audio-7b"])
def test_all_ranks_together_do_the_model_s_work(name: str) -> None:
    """Patches and tokens divide by 2 here, so that there is no padding."""
    items = {
        "qwen2-vl-2b": {"vision": [256, 64], "vision_tokens": [64, 16]},
        "internvl3-8b": {"vision": [1024] * 2, "vision_tokens": [256] * 2},
        "gemma3-vl-4b": {"vision": [4096] * 2, "vision_tokens": [256] * 2},
        "qwen2-audio-7b": {"audio": [3000] * 2, "audio_tokens": [101, 75]},
    }
    item = Microbatch({"text": [900, 100], **items[name]}, samples=2)
    whole = model_flop(semu_models.build(name), item)
    assert model_flop(semu_models.build(name), item, Parallel(tp=2)) == whole


# -- configurations ----------------------------------------------------------------------------------------------------
def test_parts_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="not as wide as the backbone") as caught:
        QwenVLConfig(qwen2_vision(3584), QWEN2_1_5B)
    assert caught.value.nearest == 1536
    with pytest.raises(ConfigError, match="do not pool") as caught:
        Gemma3VLConfig(SIGLIP_SO400M_896, semu_models.text.gemma.GEMMA3_4B, tokens_per_image=200)
    assert caught.value.nearest == 256
    with pytest.raises(ConfigError, match="no such layer") as caught:
        LlavaConfig(CLIP_VIT_L_14_336, semu_models.text.llama.LM_7B, feature_layer=-30)
    assert caught.value.nearest == -24
    with pytest.raises(ConfigError, match="windows do not divide") as caught:
        replace(qwen2_5_vision(3584), window=100)
    assert caught.value.nearest == 112
    with pytest.raises(ConfigError, match="no such layer"):
        replace(qwen2_5_vision(3584), full_layers=(7, 40))
    with pytest.raises(ConfigError, match="does not divide into heads"):
        InternViTConfig(layers=2, hidden=1000, ffn=64, heads=16)


def test_norms_over_all_heads_are_computed_under_tensor_parallelism() -> None:
    """The same FLOP, with queries and keys exchanged between the group's ranks for their norms."""
    config = replace(INTERN_VIT_6B, layers=2, hidden=64, ffn=96, heads=4, image_size=28)
    item = Microbatch({"text": [40], "vision": [4] * 2, "vision_tokens": [1] * 2}, samples=1)

    def _model(*, qk_norm: bool) -> Model:
        vision = replace(config, qk_norm=qk_norm)
        return make_intern_vl("tiny", InternVLConfig(vision, QwenConfig(2, 64, 96, 4, 4, vocab=128)))

    model = _model(qk_norm=True)
    assert model_flop(model, item, Parallel(tp=2)) == model_flop(model, item)
    with_norms, without = (
        simulate(job_of(_model(qk_norm=norm), [item], Parallel(tp=2))).breakdown_s for norm in (True, False)
    )
    assert with_norms["exposed_communication"]["tp"] > without["exposed_communication"]["tp"] > 0


def test_what_llava_does_not_use_is_held_and_not_trained() -> None:
    model = semu_models.llava_1_5_7b()
    idle = [p for _, p in model.named_parameters() if not p.requires_grad]
    layer = 12 * 1024**2 + 13 * 1024
    assert sum(p.numel for p in idle) == layer + 2 * 1024


def test_every_part_can_be_frozen() -> None:
    for name in ("qwen2-vl-2b", "qwen2-audio-7b", "qwen2.5-omni-7b", "whisper-large-v3"):
        model = semu_models.build(name)
        for module in model.modules:
            body: Module = semu_models.build(name).freeze([module.name]).modules[model.modules.index(module)].body
            assert body.num_parameters(trainable_only=True) == 0

"""Whole models against PyTorch and transformers, which nobody here wrote, on the CPU: parameters, FLOP of both
directions by ``FlopCounterMode``, and bytes that autograd keeps by ``saved_tensors_hooks``, all to the last byte.

What semu means otherwise is a term of ``Terms``, with its reason; nothing else may differ. transformers' norms are
Python in fp32 where kernels keep their input; its queries, keys and values are three products where Megatron-LM has
one; its experts are a loop where Megatron-LM has grouped kernels. The CPU's layer norm keeps bf16 moments, CUDA's fp32.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import semu
from calibration.step.step_models import step_job
from calibration.steps import DIT_FEATURES, DIT_TIMESTEP, StepCase
from semu.cli import main

torch = pytest.importorskip("torch", reason="torch is the executor extra")
transformers = pytest.importorskip("transformers", reason="transformers is the hf extra")
if True:  # behind the skips
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from calibration.step.torch_towers import Diffusion, Tower

SEQUENCES, LENGTH, LAYERS, HIDDEN, HEADS, FFN, VOCAB, DIM = 2, 24, 2, 64, 4, 160, 96, 16
TOKENS = SEQUENCES * LENGTH
BF16, FP32, INT64 = 2, 4, 8
SIZES = {
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "vocab_size": VOCAB,
}
FEW = {**SIZES, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": DIM}
GPT2 = {"n_layer": LAYERS, "n_embd": HIDDEN, "n_head": HEADS, "n_inner": FFN, "vocab_size": VOCAB, "n_positions": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**FEW, "tie_word_embeddings": False}),
    "qwen3": ("Qwen3ForCausalLM", {**FEW, "head_dim": DIM}),
    "gpt2": (
        "GPT2LMHeadModel",
        {**GPT2, "activation_function": "gelu_pytorch_tanh"}
        | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
        | dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
    ),
    "bert": (
        "BertForMaskedLM",
        {**SIZES, "max_position_embeddings": 32}
        | dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    ),
    "mixtral": ("MixtralForCausalLM", {**FEW, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": DIM}),
    "gemma2": ("Gemma2ForCausalLM", {**FEW, "head_dim": DIM, "query_pre_attn_scalar": DIM, "sliding_window": 64}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**FEW, **EXPERTS, "head_dim": DIM, "num_experts": 4}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**SIZES, **EXPERTS, **LATENT, "num_key_value_heads": HEADS, "n_routed_experts": 8, "n_group": 2}
        | {"topk_group": 1, "first_k_dense_replace": 1},
    ),
}
PATCHES, IMAGES = 5, 4
CAPTION, NARROW = 12, 48
CLIP: dict[str, Any] = {
    "model_type": "clip",
    "architectures": ["CLIPModel"],
    "projection_dim": 32,
    "text_config": {**SIZES, "hidden_size": NARROW, "intermediate_size": 96, "max_position_embeddings": CAPTION}
    | {"bos_token_id": 0, "eos_token_id": VOCAB - 1, "pad_token_id": 1},
    "vision_config": {**SIZES, "num_hidden_layers": 3, "image_size": 28, "patch_size": 14},
}
CLIP["vision_config"].pop("vocab_size")
EAGER = {
    "recompute": "none",
    "cross_entropy": "unfused",
    "software": "torch",
    "gradient_accumulation_fusion": False,
    "eager_modules": True,
}
"""Training as PyTorch runs modules, operator by operator."""


class Terms:
    """Bytes that PyTorch keeps and semu, on purpose, does not; negative: the other way round."""

    python_norm = TOKENS * HIDDEN * FP32
    """transformers' RMS norm: an fp32 copy of the input and the normed input, where a kernel keeps the input."""
    head_norm = TOKENS * DIM * FP32
    """The same over a head."""
    queries_and_keys = -TOKENS * (HEADS + 2) * DIM * BF16
    """One product for queries, keys and values (Megatron-LM): what comes before the rotation stays with the values."""
    rotation = 2 * LENGTH * DIM * BF16
    """Tables of cosines and sines: semu's rotation is a kernel that computes them."""
    moments = -2 * (FP32 - BF16)
    """Of a token, mean and deviation of a layer norm, which CUDA's kernel keeps in fp32 and the CPU's in bf16."""
    labels = TOKENS * INT64
    """Labels, which semu takes for the ids."""
    weights = FP32
    """Sum of the weights of the loss, a number."""
    positions = LENGTH * INT64
    """Ids of the positions: semu's embedding takes the table's first rows."""
    half_softmax = -TOKENS * VOCAB * (FP32 - BF16)
    """BERT's loss in transformers is in bf16."""
    experts = 2 * TOKENS * (FFN * BF16 + 2 * HIDDEN * BF16 + 2 * INT64 + FP32)
    """transformers' loop over experts keeps, beside what grouped kernels keep (silu is made again, weights are applied
    inside): of each row silu, what comes out before the weights, what is added up, two indices and the weight."""
    targets = TOKENS * 2 * DIT_FEATURES * BF16
    """Noise that a DiT is compared with: data, as labels."""
    scales = 2 * LAYERS * SEQUENCES * HIDDEN * BF16
    """A DiT's 1 + scale, a row per image."""


LANGUAGE = Terms.labels + Terms.weights
KEPT: dict[str, int] = {
    "llama": 5 * Terms.python_norm + LAYERS * Terms.queries_and_keys + Terms.rotation + LANGUAGE,
    "qwen3": 5 * Terms.python_norm + LAYERS * (HEADS + 2) * Terms.head_norm + Terms.rotation + LANGUAGE,
    "gpt2": 5 * TOKENS * Terms.moments + Terms.positions + LANGUAGE,
    "bert": 6 * TOKENS * Terms.moments + Terms.positions + Terms.half_softmax + Terms.labels + BF16,
    "mixtral": 5 * Terms.python_norm + LAYERS * (Terms.queries_and_keys + Terms.experts) + Terms.rotation + LANGUAGE,
}
"""What PyTorch keeps more, term by term."""


@cache
def made(name: str, attention: str) -> Any:
    """transformers' model in bf16, with random weights."""
    torch.manual_seed(0)
    architecture, fields = MODELS.get(name, ("CLIPModel", CLIP))
    cls = getattr(transformers, architecture)
    config = cls.config_class.from_dict({key: value for key, value in fields.items() if key != "model_type"})
    words = {"experts_implementation": "eager"} if "experts" in json.dumps(fields) else {}
    model = cls._from_config(config, attn_implementation=attention, **words).to(torch.bfloat16)
    model.tie_weights()
    return model


def count(model: Any) -> int:
    return sum({id(one): one.numel() for one in model.parameters()}.values())


def counted(run: Callable[[], Any]) -> int:
    """FLOP of a function and of the gradients of what it gives."""
    with FlopCounterMode(display=False) as counter:
        result = run()
        result.backward(torch.ones_like(result))
    return int(counter.get_total_flops())


def kept(model: Any, run: Callable[[], Any]) -> int:
    """Bytes of the storages that autograd keeps, without parameters and constants."""
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    found: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage  # alive, so that nothing else takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _alive = run()
    return sum(storage.nbytes() for storage in found.values())


def language_loss(model: Any) -> Callable[[], Any]:
    ids = torch.randint(VOCAB, (SEQUENCES, LENGTH))
    labels = ids.clone()
    words = {} if "Bert" in type(model).__name__ else {"use_cache": False}
    return lambda: model(input_ids=ids, labels=labels, **words).loss


def job_of(fields: dict[str, Any], folder: Path, attention: str) -> semu.TrainingJob:
    """The same on one GPU, by the public door."""
    (folder / "config.json").write_text(json.dumps(fields))
    sizes = {"micro_batch": SEQUENCES, "global_batch": SEQUENCES, "seq_len": LENGTH}
    if fields["model_type"] == "clip":
        sizes = {"micro_batch": IMAGES, "global_batch": IMAGES}
    options = {**EAGER, **sizes, "attention": attention}
    settings = [f"training.{key}={json.dumps(value)}" for key, value in options.items()]
    return semu.load_run(str(folder / "config.json"), settings, cluster="h100:1x1", parallel="dp1-tp1-pp1")


def fields_of(name: str) -> dict[str, Any]:
    architecture, fields = MODELS[name]
    return {"model_type": name, "architectures": [architecture], **fields}


def held(job: semu.TrainingJob) -> list[int]:
    """Bytes that semu keeps from forward to backward, by stage."""
    return semu.compile_plan(job).estimates.memory.held_bytes.tolist()


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_flop(name: str, tmp_path: Path) -> None:
    model = made(name, "eager")
    report = semu.simulate(job_of(fields_of(name), tmp_path, "unfused"))
    assert report.to_json()["parameters"] == count(model)
    assert report.hardware_flop == counted(language_loss(model))


def test_the_command_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made("llama", "eager")
    (tmp_path / "config.json").write_text(json.dumps(fields_of("llama")))
    words = {"cluster": "h100:1x1", "parallel": "dp1-tp1-pp1", "recompute": "none", "attention": "unfused"}
    sizes = {"micro-batch": SEQUENCES, "global-batch": SEQUENCES, "seq-len": LENGTH}
    options = [f"--{name}={value}" for name, value in {**words, **sizes}.items()]
    assert main(["simulate", str(tmp_path / "config.json"), *options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["parameters"] == count(model)
    assert report["hardware_flop"] == counted(language_loss(model))


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str, tmp_path: Path) -> None:
    """Attention is torch's fused one, which keeps queries, keys, values, its result and a number a row and head."""
    model = made(name, "sdpa")
    (ours,) = held(job_of(fields_of(name), tmp_path, "fused"))
    assert kept(model, language_loss(model)) - ours == KEPT[name]


def clip_inputs() -> tuple[Any, Any]:
    """Images and captions, of which the last token ends the caption."""
    ids = torch.randint(2, VOCAB - 1, (IMAGES, CAPTION))
    ids[:, -1] = VOCAB - 1
    return torch.randn(IMAGES, 3, 28, 28, dtype=torch.bfloat16), ids


def test_two_towers_parameters_and_flop(tmp_path: Path) -> None:
    """OpenCLIP, and semu, multiply the features twice: images by captions, captions by images."""
    model = made("clip", "eager")
    images, ids = clip_inputs()
    report = semu.simulate(job_of(CLIP, tmp_path, "unfused"))
    assert report.to_json()["parameters"] == count(model)
    second = 3 * 2 * IMAGES * IMAGES * CLIP["projection_dim"]
    run = lambda: model(input_ids=ids, pixel_values=images, return_loss=True).loss  # noqa: E731
    assert report.hardware_flop == counted(run) + second


def test_what_two_towers_keep(tmp_path: Path) -> None:
    """Up to the features of images and captions. transformers takes the images' first tokens as a view of all tokens,
    and captions' last ones by two indices each; its loss scales products where OpenCLIP scales features."""
    model = made("clip", "sdpa")
    images, ids = clip_inputs()
    vision, text, _ = held(job_of(CLIP, tmp_path, "fused"))
    tokens = IMAGES * PATCHES
    first = (tokens - IMAGES) * HIDDEN * BF16
    of_images = kept(model, lambda: model.vision_model(pixel_values=images).pooler_output)
    assert of_images - vision == (7 * tokens + IMAGES) * Terms.moments + first
    of_captions = kept(model, lambda: model.text_model(input_ids=ids).pooler_output)
    assert of_captions - text == 5 * IMAGES * CAPTION * Terms.moments + 2 * IMAGES * INT64


def tower(scope: str) -> tuple[StepCase, Any, Callable[[], Any]]:
    """Layers of a ViT, or a DiT, in plain torch; the case for semu."""
    case = StepCase(scope, LAYERS, HIDDEN, FFN, HEADS, HEADS, 0, LENGTH, SEQUENCES)
    half = torch.bfloat16
    if scope == "vit":
        model, shapes = Tower(case), [(SEQUENCES, LENGTH, HIDDEN)]
    else:
        latents = (SEQUENCES, LENGTH, DIT_FEATURES)
        model, shapes = Diffusion(case), [latents, (SEQUENCES, DIT_TIMESTEP), (*latents[:2], 2 * DIT_FEATURES)]
    model = model.to(half)
    data = [torch.randn(shape, dtype=half, requires_grad=scope == "vit") for shape in shapes]
    return case, model, lambda: model(*data)


@pytest.mark.parametrize("scope", ["vit", "dit"])
def test_towers_of_images(scope: str) -> None:
    """A ViT's layers and a diffusion transformer with adaLN."""
    case, model, run = tower(scope)
    job = step_job(case, "h100")
    (ours,) = held(job)
    report = semu.simulate(dataclasses.replace(job, training=dataclasses.replace(job.training, attention="unfused")))
    norms = 2 * LAYERS * TOKENS * Terms.moments
    terms = {"vit": norms, "dit": norms + TOKENS * Terms.moments + Terms.targets + Terms.scales}
    assert kept(model, run) - ours == terms[scope]
    assert report.to_json()["parameters"] == count(model)
    with sdpa_kernel(SDPBackend.MATH):
        assert report.hardware_flop == counted(run)

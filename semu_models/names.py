"""``shipped_name``: the shipped model that a name or an id of the HuggingFace hub stands for.

It is compared with the shipped names after what does not change the shape is dropped: the owner, the words of a
fine-tuned or converted copy. Names that differ from the shipped ones stand in ``SAME_SHAPE``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from semu.checks import known_spelling

_DROPPED = re.compile(
    r"[-_.](instruct|base|chat|hf|it|pt|text|bnb|4bit|8bit|unsloth|bf16|int4|int8|aqlm|2bit|1x16|2x8|dpo|sft|v\d+(\.\d+)?|2407|2409|2501|2503|2506"
    r"|2507|thinking|0324|0528|awq|gptq|gguf|fp8|dynamic)$"
)

SAME_SHAPE: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("llama-3-8b", "meta-llama-3-8b", "llama-3.1-8b", "meta-llama-3.1-8b"), "llama3-8b"),
        **dict.fromkeys(("deepseek-r1-distill-llama-8b", "hermes-3-llama-3.1-8b"), "llama3-8b"),
        **dict.fromkeys(
            ("llama-3-70b", "meta-llama-3-70b", "llama-3.1-70b", "meta-llama-3.1-70b", "llama-3.3-70b"), "llama3-70b"
        ),
        "deepseek-r1-distill-llama-70b": "llama3-70b",
        **dict.fromkeys(("llama-3.1-405b", "meta-llama-3.1-405b", "hermes-3-llama-3.1-405b"), "llama3-405b"),
        **dict.fromkeys(("llama-7b", "vicuna-7b-v1.3"), "lm-7b"),
        **dict.fromkeys(("vicuna-7b", "vicuna-7b-v1.5", "codellama-7b-python"), "llama2-7b"),
        **dict.fromkeys(("vicuna-13b", "vicuna-13b-v1.5", "llama-13b"), "llama2-13b"),
        **dict.fromkeys(("mistral-7b-v0.1", "mistral-7b-v0.2", "zephyr-7b-beta"), "mistral-7b"),
        **dict.fromkeys(("mistral-7b-instruct-v0.1", "mistral-7b-instruct-v0.2"), "mistral-7b"),
        **dict.fromkeys(("mistral-7b-instruct-v0.3", "mistral-7b-v0.3"), "mistral-7b-v0.3"),
        **dict.fromkeys(("mistral-nemo-base-2407", "mistral-nemo-instruct-2407"), "mistral-nemo-12b"),
        **dict.fromkeys(("mistral-small-24b-base-2501", "mistral-small-24b-instruct-2501"), "mistral-small-24b"),
        "qwen2.5-0.5b": "qwen2-0.5b",
        "qwen2.5-1.5b": "qwen2-1.5b",
        **dict.fromkeys(("qwen2.5-coder-7b", "qwen2.5-math-7b", "deepseek-r1-distill-qwen-7b"), "qwen2.5-7b"),
        **dict.fromkeys(("qwen2.5-coder-14b", "deepseek-r1-distill-qwen-14b"), "qwen2.5-14b"),
        **dict.fromkeys(("qwen2.5-coder-32b", "deepseek-r1-distill-qwen-32b", "qwq-32b"), "qwen2.5-32b"),
        "qwen2.5-math-72b": "qwen2.5-72b",
        **dict.fromkeys(("gemma-3-4b", "gemma-3-4b-it", "gemma-3-4b-pt"), "gemma3-vl-4b"),
        **dict.fromkeys(("gemma-3-12b", "gemma-3-12b-it", "gemma-3-12b-pt"), "gemma3-vl-12b"),
        **dict.fromkeys(("gemma-3-27b", "gemma-3-27b-it", "gemma-3-27b-pt"), "gemma3-vl-27b"),
        **dict.fromkeys(("deepseek-r1", "deepseek-v3.1", "deepseek-v3-0324", "deepseek-r1-0528"), "deepseek-v3"),
        **dict.fromkeys(("phi-3-mini-4k", "phi-3-mini-128k", "phi-3.5-mini"), "phi-3-mini"),
        "olmo-2-1124-7b": "olmo2-7b",
        "olmo-2-1124-13b": "olmo2-13b",
        "olmo-2-0325-32b": "olmo2-32b",
        "bloom": "bloom-176b",
        **dict.fromkeys(("llama-33b", "vicuna-33b-v1.3"), "llama-30b"),
        "llava-v1.5-7b": "llava-1.5-7b",
        "llava-v1.5-13b": "llava-1.5-13b",
        "stable-diffusion-v1-5": "sd-1.5",
        **dict.fromkeys(("stable-diffusion-2", "stable-diffusion-2-1", "stable-diffusion-2.1"), "sd-2"),
        **dict.fromkeys(("stable-diffusion-xl", "stable-diffusion-xl-base-1.0"), "sdxl"),
        **dict.fromkeys(("stable-diffusion-3.5-large", "sd-3.5-large"), "sd3-8b"),
        **dict.fromkeys(("flux", "flux.1", "flux.1-dev", "flux.1-schnell"), "flux-12b"),
        **dict.fromkeys(("hunyuanvideo", "hunyuan-video"), "hunyuan-video-13b"),
        "gpt-3": "gpt3-175b",
        **dict.fromkeys(("vit-b", "vit-b-16", "vit-base", "vit-base-patch16-224"), "vit-base-patch16"),
        **dict.fromkeys(("vit-l", "vit-l-16", "vit-large", "vit-large-patch16-224"), "vit-large-patch16"),
    }
)
"""Name, or last part of an id, in small letters -> shipped model of the same shape, where the names differ."""


def shipped_name(name: str, shipped: Collection[str]) -> str | None:
    """The one of the shipped names that a name in any spelling, or an id such as ``Qwen/Qwen2.5-7B-Instruct``, stands
    for; itself first; None: none."""
    if name in shipped:
        return name
    stem = _last(name)
    while True:
        if (same := known_spelling(stem, SAME_SHAPE)) is not None:
            return SAME_SHAPE[same]
        if stem in shipped:
            return stem
        # Qwen3-235B: the active parameters are often left out. Before spellings: "qwen2-57b" differs from "qwen2.5-7b"
        # in hyphens and dots alone.
        whole = [entry for entry in shipped if re.fullmatch(rf"{re.escape(stem)}-a\d+(\.\d+)?b", entry)]
        if len(whole) == 1:
            return whole[0]
        if (found := known_spelling(stem, shipped)) is not None:
            return found
        shorter = _DROPPED.sub("", stem)
        if shorter == stem:
            return None
        stem = shorter


def shape_stem(name: str) -> str:
    """What of a name says the shape: the last part of an id without the words that ``_DROPPED`` lists."""
    stem = _last(name)
    while (shorter := _DROPPED.sub("", stem)) != stem:
        stem = shorter
    return stem


def _last(name: str) -> str:
    return name.strip().rstrip("/").rpartition("/")[2].lower()

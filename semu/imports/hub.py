"""``find_hub_model``: the model that an id of the HuggingFace hub, or a local folder, stands for.

An id is compared with the shipped names after what does not change the shape is dropped: the owner, the words of a
fine-tuned or converted copy. Ids whose names differ from the shipped ones stand in ``SAME_SHAPE``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from semu.checks import known_spelling
from semu.errors import ConfigError, nearest_name
from semu_models import MODELS
from semu_models.contexts import CONTEXTS
from semu_models.hf import load_hf

SEQ_LEN = 4096
"""Tokens of a sequence where neither a file nor its model says how many."""
_CONFIG = "config.json"
_DROPPED = re.compile(
    r"[-_.](instruct|base|chat|hf|it|pt|text|bnb|4bit|8bit|unsloth|bf16|int4|int8|aqlm|2bit|1x16|2x8|dpo|sft|v\d+(\.\d+)?|2407|2409|2501|2503|2506"
    r"|2507|thinking|0324|0528|awq|gptq|gguf|fp8|dynamic)$"
)
_QUANTIZED = re.compile(r"[-_.](bnb|4bit|8bit|2bit|int4|int8|awq|gptq|gguf|aqlm|fp8|w4a16|w8a8|hqq|exl2)(?=[-_.]|$)")

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
        "llava-v1.5-7b": "llava-1.5-7b",
        "llava-v1.5-13b": "llava-1.5-13b",
        "stable-diffusion-v1-5": "sd-1.5",
        "stable-diffusion-xl-base-1.0": "sdxl",
    }
)
"""Last part of an id, in small letters -> shipped model of the same shape, where the names differ."""


def find_hub_model(name: str, near: str | os.PathLike[str]) -> dict[str, Any] | None:
    """``[model]`` of a run file for what a program calls a model.

    Args:
        name: an id such as ``Qwen/Qwen2.5-7B-Instruct``, a shipped name in any spelling, or a folder with a
            config.json, or such a file, relative to the file that names it or to the current folder.
        near: the file that names it.
    Returns:
        ``{"hf_config": path}`` of a local model, ``{"name": ...}`` of a shipped one; None: it is neither.
    """
    if not name.strip():
        return None
    folder = os.path.dirname(os.fspath(near))
    for place in (os.path.join(folder, os.path.expanduser(name)), os.path.expanduser(name)):
        if (found := config_in(place)) is not None:
            return {"hf_config": found}
    if name.startswith((".", "/", "~")):
        return None
    shipped = _shipped(PurePath(name).name)
    return None if shipped is None else {"name": shipped}


def config_in(place: str) -> str | None:
    """The config.json that a path means: the file itself, or the one in a folder; None: there is none."""
    try:
        inside = os.path.join(place, _CONFIG)
        if os.path.isfile(inside):
            return inside
        return place if place.endswith(".json") and os.path.isfile(place) else None
    except ValueError:  # a null character
        return None


def hub_model(name: str, near: str, where: str) -> dict[str, Any]:
    """``find_hub_model``, or an error that says how to give the model.

    Args:
        name, near: as ``find_hub_model``. where: place of the name, for messages.
    Raises:
        ConfigError: no such model.
    """
    found = find_hub_model(name, near)
    if found is None:
        raise ConfigError(
            "a model that is neither shipped nor in a folder here",
            where=where,
            expected=f"--set model.hf_config=FOLDER/{_CONFIG}, or --set model.name=NAME of semu list models",
            got=name[:80],
            nearest=_nearest(PurePath(name).name),
        )
    return found


def is_quantized(name: str) -> bool:
    """Whether an id says that its weights are stored in 8 bits or fewer."""
    return _QUANTIZED.search(PurePath(name).name.lower()) is not None


def sequence_length(model: Mapping[str, Any]) -> tuple[int, str]:
    """Tokens of a sequence where a file does not say, and why.

    Args:
        model: ``[model]`` of a run file.
    Raises:
        ConfigError: a config.json that cannot be read.
    """
    if "hf_config" in model:
        context = load_hf(model["hf_config"]).context
        if context is not None and context < SEQ_LEN:
            return context, f"{context} tokens, the longest context that {model['hf_config']} names"
        return SEQ_LEN, f"{SEQ_LEN} tokens"
    length = CONTEXTS.get(str(model.get("name")))
    if length is None:
        return SEQ_LEN, f"{SEQ_LEN} tokens"
    return length, f"{length} tokens, on which {model['name']} was trained"


def _shipped(last: str) -> str | None:
    """The shipped model of the last part of an id."""
    stem = last.lower()
    for _ in range(8):
        if (same := SAME_SHAPE.get(stem)) is not None:
            return same
        if (found := known_spelling(stem, MODELS)) is not None:
            return found
        shorter = _DROPPED.sub("", stem)
        if shorter == stem:
            return None
        stem = shorter
    return None


def _nearest(last: str) -> str | None:
    """The shipped name that looks most like the last part of an id."""
    stem = last.lower()
    for _ in range(8):
        stem = _DROPPED.sub("", stem)
    return nearest_name(stem, [*MODELS]) or nearest_name(stem, [*SAME_SHAPE])

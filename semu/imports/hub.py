"""``find_hub_model``: the model that an id of the HuggingFace hub, or a local folder, stands for
(``semu_models.names``)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from semu.errors import ConfigError, nearest_name
from semu_models import MODELS
from semu_models.contexts import CONTEXTS
from semu_models.hf import load_hf
from semu_models.names import SAME_SHAPE, shape_stem, shipped_name

SEQ_LEN = 4096
"""Tokens of a sequence where neither a file nor its model says how many."""
_CONFIG = "config.json"
_QUANTIZED = re.compile(r"[-_.](bnb|4bit|8bit|2bit|int4|int8|awq|gptq|gguf|aqlm|fp8|w4a16|w8a8|hqq|exl2)(?=[-_.]|$)")


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
    shipped = shipped_name(name, MODELS)
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


def _nearest(last: str) -> str | None:
    """The shipped name that looks most like the last part of an id."""
    stem = shape_stem(last)
    return nearest_name(stem, [*MODELS]) or nearest_name(stem, [*SAME_SHAPE])

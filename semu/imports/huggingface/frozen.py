"""Which modules stay as they are: names of transformers' parameters -> ``[model] frozen``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import semu_models
from semu.imports.settings import Settings
from semu.nn import ModalityRole, Model
from semu_models.hf import load_hf

_LAYER = re.compile(r"(.*\.layers\.(\d+))\.(.+)")
_IN_LAYER: Mapping[str, tuple[str, ...]] = {
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
"""Module of a layer -> modules of Llama's layer in transformers."""
_OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "embedding": ("model.embed_tokens",),
    "head.norm": ("model.norm",),
    "head.projection": ("lm_head",),
}
"""Module beside the layers -> modules of transformers."""


def model_of(table: Mapping[str, Any]) -> Model:
    """The model of ``[model]``, a shipped one or of a config.json.

    Raises:
        ConfigError: a file that cannot be read, or of a model that is not known.
    """
    if "hf_config" in table:
        return load_hf(table["hf_config"]).model
    return semu_models.build(table["name"], where="model.name")


def freeze_by_name(settings: Settings, key: str, model: dict[str, Any], trains: Callable[[str], bool]) -> None:
    """Write ``frozen``: the modules of which no parameter trains.

    Args:
        settings: take what cannot be said. key: that chooses. model: ``[model]``.
        trains: name of a parameter in transformers -> whether it does.
    """
    frozen: dict[str, bool] = {}
    built = model_of(model)
    for path, _ in built.named_parameters():
        module = path.rpartition(".")[0]
        names = _names(module, [item.name for item in built.modules if item.role is ModalityRole.BACKBONE])
        if names is None:
            settings.refuse(key, f"which parameters of {module} train")
            return
        chosen = [trains(f"{name}.weight") for name in names]
        if any(chosen) != all(chosen):
            settings.refuse(key, f"{module} trains in part")
            return
        frozen[module] = not any(chosen)
    model["frozen"] = _together(frozen)


def freeze_layers(model: dict[str, Any], trained: Callable[[int, int], bool]) -> None:
    """Write ``frozen``: everything but some layers of the language model.

    Args:
        model: ``[model]``. trained: (number of a layer, layers) -> whether it trains.
    """
    built = model_of(model)
    modules = dict.fromkeys(path.rpartition(".")[0] for path, _ in built.named_parameters())
    names = {item.name for item in built.modules if item.role is ModalityRole.BACKBONE}
    numbers = {int(match[2]) for path in modules if (match := _LAYER.fullmatch(path)) and path.split(".")[0] in names}
    frozen = {}
    for path in modules:
        match = _LAYER.fullmatch(path)
        is_own = path.split(".")[0] in names
        frozen[path] = not (is_own and match is not None and trained(int(match[2]), len(numbers)))
    model["frozen"] = _together(frozen)


def _names(module: str, backbones: list[str]) -> list[str] | None:
    """Modules of transformers that a module holds; None: it is not known."""
    head, _, rest = module.partition(".")
    if head not in backbones:
        return None
    if (match := _LAYER.fullmatch(module)) is None:
        return list(_OUTSIDE[rest]) if rest in _OUTSIDE else None
    inside = _IN_LAYER.get(match[3])
    return None if inside is None else [f"model.layers.{match[2]}.{name}" for name in inside]


def _together(frozen: Mapping[str, bool]) -> list[str]:
    """Frozen modules, a layer with nothing else as a whole."""
    whole: dict[str, bool] = {}
    for path, is_frozen in frozen.items():
        if (match := _LAYER.fullmatch(path)) is not None:
            whole[match[1]] = whole.get(match[1], True) and is_frozen
    found: dict[str, None] = {}
    for path, is_frozen in frozen.items():
        match = _LAYER.fullmatch(path)
        if is_frozen:
            found[match[1] if match is not None and whole[match[1]] else path] = None
    return list(found)

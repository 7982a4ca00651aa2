"""``[model.vit]``, ``dual``, ``dit`` and ``unet``: networks that are no language models, by their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from semu.errors import ConfigError
from semu.lazy import LazyTable, imported
from semu.nn import Model

TABLES: Mapping[str, type[Any]] = LazyTable(
    {
        "vit": imported("semu_models.vision.vit_classic", "ClassicViTConfig"),
        "dual": imported("semu_models.vision.clip", "DualEncoderConfig"),
        "dual.vision": imported("semu_models.vision.clip_vision", "ClipVisionConfig"),
        "dual.text": imported("semu_models.vision.clip", "TextTowerConfig"),
        "dit": imported("semu_models.generation.latent_dit", "LatentDiTConfig"),
        "dit.caption": imported("semu_models.generation.frozen", "TextEncoderConfig"),
        "unet": imported("semu_models.generation.unet", "UNetConfig"),
        "unet.caption": imported("semu_models.generation.frozen", "TextEncoderConfig"),
    }
)
"""Table below ``[model]`` -> what it is read as; ``dit`` and ``unet`` also have ``vae``, the autoencoder."""
NETWORKS = tuple(name for name in TABLES if "." not in name)
"""Keys of ``[model]``, of which a model has one."""


def network_of(table: Mapping[str, Any]) -> str | None:
    """The key of ``[model]`` that describes a network; None: there is none."""
    return next((name for name in NETWORKS if name in table), None)


def network_model(table: Mapping[str, Any]) -> Model:
    """The model of ``[model]``; encoders in the loop of a diffusion model are frozen.

    Raises:
        ConfigError: a missing key, sizes that do not fit together.
    """
    name = network_of(table)
    assert name is not None
    return _MAKERS[name](dict(table[name]))


def _read(path: str, options: Mapping[str, Any]) -> Any:
    config = TABLES[path]
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        return config(**values)
    except TypeError as error:  # a size without a default that is not there
        raise ConfigError("a size is missing", where=f"model.{path}", expected=str(error).partition(": ")[2]) from error
    except ConfigError as error:
        written = config.__name__
        if error.where is not None and error.where.startswith(written):
            error.where = f"model.{path}{error.where.removeprefix(written)}"
        raise


def _vit(options: dict[str, Any]) -> Model:
    from semu_models.vision.vit_classic import make_vit

    return make_vit("vit", _read("vit", options))


def _dual(options: dict[str, Any]) -> Model:
    from semu_models.vision.clip import make_dual_encoder

    towers = {part: _read(f"dual.{part}", options.pop(part, {})) for part in ("vision", "text")}
    return make_dual_encoder("dual", _read("dual", {"projection": None, **options, **towers}))


def _encoders(path: str, options: dict[str, Any]) -> dict[str, Any]:
    caption = options.pop("caption", None)
    text = () if caption is None else (_read(f"{path}.caption", caption),)
    return {"text": text, "vae": bool(options.pop("vae", False))}


def _dit(options: dict[str, Any]) -> Model:
    from semu_models.generation.latent_dit import make_latent_dit

    encoders = _encoders("dit", options)
    return make_latent_dit("dit", _read("dit", options), **encoders)


def _unet(options: dict[str, Any]) -> Model:
    from semu_models.generation.unet import make_unet

    encoders = _encoders("unet", options)
    return make_unet("unet", _read("unet", options), **encoders)


_MAKERS: Mapping[str, Callable[[dict[str, Any]], Model]] = {"vit": _vit, "dual": _dual, "dit": _dit, "unet": _unet}

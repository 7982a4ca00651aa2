"""``DIALECTS``: every dialect by model type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semu.checks import find_named
from semu_models.hf.audio import AUDIO
from semu_models.hf.dialect import Dialect
from semu_models.hf.gpt import OWN_NAMES
from semu_models.hf.moe import MOE
from semu_models.hf.text import TEXT
from semu_models.hf.twin import TWIN
from semu_models.hf.vision import VISION
from semu_models.hf.vision_language import VISION_LANGUAGE

_DIALECTS: tuple[Dialect, ...] = (*TEXT, *OWN_NAMES, *MOE, *VISION, *VISION_LANGUAGE, *AUDIO, *TWIN)

DIALECTS: Mapping[str, Dialect] = MappingProxyType({name: item for item in _DIALECTS for name in item.model_types})
"""Dialects by the ``model_type`` that they read."""


def find_dialect(model_type: str, where: str, *, top: bool = False) -> Dialect:
    """The dialect of a model type.

    Args:
        model_type: as the file writes it. where: its place, for the error. top: it must make a model by itself.
    Raises:
        ConfigError: an unknown one, with the nearest.
    """
    legal = {name: item for name, item in DIALECTS.items() if item.model is not None or not top}
    return find_named("model_type", model_type, legal, where=where)

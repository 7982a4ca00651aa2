"""``add_vision``: the image encoder of a LLaVA-style script, beside the language model that the other arguments say.

``--vision-model-type`` names the encoder, as in Megatron-LM's ``examples/multimodal``; its output goes through two
linear layers. A sequence has one image, and ``--decoder-seq-length`` tokens in all.
"""

from __future__ import annotations

from typing import Any

from semu.imports.settings import Settings

ENCODERS = {"clip": ("clip-vision-l-14-336", 336, 14), "siglip": ("siglip-so400m", 384, 14)}
"""Word -> model that ships, side of its images and of their patches [px]."""


def add_vision(settings: Settings, tables: dict[str, dict[str, Any]]) -> None:
    """Turn tables of a language model into those of a vision-language model, where an encoder is named.

    Raises:
        ConfigError: images or patches of another size than the encoder's.
    """
    word = settings.get("vision_model_type")
    if word is None:
        return
    name, image, patch = ENCODERS[word]
    for dest, side in (("img_h", image), ("img_w", image), ("patch_dim", patch)):
        if (told := settings.size(dest)) not in (None, side):
            raise settings.error(dest, f"{name} has another size", expected=f"{side} px", got=told, nearest=side)
    tables["model"] = {"encoder": name, "projector": {"layers": 2}, "llm": tables["model"].pop("transformer")}
    tables["training"]["seq_len"] = settings.size("decoder_seq_length") or tables["training"]["seq_len"]
    tables["batch"] = {"kind": "vlm", "images_mean": 1.0, "images_max": 1}
    settings.notes.append(
        f"--vision-model-type {word} is taken as {name} behind a projector of two layers, one image a sequence"
    )

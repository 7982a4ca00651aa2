"""A row's ``multimodal`` object in the words of a run file: ``run_of_multimodal``. It is read for what it holds:

* ``unet``: a U-Net of ``model_channels`` (320), ``channel_mult`` (1 2 4 4), ``num_res_blocks`` (2), ``context_dim``
  (1024), ``head_channels`` (64) or ``heads``, one ``transformer_depth`` (1) on all levels but the last, or one for
  each.
* ``llm``: a vision-language model: a CLIP tower of ``vision`` with a projector, behind it that decoder.
* ``vision`` and a ``text`` with sizes: two towers, compared over all replicas.
* ``vision``: a ViT with a classifier.
* ``layers`` and ``hidden``: a diffusion transformer; attention in space and then in time where ``attention`` speaks of
  both as separate ("spatial then temporal"), else full; a caption is read where ``text`` speaks of cross attention.

``software`` of the row is that of the run.

Defaults, said as remarks: a feed-forward network is 4 hidden wide (``mlp_ratio``), a caption has 77 tokens (behind T5
120), latents have an eighth of the image's side, patches are 2 x 2. A frozen text encoder or autoencoder is in the
loop only where the object says that it runs there; an autoencoder also where the source does not tell ("not told"),
since public trainers encode their images in the loop (DiT's and Open-Sora's ``train.py``). A text encoder is T5 1.1
XXL where one is called T5, else OpenCLIP's ViT-H/14. ``frozen`` parts are frozen where they are a tower, an encoder,
or the language model. A sample of a vision-language model is one image and ``text_tokens``, where a source does not
say them as many as ``max_length`` leaves, at most ``CHAT_TOKENS``; where the language model is frozen, captions of
``CAPTION_TOKENS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from semu.checks import is_integer, is_number
from semu.errors import ConfigError

Run = dict[str, dict[str, Any]]
CAPTION_TOKENS, CHAT_TOKENS = 40, 256
"""Of a caption and of an instruction with its answer, where a row does not tell [tokens]."""
_T5: Mapping[str, object] = {
    "layers": 24, "hidden": 4096, "ffn": 10240, "heads": 64, "vocab": 32128, "head_dim": 64, "gated": True,
}  # fmt: skip
_CLIP_H: Mapping[str, object] = {"layers": 23, "hidden": 1024, "ffn": 4096, "heads": 16}
_VAE_SIDE = 8
"""Pixels along a side that the autoencoder makes one of."""


_ALIASES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_layers", "depth", "blocks"),
    "hidden": ("hidden_size", "width", "dim"),
    "ffn": ("ffn_hidden", "ffn_hidden_size", "intermediate_size", "mlp"),
    "heads": ("num_heads", "num_attention_heads"),
    "patch": ("patch_size",),
    "image_size": ("resolution", "image_px"),
    "frames": ("num_frames",),
    "context": ("text_tokens", "seq_len"),
}
"""Field -> other names by which sources call it."""
_NETWORKS = frozenset(
    [
        "vision",
        "vit",
        "image",
        "text",
        "unet",
        "u_net",
        "llm",
        "language",
        "language_model",
        "dit",
        "transformer",
        "denoiser",
        "projector",
        "vae",
    ]
)
"""Objects that may be read as networks; another one that has layers is left out, and said."""
_STREAMS = re.compile("(double|single|dual|joint)(_stream)?_(layers|blocks)")
"""Layers of networks with two kinds of them (FLUX, SD3)."""


class _Object:
    """An object with missing fields; what stands in for them is said.

    Args:
        table: the object. path: of it, for messages. remarks: where to say.
    """

    def __init__(self, table: Mapping[str, object], path: str, remarks: list[str]) -> None:
        self.table, self.path, self.remarks = table, path, remarks

    def size(self, name: str, default: int | None = None) -> int:
        """An integer >= 1; the first number of a text."""
        value = self.value(name)
        if isinstance(value, str) and (found := re.search(r"\d+", value)):
            value = int(found.group())
        if is_number(value) and value >= 1 and value == int(value):
            return int(value)
        if value is None and default is not None:
            self.remarks.append(f"{self.path}{name} taken as {default}")
            return default
        raise ConfigError(
            "missing field" if value is None else "a wrong value",
            where=self.path + name,
            expected="an integer >= 1",
            got=value,
        )

    def value(self, name: str) -> object:
        """A field by its name or another that it goes by; ``layers`` also as the sum of two kinds of them."""
        names = (name, *_ALIASES.get(name, ()))
        found = next((value for key in names if (value := self.table.get(key)) is not None), None)
        parts = [value for key, value in self.table.items() if _STREAMS.fullmatch(key) and is_integer(value)]
        return sum(parts) if found is None and name == "layers" and parts else found

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.value(name) is not None

    def text(self, name: str) -> str:
        """A remark in lower case; empty where there is none."""
        value = self.table.get(name)
        return " ".join(map(str, value)).lower() if isinstance(value, list) else str(value or "").lower()

    def part(self, *names: str) -> _Object | None:
        """An object below this one, by the first name that has one."""
        for name in names:
            value = self.table.get(name)
            if isinstance(value, Mapping):
                return _Object(value, f"{self.path}{name}.", self.remarks)
        return None

    def sizes(self, name: str, least: int = 1) -> tuple[int, ...]:
        """A list of integers that are not too small; empty where there is none."""
        value = self.table.get(name)
        is_list = isinstance(value, list) and value and all(is_integer(v) and v >= least for v in value)
        return tuple(value) if isinstance(value, list) and is_list else ()


def run_of_multimodal(table: Mapping[str, object]) -> tuple[Run, tuple[str, ...]]:
    """Tables ``model`` and ``batch`` of a run file, and what was taken for open fields, a sentence each.

    Raises:
        ConfigError: a size that has no default; ``where`` names the field.
    """
    remarks: list[str] = []
    item = _Object(table, "multimodal.", remarks)
    vision, text, unet = item.part("vision", "vit", "image"), item.part("text"), item.part("unet", "u_net")
    llm = item.part("llm", "language", "language_model")
    if unet is not None:
        run = _unet(item, unet)
    elif llm is not None and vision is not None:
        run = _language(item, vision, llm)
    elif vision is not None and text is not None:
        run = _dual(item, vision, text)
    elif vision is not None:
        run = _vit(item, vision)
    elif (item.has("hidden") or item.has("layers")) and item.part("dit", "transformer", "denoiser") is None:
        run = _dit(item, item)
    elif (dit := item.part("dit", "transformer", "denoiser")) is not None:
        run = _dit(item, dit)
    else:
        raise ConfigError(
            "says no network", where="multimodal", expected="unet, vision (with text or llm), or layers and hidden"
        )
    remarks += [
        f"multimodal.{name} is left out"
        for name, value in table.items()
        if isinstance(value, Mapping) and name not in _NETWORKS and _Object(value, "", []).has("layers")
    ]
    return run, tuple(remarks)


def _tower(item: _Object, part: _Object) -> dict[str, Any]:
    hidden = part.size("hidden")
    ratio = part.table.get("mlp_ratio", item.table.get("mlp_ratio"))
    ffn = round(hidden * ratio) if is_number(ratio) else 4 * hidden
    has_ffn = part.has("ffn") or is_number(ratio)
    return {
        "layers": part.size("layers"),
        "hidden": hidden,
        "ffn": part.size("ffn", ffn) if part.has("ffn") or not has_ffn else ffn,
        "heads": part.size("heads", max(hidden // 64, 1)),
    }


def _image(item: _Object, part: _Object) -> dict[str, int]:
    where = part if part.has("image_size") else item
    patch = part if part.has("patch") else item
    return {"image_size": where.size("image_size", 224), "patch_size": patch.size("patch", 14)}


def _vit(item: _Object, vision: _Object) -> Run:
    table = {**_tower(item, vision), **_image(item, vision)}
    patches = max(table["image_size"] // table["patch_size"], 1) ** 2
    batch = {"kind": "fixed", "vision": patches, "vision_tokens": patches}
    return {"model": {"vit": table}, "batch": batch}


def _dual(item: _Object, vision: _Object, text: _Object) -> Run:
    images, captions = {**_tower(item, vision), **_image(item, vision)}, _tower(item, text)
    context = text.size("context", 77)
    captions |= {"positions": context, "vocab": text.size("vocab", 49408)}
    width = item.size("projection", captions["hidden"])
    frozen = [name for name in ("vision", "text") if name in item.text("frozen")]
    model = {"dual": {"vision": images, "text": captions, "projection": width}, "frozen": frozen}
    patches = max(images["image_size"] // images["patch_size"], 1) ** 2
    return {"model": model, "batch": {"kind": "pairs", "text_tokens": context, "patches_per_image": patches}}


def _language(item: _Object, vision: _Object, llm: _Object) -> Run:
    image = _image(item, vision)
    encoder = {
        **_tower(item, vision), "image_size": image["image_size"], "patch": image["patch_size"], "class_token": True,
    }  # fmt: skip
    decoder = _tower(item, llm) | {"vocab": llm.size("vocab", 32000), "gated_mlp": True, "rms_norm": True}
    decoder |= {"kv_heads": llm.size("kv_heads") if llm.has("kv_heads") else decoder["heads"], "bias": False}
    said = item.text("frozen")
    frozen = ["encoder.embedding", "encoder.layers", "encoder.norm"] if re.search("vi[ts]|clip|encoder", said) else []
    is_alone = re.search(r"\bllm\b|language|vicuna|llama", said) is not None
    patches = max(image["image_size"] // image["patch_size"], 1) ** 2
    tokens = item.size("image_tokens", patches)
    merge = max(round((patches / tokens) ** 0.5), 1)
    text = CAPTION_TOKENS if is_alone else min(CHAT_TOKENS, item.size("max_length", 2048) - tokens)
    text = item.size("text_tokens", max(text, 1))
    model: dict[str, Any] = {"encoder": encoder, "llm": decoder, "frozen": [*frozen, *(["llm"] if is_alone else [])]}
    if merge > 1:
        model["projector"] = {"merge": merge}
    batch = {"kind": "fixed", "text": tokens + text, "vision": patches, "vision_tokens": tokens}
    return {"model": model, "batch": batch}


def _runs_in_loop(remark: str) -> bool:
    """Whether a remark says so; one that leaves it open ("or"), or speaks of encodings made before, does not."""
    is_before = re.search("precomputed|offline|not run|not told|cached", remark) is not None
    return not is_before and re.search("in the loop|runs? |online|frozen", remark) is not None


def _encoders(
    item: _Object, frame_px: int, frames: int, context: int
) -> tuple[dict[str, Any], dict[str, int], list[str]]:
    """Encoders in the loop: keys of the network, streams of the batch, names of what is frozen."""
    text = item.text("text")
    keys: dict[str, Any] = {}
    frozen: list[str] = []
    streams: dict[str, int] = {}
    is_t5 = "t5" in text
    if _runs_in_loop(text):
        keys["caption"] = dict(_T5 if is_t5 else _CLIP_H)
        frozen.append("text")
    is_open = item.text("vae") == "not told"
    if is_open:
        item.remarks.append(f"{item.path}vae taken as run in the loop")
    if is_open or _runs_in_loop(item.text("vae")):
        keys["vae"] = True
        frozen.append("vae")
        streams["vision"] = frames * frame_px * frame_px
    found = re.search(r"(\d+)[ -]tokens", text)
    streams["text"] = int(found.group(1)) if found else 120 if is_t5 else 77
    return keys, streams, frozen


def _unet(item: _Object, unet: _Object) -> Run:
    mult = unet.sizes("channel_mult") or (1, 2, 4, 4)
    depths = unet.sizes("transformer_depth", least=0) or (unet.size("transformer_depth", 1),) * (len(mult) - 1)
    depths = (*depths, *(0,) * (len(mult) - len(depths)))[: len(mult)]
    context = unet.size("context_dim", 1024)
    side = item.size("image_size", 512)
    keys, streams, frozen = _encoders(item, side, 1, context)
    table: dict[str, Any] = {
        "channels": unet.size("model_channels", 320),
        "mult": list(mult),
        "depths": list(depths),
        "middle_depth": max(depths),
        "res_blocks": unet.size("num_res_blocks", 2),
        "context": context,
        **({"heads": unet.size("heads")} if unet.has("heads") else {"head_dim": unet.size("head_channels", 64)}),
        **keys,
    }
    batch = {"kind": "fixed", "video": max(side // _VAE_SIDE, 1) ** 2, **streams}
    return {"model": {"unet": table, "frozen": frozen}, "batch": batch}


def _dit(item: _Object, part: _Object) -> Run:
    table = _tower(item, part)
    side = item.size("image_size", 512)
    patch = item.sizes("patch") or (1, 2, 2)
    frames = item.size("frames", 1)
    latent_frames = max(frames // patch[0], 1)
    cells = max(side // _VAE_SIDE // patch[-1], 1) ** 2
    tokens = item.size("tokens", latent_frames * cells)
    context = 4096
    keys, streams, frozen = _encoders(item, side, frames, context)
    if "cross" in item.text("text") or "caption" in keys:
        table |= {"context": context, "shared": True}
    else:
        streams.pop("text")
    attention = item.text("attention")
    is_split = "spatial" in attention and "full" not in attention
    if is_split and tokens > cells:
        table |= {"frame_tokens": cells, "frames": max(tokens // cells, 1)}
    if frames > 1 and "vae" in keys:
        table["image_latents"] = max(side // _VAE_SIDE, 1) ** 2
    batch = {"kind": "fixed", "video": tokens, **streams}
    return {"model": {"dit": table | keys, "frozen": frozen}, "batch": batch}

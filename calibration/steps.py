"""Training steps that are measured whole: one layer, and a small model; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from calibration.table import REMARK, Value
from semu.errors import ConfigError

EAGER, COMPILED = "torch eager", "torch compile"
"""First words of ``note``."""
IMAGE_PX = 224
CLIP_VOCAB, CLIP_POSITIONS = 49408, 77
"""Of captions (2103.00020)."""
DIT_FEATURES, DIT_TIMESTEP = 16, 256
"""Numbers of a latent token (four channels, patches of 2 x 2) and of a timestep's code (2212.09748)."""


@dataclass(frozen=True)
class StepCase:
    """A training step: forward, backward, optimizer.

    Attributes:
        scope: ``layer``: one decoder layer between given input and given gradient; ``model``: tokens to loss; ``vit``:
            layers of a vision transformer between given input and gradient; ``dit``: a diffusion transformer over
            latents, to the loss; ``two_tower``: CLIP, whose text tower follows from ``hidden`` (``text_sizes``).
        layers, hidden, ffn, heads, kv_heads, vocab: sizes; vocab 0: neither embedding nor loss.
        seq_len, micro_batch: tokens of a sequence, sequences. recompute: ``none`` or ``full``.
        optimizer: ``foreach`` or ``fused`` Adam. dtype: of parameters, gradients and moments alike.
        compiled: the model runs under torch.compile; the table's ``note`` says so.
    """

    scope: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    micro_batch: int
    recompute: str = "none"
    optimizer: str = "fused"
    dtype: str = "bf16"
    compiled: bool = False

    @property
    def note(self) -> str:
        """How torch ran it."""
        return COMPILED if self.compiled else EAGER

    @property
    def patch_features(self) -> int:
        """Values of a patch of an image of 224 px, of which there are ``seq_len`` (``two_tower``)."""
        return 3 * (IMAGE_PX // round(self.seq_len**0.5)) ** 2

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        if self.scope in ("vit", "dit", "two_tower"):
            return self._num_tower_parameters()
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        ends = 2 * self.vocab * self.hidden + self.hidden if self.vocab else 0
        return self.layers * layer + ends

    def _num_tower_parameters(self) -> int:
        """Of layers with biases and layer norms, and what stands around them."""
        vision = self.layers * _layer(self.hidden, self.ffn)
        hidden = self.hidden
        if self.scope == "vit":
            return vision
        if self.scope == "dit":  # norms without weights, a modulation in each layer
            layers = vision + self.layers * ((hidden + 1) * 6 * hidden - 4 * hidden)
            ends = (DIT_FEATURES + 1 + DIT_TIMESTEP + 1 + hidden + 1) * hidden + (hidden + 1) * 2 * DIT_FEATURES
            return layers + ends
        width, ffn, _ = text_sizes(self)
        text = self.layers * _layer(width, ffn) + (CLIP_VOCAB + CLIP_POSITIONS + 2) * width
        image = vision + (self.patch_features + 1 + self.seq_len + 1 + 4) * hidden
        return image + text + (hidden + width) * width + 1

    def row(self) -> dict[str, Value]:
        """Key columns of ``model_steps.csv``, without ``device``."""
        return {name: getattr(self, name) for name in _COLUMNS}

    @classmethod
    def of(cls, row: Mapping[str, str]) -> StepCase:
        """Read a row of ``model_steps.csv``.

        Raises:
            ConfigError: a size that is no number.
        """
        try:
            compiled = row.get("note", "").partition(REMARK)[0] == COMPILED
            return cls(**{name: kind(row[name]) for name, kind in _COLUMNS.items()}, compiled=compiled)
        except ValueError as error:
            raise ConfigError(f"not a step: {error}", where="model_steps.csv", got=dict(row)) from error

    def label(self) -> str:
        """For people."""
        kinds = {"vit": "ViT, ", "dit": "DiT, ", "two_tower": "CLIP, "}
        many = f"model of {self.num_parameters / 1e6:.0f} M, {self.layers} layers"
        name = "layer" if self.scope == "layer" else kinds.get(self.scope, "") + many
        recompute = "" if self.recompute == "none" else ", recompute " + self.recompute
        size = f"hidden {self.hidden}, {self.micro_batch} x {self.seq_len} tokens"
        compiled = ", compiled" if self.compiled else ""
        return f"{name}, {size}{recompute}, {self.optimizer} Adam{compiled}"


def _layer(hidden: int, ffn: int) -> int:
    """Parameters of a layer with biases and layer norms."""
    return 4 * hidden * (hidden + 1) + 2 * hidden * ffn + ffn + hidden + 4 * hidden


def text_sizes(case: StepCase) -> tuple[int, int, int]:
    """Width, inner width and heads of a two-tower model's text tower: two thirds to three quarters of the images',
    as in CLIP (512 beside 768, 768 beside 1024), with heads of 64."""
    width = {768: 512, 1024: 768}.get(case.hidden, case.hidden // 2)
    return width, 4 * width, max(1, width // 64)


_COLUMNS = {
    "scope": str,
    "dtype": str,
    "layers": int,
    "hidden": int,
    "ffn": int,
    "heads": int,
    "kv_heads": int,
    "vocab": int,
    "seq_len": int,
    "micro_batch": int,
    "recompute": str,
    "optimizer": str,
}

LAYER_8B = StepCase("layer", 1, 4096, 14336, 32, 8, 0, 4096, 1)
"""A layer of Llama 3 8B (2407.21783 Table 3)."""
LAYER_7B = StepCase("layer", 1, 4096, 11008, 32, 32, 0, 2048, 2)
"""A layer of Llama 7B (2302.13971 Table 2)."""
LAYER_1B = StepCase("layer", 1, 2048, 5632, 16, 16, 0, 2048, 4)
MODEL_500M = StepCase("model", 8, 2048, 5632, 16, 16, 32000, 2048, 4)
MODEL_1B = StepCase("model", 16, 2048, 8192, 32, 8, 128256, 4096, 2)
"""As Llama 3.2 1B, with an untied output table."""
VIT_L = StepCase("vit", 4, 1024, 4096, 16, 16, 0, 256, 64)
"""Layers of ViT-L (2010.11929 Table 1) over 256 patches."""
VIT_B = StepCase("vit", 12, 768, 3072, 12, 12, 0, 196, 64)
DIT_XL = StepCase("dit", 7, 1152, 4608, 16, 16, 0, 256, 64)
"""A quarter of DiT-XL/2's 28 layers at 256 px (2212.09748 Table 1)."""
CLIP_B = StepCase("two_tower", 12, 768, 3072, 12, 12, 0, 49, 256)
"""ViT-B/32 with its text tower (2103.00020 Table 20)."""
CLIP_L = StepCase("two_tower", 24, 1024, 4096, 16, 16, 0, 256, 32)


def step_cases(*, quick: bool = False) -> list[StepCase]:
    """What is measured. ``quick``: tiny ones, for a dry run."""
    if quick:
        tiny = StepCase("layer", 1, 64, 96, 4, 2, 0, 16, 2)
        model = replace(tiny, scope="model", layers=2, vocab=128)
        towers = [replace(tiny, scope=scope, kv_heads=4, layers=2) for scope in ("vit", "dit", "two_tower")]
        return [tiny, model, replace(model, recompute="full", optimizer="foreach"), *towers]
    return [
        LAYER_8B,
        replace(LAYER_8B, micro_batch=4),
        LAYER_7B,
        LAYER_1B,
        MODEL_500M,
        replace(MODEL_500M, optimizer="foreach"),
        replace(MODEL_500M, recompute="full"),
        replace(MODEL_500M, micro_batch=1),
        MODEL_1B,
        replace(MODEL_1B, recompute="full"),
        VIT_L,
        VIT_B,
        replace(VIT_B, micro_batch=8),
        DIT_XL,
        CLIP_B,
        CLIP_L,
        replace(LAYER_8B, compiled=True),
        replace(LAYER_7B, compiled=True),
        replace(VIT_L, compiled=True),
        replace(DIT_XL, compiled=True),
        replace(MODEL_500M, compiled=True),
        replace(CLIP_B, compiled=True),
    ]

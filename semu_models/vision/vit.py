"""ViT: layer norm, biases, learned positions, plain GELU feed-forward network, full attention inside each image.

DIP Table 2 does not say whether the feed-forward networks are gated. They are plain: only then do ViT 5B (4.3 B) and
22B (21.7 B) make the totals of 12 B, 37 B and 94 B that DIP prints for its vision-language models. DIP does
not print the adapter's shape; the totals fit without it (with the one here the largest of the three is 95 B).
"""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.nn import (
    MLP,
    InputSpec,
    LayerNorm,
    Linear,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    Parameter,
    Sequential,
    Tensor,
    TransformerLayer,
)
from semu.nn import functional as F
from semu.nn.merging import Merging, Rounding
from semu.records import dataclass
from semu_models.text.encoder import VISION_STREAM, VISION_TOKENS, tokens_of


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of a vision transformer; images are square.

    Attributes:
        layers, hidden, ffn, heads: of the transformer.
        image_size: side of an image [px]. patch_size: side of a patch [px]. channels: colours.
        merge: side of the square of patches that becomes one token of the backbone [patches].
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden, an image that does not divide into patches or
            into merged patches.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    image_size: int = 728
    patch_size: int = 14
    channels: int = 3
    merge: int = 4

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")
        check_divides(self, "image_size", "patch_size")
        check_divides(self, "patches_per_side", "merge")

    @property
    def patches_per_side(self) -> int:
        """Patches along one side of an image."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return self.patches_per_side**2

    @property
    def patch_features(self) -> int:
        """Colour values of a patch."""
        return self.patch_size**2 * self.channels


VIT_2B = ViTConfig(layers=48, hidden=1664, ffn=8192, heads=16)
"""DIP Table 1's "ViT 2B", whose shape is not printed: ViT-G/14 (2106.04560 Table 2)."""

VIT_5B = ViTConfig(layers=63, hidden=1792, ffn=15360, heads=16)
"""DIP Table 2 (64 layers in its example of §2.3, 63 in the table)."""

VIT_22B = ViTConfig(layers=48, hidden=6144, ffn=24576, heads=48)
"""ViT-22B (2302.05442 Table 1; DIP Table 2), with sequential instead of its parallel layers."""


class PatchEmbedding(Module):
    """Colour values of patches -> features: a linear map (the convolution with stride = kernel) and a position."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.features, self.channels = config.patch_features, config.channels
        self.projection = Linear(config.patch_features, config.hidden)
        self.positions = Parameter(config.num_patches, config.hidden)

    def forward(self, patches: Tensor) -> Tensor:
        """[patches, patch_features] -> [patches, hidden]."""
        x = F.as_convolution(self.projection(F.shard_tokens(patches)), self.features, self.channels)
        return F.add_parameter(x, self.positions, self.positions.shape[0])


class PatchMerger(Module):
    """The adapter: final norm, ``merge`` x ``merge`` neighbours concatenated, a two-layer MLP to the backbone's width.

    Patches of a square follow one another in the stream, as in Qwen2-VL (2409.12191 §2.1). The inner width is the
    backbone's, as in InternVL's projector (2404.16821 §3.1): Qwen2-VL's inner width, ``merge^2 x hidden``, would
    give ViT 22B an adapter of more than 10 B parameters. As an ``MLP`` it is split by tensor parallelism like the
    layers' feed-forward networks.
    """

    def __init__(self, config: ViTConfig, width: int) -> None:
        super().__init__()
        self.group = config.merge**2
        self.norm = LayerNorm(config.hidden)
        self.mlp = MLP(self.group * config.hidden, width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, hidden] -> [patches / merge^2, width], stream ``vision_tokens``."""
        merged = F.merge_tokens(self.norm(x), self.group, tokens_of(x, VISION_TOKENS, self.group))
        projected: Tensor = self.mlp(merged)
        return projected


class PatchReconstruction(Module):
    """What a ViT learns alone: predict the colour values of its patches (2111.06377 §3, without leaving any out)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.hidden)
        self.projection = Linear(config.hidden, config.patch_features)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, hidden] -> scalar loss."""
        return F.mean_squared_error(self.projection(self.norm(x)))


class ViT(Sequential):
    """Patches [patches, patch_features] of the vision stream -> image tokens, or a loss.

    Args:
        config: sizes.
        width: of the backbone that the adapter feeds; None: trained alone, the last block is ``PatchReconstruction``.
    """

    def __init__(self, config: ViTConfig, width: int | None) -> None:
        layers = {
            f"layers.{i}": TransformerLayer(config.hidden, config.ffn, config.heads, causal=False)
            for i in range(config.layers)
        }
        last = {"head": PatchReconstruction(config)} if width is None else {"adapter": PatchMerger(config, width)}
        super().__init__({"embedding": PatchEmbedding(config), **layers, **last})
        self.config = config


def vision_module(config: ViTConfig, width: int | None, role: ModalityRole) -> ModalityModule:
    """A ViT with what the data loader gives it; named ``vit``."""
    merging = None if width is None else Merging(VISION_STREAM, VISION_TOKENS, ((config.merge**2, Rounding.EXACT),))
    inputs = (InputSpec(VISION_STREAM, config.patch_features),)
    return ModalityModule("vit", role, ViT(config, width), inputs=inputs, merging=merging)


def _model(name: str, config: ViTConfig) -> Model:
    return Model(name, [vision_module(config, None, ModalityRole.BACKBONE)])


def vit_2b() -> Model:
    """ViT 2B, trained alone."""
    return _model("vit-2b", VIT_2B)


def vit_5b() -> Model:
    """ViT 5B, trained alone."""
    return _model("vit-5b", VIT_5B)


def vit_22b() -> Model:
    """ViT 22B, trained alone."""
    return _model("vit-22b", VIT_22B)

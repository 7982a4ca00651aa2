"""The Vision Transformer as it was published: class token, learned positions, a classifier on the class token."""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.errors import ConfigError
from semu.nn import (
    InputSpec,
    LayerNorm,
    Linear,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    Sequential,
    Tensor,
    TransformerLayer,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.text.encoder import VISION_STREAM, ImageEmbedding, merged_images


@dataclass(frozen=True)
class ImageTowerConfig:
    """Sizes of a transformer over the patches of square images of one size.

    Attributes:
        layers, hidden, ffn, heads: of the transformer.
        image_size, patch_size: [px]. channels: colours.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden, a patch larger than the image.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    image_size: int = 224
    patch_size: int = 16
    channels: int = 3

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "image_size", "patch_size", "channels")
        check_divides(self, "hidden", "heads")
        if self.patch_size > self.image_size:
            raise ConfigError(
                f"a patch of {self.patch_size} px is larger than an image of {self.image_size} px",
                where=f"{type(self).__name__}.patch_size",
                expected=f"at most {self.image_size}",
                got=self.patch_size,
                nearest=self.image_size,
            )

    @property
    def num_patches(self) -> int:
        """Patches of an image; a remainder at the edges is cut off, as a convolution does."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def patch_features(self) -> int:
        """Colour values of a patch."""
        return self.patch_size**2 * self.channels


@dataclass(frozen=True)
class ClassicViTConfig(ImageTowerConfig):
    """Sizes of a ViT.

    Attributes:
        labels: classes that it tells apart; None: no classifier.
        pooler: a projection of the class token instead of a classifier (``ViTModel`` of transformers).
        qkv_bias: biases of queries, keys and values.
    """

    labels: int | None = 1000
    pooler: bool = False
    qkv_bias: bool = True


class ClassHead(Module):
    """Final norm, then on every image's class token: a projection with tanh, or a classifier.

    Args:
        config: sizes.
    """

    def __init__(self, config: ClassicViTConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.hidden)
        self.pooler = Linear(config.hidden, config.hidden) if config.pooler else None
        self.classifier = Linear(config.hidden, config.labels) if config.labels is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """[patches + images, hidden] -> scalar loss: cross entropy of the classes, else squared error of features."""
        x = self.norm(x)
        if self.pooler is None and self.classifier is None:
            return F.mean_squared_error(x)
        pooled = F.first_tokens(x)
        if self.pooler is not None:
            pooled = F.activation(self.pooler(pooled), "tanh")
        return F.mean_squared_error(pooled) if self.classifier is None else F.cross_entropy(self.classifier(pooled))


class ClassicViT(Sequential):
    """Patches [patches, patch_features] -> scalar loss; members ``embedding``, ``layers.0`` ..., ``head``."""

    def __init__(self, config: ClassicViTConfig) -> None:
        layers = {
            f"layers.{i}": TransformerLayer(
                config.hidden, config.ffn, config.heads, causal=False, qkv_bias=config.qkv_bias
            )
            for i in range(config.layers)
        }
        positions = config.num_patches + 1
        embedding = ImageEmbedding(config.patch_features, config.hidden, positions, class_token=True)
        super().__init__({"embedding": embedding, **layers, "head": ClassHead(config)})
        self.config = config


VIT_BASE_16 = ClassicViTConfig(layers=12, hidden=768, ffn=3072, heads=12)
"""ViT-B/16 at 224 px (2010.11929 Table 1; google/vit-base-patch16-224)."""
VIT_LARGE_16 = ClassicViTConfig(layers=24, hidden=1024, ffn=4096, heads=16)
"""ViT-L/16 at 224 px (2010.11929 Table 1; google/vit-large-patch16-224)."""
VIT_HUGE_14 = ClassicViTConfig(layers=32, hidden=1280, ffn=5120, heads=16, patch_size=14, labels=None)
"""ViT-H/14 at 224 px (2010.11929 Table 1; google/vit-huge-patch14-224-in21k)."""


def tower_model(name: str, config: ImageTowerConfig, body: Module) -> Model:
    """An image tower trained alone: one backbone, ``vision``.

    Args:
        name: for reports. config: of the images. body: patches -> scalar loss.
    """
    inputs = (InputSpec(VISION_STREAM, config.patch_features),)
    merging = merged_images(1, config.num_patches)
    return Model(name, [ModalityModule("vision", ModalityRole.BACKBONE, body, inputs, merging=merging)])


def make_vit(name: str, config: ClassicViTConfig) -> Model:
    """A ViT of any size. ``name``: for reports."""
    return tower_model(name, config, ClassicViT(config))


def vit_base_patch16() -> Model:
    """ViT-B/16 with a classifier of 1000 classes."""
    return make_vit("vit-base-patch16", VIT_BASE_16)


def vit_large_patch16() -> Model:
    """ViT-L/16 with a classifier of 1000 classes."""
    return make_vit("vit-large-patch16", VIT_LARGE_16)

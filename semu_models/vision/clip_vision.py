"""CLIP's vision tower: convolution without bias, class token, a norm before and one behind the layers, quick GELU."""

from __future__ import annotations

from semu.nn import Activation, LayerNorm, Model, Module, Sequential, Tensor, TransformerLayer
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.text.encoder import FeatureLoss, ImageEmbedding
from semu_models.vision.vit_classic import ImageTowerConfig, tower_model


@dataclass(frozen=True)
class ClipVisionConfig(ImageTowerConfig):
    """Sizes of a CLIP vision tower.

    Attributes:
        activation: of the feed-forward networks.
    """

    patch_size: int = 14
    activation: Activation = Activation.QUICK_GELU


class PooledClass(Module):
    """The class token of every image, behind the last norm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[patches + images, hidden] -> [images, hidden]."""
        out: Tensor = self.norm(F.first_tokens(x))
        return out


def clip_embedding(config: ClipVisionConfig) -> ImageEmbedding:
    """Patches [patches, patch_features] -> [patches + images, hidden]."""
    return ImageEmbedding(
        config.patch_features, config.hidden, config.num_patches + 1, bias=False, class_token=True, pre_norm=True
    )


def clip_layer(config: ClipVisionConfig) -> TransformerLayer:
    """One of the tower's layers."""
    return TransformerLayer(config.hidden, config.ffn, config.heads, causal=False, activation=config.activation)


def clip_vision_blocks(config: ClipVisionConfig) -> dict[str, Module]:
    """Members ``embedding``, ``layers.0`` ..., ``pooler``: patches -> one feature vector an image."""
    layers = {f"layers.{i}": clip_layer(config) for i in range(config.layers)}
    return {"embedding": clip_embedding(config), **layers, "pooler": PooledClass(config.hidden)}


CLIP_VIT_L_14 = ClipVisionConfig(layers=24, hidden=1024, ffn=4096, heads=16)
"""ViT-L/14 at 224 px (2103.00020 Table 20; openai/clip-vit-large-patch14)."""
CLIP_VIT_L_14_336 = ClipVisionConfig(layers=24, hidden=1024, ffn=4096, heads=16, image_size=336)
"""ViT-L/14 at 336 px (openai/clip-vit-large-patch14-336)."""


def clip_vision_model(name: str, config: ClipVisionConfig) -> Model:
    """The tower alone, learning a teacher's features."""
    return tower_model(name, config, Sequential({**clip_vision_blocks(config), "loss": FeatureLoss()}))


def clip_vision_l_14_336() -> Model:
    """CLIP ViT-L/14 at 336 px, the tower alone."""
    return clip_vision_model("clip-vision-l-14-336", CLIP_VIT_L_14_336)

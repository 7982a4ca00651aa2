"""SigLIP's vision tower: no class token, GELU by tanh, and a pooling head that attends (2303.15343)."""

from __future__ import annotations

from semu.nn import MLP, Activation, LayerNorm, Model, Module, Sequential, TransformerLayer
from semu.records import dataclass
from semu_models.text.encoder import AttentionPooling, FeatureLoss, ImageEmbedding, Norm
from semu_models.vision.vit_classic import ImageTowerConfig, tower_model


@dataclass(frozen=True)
class SiglipVisionConfig(ImageTowerConfig):
    """Sizes of a SigLIP vision tower.

    Attributes:
        head: the pooling head is there. activation: of the feed-forward networks.
    """

    head: bool = True
    activation: Activation = Activation.GELU_TANH


def siglip_blocks(config: SiglipVisionConfig) -> dict[str, Module]:
    """Members ``embedding``, ``layers.0`` ..., ``norm``, and ``head`` where there is one."""
    layers = {
        f"layers.{i}": TransformerLayer(
            config.hidden, config.ffn, config.heads, causal=False, activation=config.activation
        )
        for i in range(config.layers)
    }
    mlp = MLP(config.hidden, config.ffn, activation=config.activation)
    head = {"head": AttentionPooling(config.hidden, config.heads, mlp)} if config.head else {}
    embedding = ImageEmbedding(config.patch_features, config.hidden, config.num_patches)
    return {"embedding": embedding, **layers, "norm": Norm(LayerNorm(config.hidden)), **head}


SIGLIP_SO400M_384 = SiglipVisionConfig(layers=27, hidden=1152, ffn=4304, heads=16, image_size=384, patch_size=14)
"""SoViT-400m/14 at 384 px (2303.15343 §4; google/siglip-so400m-patch14-384)."""


def siglip_vision_model(name: str, config: SiglipVisionConfig) -> Model:
    """The tower alone, learning a teacher's features."""
    return tower_model(name, config, Sequential({**siglip_blocks(config), "loss": FeatureLoss()}))


def siglip_so400m() -> Model:
    """SigLIP So400m/14 at 384 px, the vision tower alone."""
    return siglip_vision_model("siglip-so400m", SIGLIP_SO400M_384)

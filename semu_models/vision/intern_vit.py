"""InternViT, InternVL's vision encoder: class token, layer scale; in the 6B RMS norms, of queries and keys too."""

from __future__ import annotations

from semu.nn import MLP, LayerNorm, Module, Tensor, TransformerLayer
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.text.encoder import VISION_TOKENS, ImageEmbedding, tokens_of
from semu_models.vision.vit_classic import ImageTowerConfig


@dataclass(frozen=True)
class InternViTConfig(ImageTowerConfig):
    """Sizes of an InternViT.

    Attributes:
        qkv_bias: biases of queries, keys and values. qk_norm: RMS norms of all queries and all keys of a token, across
            heads. rms_norm: RMS instead of layer norms. layer_scale: every branch has learned factors.
        positions: a learned position table. final_norm: a norm behind the last layer.
    """

    image_size: int = 448
    patch_size: int = 14
    qkv_bias: bool = True
    qk_norm: bool = False
    rms_norm: bool = False
    layer_scale: bool = True
    positions: bool = True
    final_norm: bool = False


def intern_vit_blocks(config: InternViTConfig) -> dict[str, Module]:
    """Members ``embedding``, ``layers.0`` ...: patches -> [patches + images, hidden]."""

    def _layer() -> TransformerLayer:
        return TransformerLayer(
            config.hidden,
            config.ffn,
            config.heads,
            causal=False,
            qkv_bias=config.qkv_bias,
            rms_norm=config.rms_norm,
            whole_norm=config.qk_norm,
            layer_scale=config.layer_scale,
        )

    positions = config.num_patches + 1 if config.positions else None
    embedding = ImageEmbedding(config.patch_features, config.hidden, positions, class_token=True)
    return {"embedding": embedding, **{f"layers.{i}": _layer() for i in range(config.layers)}}


class PixelShuffle(Module):
    """InternVL's projector: class tokens away, ``shuffle`` x ``shuffle`` patches side by side, norm and two layers.

    Args:
        config: of the encoder. width: of the backbone. shuffle: patches along a side of the square (2404.16821 §3.1).
    """

    def __init__(self, config: InternViTConfig, width: int, shuffle: int) -> None:
        super().__init__()
        self.group = shuffle**2
        self.final_norm = LayerNorm(config.hidden) if config.final_norm else None
        self.norm = LayerNorm(self.group * config.hidden)
        self.mlp = MLP(self.group * config.hidden, width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[patches + images, hidden] -> [patches / shuffle^2, width], stream ``vision_tokens``."""
        x = F.drop_tokens(x if self.final_norm is None else self.final_norm(x))
        merged = F.merge_tokens(x, self.group, tokens_of(x, VISION_TOKENS, self.group))
        out: Tensor = self.mlp(self.norm(merged))
        return out


INTERN_VIT_300M = InternViTConfig(layers=24, hidden=1024, ffn=4096, heads=16)
"""InternViT-300M-448px (2412.05271 §3.1; config.json)."""
INTERN_VIT_6B = InternViTConfig(
    layers=45, hidden=3200, ffn=12800, heads=25, qkv_bias=False, qk_norm=True, rms_norm=True
)
"""InternViT-6B-448px-V2_5: 45 of the 48 layers of 2312.14238 Table 2 (2412.05271 §3.1; config.json)."""

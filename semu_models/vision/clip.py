"""Dual encoders: an image tower and a text tower trained against each other (CLIP, 2103.00020; SigLIP, 2303.15343).

Modules ``vision`` and ``text`` are encoders, ``head`` (projections, scale and loss) is the backbone that both feed.
Parameters are those of transformers' ``CLIPModel`` and ``SiglipModel``.
"""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.nn import (
    Activation,
    Embedding,
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
from semu.nn.layers.contrastive import ContrastiveKind, ContrastiveLoss
from semu.nn.merging import Merging
from semu.records import dataclass
from semu_models.text.encoder import VISION_STREAM
from semu_models.vision.clip_vision import CLIP_VIT_L_14, ClipVisionConfig, clip_vision_blocks
from semu_models.vision.siglip import SIGLIP_SO400M_384, SiglipVisionConfig, siglip_blocks


@dataclass(frozen=True)
class TextTowerConfig:
    """Sizes of a text tower.

    Attributes:
        layers, hidden, ffn, heads: of the transformer. vocab: rows of the token table.
        positions: rows of the position table; captions are padded to them.
        causal: a token sees those before it, and the last one stands for the caption (CLIP).
        activation: of the feed-forward networks.
        projection: width of a linear map with bias behind the pooled token (SigLIP); None: there is none.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int = 49408
    positions: int = 77
    causal: bool = True
    activation: Activation = Activation.QUICK_GELU
    projection: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "vocab", "positions")
        if self.projection is not None:
            check_sizes(self, "projection")
        check_divides(self, "hidden", "heads")


@dataclass(frozen=True)
class DualEncoderConfig:
    """Two towers and what joins them.

    Attributes:
        vision: its type tells the tower. text: of the captions.
        projection: width to which both towers' features are mapped, without bias; None: they are compared as they are.
        loss: kind of the loss.
    """

    vision: ClipVisionConfig | SiglipVisionConfig
    text: TextTowerConfig
    projection: int | None
    loss: ContrastiveKind = ContrastiveKind.SOFTMAX


class CaptionPooler(Module):
    """Final norm, one token of every caption (the last one), a projection where there is one."""

    def __init__(self, config: TextTowerConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.hidden)
        self.projection = Linear(config.hidden, config.projection) if config.projection is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [captions, hidden or projection]."""
        pooled = F.first_tokens(self.norm(x))
        if self.projection is not None:
            pooled = self.projection(pooled)
        return pooled


def text_tower(config: TextTowerConfig) -> Sequential:
    """Ids [tokens] -> one feature vector a caption; members ``embedding``, ``layers.0`` ..., ``pooler``."""
    layers = {
        f"layers.{i}": TransformerLayer(
            config.hidden, config.ffn, config.heads, causal=config.causal, activation=config.activation
        )
        for i in range(config.layers)
    }
    embedding = Embedding(config.vocab, config.hidden, positions=config.positions)
    return Sequential({"embedding": embedding, **layers, "pooler": CaptionPooler(config)})


class ContrastiveHead(Module):
    """Projections of both features, and the loss."""

    is_per_token = False

    def __init__(self, config: DualEncoderConfig) -> None:
        super().__init__()
        width = config.projection
        self.vision = Linear(config.vision.hidden, width, bias=False) if width is not None else None
        self.text = Linear(config.text.hidden, width, bias=False) if width is not None else None
        self.loss = ContrastiveLoss(config.loss)

    def forward(self, images: Tensor, texts: Tensor) -> Tensor:
        """[images, hidden], [captions, hidden] -> scalar loss."""
        if self.vision is not None and self.text is not None:
            images, texts = self.vision(images), self.text(texts)
        out: Tensor = self.loss(images, texts)
        return out


def make_dual_encoder(name: str, config: DualEncoderConfig) -> Model:
    """Modules ``vision`` and ``text`` (encoders) and ``head`` (backbone).

    Args:
        name: for reports. config: sizes.
    """
    vision, text = config.vision, config.text
    blocks = clip_vision_blocks(vision) if isinstance(vision, ClipVisionConfig) else siglip_blocks(vision)
    patches = (InputSpec(VISION_STREAM, vision.patch_features),)
    captions = Merging("text", None, length=text.positions, item="caption")
    return Model(
        name,
        [
            ModalityModule(
                "vision",
                ModalityRole.ENCODER,
                Sequential(blocks),
                patches,
                merging=Merging(VISION_STREAM, None, length=vision.num_patches),
            ),
            ModalityModule("text", ModalityRole.ENCODER, text_tower(text), merging=captions),
            ModalityModule("head", ModalityRole.BACKBONE, ContrastiveHead(config), (), sources=("vision", "text")),
        ],
    )


CLIP_B_32 = DualEncoderConfig(
    ClipVisionConfig(layers=12, hidden=768, ffn=3072, heads=12, patch_size=32),
    TextTowerConfig(layers=12, hidden=512, ffn=2048, heads=8),
    projection=512,
)
"""ViT-B/32 (2103.00020 Table 20; openai/clip-vit-base-patch32)."""
CLIP_L_14 = DualEncoderConfig(CLIP_VIT_L_14, TextTowerConfig(layers=12, hidden=768, ffn=3072, heads=12), projection=768)
"""ViT-L/14 (2103.00020 Table 20; openai/clip-vit-large-patch14)."""
SIGLIP_SO400M = DualEncoderConfig(
    SIGLIP_SO400M_384,
    TextTowerConfig(
        layers=27,
        hidden=1152,
        ffn=4304,
        heads=16,
        vocab=32000,
        positions=64,
        causal=False,
        activation=Activation.GELU_TANH,
        projection=1152,
    ),
    projection=None,
    loss=ContrastiveKind.SIGMOID,
)
"""SoViT-400m/14 at 384 px with its text tower (google/siglip-so400m-patch14-384)."""


def clip_vit_b_32() -> Model:
    """CLIP ViT-B/32."""
    return make_dual_encoder("clip-vit-b-32", CLIP_B_32)


def clip_vit_l_14() -> Model:
    """CLIP ViT-L/14."""
    return make_dual_encoder("clip-vit-l-14", CLIP_L_14)


def siglip_so400m_dual() -> Model:
    """SigLIP So400m/14 at 384 px, both towers."""
    return make_dual_encoder("siglip-so400m-dual", SIGLIP_SO400M)

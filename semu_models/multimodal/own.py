"""Vision-language models put together from parts: any image tower, a projector, any decoder.

A tower is spelt out (``EncoderConfig``) or taken from another model, without what stands behind its layers and norm
(pooling head, classifier, projector, loss); a decoder is the backbone of any model that has a token table.
"""

from __future__ import annotations

from collections.abc import Mapping

from semu.checks import check_divides, check_integer, check_member, check_sizes, nearest_divisor
from semu.errors import ConfigError
from semu.nn import (
    MLP,
    Activation,
    Embedding,
    InputSpec,
    LayerNorm,
    Linear,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    Parameter,
    RMSNorm,
    Sequential,
    Tensor,
    TransformerLayer,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.multimodal.multimodal import ItemEmbedding, make_multimodal
from semu_models.multimodal.vlm import ImageTextEmbedding
from semu_models.text.encoder import VISION_STREAM, VISION_TOKENS, ImageEmbedding, Norm, merged_images, tokens_of


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and style of a transformer over the patches of square images of one size.

    Attributes:
        layers, hidden, ffn, heads, kv_heads, head_dim: of the transformer.
        patch, image_size: sides of a patch and of an image [px]; what is left over at the edges is cut off.
        channels: colours.
        gated_mlp: SwiGLU instead of GELU. activation: a value of ``semu.nn.Activation``; None: SiLU where gated.
        rms_norm: RMS instead of layer norm. rotary: rotary positions. bias, qkv_bias: biases of the projections, and of
            queries, keys and values. qk_norm: RMS norm of queries and keys, head by head.
        positions: a learned position table. class_token: a learned token before every image, left out by the projector.
        final_norm: a norm behind the layers.
    Raises:
        ConfigError: a size below 1, heads that do not divide, a patch larger than the image.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    patch: int
    image_size: int
    channels: int = 3
    gated_mlp: bool = False
    activation: str | None = None
    rms_norm: bool = False
    rotary: bool = False
    bias: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False
    positions: bool = True
    class_token: bool = False
    final_norm: bool = True

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "heads", "kv_heads")
        if self.activation is not None:
            check_member(self.activation, Activation, "EncoderConfig.activation")
        if self.patch > self.image_size:
            raise ConfigError(
                f"a patch of {self.patch} px is larger than an image of {self.image_size} px",
                where="EncoderConfig.patch",
                expected=f"at most {self.image_size}",
                got=self.patch,
                nearest=self.image_size,
            )

    def tower(self) -> Tower:
        """A new tower."""
        patches, features = (self.image_size // self.patch) ** 2, self.patch**2 * self.channels
        positions = patches + self.class_token if self.positions else None
        blocks: dict[str, Module] = {
            "embedding": ImageEmbedding(features, self.hidden, positions, class_token=self.class_token)
        }
        for number in range(self.layers):
            blocks[f"layers.{number}"] = TransformerLayer(
                self.hidden,
                self.ffn,
                self.heads,
                self.kv_heads,
                head_dim=self.head_dim,
                causal=False,
                rotary=self.rotary,
                gated=self.gated_mlp,
                rms_norm=self.rms_norm,
                bias=self.bias,
                qkv_bias=self.qkv_bias,
                qk_norm=self.qk_norm,
                activation=None if self.activation is None else Activation(self.activation),
            )
        if self.final_norm:
            blocks["norm"] = Norm((RMSNorm if self.rms_norm else LayerNorm)(self.hidden))
        return Tower(blocks, self.hidden, features, patches, self.class_token)


@dataclass(frozen=True)
class Tower:
    """An image encoder without projector.

    Attributes:
        blocks: ``embedding``, ``layers.0`` ..., and ``norm`` where there is one. hidden: width of its features.
        patch_features: colour values of a patch. num_patches: of an image, a square number.
        class_token: every image has a token before its patches.
    """

    blocks: Mapping[str, Module]
    hidden: int
    patch_features: int
    num_patches: int
    class_token: bool


@dataclass(frozen=True)
class ProjectorConfig:
    """From the features of patches to tokens of the language model.

    Attributes:
        layers: 1, a linear map, or 2, with GELU between. hidden: inner width of two layers; None: the language model's.
        merge: side of the square of patches that become one token, side by side. norm: a layer norm before.
        bias: biases of the layers.
    Raises:
        ConfigError: a size below 1, more than two layers, an inner width of one layer.
    """

    layers: int = 2
    hidden: int | None = None
    merge: int = 1
    norm: bool = False
    bias: bool = True

    def __post_init__(self) -> None:
        check_sizes(self)
        check_integer(self.layers, "ProjectorConfig.layers", "a number of layers", most=2)
        if self.layers == 1 and self.hidden is not None:
            raise ConfigError(
                "an inner width of a single layer",
                where="ProjectorConfig.hidden",
                expected="no hidden, or layers = 2",
                got=self.hidden,
            )


class Projector(Module):
    """Class tokens away, ``merge`` x ``merge`` patches side by side, a norm where there is one, one layer or two.

    Args:
        tower: whose features come. config: sizes. width: of the language model.
    """

    def __init__(self, tower: Tower, config: ProjectorConfig, width: int) -> None:
        super().__init__()
        self.class_token = tower.class_token
        self.group = config.merge**2
        features = self.group * tower.hidden
        self.norm = LayerNorm(features) if config.norm else None
        self.mlp: Module = (
            Linear(features, width, bias=config.bias)
            if config.layers == 1
            else MLP(features, config.hidden if config.hidden is not None else width, width, bias=config.bias)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[patches (+ images), hidden] -> [patches / merge^2, width], stream ``vision_tokens``."""
        x = F.drop_tokens(x) if self.class_token else x
        packing = tokens_of(x, VISION_TOKENS, self.group)
        x = F.rename_tokens(x, packing) if self.group == 1 else F.merge_tokens(x, self.group, packing)
        out: Tensor = self.mlp(x if self.norm is None else self.norm(x))
        return out


def tower_of(model: Model, where: str) -> Tower:
    """The image encoder of a model, without what stands behind its layers and norm.

    Args:
        model: one that reads images. where: place of its name, for the error.
    Raises:
        ConfigError: it reads none, or its encoder merges patches by itself.
    """
    module = next((m for m in model.modules if any(spec.stream == VISION_STREAM for spec in m.inputs)), None)
    blocks: dict[str, Module] = dict(module.body.named_children()) if module is not None else {}
    embedding = blocks.get("embedding")
    projection, positions = (getattr(embedding, name, None) for name in ("projection", "positions"))
    length = module.merging.length if module is not None and module.merging is not None else None
    if length is None and isinstance(positions, Parameter):
        length = positions.shape[0]
    if module is None or not isinstance(projection, Linear) or length is None:
        raise ConfigError(
            f"{model.name} has no image encoder that can be taken out of it",
            where=where,
            expected="a ViT, CLIP, SigLIP or InternViT tower, or a model with one; else [model.encoder] with its sizes",
            got=model.name,
        )
    kept = {name: block for name, block in blocks.items() if name.partition(".")[0] in ("embedding", "layers", "norm")}
    norm = getattr(blocks.get("head"), "norm", None)
    if "norm" not in kept and norm is not None:
        kept["norm"] = Norm(norm)
    hidden, features = projection.weight.shape
    return Tower(kept, hidden, features, length, getattr(embedding, "class_token", None) is not None)


def decoder_of(model: Model, where: str) -> Sequential:
    """The language model of a model: members ``embedding``, ``layers.0`` ..., ``head``.

    Args:
        model: a language model, or a multimodal one. where: place of its name, for the error.
    Raises:
        ConfigError: it has none.
    """
    bodies = [m.body for m in model.modules if m.role is ModalityRole.BACKBONE and isinstance(m.body, Sequential)]
    for body in bodies:
        blocks: dict[str, Module] = dict(body.named_children())
        table = blocks.get("embedding")
        if isinstance(table, ItemEmbedding | ImageTextEmbedding):
            blocks["embedding"] = table = table.text
        if isinstance(table, Embedding) and "head" in blocks:
            return Sequential(blocks)
    raise ConfigError(
        f"{model.name} has no decoder with a token table",
        where=where,
        expected="a language model, e.g. llama3-8b; or [model.llm] with its sizes",
        got=model.name,
    )


def make_own(name: str, tower: Tower, config: ProjectorConfig, language: Sequential) -> Model:
    """Modules ``encoder`` (its last member is ``projector``) and ``llm``.

    Args:
        name: for reports. tower, config: of the encoder. language: as ``decoder_of`` gives it; it is not to be used
            elsewhere.
    Raises:
        ConfigError: squares of patches that do not make up an image.
    """
    side = round(tower.num_patches**0.5)
    if side % config.merge:
        raise ConfigError(
            f"{side} x {side} patches do not merge {config.merge} x {config.merge}",
            where="model.projector.merge",
            expected=f"a divisor of {side}",
            got=config.merge,
            nearest=nearest_divisor(side, config.merge),
        )
    table = dict(language.named_children())["embedding"]
    assert isinstance(table, Embedding)
    projector = Projector(tower, config, table.weight.shape[1])
    encoder = ModalityModule(
        "encoder",
        ModalityRole.ENCODER,
        Sequential({**tower.blocks, "projector": projector}),
        (InputSpec(VISION_STREAM, tower.patch_features),),
        merging=merged_images(config.merge**2, tower.num_patches),
    )
    return make_multimodal(name, [encoder], language)

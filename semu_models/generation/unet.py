"""Stable Diffusion's U-Nets (2112.10752; SDXL: 2307.01952), beside frozen encoders where they run in the loop.

Every residual block, with its spatial transformer, is a block of the model; features that the way up takes from the
way down go along. Latents come from the data loader, also where the frozen autoencoder runs: they are as many.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.checks import check_sizes
from semu.errors import ConfigError
from semu.nn import (
    GroupNorm,
    InputSpec,
    Linear,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    Sequential,
    Tensor,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.generation.dit import VIDEO_STREAM
from semu_models.generation.frozen import TextEncoderConfig, caption_module, pixel_module
from semu_models.generation.unet_layers import HALF, ResBlock, SpatialTransformer, Upsample, conv3

TIME = 4
"""The timestep's embedding is so many times as wide as the first level."""


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of a U-Net.

    Attributes:
        channels: of the first level. mult: of each level, times ``channels``. res_blocks: of a level on the way down;
            the way up has one more. depths: transformer layers of each spatial transformer of a level, 0: none.
        middle_depth: of the one in the middle. context: width of the caption's features.
        heads: of every attention; None: as many as ``head_dim`` allows. head_dim: width of a head where ``heads`` is
            None. latent_channels: of a pixel.
        vector: width of a further condition that is added to the timestep's embedding (SDXL); None: there is none.
    Raises:
        ConfigError: a size below 1, depths that are not as many as levels.
    """

    channels: int = 320
    mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    depths: tuple[int, ...] = (1, 1, 1, 0)
    middle_depth: int = 1
    context: int = 1024
    heads: int | None = None
    head_dim: int = 64
    latent_channels: int = 4
    vector: int | None = None

    def __post_init__(self) -> None:
        check_sizes(self, "channels", "res_blocks", "context", "head_dim", "latent_channels")
        object.__setattr__(self, "mult", tuple(self.mult))
        object.__setattr__(self, "depths", tuple(self.depths))
        if not self.mult or len(self.depths) != len(self.mult):
            raise ConfigError(
                "not one depth for each level",
                where="UNetConfig.depths",
                expected=f"{len(self.mult)} integers >= 0",
                got=list(self.depths),
            )

    def heads_of(self, width: int) -> int:
        """Heads of an attention so wide."""
        return self.heads if self.heads is not None else max(width // self.head_dim, 1)


class UNetInput(Module):
    """Latents, timesteps and caption -> features of the first level, the caption, the timestep's embedding, skips."""

    def __init__(self, config: UNetConfig, caption_at: int) -> None:
        super().__init__()
        self.caption_at = caption_at
        width = TIME * config.channels
        self.conv = conv3(config.latent_channels, config.channels)
        self.time_in, self.time_out = Linear(config.channels, width), Linear(width, width)
        self.vector_in = Linear(config.vector, width) if config.vector is not None else None
        self.vector_out = Linear(width, width) if config.vector is not None else None

    def forward(self, latents: Tensor, timesteps: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """[pixels, latent channels], [images, channels], further condition where there is one, unread outputs of other
        encoders, [text tokens, context] -> [pixels, channels], context, [images, 4 channels], the first again."""
        time = self.time_out(F.silu(self.time_in(timesteps)))
        if self.vector_in is not None and self.vector_out is not None:
            time = time + self.vector_out(F.silu(self.vector_in(others[0])))
        x = self.conv(latents)
        return x, others[self.caption_at], time, x


class UNetBlock(Module):
    """A residual block, a spatial transformer, a change of resolution, as far as they are there.

    Args:
        config: sizes. inputs, outputs: channels. depth: of the spatial transformer. skip: channels that are taken from
            the way down; None: a block of the way down, whose output goes along. up: the resolution doubles behind it.
        middle: neither takes nor gives.
    """

    def __init__(
        self, config: UNetConfig, inputs: int, outputs: int, depth: int, *, skip: int | None = None, up: bool = False,
        middle: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.res = ResBlock(inputs + (skip or 0), outputs, TIME * config.channels)
        has = depth > 0
        self.transformer = SpatialTransformer(outputs, config.heads_of(outputs), config.context, depth) if has else None
        self.takes, self.gives = skip is not None, skip is None and not middle
        self.up = Upsample(outputs) if up else None

    def forward(self, x: Tensor, context: Tensor, time: Tensor, *skips: Tensor) -> tuple[Tensor, ...]:
        """[pixels, inputs], caption, timestep's embedding, skips -> the same, a skip fewer or one more."""
        if self.takes:
            x, skips = F.concatenate(x, skips[-1]), skips[:-1]
        x = self.res(x, time)
        if self.transformer is not None:
            x = self.transformer(x, context)
        if self.up is not None:
            x = self.up(x, skips[-1])
        return (x, context, time, *skips, *([x] if self.gives else []))


class Downsample(Module):
    """A convolution that halves both sides; its output goes along."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = conv3(width, width, HALF)

    def forward(self, x: Tensor, context: Tensor, time: Tensor, *skips: Tensor) -> tuple[Tensor, ...]:
        """[pixels, width], caption, timestep's embedding, skips -> a quarter of the pixels, one skip more."""
        x = self.conv(x)
        return x, context, time, *skips, x


class UNetHead(Module):
    """Group norm, SiLU, convolution back to latents, squared error of the noise."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.norm, self.conv = GroupNorm(config.channels), conv3(config.channels, config.latent_channels)

    def forward(self, x: Tensor, context: Tensor, time: Tensor) -> Tensor:
        """[pixels, channels] -> scalar loss."""
        return F.mean_squared_error(self.conv(F.silu(self.norm(x))))


def unet_blocks(config: UNetConfig, caption_at: int = -1) -> Sequential:
    """Members ``input``, ``down.0`` ..., ``middle.0``, ``middle.1``, ``up.0`` ..., ``head``.

    Args:
        config: sizes. caption_at: which of the tensors behind latents and timesteps is the caption.
    """
    blocks: dict[str, Module] = {"input": UNetInput(config, caption_at)}
    width = config.channels
    skips = [width]
    last = len(config.mult) - 1
    for level, (factor, depth) in enumerate(zip(config.mult, config.depths, strict=True)):
        for _ in range(config.res_blocks):
            inputs, width = width, factor * config.channels
            blocks[f"down.{len(skips) - 1}"] = UNetBlock(config, inputs, width, depth)
            skips.append(width)
        if level < last:
            blocks[f"down.{len(skips) - 1}"] = Downsample(width)
            skips.append(width)
    blocks["middle.0"] = UNetBlock(config, width, width, config.middle_depth, middle=True)
    blocks["middle.1"] = UNetBlock(config, width, width, 0, middle=True)
    number = 0
    for level in range(last, -1, -1):
        for index in range(config.res_blocks + 1):
            inputs, width = width, config.mult[level] * config.channels
            up = level > 0 and index == config.res_blocks
            blocks[f"up.{number}"] = UNetBlock(config, inputs, width, config.depths[level], skip=skips.pop(), up=up)
            number += 1
    return Sequential({**blocks, "head": UNetHead(config)})


SD_1_5 = UNetConfig(context=768, heads=8)
"""Stable Diffusion 1.x (2112.10752; v1-inference.yaml): 859.5 M parameters."""
SD_2 = UNetConfig()
"""Stable Diffusion 2.x (v2-inference.yaml): 865.9 M."""
SDXL = UNetConfig(mult=(1, 2, 4), depths=(0, 2, 10), middle_depth=10, context=2048, vector=2816)
"""SDXL base (2307.01952 Table 1): 2.567 B."""
CLIP_TEXT_L = TextEncoderConfig(layers=12, hidden=768, ffn=3072, heads=12)
"""CLIP ViT-L/14's text tower."""
OPEN_CLIP_TEXT_H = TextEncoderConfig(layers=23, hidden=1024, ffn=4096, heads=16)
"""OpenCLIP ViT-H/14's text tower, to its last layer but one."""
OPEN_CLIP_TEXT_G = TextEncoderConfig(layers=32, hidden=1280, ffn=5120, heads=20)
"""OpenCLIP ViT-bigG/14's."""


def make_unet(name: str, config: UNetConfig, text: Sequence[TextEncoderConfig] = (), *, vae: bool = False) -> Model:
    """Decoder ``unet`` behind the encoders that run in the loop; without them a backbone that the data loader feeds.

    Args:
        name: for reports. config: sizes. text: caption encoders, frozen; several are taken as far as they cost.
        vae: the frozen autoencoder encodes images of 64 times as many pixels.
    """
    inputs = [InputSpec(VIDEO_STREAM, config.latent_channels), InputSpec(VIDEO_STREAM, config.channels, True)]
    inputs += [InputSpec(VIDEO_STREAM, config.vector, True)] if config.vector is not None else []
    modules = [pixel_module()] if vae else []
    modules += [
        caption_module("text" if index == 0 else f"text{index + 1}", item, config.context if item is text[-1] else None)
        for index, item in enumerate(text)
    ]
    if not text:
        inputs.append(InputSpec("text", config.context))
    role = ModalityRole.DECODER if modules else ModalityRole.BACKBONE
    sources = tuple(module.name for module in modules)
    body = unet_blocks(config, -1 if text else int(config.vector is not None))
    return Model(name, [*modules, ModalityModule("unet", role, body, tuple(inputs), sources=sources)])


def sd_1_5() -> Model:
    """Stable Diffusion 1.5's U-Net."""
    return make_unet("sd-1.5", SD_1_5)


def sd_2() -> Model:
    """Stable Diffusion 2's U-Net."""
    return make_unet("sd-2", SD_2)


def sdxl() -> Model:
    """SDXL's U-Net."""
    return make_unet("sdxl", SDXL)

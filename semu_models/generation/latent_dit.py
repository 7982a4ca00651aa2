"""Diffusion transformers of any size over image or video latents: DiT (2212.09748), PixArt, STDiT (Open-Sora).

Attention is full, or first within each frame and then along time at each place, as STDiT does; both are windows over
the clip's tokens. A caption is read by cross-attention where ``context`` says its width.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.checks import check_divides, check_sizes
from semu.nn import (
    MLP,
    CrossAttention,
    InputSpec,
    LayerNorm,
    Linear,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    SelfAttention,
    Sequential,
    Tensor,
    Window,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.generation.dit import VIDEO_STREAM
from semu_models.generation.frozen import TextEncoderConfig, caption_module, pixel_module


@dataclass(frozen=True)
class LatentDiTConfig:
    """Sizes of a diffusion transformer.

    Attributes:
        layers, hidden, ffn, heads: of the transformer. context: width of the caption's features; None: no caption.
        frame_tokens, frames: a clip's tokens in space and in time, where attention goes through one after the other;
            None: through all of them.
        shared: one modulation network for all layers (AdaLN-single), instead of one in each.
        image_latents: latents of one frame, by which the autoencoder takes a clip; None: a clip is one image.
        latent_features: numbers of a token. timestep_features: of a timestep's code.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    context: int | None = None
    frame_tokens: int | None = None
    frames: int | None = None
    shared: bool = False
    image_latents: int | None = None
    latent_features: int = 16
    timestep_features: int = 256

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "latent_features", "timestep_features")
        check_divides(self, "hidden", "heads")


class LatentInput(Module):
    """Latents, timesteps and caption features -> what every layer reads."""

    def __init__(self, config: LatentDiTConfig, caption_at: int) -> None:
        super().__init__()
        self.caption_at = caption_at
        hidden = config.hidden
        self.latents = Linear(config.latent_features, hidden)
        self.time_in, self.time_out = Linear(config.timestep_features, hidden), Linear(hidden, hidden)
        self.caption_in = Linear(config.context, hidden) if config.context is not None else None
        self.caption_out = Linear(hidden, hidden) if config.context is not None else None
        self.condition = Linear(hidden, 6 * hidden) if config.shared else None

    def forward(self, latents: Tensor, timesteps: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """[tokens, features], [clips, timestep features], unread outputs, [text tokens, context] ->
        [tokens, hidden], [clips, hidden or 6 hidden], and the caption where there is one."""
        x = self.latents(F.shard_tokens(latents))
        time = self.time_out(F.silu(self.time_in(timesteps)))
        if self.condition is not None:
            time = self.condition(F.silu(time))
        if self.caption_in is None or self.caption_out is None:
            return x, time
        return x, time, self.caption_out(F.gelu(self.caption_in(F.shard_tokens(others[self.caption_at]))))


class LatentLayer(Module):
    """Modulated attention in space (and time), attention on the caption, modulated feed-forward network."""

    fp8_region = True

    def __init__(self, config: LatentDiTConfig) -> None:
        super().__init__()
        hidden, heads = config.hidden, config.heads
        self.condition = None if config.shared else Linear(hidden, 6 * hidden)
        self.norm1, self.norm2 = LayerNorm(hidden, affine=False), LayerNorm(hidden, affine=False)
        space = Window.chunked(config.frame_tokens) if config.frame_tokens is not None else None
        self.attention = SelfAttention(hidden, heads, causal=False, window=space)
        is_split = config.frame_tokens is not None and (config.frames or 1) > 1
        time = Window.chunked(config.frames) if is_split and config.frames is not None else None
        self.temporal = SelfAttention(hidden, heads, causal=False, window=time) if is_split else None
        self.cross_attention = CrossAttention(hidden, heads) if config.context is not None else None
        self.mlp = MLP(hidden, config.ffn)
        self.parts = (2 * hidden, hidden, 2 * hidden, hidden)

    def forward(self, x: Tensor, time: Tensor, *caption: Tensor) -> tuple[Tensor, ...]:
        """[tokens, hidden], [clips, hidden or 6 hidden], [text tokens, hidden] -> the same; only x changes."""
        rows = time if self.condition is None else self.condition(F.silu(time))
        modulate_attention, gate_attention, modulate_mlp, gate_mlp = rows.split(self.parts)
        x = F.gated_add(x, self.attention(F.modulate(self.norm1(x), modulate_attention)), gate_attention)
        if self.temporal is not None:
            x = F.gated_add(x, self.temporal(x), gate_attention)
        if self.cross_attention is not None:
            x = x + self.cross_attention(x, caption[0])
        x = F.gated_add(x, self.mlp(F.modulate(self.norm2(x), modulate_mlp)), gate_mlp)
        return (x, time, *caption)


class LatentHead(Module):
    """Final norm, linear map to noise and its variance, squared error."""

    def __init__(self, config: LatentDiTConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.hidden, affine=False)
        self.projection = Linear(config.hidden, 2 * config.latent_features)

    def forward(self, x: Tensor, time: Tensor, *caption: Tensor) -> Tensor:
        """[tokens, hidden] -> scalar loss."""
        return F.mean_squared_error(self.projection(self.norm(x)))


def make_latent_dit(
    name: str, config: LatentDiTConfig, text: Sequence[TextEncoderConfig] = (), *, vae: bool = False
) -> Model:
    """Decoder ``dit`` behind the frozen encoders that run in the loop; without them a backbone.

    Args:
        name: for reports. config: sizes. text: caption encoders; unused where ``config`` reads no caption.
        vae: the frozen autoencoder encodes every frame.
    """
    inputs = [InputSpec(VIDEO_STREAM, config.latent_features), InputSpec(VIDEO_STREAM, config.timestep_features, True)]
    modules = [pixel_module(config.image_latents)] if vae else []
    modules += [caption_module(f"text{i or ''}", item, config.context) for i, item in enumerate(text)]
    if config.context is not None and not text:
        inputs.append(InputSpec("text", config.context))
    layers = {f"layers.{i}": LatentLayer(config) for i in range(config.layers)}
    body = Sequential({"embedding": LatentInput(config, -1 if text else 0), **layers, "head": LatentHead(config)})
    role = ModalityRole.DECODER if modules else ModalityRole.BACKBONE
    sources = tuple(module.name for module in modules)
    return Model(name, [*modules, ModalityModule("dit", role, body, tuple(inputs), sources=sources)])

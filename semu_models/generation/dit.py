"""DiT: diffusion over video latents, with self-attention in each clip and cross-attention on its caption.

Conditioning on the diffusion timestep is shared adaptive layer norm: one network for all layers, plus a learned table
in each layer (AdaLN-single, 2310.00426 §2.3).
"""

from __future__ import annotations

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
    Parameter,
    SelfAttention,
    Sequential,
    Tensor,
)
from semu.nn import functional as F
from semu.records import dataclass

VIDEO_STREAM = "video"
"""Latent tokens, one sequence per clip."""


@dataclass(frozen=True)
class DiTConfig:
    """Sizes of a diffusion transformer.

    Attributes:
        layers, hidden, ffn, heads: of the transformer.
        latent_features: numbers of a latent token: 16 channels x a patch of 1 x 2 x 2 (MovieGen, 2410.13720 §3.1).
        timestep_features: width of the sinusoidal code of a timestep (DiT, 2212.09748).
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    latent_features: int = 64
    timestep_features: int = 256

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")


DIT_5B = DiTConfig(layers=28, hidden=3584, ffn=10240, heads=28)
"""DIP Table 2."""

DIT_30B = DiTConfig(layers=48, hidden=6144, ffn=24576, heads=48)
"""DIP Table 2 (MovieGen's 30B has the same depth, width and heads, 2410.13720 §3.1)."""

TEXT_FEATURES = 4096
"""Width of the caption features where a DiT is trained alone: that of UL2, which MovieGen uses (2410.13720 §3.1)."""


class VideoEmbedding(Module):
    """Latents, timesteps and caption features -> what every layer reads.

    The caption's features are projected to the DiT's width once, by a linear map and a norm (2410.13720 §3.1).
    """

    def __init__(self, config: DiTConfig, context: int) -> None:
        super().__init__()
        self.latents = Linear(config.latent_features, config.hidden)
        self.caption = Linear(context, config.hidden)
        self.caption_norm = LayerNorm(config.hidden)
        self.timestep_in = Linear(config.timestep_features, config.hidden)
        self.timestep_out = Linear(config.hidden, config.hidden)
        self.condition = Linear(config.hidden, 6 * config.hidden)

    def forward(self, latents: Tensor, timesteps: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[latent tokens, 64], [clips, 256], [text tokens, context] -> x, context, condition.

        x is [latent tokens, hidden], context [text tokens, hidden], condition [clips, 6 hidden].
        """
        x = self.latents(F.shard_tokens(latents))
        context = self.caption_norm(self.caption(F.shard_tokens(text)))
        timestep = self.timestep_out(F.silu(self.timestep_in(timesteps)))
        return x, context, self.condition(F.silu(timestep))


class DiTLayer(Module):
    """Modulated self-attention, cross-attention on the caption, modulated feed-forward network."""

    fp8_region = True

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.table = Parameter(1, 6 * hidden)
        self.attention_norm: Module = LayerNorm(hidden, affine=False)
        self.attention = SelfAttention(hidden, config.heads, causal=False, rotary=True)
        self.cross_norm: Module | None = LayerNorm(hidden)
        self.cross_attention = CrossAttention(hidden, config.heads)
        self.mlp_norm: Module = LayerNorm(hidden, affine=False)
        self.mlp = MLP(hidden, config.ffn)
        self.parts = (2 * hidden, hidden, 2 * hidden, hidden)

    def forward(self, x: Tensor, context: Tensor, condition: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[latent tokens, hidden], [text tokens, hidden], [clips, 6 hidden] -> the same; only x changes."""
        rows = F.add_parameter(condition, self.table, 1)
        modulate_attention, gate_attention, modulate_mlp, gate_mlp = rows.split(self.parts)
        attended = self.attention(F.modulate(self.attention_norm(x), modulate_attention))
        x = F.gated_add(x, attended, gate_attention)
        x = x + self.cross_attention(self.cross_norm(x) if self.cross_norm is not None else x, context)
        x = F.gated_add(x, self.mlp(F.modulate(self.mlp_norm(x), modulate_mlp)), gate_mlp)
        return x, context, condition


class DenoisingHead(Module):
    """Final norm, linear map back to latents, squared error (DiT also modulates this norm; that is left out)."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.norm = LayerNorm(config.hidden)
        self.projection = Linear(config.hidden, config.latent_features)

    def forward(self, x: Tensor, context: Tensor, condition: Tensor) -> Tensor:
        """[latent tokens, hidden] -> scalar loss; caption and timestep end here unread."""
        return F.mean_squared_error(self.projection(self.norm(x)))


class DiT(Sequential):
    """Latents, timesteps and caption features -> scalar loss.

    Args:
        config: sizes. context: width of the caption features.
    """

    def __init__(self, config: DiTConfig, context: int) -> None:
        layers = {f"layers.{i}": DiTLayer(config) for i in range(config.layers)}
        super().__init__({"embedding": VideoEmbedding(config, context), **layers, "head": DenoisingHead(config)})
        self.config = config


def video_inputs(latent_features: int, timestep_features: int) -> tuple[InputSpec, InputSpec]:
    """What the data loader gives a video model: latent tokens, and the code of one timestep per clip."""
    return InputSpec(VIDEO_STREAM, latent_features), InputSpec(VIDEO_STREAM, timestep_features, per_sequence=True)


def _model(name: str, config: DiTConfig) -> Model:
    inputs = (*video_inputs(config.latent_features, config.timestep_features), InputSpec("text", TEXT_FEATURES))
    return Model(name, [ModalityModule("dit", ModalityRole.BACKBONE, DiT(config, TEXT_FEATURES), inputs)])


def dit_5b() -> Model:
    """DiT 5B, trained alone on caption features of width 4096."""
    return _model("dit-5b", DIT_5B)


def dit_30b() -> Model:
    """DiT 30B, trained alone on caption features of width 4096."""
    return _model("dit-30b", DIT_30B)

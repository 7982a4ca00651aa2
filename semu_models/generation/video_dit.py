"""Video diffusion with cross-attention on the caption: the 30-billion-parameter models of Movie Gen and Step-Video.

Full attention over all latent tokens of a clip, one modulation network for all layers and a learned table in each
(AdaLN-single, 2310.00426 §2.3). ``semu_models.generation.dit`` has the shapes that DIP prints; here are those of
the models' reports, with their norms, biases and feed-forward networks.
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
    RMSNorm,
    SelfAttention,
    Sequential,
    Tensor,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.generation.dit import DiTLayer, video_inputs
from semu_models.generation.t2v import behind_text_encoder
from semu_models.text.language import LanguageConfig


@dataclass(frozen=True)
class VideoDiTConfig:
    """Sizes and style of a video diffusion transformer.

    Attributes:
        layers, hidden, ffn, heads: of the transformer; ffn of gate and up each where gated.
        context: width of the caption features; two linear maps with GELU between take them to hidden.
        gated, rms_norm, bias: SwiGLU instead of GELU, RMS instead of layer norm, biases in the layers' linear maps.
        qk_norm: RMS norm of queries and keys, head by head, in both attentions.
        cross_norm: the cross-attention reads normed tokens.
        latent_features: numbers of a latent token. timestep_features: of a timestep's code.
    Positions of latent tokens are rotations: no parameters.

    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    context: int
    gated: bool = False
    rms_norm: bool = False
    bias: bool = True
    qk_norm: bool = False
    cross_norm: bool = True
    latent_features: int = 64
    timestep_features: int = 256

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "context", "latent_features", "timestep_features")
        check_divides(self, "hidden", "heads")


MOVIE_GEN_30B = VideoDiTConfig(
    layers=48, hidden=6144, ffn=16384, heads=48, context=4096, gated=True, rms_norm=True, bias=False
)
"""Movie Gen Video 30B (2410.13720 Table 1): Llama's layers with full attention, cross-attention and modulation.

Captions are those of UL2 alone (width 4096); the report adds two more encoders, and learned positions."""

STEP_VIDEO_30B = VideoDiTConfig(
    layers=48, hidden=6144, ffn=24576, heads=48, context=6144, bias=False, qk_norm=True, cross_norm=False
)
"""Step-Video-T2V 30B (2502.10248 §4.2: 48 layers, 48 heads of 128): norms of queries and keys, AdaLN-single.

The second text encoder's projection (1024 to 6144) is left out."""


class NormedCrossAttention(CrossAttention):
    """Cross-attention with an RMS norm of every query's and key's head."""

    def __init__(self, hidden: int, heads: int, *, bias: bool) -> None:
        super().__init__(hidden, heads, bias=bias)
        self.query_norm = RMSNorm(self.head_dim)
        self.key_norm = RMSNorm(self.head_dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[tokens, hidden], [context tokens, hidden] -> [tokens, hidden]."""
        q = self.query_norm(self.query(x).unflatten(self.heads, self.head_dim))
        k, v = F.split_heads(self.key_value(context), (self.heads, self.heads), self.head_dim)
        out: Tensor = self.out(F.attention(q, self.key_norm(k), v, causal=False).flatten())
        return out


class VideoLayer(DiTLayer):
    """A ``DiTLayer`` with the norms, biases and feed-forward network that the configuration names."""

    def __init__(self, config: VideoDiTConfig) -> None:
        Module.__init__(self)
        hidden, heads, bias = config.hidden, config.heads, config.bias
        self.table = Parameter(1, 6 * hidden)
        self.attention_norm = _norm(config)
        self.attention = SelfAttention(hidden, heads, causal=False, rotary=True, bias=bias, qk_norm=config.qk_norm)
        self.cross_norm = _norm(config) if config.cross_norm else None
        cross = NormedCrossAttention if config.qk_norm else CrossAttention
        self.cross_attention = cross(hidden, heads, bias=bias)
        self.mlp_norm = _norm(config)
        self.mlp = MLP(hidden, config.ffn, gated=config.gated, bias=bias)
        self.parts = (2 * hidden, hidden, 2 * hidden, hidden)


class VideoTextEmbedding(Module):
    """Latents, timesteps and caption features -> what every layer reads."""

    def __init__(self, config: VideoDiTConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.latents = Linear(config.latent_features, hidden)
        self.caption_in = Linear(config.context, hidden)
        self.caption_out = Linear(hidden, hidden)
        self.timestep_in = Linear(config.timestep_features, hidden)
        self.timestep_out = Linear(hidden, hidden)
        self.condition = Linear(hidden, 6 * hidden)

    def forward(self, latents: Tensor, timesteps: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[latent tokens, 64], [clips, 256], [text tokens, context] -> [latent tokens, hidden], [text tokens, hidden],
        [clips, 6 hidden]."""
        context = self.caption_out(F.gelu(self.caption_in(F.shard_tokens(text))))
        timestep = self.timestep_out(F.silu(self.timestep_in(timesteps)))
        return self.latents(F.shard_tokens(latents)), context, self.condition(F.silu(timestep))


class VideoHead(Module):
    """Final norm, modulated by a learned table, linear map back to latents, squared error."""

    def __init__(self, config: VideoDiTConfig) -> None:
        super().__init__()
        self.table = Parameter(1, 2 * config.hidden)
        self.norm = LayerNorm(config.hidden, affine=False)
        self.projection = Linear(config.hidden, config.latent_features)
        self.parts = (2 * config.hidden, 4 * config.hidden)

    def forward(self, x: Tensor, context: Tensor, condition: Tensor) -> Tensor:
        """[latent tokens, hidden], the caption (unread), [clips, 6 hidden] -> scalar loss."""
        rows, _ = condition.split(self.parts)
        normed = F.modulate(self.norm(x), F.add_parameter(rows, self.table, 1))
        return F.mean_squared_error(self.projection(normed))


class VideoDiT(Sequential):
    """Latents, timesteps and caption features -> scalar loss; members ``embedding``, ``layers.0`` ..., ``head``."""

    def __init__(self, config: VideoDiTConfig) -> None:
        layers = {f"layers.{i}": VideoLayer(config) for i in range(config.layers)}
        super().__init__({"embedding": VideoTextEmbedding(config), **layers, "head": VideoHead(config)})
        self.config = config


def _norm(config: VideoDiTConfig) -> Module:
    return RMSNorm(config.hidden) if config.rms_norm else LayerNorm(config.hidden)


def make_video_dit(name: str, config: VideoDiTConfig, text: LanguageConfig | None = None) -> Model:
    """One backbone, ``dit``, whose caption features come from the data loader; or behind a language model, ``llm``.

    Args:
        name: for reports. config: sizes. text: the language model that encodes captions, as wide as ``config.context``.
    """
    inputs = video_inputs(config.latent_features, config.timestep_features)
    if text is not None:
        return behind_text_encoder(name, text, config.context, VideoDiT(config), inputs)
    inputs_alone = (*inputs, InputSpec("text", config.context))
    return Model(name, [ModalityModule("dit", ModalityRole.BACKBONE, VideoDiT(config), inputs_alone)])


def movie_gen_30b() -> Model:
    """Movie Gen Video 30B."""
    return make_video_dit("movie-gen-30b", MOVIE_GEN_30B)


def step_video_30b() -> Model:
    """Step-Video-T2V 30B."""
    return make_video_dit("step-video-30b", STEP_VIDEO_30B)

"""MM-DiT: diffusion with in-context conditioning, text tokens beside image or video tokens in one attention.

The layers are in ``mmdit_layers``; conditioning is on the timestep and one text vector a sample. Parameters are those
of diffusers' transformers; what is not modelled is named in ``MMDiTConfig``.
"""

from __future__ import annotations

from semu.nn import InputSpec, LayerNorm, Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu_models.generation.dit import VIDEO_STREAM
from semu_models.generation.mmdit_layers import (
    DualStreamLayer,
    Embedder,
    Join,
    MMDiTConfig,
    Modulation,
    RefinerLayer,
    SingleStreamLayer,
)
from semu_models.generation.t2v import behind_text_encoder
from semu_models.text.language import LanguageConfig

SD3_8B = MMDiTConfig(
    dual=38, single=0, hidden=2432, ffn=9728, heads=38, context=4096, pooled=2048, rotary=False, qk_norm=True
)
"""Stable Diffusion 3's largest, depth 38 (2403.03206 §5.3), with the RMS norm of §5.3.2: SD 3.5 large in diffusers."""

FLUX_12B = MMDiTConfig(dual=19, single=38, hidden=3072, ffn=12288, heads=24, context=4096, pooled=768, guidance=True)
"""FLUX.1-dev: defaults of diffusers' FluxTransformer2DModel, with the guidance input."""

HUNYUAN_VIDEO_13B = MMDiTConfig(
    dual=20, single=40, hidden=3072, ffn=12288, heads=24, context=4096, pooled=768, refiner=2, guidance=True
)
"""HunyuanVideo (2412.03603 Table 2): defaults of diffusers' HunyuanVideoTransformer3DModel."""


class JointEmbedding(Module):
    """Latents, timesteps, text vectors and text features -> both streams and the conditioning vector."""

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        hidden, code = config.hidden, config.timestep_features
        self.latents = Linear(config.latent_features, hidden)
        self.text = Linear(config.context, hidden)
        self.timestep = Embedder(code, hidden)
        self.pooled = Embedder(config.pooled, hidden)
        self.guidance = Embedder(code, hidden) if config.guidance else None
        self.refiner_layers = config.refiner
        if config.refiner:
            self.refiner_timestep = Embedder(code, hidden)
            self.refiner_text = Embedder(config.context, hidden)
        for number in range(config.refiner):
            setattr(self, f"refiner{number}", RefinerLayer(config))

    def forward(self, latents: Tensor, timesteps: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[latent tokens, 64], [samples, 256], (guidance [samples, 256],) [samples, pooled], [text tokens, context] ->
        [latent tokens, hidden], [text tokens, hidden], [samples, hidden]."""
        pooled, text = rest[-2:]
        vector = self.timestep(timesteps) + self.pooled(pooled)
        if self.guidance is not None:
            vector = vector + self.guidance(rest[0])
        text = F.shard_tokens(text)
        y = self.text(text)
        if self.refiner_layers:
            refining = self.refiner_timestep(timesteps) + self.refiner_text(F.mean_rows(text, timesteps))
            for number in range(self.refiner_layers):
                y = getattr(self, f"refiner{number}")(y, refining)
        return self.latents(F.shard_tokens(latents)), y, vector


class DenoisingHead(Module):
    """Modulated norm, linear map back to latents, squared error."""

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        self.modulation = Modulation(config.hidden, 2)
        self.norm = LayerNorm(config.hidden, affine=False)
        self.projection = Linear(config.hidden, config.latent_features)
        self.is_joint = config.single > 0

    def forward(self, x: Tensor, vector: Tensor) -> Tensor:
        """[tokens, hidden], [samples, hidden] -> scalar loss of the latent tokens."""
        if self.is_joint:
            x, _ = F.split_tokens(x)
        return F.mean_squared_error(self.projection(F.modulate(self.norm(x), self.modulation(vector))))


class MMDiT(Sequential):
    """Latents and text -> scalar loss; members ``embedding``, ``dual.0`` ..., ``join``, ``single.0`` ..., ``head``."""

    def __init__(self, config: MMDiTConfig) -> None:
        last = -1 if config.single else config.dual - 1
        dual = {f"dual.{i}": DualStreamLayer(config, is_last=i == last) for i in range(config.dual)}
        single: dict[str, Module] = {f"single.{i}": SingleStreamLayer(config) for i in range(config.single)}
        if single:
            single = {"join": Join(), **single}
        super().__init__({"embedding": JointEmbedding(config), **dual, **single, "head": DenoisingHead(config)})
        self.config = config


def mmdit_inputs(config: MMDiTConfig) -> tuple[InputSpec, ...]:
    """What the data loader gives: latent tokens, codes of timestep (and guidance), text vectors, text features."""
    code = InputSpec(VIDEO_STREAM, config.timestep_features, per_sequence=True)
    return (
        InputSpec(VIDEO_STREAM, config.latent_features),
        *((code, code) if config.guidance else (code,)),
        InputSpec(VIDEO_STREAM, config.pooled, per_sequence=True),
        InputSpec("text", config.context),
    )


def make_mmdit(name: str, config: MMDiTConfig, text: LanguageConfig | None = None) -> Model:
    """One backbone, ``dit``, whose text features come from the data loader; or behind a language model, ``llm``.

    Args:
        name: for reports. config: sizes. text: the language model that encodes the text, as wide as ``config.context``.
    """
    inputs, body = mmdit_inputs(config), MMDiT(config)
    if text is None:
        return Model(name, [ModalityModule("dit", ModalityRole.BACKBONE, body, inputs)])
    return behind_text_encoder(name, text, config.context, body, inputs[:-1])


def sd3_8b() -> Model:
    """Stable Diffusion 3, 8 B."""
    return make_mmdit("sd3-8b", SD3_8B)


def flux_12b() -> Model:
    """FLUX.1-dev, 12 B."""
    return make_mmdit("flux-12b", FLUX_12B)


def hunyuan_video_13b() -> Model:
    """HunyuanVideo, 13 B."""
    return make_mmdit("hunyuan-video-13b", HUNYUAN_VIDEO_13B)

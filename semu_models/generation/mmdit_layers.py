"""Layers of MM-DiT: two streams with separate weights and one attention, or one stream of joined tokens.

Double-stream layers: Stable Diffusion 3, 2403.03206 §4; single-stream layers, attention and feed-forward network side
by side: FLUX.1; HunyuanVideo, 2412.03603 §4.2. Every layer has its modulation network.
"""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.nn import MLP, LayerNorm, Linear, Module, SelfAttention, Tensor
from semu.nn import functional as F
from semu.records import dataclass


@dataclass(frozen=True)
class MMDiTConfig:
    """Sizes of a multimodal diffusion transformer.

    Attributes:
        dual, single: double-stream and single-stream layers; single may be 0: then the last double-stream layer takes
            keys and values only from the text.
        hidden, ffn, heads: of either stream.
        context: width of the text features. pooled: of the text vector of a sample.
        refiner: layers of self-attention over the text before it joins (HunyuanVideo's token refiner), conditioned on
            the timestep and the mean of the text.
        latent_features: numbers of a latent token (16 channels x a patch of 2 x 2). timestep_features: of its code.
        rotary: rotate queries and keys of the latent tokens. qk_norm: RMS norm of queries and keys, head by head.
        guidance: the guidance scale is a further input (guidance-distilled models).
    Positions of latent tokens are fixed sines or rotations: no parameters. Heads are hidden / heads wide.

    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    dual: int
    single: int
    hidden: int
    ffn: int
    heads: int
    context: int
    pooled: int
    refiner: int = 0
    latent_features: int = 64
    timestep_features: int = 256
    rotary: bool = True
    qk_norm: bool = True
    guidance: bool = False

    def __post_init__(self) -> None:
        sizes = ("dual", "hidden", "ffn", "heads", "context", "pooled", "latent_features", "timestep_features")
        check_sizes(self, *sizes, "single", "refiner", zero=("single", "refiner"))
        check_divides(self, "hidden", "heads")


class Embedder(Module):
    """A vector of a sample -> hidden: linear, SiLU, linear."""

    is_per_token = False

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.first = Linear(features, hidden)
        self.second = Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[samples, features] -> [samples, hidden]."""
        out: Tensor = self.second(F.silu(self.first(x)))
        return out


class Modulation(Module):
    """The conditioning vector -> ``count`` rows of hidden numbers for a layer: SiLU, linear."""

    is_per_token = False

    def __init__(self, hidden: int, count: int) -> None:
        super().__init__()
        self.linear = Linear(hidden, count * hidden)

    def forward(self, vector: Tensor) -> Tensor:
        """[samples, hidden] -> [samples, count x hidden]."""
        out: Tensor = self.linear(F.silu(vector))
        return out


class JointAttention(Module):
    """Attention over two streams together, with separate projections.

    Args:
        config: sizes. has_text_out: the text stream goes on behind it.
    """

    recompute_kind = "attention"

    def __init__(self, config: MMDiTConfig, *, has_text_out: bool) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.hidden // config.heads
        self.video = _attention(config, rotary=config.rotary)
        self.text = _attention(config, rotary=False)
        self.has_text_out = has_text_out
        if not has_text_out:
            del self.text._children()["out"]
            del self.text.out

    def _project(self, attention: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of one stream, normed and rotated."""
        q, k, v = F.split_heads(attention.qkv(x), (self.heads,) * 3, self.head_dim)
        if attention.query_norm is not None and attention.key_norm is not None:
            q, k = attention.query_norm(q), attention.key_norm(k)
        return (F.rope(q), F.rope(k), v) if attention.rotary else (q, k, v)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """[latent tokens, hidden], [text tokens, hidden] -> the same; without the text where it ends here."""
        q, k, v = (
            F.concatenate_tokens(a, b)
            for a, b in zip(self._project(self.video, x), self._project(self.text, y), strict=True)
        )
        video, text = F.split_tokens(F.attention(q, k, v, causal=False).flatten())
        return (self.video.out(video), self.text.out(text)) if self.has_text_out else (self.video.out(video),)


class ParallelAttention(SelfAttention):
    """Attention and feed-forward network side by side: one projection in, one out."""

    def __init__(self, config: MMDiTConfig) -> None:
        hidden, ffn = config.hidden, config.ffn
        super().__init__(hidden, config.heads, causal=False, rotary=config.rotary, qk_norm=config.qk_norm)
        self.widths = (hidden, hidden, hidden, ffn)
        self.qkv = Linear(hidden, 3 * hidden + ffn, parts=self.widths)
        self.out = Linear(hidden + ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        *projected, inner = self.qkv(x).split(self.widths)
        q, k, v = (part.unflatten(self.heads, self.head_dim) for part in projected)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if self.rotary:
            q, k = F.rope(q), F.rope(k)
        attended = F.attention(q, k, v, causal=False).flatten()
        out: Tensor = self.out(F.concatenate_features(attended, F.gelu(inner)))
        return out


class DualStreamLayer(Module):
    """Modulated joint attention, then a modulated feed-forward network for either stream.

    Args:
        config: sizes. is_last: the text ends in this layer's attention, as keys and values.
    """

    fp8_region = True

    def __init__(self, config: MMDiTConfig, *, is_last: bool = False) -> None:
        super().__init__()
        hidden = config.hidden
        self.is_last = is_last
        self.parts = (2 * hidden, hidden, 2 * hidden, hidden)
        self.video_modulation = Modulation(hidden, 6)
        self.text_modulation = Modulation(hidden, 2 if is_last else 6)
        self.video_norm = LayerNorm(hidden, affine=False)
        self.text_norm = LayerNorm(hidden, affine=False)
        self.attention = JointAttention(config, has_text_out=not is_last)
        self.video_mlp_norm = LayerNorm(hidden, affine=False)
        self.video_mlp = MLP(hidden, config.ffn)
        if not is_last:
            self.text_mlp_norm = LayerNorm(hidden, affine=False)
            self.text_mlp = MLP(hidden, config.ffn)

    def forward(self, x: Tensor, y: Tensor, vector: Tensor) -> tuple[Tensor, ...]:
        """[latent tokens, hidden], [text tokens, hidden], [samples, hidden] -> the same, without the text if last."""
        before, gate, before_mlp, gate_mlp = self.video_modulation(vector).split(self.parts)
        rows = self.text_modulation(vector)
        if self.is_last:
            (video,) = self.attention(F.modulate(self.video_norm(x), before), F.modulate(self.text_norm(y), rows))
            return self._behind(x, video, gate, before_mlp, gate_mlp), vector
        text_before, text_gate, text_before_mlp, text_gate_mlp = rows.split(self.parts)
        video, text = self.attention(F.modulate(self.video_norm(x), before), F.modulate(self.text_norm(y), text_before))
        x = self._behind(x, video, gate, before_mlp, gate_mlp)
        y = F.gated_add(y, text, text_gate)
        y = F.gated_add(y, self.text_mlp(F.modulate(self.text_mlp_norm(y), text_before_mlp)), text_gate_mlp)
        return x, y, vector

    def _behind(self, x: Tensor, attended: Tensor, gate: Tensor, before: Tensor, gate_mlp: Tensor) -> Tensor:
        """The latent stream behind the attention."""
        x = F.gated_add(x, attended, gate)
        return F.gated_add(x, self.video_mlp(F.modulate(self.video_mlp_norm(x), before)), gate_mlp)


class SingleStreamLayer(Module):
    """Modulated attention and feed-forward network side by side over the joined tokens."""

    fp8_region = True

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        self.parts = (2 * config.hidden, config.hidden)
        self.modulation = Modulation(config.hidden, 3)
        self.norm = LayerNorm(config.hidden, affine=False)
        self.attention = ParallelAttention(config)

    def forward(self, x: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """[latent + text tokens, hidden], [samples, hidden] -> the same."""
        before, gate = self.modulation(vector).split(self.parts)
        return F.gated_add(x, self.attention(F.modulate(self.norm(x), before)), gate), vector


class Join(Module):
    """The text behind the latent tokens, sequence by sequence."""

    def forward(self, x: Tensor, y: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Two streams -> one."""
        return F.concatenate_tokens(x, y), vector


class RefinerLayer(Module):
    """Self-attention and feed-forward network over the text, both gated by the timestep and the mean of the text."""

    fp8_region = True

    def __init__(self, config: MMDiTConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.attention_norm = LayerNorm(hidden)
        self.attention = SelfAttention(hidden, config.heads, causal=False)
        self.mlp_norm = LayerNorm(hidden)
        self.mlp = MLP(hidden, config.ffn)
        self.modulation = Modulation(hidden, 2)

    def forward(self, y: Tensor, vector: Tensor) -> Tensor:
        """[text tokens, hidden], [samples, hidden] -> [text tokens, hidden]."""
        width = y.shape[-1]
        assert isinstance(width, int)
        gate, gate_mlp = self.modulation(vector).split((width, width))
        y = F.gated_add(y, self.attention(self.attention_norm(y)), gate)
        return F.gated_add(y, self.mlp(self.mlp_norm(y)), gate_mlp)


def _attention(config: MMDiTConfig, *, rotary: bool) -> SelfAttention:
    return SelfAttention(config.hidden, config.heads, causal=False, rotary=rotary, qk_norm=config.qk_norm)

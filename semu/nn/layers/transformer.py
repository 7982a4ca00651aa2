"""Transformer building blocks: self- and cross-attention, feed-forward networks, a pre-norm layer, a language head."""

from __future__ import annotations

from enum import Enum

from semu.errors import ConfigError
from semu.nn import functional as F
from semu.nn.layers.activation import Activation
from semu.nn.layers.elementary import Dropout, Embedding, LayerNorm, LayerScale, Linear, RMSNorm
from semu.nn.module import Module, Parameter
from semu.nn.trace.tensor import Tensor
from semu.nn.window import Window


class SelfAttention(Module):
    """Multi-head self-attention with a fused QKV projection; grouped queries where ``kv_heads < heads``.

    Args:
        hidden: width. heads: query heads. kv_heads: key/value heads, a divisor of heads; None: heads. Tensor-parallel
            ranks that are a multiple of them share them (``semu.nn.rules.attention.shared_heads``).
        head_dim: None: hidden / heads. causal: mask the future. rotary: rotate q and k (RoPE).
        rotary_dim: features of a head that are rotated; None: all.
        bias, qkv_bias: biases of the output and of the QKV projection (None: as ``bias``).
        key_bias: false: queries and values have biases, keys do not (Whisper, 2212.04356).
        dropout: probability on the attention probabilities; a fused kernel keeps no mask of it.
        qk_norm: RMS norm of every query's and key's head before the rotation (Qwen3, 2505.09388 §2); a class: its norm.
        whole_norm: those norms are over all heads together (OLMo 2, 2501.00656). Where heads are split, queries and
            keys are exchanged for shards of the tokens before the norm and back behind it, as OLMo-core does.
        window: how far a token sees; None: the whole sequence.
        sinks: a learned logit per head takes part in the softmax (GPT-OSS, 2508.10925 §2.2); split with the heads.
        softcap: bound of the scores (Gemma 2, 2408.00118 §2); None: there is none.
    Raises:
        ConfigError: heads that do not divide.
    """

    recompute_kind = "attention"

    def __init__(
        self,
        hidden: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        causal: bool = True,
        rotary: bool = False,
        rotary_dim: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        key_bias: bool = True,
        dropout: float = 0.0,
        qk_norm: bool | type[LayerNorm] = False,
        whole_norm: bool = False,
        window: Window | None = None,
        sinks: bool = False,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim
        self.whole_norm = whole_norm
        self.dropout = dropout
        self.window = window
        self.softcap = softcap
        self.heads = heads
        self.kv_heads = kv_heads if kv_heads is not None else heads
        self.head_dim = head_dim if head_dim is not None else _divide(hidden, heads, "hidden", "heads")
        _divide(heads, self.kv_heads, "heads", "kv_heads")
        self.causal = causal
        self.rotary = rotary
        width = (heads + 2 * self.kv_heads) * self.head_dim
        parts = tuple(count * self.head_dim for count in (heads, self.kv_heads, self.kv_heads))
        self.qkv = Linear(
            hidden,
            width,
            bias=bias if qkv_bias is None else qkv_bias,
            parts=parts,
            bias_features=None if key_bias else parts[0] + parts[2],
        )
        self.out = Linear(heads * self.head_dim, hidden, bias=bias)
        query_width, key_width = parts[:2] if whole_norm else (self.head_dim, self.head_dim)
        norm = RMSNorm if isinstance(qk_norm, bool) else qk_norm
        self.query_norm = norm(query_width) if qk_norm or whole_norm else None
        self.key_norm = norm(key_width) if qk_norm or whole_norm else None
        self.sinks = Parameter(heads) if sinks else None

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        projected, kv_heads = self.qkv(x), self.kv_heads
        if not self.whole_norm:  # which norms all keys together, and asks for whole heads
            projected, kv_heads = F.share_heads(projected, self.heads, kv_heads, self.head_dim)
        q, k, v = F.split_heads(projected, (self.heads, kv_heads, kv_heads), self.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self._normed(q, self.query_norm), self._normed(k, self.key_norm)
        if self.rotary:
            q, k = F.rope(q, self.rotary_dim), F.rope(k, self.rotary_dim, with_values=True)
        context = F.attention(
            q,
            k,
            v,
            causal=self.causal,
            dropout=self.dropout,
            window=self.window,
            sinks=self.sinks,
            softcap=self.softcap,
        )
        out: Tensor = self.out(context.flatten())
        return out

    def _normed(self, x: Tensor, norm: RMSNorm | LayerNorm) -> Tensor:
        """[tokens, heads, head_dim], split over heads -> the same, every head or all heads together normalised."""
        if not self.whole_norm:
            return norm(x)  # type: ignore[no-any-return]
        is_split = x.shards[1] > 1
        rows = F.flatten(x)
        rows = norm(F.all_to_all(rows, gather=1, scatter=0) if is_split else rows)
        rows = F.all_to_all(rows, gather=0, scatter=1) if is_split else rows
        assert norm.weight is not None
        return F.unflatten(rows, norm.weight.shape[0] // self.head_dim, self.head_dim)


class CrossAttention(Module):
    """Queries from one token stream, keys and values from another (e.g. video latents and captions).

    Args:
        hidden: width of the queries. heads: heads. context: width of the other stream; None: hidden. bias: biases.
        key_bias: as in ``SelfAttention``.
    """

    recompute_kind = "attention"

    def __init__(
        self, hidden: int, heads: int, context: int | None = None, *, bias: bool = True, key_bias: bool = True
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = _divide(hidden, heads, "hidden", "heads")
        self.query = Linear(hidden, hidden, bias=bias)
        self.key_value = Linear(
            context if context is not None else hidden,
            2 * hidden,
            bias=bias,
            bias_features=None if key_bias else hidden,
        )
        self.out = Linear(hidden, hidden, bias=bias)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[tokens, hidden], [context tokens, context] -> [tokens, hidden]."""
        q = self.query(x).unflatten(self.heads, self.head_dim)
        k, v = F.split_heads(self.key_value(context), (self.heads, self.heads), self.head_dim)
        out: Tensor = self.out(F.attention(q, k, v, causal=False).flatten())
        return out


class MLP(Module):
    """Feed-forward network: ``down(f(up(x)))``, or gated: ``down(f(gate(x)) * up(x))`` with gate and up fused.

    Args:
        hidden: width. ffn: inner width. out: width of the result; None: hidden. gated: as above. bias: biases.
        activation: f; None: SiLU where gated (SwiGLU), else GELU.
    """

    recompute_kind = "mlp"

    def __init__(
        self,
        hidden: int,
        ffn: int,
        out: int | None = None,
        *,
        gated: bool = False,
        bias: bool = True,
        activation: Activation | None = None,
    ) -> None:
        super().__init__()
        self.gated = gated
        self.activation = activation if activation is not None else Activation.default(gated=gated)
        self.up = Linear(hidden, 2 * ffn if gated else ffn, bias=bias, parts=(ffn, ffn) if gated else None)
        self.down = Linear(ffn, out if out is not None else hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, out]."""
        inner = self.up(x)
        out: Tensor = self.down(self.activation.apply(inner, gated=self.gated))
        return out


class NormPlacement(Enum):
    """Where a layer's norms stand: before its two branches (2002.04745), behind the additions (1706.03762 §3.1, BERT),
    before and behind the branches (Gemma 2, 2408.00118 §2), or behind them alone (OLMo 2, 2501.00656)."""

    PRE = "pre"
    POST = "post"
    SANDWICH = "sandwich"
    BEHIND = "behind"


class TransformerLayer(Module):
    """Two residual branches: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``.

    Args:
        hidden, ffn, heads, kv_heads, head_dim: sizes.
        causal: mask the future. rotary: RoPE. gated: a gated feed-forward network. rms_norm: RMS instead of layer norm.
        bias, qkv_bias: biases of the projections. dropout: probability on the attention's
            probabilities, after attention and after MLP.
        qk_norm: norm of queries and keys, see ``SelfAttention``.
        mlp: in place of the MLP, e.g. a mixture of experts; ``ffn`` is then ignored.
        attention: in place of the self-attention, e.g. latent attention.
        activation: of the MLP; None: see ``MLP``. placement: of the norms.
        attention_bias, mlp_bias: biases of one branch; None: as ``bias``.
        rotary_dim, whole_norm, window, sinks, softcap, key_bias: see ``SelfAttention``.
        layer_scale: every branch is multiplied by a learned number per feature.
    """

    fp8_region = True

    def __init__(
        self,
        hidden: int,
        ffn: int,
        heads: int,
        kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        causal: bool = True,
        rotary: bool = False,
        rotary_dim: int | None = None,
        gated: bool = False,
        rms_norm: bool = False,
        bias: bool = True,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
        qk_norm: bool | type[LayerNorm] = False,
        whole_norm: bool = False,
        mlp: Module | None = None,
        attention: Module | None = None,
        activation: Activation | None = None,
        placement: NormPlacement = NormPlacement.PRE,
        attention_bias: bool | None = None,
        mlp_bias: bool | None = None,
        window: Window | None = None,
        sinks: bool = False,
        softcap: float | None = None,
        key_bias: bool = True,
        layer_scale: bool = False,
    ) -> None:
        super().__init__()
        self.placement = placement

        def _norm() -> Module:
            return RMSNorm(hidden) if rms_norm else LayerNorm(hidden)

        is_behind = placement is NormPlacement.BEHIND
        self.attention_norm = None if is_behind else _norm()
        if attention is None:
            attention = SelfAttention(
                hidden,
                heads,
                kv_heads,
                head_dim=head_dim,
                causal=causal,
                rotary=rotary,
                rotary_dim=rotary_dim,
                bias=bias if attention_bias is None else attention_bias,
                qkv_bias=qkv_bias,
                key_bias=key_bias,
                dropout=dropout,
                qk_norm=qk_norm,
                whole_norm=whole_norm,
                window=window,
                sinks=sinks,
                softcap=softcap,
            )
        self.attention = attention
        self.mlp_norm = None if is_behind else _norm()
        if mlp is None:
            mlp_bias = bias if mlp_bias is None else mlp_bias
            mlp = MLP(hidden, ffn, gated=gated, bias=mlp_bias, activation=activation)
        self.mlp = mlp
        self.attention_dropout = Dropout(dropout)
        self.mlp_dropout = Dropout(dropout)
        has_out_norms = is_behind or placement is NormPlacement.SANDWICH
        self.attention_out_norm = _norm() if has_out_norms else None
        self.mlp_out_norm = _norm() if has_out_norms else None
        self.attention_scale = LayerScale(hidden) if layer_scale else None
        self.mlp_scale = LayerScale(hidden) if layer_scale else None

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        is_post = self.placement is NormPlacement.POST
        first, second = (None, None) if is_post else (self.attention_norm, self.mlp_norm)
        branch = _after(self.attention(_after(x, first)), self.attention_out_norm, self.attention_scale)
        x = _after(x + self.attention_dropout(branch), self.attention_norm if is_post else None)
        branch = _after(self.mlp(_after(x, second)), self.mlp_out_norm, self.mlp_scale)
        return _after(x + self.mlp_dropout(branch), self.mlp_norm if is_post else None)


def _after(branch: Tensor, *modules: Module | None) -> Tensor:
    """``branch`` through modules in order, those that exist."""
    for module in modules:
        if module is not None:
            branch = module(branch)
    return branch


class LMHead(Module):
    """Final norm, projection to the vocabulary, token loss.

    Args:
        hidden: width. vocab: vocabulary. rms_norm: kind of the final norm.
        tied: the embedding whose table is shared, or None: the head has a table.
        softcap: the logits are capped (Gemma 2, 2408.00118 §2): one more kernel over them.
    """

    def __init__(
        self,
        hidden: int,
        vocab: int,
        *,
        rms_norm: bool = False,
        tied: Embedding | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.softcap = softcap
        self.norm = RMSNorm(hidden) if rms_norm else LayerNorm(hidden)
        self.projection = TiedLinear(tied.weight) if tied is not None else Linear(hidden, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> scalar loss."""
        logits = self.projection(self.norm(x))
        return F.cross_entropy(logits if self.softcap is None else F.softcap(logits))


class TiedLinear(Module):
    """A projection with another module's parameter as its weight."""

    def __init__(self, weight: Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight)


def _divide(total: int, parts: int, what: str, by: str) -> int:
    if parts < 1 or total % parts:
        nearest = max((n for n in range(1, min(total, max(parts, 1)) + 1) if total % n == 0), default=1)
        raise ConfigError(
            f"{what} = {total} does not divide into {by} = {parts}",
            expected=f"a divisor of {total}",
            got=parts,
            nearest=nearest,
        )
    return total // parts

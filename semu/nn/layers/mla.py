"""Multi-head latent attention (DeepSeek-V2, 2405.04434 §2.1): queries, keys and values from narrow latents."""

from __future__ import annotations

from semu.nn import functional as F
from semu.nn.layers.elementary import Linear, RMSNorm
from semu.nn.module import Module
from semu.nn.rules.attention.latent import latent_keys, spread_tokens
from semu.nn.trace.tensor import Tensor
from semu.records import dataclass


@dataclass(frozen=True)
class LatentSizes:
    """Widths of latent attention.

    Attributes:
        kv_lora_rank: of the latent of keys and values. q_lora_rank: of the queries' latent; None: no latent.
        qk_head_dim: of a head's part without position. qk_pos_emb_head_dim: of a head's rotated part.
        v_head_dim: of a head's values. norms: the latents are normalised (false: Megatron-LM without --qk-layernorm).
    """

    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    norms: bool = True


class LatentAttention(Module):
    """As trained (nothing absorbed): down-projections and their norms are replicated, up-projections split by heads.

    Args:
        hidden: width. heads: heads. sizes: of the latents. causal: mask the future. bias: of the output projection.
        down_bias: of the down-projections (transformers' ``attention_bias`` means both).
        dropout: as in ``SelfAttention``.
    """

    recompute_kind = "attention"

    def __init__(
        self,
        hidden: int,
        heads: int,
        sizes: LatentSizes,
        *,
        causal: bool = True,
        bias: bool = False,
        down_bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.heads, self.causal, self.sizes = heads, causal, sizes
        width = sizes.qk_head_dim + sizes.qk_pos_emb_head_dim
        rank = sizes.q_lora_rank
        self.query_down = Linear(hidden, rank, bias=down_bias) if rank is not None else None
        self.query_norm = RMSNorm(rank) if rank is not None and sizes.norms else None
        self.query_up = Linear(rank if rank is not None else hidden, heads * width, bias=False)
        self.kv_down = Linear(hidden, sizes.kv_lora_rank + sizes.qk_pos_emb_head_dim, bias=down_bias)
        self.kv_norm = RMSNorm(sizes.kv_lora_rank) if sizes.norms else None
        self.kv_up = Linear(sizes.kv_lora_rank, heads * (sizes.qk_head_dim + sizes.v_head_dim), bias=False)
        self.out = Linear(heads * sizes.v_head_dim, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        s = self.sizes
        latent = x
        if self.query_down is not None:
            latent = self.query_down(x)
        if self.query_norm is not None:
            latent = self.query_norm(latent)
        narrow, positions = self.kv_down(x).split((s.kv_lora_rank, s.qk_pos_emb_head_dim))
        if self.kv_norm is not None:
            narrow = self.kv_norm(narrow)
        spread = spread_tokens(positions)

        def _queries() -> Tensor:
            return F.rope(self.query_up(latent).unflatten(self.heads, s.qk_head_dim + s.qk_pos_emb_head_dim))

        def _keys_and_values() -> tuple[Tensor, Tensor]:
            kv = self.kv_up(narrow).unflatten(self.heads, s.qk_head_dim + s.v_head_dim)
            return latent_keys(kv, spread, s.qk_head_dim, s.qk_pos_emb_head_dim)

        q, (k, v) = _queries(), _keys_and_values()
        repeated: list[tuple[Tensor, Tensor]] = []

        def _again() -> tuple[Tensor, Tensor]:
            """Keys and values are made once more together, for whichever is read first."""
            repeated[:] = repeated or [_keys_and_values()]
            return repeated[0]

        x.trace.drop_output("mla_up_proj", q, _queries)
        x.trace.drop_output("mla_up_proj", k, lambda: _again()[0])
        x.trace.drop_output("mla_up_proj", v, lambda: _again()[1])
        out: Tensor = self.out(F.attention(q, k, v, causal=self.causal, dropout=self.dropout).flatten())
        return out

"""Fused scaled-dot-product attention over packed sequences (FlashAttention: 2205.14135, 2307.08691)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.hardware.attention_kernels import computed_head_dim
from semu.hardware.kinds import DType
from semu.nn.masked_kernel import TILE_EDGE, MaskedKernel
from semu.nn.rules.attention.unfused import attention_sizes
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Tensor, laid_out_like
from semu.nn.window import Window
from semu.records import dataclass


@dataclass(frozen=True)
class AttentionKernel:
    """Some queries with some keys, in one kernel each way.

    Attributes:
        tokens, key_tokens: queries and keys read, on one rank. heads, kv_heads: on one rank. d, d_v: sizes of a head.
        pairs: sum of query x key lengths over the packed sequences.
        is_masked: the kernel skips the upper half of the pairs.
        is_causal: the whole attention, of which this kernel may be an unmasked part, has a causal mask.
        sinks: one learned logit per head in the softmax's denominator.
        tiles: sizes of the mask that it works under, in tiles; None: ``pairs`` and ``is_masked`` say all.
    """

    tokens: Dim
    key_tokens: Dim
    heads: int
    kv_heads: int
    d: int
    d_v: int
    pairs: Dim
    is_masked: bool
    is_causal: bool
    sinks: ParameterUse | None = None
    tiles: MaskedKernel | None = None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool,
        window: Window | None = None,
        sinks: ParameterUse | None = None,
    ) -> AttentionKernel:
        """All queries with all keys, or with those of the window.

        Raises:
            GraphError: operands that do not fit together.
        """
        heads, kv_heads, d, d_v, pairs = attention_sizes(q, k, v, window)
        tokens, key_tokens = q.local_shape[0], k.local_shape[0]
        heads, kv_heads = heads // q.shards[1], kv_heads // k.shards[1]
        return cls(tokens, key_tokens, heads, kv_heads, d, d_v, pairs, is_masked=causal, is_causal=causal, sinks=sinks)

    def forward(
        self, q: Tensor, keys: Sequence[Tensor], name: str, into: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Append the forward kernel.

        Args:
            q: [query tokens, heads, d]; the kernel may work on some of the heads. keys: what holds keys and values.
            name: of the operator.
            into: output and log-sum-exps of all heads, of which it writes its part; None: it makes them.
        Returns:
            [query tokens, heads, d_v]; one fp32 log-sum-exp per query and head, [tokens, heads] local.
        FLOP:
            2 pairs heads (d + d_v), halved where masked; what zeros in padded heads add is no model FLOP.
        """
        trace, run = q.trace, self._as_computed(q)
        needed, flop = self._needed(q, self.d + self.d_v), self._flop(q, run.d + run.d_v)
        y = trace.emit(
            OpKind.ATTENTION_FORWARD,
            [q, *keys, *self.parameters],
            (q.shape[0], q.shape[1], self.d_v) if into is None else None,
            like=q if into is None else None,
            updates=into or (),
            flop=flop,
            recomputed_flop=flop - needed,
            causal_flop=needed if self.is_causal and self.tiles is None else 0,
            mem_bytes=self.query_bytes(q)
            + self.key_bytes(q)
            + self.out_bytes(q)
            + self.statistics_bytes
            + self.parts_bytes,
            key=run.key,
            name=name,
            extra_outputs=[(q.local_shape[:2], DType.FP32)] if into is None else (),
        )
        if into is not None:
            return into
        (log_sum_exp,) = trace.side_outputs(1)
        return y, log_sum_exp

    def backward(
        self,
        q: Tensor,
        reads: Sequence[Tensor],
        name: str,
        key_gradients: Sequence[tuple[Sequence[Dim], DType]],
        into: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Append the backward kernel.

        Args:
            q: queries. reads: everything that it reads. name: of the operator.
            key_gradients: local shapes and types of what it writes for keys and values.
            into: gradient of all queries, of which it writes its part; None: it makes it.
        Returns:
            Gradient of the queries; those of keys and values.
        FLOP:
            2 pairs heads (3 d + 2 d_v), halved where masked; the third q k^T is no model FLOP, nor are padded heads.
        """
        trace, run = q.trace, self._as_computed(q)
        needed, flop = self._needed(q, 2 * self.d + 2 * self.d_v), self._flop(q, 3 * run.d + 2 * run.d_v)
        grad_q = trace.emit(
            OpKind.ATTENTION_BACKWARD,
            [*reads, *self.parameters],
            like=q if into is None else None,
            updates=[into] if into is not None else (),
            flop=flop,
            recomputed_flop=flop - needed,
            causal_flop=needed if self.is_causal and self.tiles is None else 0,
            mem_bytes=2 * (self.query_bytes(q) + self.key_bytes(q) + self.out_bytes(q)) + self.statistics_bytes,
            key=run.key if self.tiles is None else run._key_of("column_span"),
            name=name,
            gradients=[use for use in self.parameters if use.gradient is not None],
            extra_outputs=key_gradients,
        )
        return grad_q if into is None else into, trace.side_outputs(len(key_gradients))

    def _as_computed(self, q: Tensor) -> AttentionKernel:
        """With the sizes of a head that the kernel is compiled for."""
        sizes = q.trace.options.head_dims
        if not sizes:
            return self
        return replace(self, d=computed_head_dim(sizes, self.d), d_v=computed_head_dim(sizes, self.d_v))

    @property
    def key(self) -> tuple[Dim, ...]:
        """Shape key: see ``semu.costs.roofline.ATTENTION_KEY``."""
        if self.tiles is not None:
            return self._key_of("span")
        share = 2 if self.is_masked else 1
        return (self.tokens, self.key_tokens, self.pairs, self.heads, self.kv_heads, self.d, self.d_v, share)

    def _key_of(self, span: str) -> tuple[Dim, ...]:
        """See ``semu.costs.shape_factors.MASKED_KEY``."""
        assert self.tiles is not None
        sizes = self.tiles.size("tiles"), self.tiles.size("partial"), self.tiles.size(span)
        return (self.tokens, self.key_tokens, self.pairs, self.heads, self.kv_heads, self.d, self.d_v, 1, *sizes)

    @property
    def parameters(self) -> tuple[ParameterUse, ...]:
        """The sinks, where there are any."""
        return (self.sinks,) if self.sinks is not None else ()

    @property
    def statistics_bytes(self) -> Dim:
        """Bytes of the log-sum-exps."""
        return self.tokens * self.heads * DType.FP32.size_bytes

    def query_bytes(self, q: Tensor) -> Dim:
        """Bytes of the queries of its heads."""
        return self.tokens * self.heads * self.d * q.dtype.size_bytes

    def key_bytes(self, q: Tensor) -> Dim:
        """Bytes of the keys and values read, and of the mask where tiles need it: 8 bytes a token and tile edge."""
        if self.tiles is not None:
            keys = self.tiles.size("keys") * self.kv_heads * (self.d + self.d_v) * q.dtype.size_bytes
            return keys + self.tiles.size("partial") * (2 * TILE_EDGE * 8)
        return self.key_tokens * self.kv_heads * (self.d + self.d_v) * q.dtype.size_bytes

    def out_bytes(self, q: Tensor) -> Dim:
        """Bytes of the output."""
        return self.tokens * self.heads * self.d_v * q.dtype.size_bytes

    def aggregate(self, q: Tensor, y: Tensor) -> None:
        """Append the kernel that adds up the outputs of parts of rows, where there are any (Cornstarch, 3.3.2.2)."""
        if self.tiles is not None and self.tiles.split:
            traffic = self.parts_bytes + self.out_bytes(q)
            q.trace.emit(OpKind.ADD, [y], mem_bytes=traffic, key=(y.numel,), updates=[y], name="aggregate")

    @property
    def parts_bytes(self) -> Dim:
        """Bytes of outputs and log-sum-exps of parts of rows, in fp32 (Cornstarch, 3.3.2.2)."""
        if self.tiles is None or not self.tiles.split:
            return 0
        return self.tiles.size("parts") * (TILE_EDGE * self.heads * (self.d_v + 1) * DType.FP32.size_bytes)

    def _needed(self, q: Tensor, width: int) -> Dim:
        """FLOP of the model: those of pairs that the mask lets through."""
        if self.tiles is None:
            return self._flop(q, width)
        return 2 * self.tiles.size("pairs") * self.heads * width

    def _flop(self, q: Tensor, width: int) -> Dim:
        if self.tiles is not None:
            return 2 * TILE_EDGE**2 * self.tiles.size("tiles") * self.heads * width
        work = 2 * self.pairs * self.heads * width
        return divide(work, 2 if self.is_masked else 1, "attention FLOP", q.trace.where)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: Window | None = None,
    sinks: ParameterUse | None = None,
    kernel: AttentionKernel | None = None,
) -> Tensor:
    """One kernel each way.

    Args:
        q: [query tokens, heads, d]. k: [key tokens, kv heads, d]. v: [key tokens, kv heads, d_v]; heads a multiple of
            kv heads (GQA, 2305.13245). All split alike over heads.
        causal: a token attends to those before it; the count is halved.
        window: how far a token attends; blocks of scores outside it are skipped (2307.08691 §3.1; Mistral, 2310.06825).
        sinks: one learned logit per head in the softmax's denominator (GPT-OSS, 2508.10925 §2.2); read and, in the
            backward, its gradient written by the same kernels: a few bytes, not counted.
        kernel: what runs, in the place of window and sinks.
    Returns:
        [query tokens, heads, d_v].
    FLOP:
        forward 2 pairs heads (d + d_v), backward 2 pairs heads (3 d + 2 d_v), pairs = sum of query x key lengths over
        the packed sequences, halved where causal (FlashAttention computes the lower half only). The backward's third
        q k^T is recomputation inside the kernel and no model FLOP.
    Saves q, k, v, the output and one fp32 log-sum-exp per query and head.
    """
    kernel = kernel or AttentionKernel.of(q, k, v, causal=causal, window=window, sinks=sinks)
    trace, ledger = q.trace, q.trace.ledger
    kept = ledger.next() if ledger is not None and ledger.place is not None else None
    if kept is not None:
        y, log_sum_exp = replace(kept[0], requires_grad=trace.any_trainable([q, k, v, *kernel.parameters])), kept[1]
    else:
        y, log_sum_exp = kernel.forward(q, [k, v], "attention")
        kernel.aggregate(q, y)
        if ledger is not None:
            ledger.kept.append((y, log_sum_exp))

    def _backward(grad: Tensor) -> list[Tensor | None]:
        written = [(k.local_shape, k.dtype), (v.local_shape, v.dtype)]
        reads = [q, k, v, y, log_sum_exp, grad]
        grad_q, (grad_k, grad_v) = kernel.backward(q, reads, "attention_bw", written)
        return [grad_q, laid_out_like(grad_k, k), laid_out_like(grad_v, v)]

    return trace.recorded([q, k, v], y, _backward)

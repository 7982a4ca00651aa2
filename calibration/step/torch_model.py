"""A decoder layer and a small language model in torch, kernel for kernel what semu's ``TransformerLayer`` describes.

Fused query-key-value and gate-up projections, rotary positions, RMS norms, grouped queries, no biases; the SwiGLU keeps
its input only and makes the rest again in the backward pass, as fused kernels do.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from calibration.memory_calls import rotate, swiglu
from calibration.steps import StepCase


class SwiGLU(torch.autograd.Function):
    """silu(gate) * up that saves its input alone."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """[..., 2 width] -> [..., width]."""
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The chain rule, from the saved input."""
        (x,) = ctx.saved_tensors  # to be asked for once, under checkpoint
        gate, up = x.chunk(2, dim=-1)
        (gradient,) = gradients
        result = torch.empty_like(x)
        of_gate, of_up = result.chunk(2, dim=-1)
        torch.mul(F.silu(gate), gradient, out=of_up)
        torch.mul(gradient, up, out=of_gate)
        torch.ops.aten.silu_backward.grad_input(of_gate, gate, grad_input=of_gate)
        return result


class RMSNorm(nn.Module):
    """Over the last axis."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        """[..., width] -> the same."""
        return F.rms_norm(x, (x.shape[-1],), self.weight)


class Layer(nn.Module):
    """Pre-norm decoder layer."""

    def __init__(self, case: StepCase) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = case.heads, case.kv_heads, case.head_dim
        self.compiled = case.compiled
        self.attention_norm, self.mlp_norm = RMSNorm(case.hidden), RMSNorm(case.hidden)
        self.qkv = nn.Linear(case.hidden, (case.heads + 2 * case.kv_heads) * case.head_dim, bias=False)
        self.out = nn.Linear(case.heads * case.head_dim, case.hidden, bias=False)
        self.up = nn.Linear(case.hidden, 2 * case.ffn, bias=False)
        self.down = nn.Linear(case.ffn, case.hidden, bias=False)

    def attend(self, x: Any, cos: Any, sin: Any) -> Any:
        """[batch, tokens, hidden] -> the same."""
        batch, tokens, _ = x.shape
        counts = [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (part.view(batch, tokens, -1, self.head_dim) for part in self.qkv(x).split(counts, dim=-1))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        grouped = self.heads != self.kv_heads
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """[batch, tokens, hidden] -> the same."""
        x = x + self.attend(self.attention_norm(x), cos, sin)
        inner = self.up(self.mlp_norm(x))
        return x + self.down(swiglu(inner) if self.compiled else SwiGLU.apply(inner))


class Decoder(nn.Module):
    """Layers; with a vocabulary, an embedding before and a loss behind them."""

    def __init__(self, case: StepCase) -> None:
        super().__init__()
        self.case = case
        self.layers = nn.ModuleList(Layer(case) for _ in range(case.layers))
        if case.vocab:
            self.embedding = nn.Embedding(case.vocab, case.hidden)
            self.norm = RMSNorm(case.hidden)
            self.head = nn.Linear(case.hidden, case.vocab, bias=False)
        angles = torch.arange(case.seq_len)[:, None] / 10000 ** (
            torch.arange(0, case.head_dim, 2)[None, :] / case.head_dim
        )
        self.register_buffer("cos", angles.cos()[:, None, :])
        self.register_buffer("sin", angles.sin()[:, None, :])

    def forward(self, x: Any, targets: Any = None) -> Any:
        """Ids [batch, tokens] and targets -> loss; without a vocabulary, [batch, tokens, hidden] -> the same."""
        if self.case.vocab:
            x = self.embedding(x)
        for layer in self.layers:
            if self.case.recompute == "full":
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        if not self.case.vocab:
            return x
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

"""Towers in torch, kernel for kernel what semu's modules describe: a ViT's layers, a DiT, CLIP's two towers.

As in ``torch_model``, projections of queries, keys and values are one product; here with biases and layer norms.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from calibration.steps import CLIP_POSITIONS, CLIP_VOCAB, DIT_FEATURES, DIT_TIMESTEP, StepCase, text_sizes


def quick_gelu(x: Any) -> Any:
    """CLIP's activation."""
    return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Self-attention with biases. causal: mask the future."""

    def __init__(self, hidden: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)

    def forward(self, x: Any) -> Any:
        """[batch, tokens, hidden] -> the same."""
        batch, tokens, hidden = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))


class TowerLayer(nn.Module):
    """Pre-norm layer: layer norms, biases, a feed-forward network without gate."""

    def __init__(self, hidden: int, ffn: int, heads: int, *, causal: bool = False, quick: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, causal)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.quick = quick

    def forward(self, x: Any) -> Any:
        """[batch, tokens, hidden] -> the same."""
        x = x + self.attention(self.norm1(x))
        inner = self.up(self.norm2(x))
        return x + self.down(quick_gelu(inner) if self.quick else F.gelu(inner))


class Tower(nn.Module):
    """Layers between a given input and a given gradient."""

    def __init__(self, case: StepCase) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TowerLayer(case.hidden, case.ffn, case.heads) for _ in range(case.layers))

    def forward(self, x: Any) -> Any:
        """[batch, tokens, hidden] -> the same."""
        for layer in self.layers:
            x = layer(x)
        return x


class DiffusionLayer(nn.Module):
    """A layer of DiT (2212.09748): the timestep's code gives scales, shifts and gates (adaLN)."""

    def __init__(self, hidden: int, ffn: int, heads: int) -> None:
        super().__init__()
        self.condition = nn.Linear(hidden, 6 * hidden)
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.attention = Attention(hidden, heads, causal=False)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x: Any, time: Any) -> Any:
        """[images, tokens, hidden], [images, hidden] -> [images, tokens, hidden]."""
        parts = self.condition(F.silu(time))[:, None].chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.down(F.gelu(self.up(self.norm2(x) * (1 + scale2) + shift2)))


class Diffusion(nn.Module):
    """Latents and timesteps -> squared error."""

    def __init__(self, case: StepCase) -> None:
        super().__init__()
        hidden = case.hidden
        self.latents = nn.Linear(DIT_FEATURES, hidden)
        self.time_in, self.time_out = nn.Linear(DIT_TIMESTEP, hidden), nn.Linear(hidden, hidden)
        self.layers = nn.ModuleList(DiffusionLayer(hidden, case.ffn, case.heads) for _ in range(case.layers))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)
        self.projection = nn.Linear(hidden, 2 * DIT_FEATURES)

    def forward(self, latents: Any, timesteps: Any, noise: Any) -> Any:
        """[images, tokens, features], [images, timestep code], [images, tokens, 2 features] -> loss."""
        x = self.latents(latents)
        time = self.time_out(F.silu(self.time_in(timesteps)))
        for layer in self.layers:
            x = layer(x, time)
        return F.mse_loss(self.projection(self.norm(x)), noise)


class TwoTowers(nn.Module):
    """CLIP (2103.00020): patches and captions -> the loss of the batch against itself."""

    def __init__(self, case: StepCase) -> None:
        super().__init__()
        text_hidden, text_ffn, text_heads = text_sizes(case)
        hidden = case.hidden
        self.patches = nn.Linear(case.patch_features, hidden, bias=False)
        self.class_token = nn.Parameter(torch.zeros(1, hidden))
        self.vision_positions = nn.Parameter(torch.zeros(case.seq_len + 1, hidden))
        self.pre_norm, self.vision_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.vision = nn.ModuleList(TowerLayer(hidden, case.ffn, case.heads, quick=True) for _ in range(case.layers))
        self.tokens = nn.Embedding(CLIP_VOCAB, text_hidden)
        self.text_positions = nn.Parameter(torch.zeros(CLIP_POSITIONS, text_hidden))
        self.text = nn.ModuleList(
            TowerLayer(text_hidden, text_ffn, text_heads, causal=True, quick=True) for _ in range(case.layers)
        )
        self.text_norm = nn.LayerNorm(text_hidden)
        self.vision_projection = nn.Linear(hidden, text_hidden, bias=False)
        self.text_projection = nn.Linear(text_hidden, text_hidden, bias=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, patches: Any, ids: Any) -> Any:
        """[images, patches, values], [captions, 77] -> loss."""
        x = self.patches(patches)
        x = torch.cat((self.class_token.expand(x.shape[0], 1, -1), x), dim=1)
        x = self.pre_norm(x + self.vision_positions)
        for layer in self.vision:
            x = layer(x)
        images = F.normalize(self.vision_projection(self.vision_norm(x[:, 0])), dim=-1)
        y = self.tokens(ids) + self.text_positions
        for layer in self.text:
            y = layer(y)
        texts = F.normalize(self.text_projection(self.text_norm(y)[:, -1]), dim=-1)
        logits = self.scale * images @ texts.T
        labels = torch.arange(len(images), device=logits.device)
        return (F.cross_entropy(logits.float(), labels) + F.cross_entropy(logits.float().T, labels)) / 2

"""Tiles and permutations against PyTorch on the CPU: FlexAttention's block masks, attention in one piece."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from masks.dense import dense_mask, drawn_spans

from semu.masks.balance import Cut, cut_tokens
from semu.masks.mask import MaskKind, Seen
from semu.masks.spans import Spans
from semu.masks.tile_lists import TileLists, reads_of_blocks
from semu.masks.tiles import work_of_blocks
from semu.parallel.context import Balance

torch = pytest.importorskip("torch", reason="compares with PyTorch (pip install '.[executor]')")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

POLICIES = [policy for policy in Balance if policy not in (Balance.LPT_EQUAL, Balance.SNAKE)]


def _mask(kind: MaskKind, spans: Spans):  # type: ignore[no-untyped-def]
    return torch.from_numpy(dense_mask(kind, spans))


@pytest.mark.parametrize("kind", MaskKind)
@pytest.mark.parametrize("seed", range(4))
def test_tiles_are_flex_attention_s(kind: MaskKind, seed: int) -> None:
    draw = np.random.default_rng(seed)
    spans = drawn_spans(draw, 900)
    rest = -spans.num_tokens % 128  # FlexAttention's tiles have no short rows
    lengths = [*np.diff(spans.starts).tolist(), rest] if rest else np.diff(spans.starts).tolist()
    if rest:
        starts, ptr = (np.append(of, spans.num_tokens + rest) for of in (spans.starts, spans.ptr))
        parts = (np.append(of, value) for of, value in ((spans.document, 99), (spans.kind, 0), (spans.item, -1)))
        spans = Spans(starts, ptr, *parts)
    mask = _mask(kind, spans)
    block_mask = flex.create_block_mask(lambda b, h, q, k: mask[q, k], 1, 1, sum(lengths), sum(lengths), device="cpu")
    whole = Cut(np.array([0, spans.num_tokens]), np.zeros(1, np.int32), 1)
    found = TileLists.of(Seen.of(kind, spans), whole)
    row = np.repeat(np.arange(len(found.size)), np.diff(found.ptr))
    for is_full, count, indices in (
        (False, block_mask.kv_num_blocks, block_mask.kv_indices),
        (True, block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    ):
        mine = np.bincount(row[found.is_full == is_full], minlength=len(found.size))
        np.testing.assert_array_equal(mine, count[0, 0].numpy())
        for number, length in enumerate(mine.tolist()):
            keys = found.key[(row == number) & (found.is_full == is_full)]
            np.testing.assert_array_equal(keys, np.sort(indices[0, 0, number, :length].numpy()))


def _parts(policy: Balance, kind: MaskKind, spans: Spans, ranks: int) -> list[np.ndarray]:  # type: ignore[type-arg]
    seen = Seen.of(kind, spans)
    starts = spans.starts
    work, reads = partial(work_of_blocks, seen, starts), partial(reads_of_blocks, seen, starts)
    cut = cut_tokens(policy, spans, ranks, 32, work, reads=reads)
    return np.split(cut.permutation, np.cumsum(cut.tokens)[:-1])


def _in_one_piece(q, k, v, mask, grad):  # type: ignore[no-untyped-def]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out, torch.autograd.grad(out, (q, k, v), grad)


@pytest.mark.parametrize("way", ["gathered", "ring", "needed"])
@pytest.mark.parametrize("kind", [MaskKind.MULTIMODAL, MaskKind.PREFIX])
@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_together_make_the_whole(policy: Balance, kind: MaskKind, way: str) -> None:
    """Every rank attends with its own queries, to all keys, to those of one rank after the other, or to its own and to
    those of the others' tiles that it reads, merged by their log-sum-exps; outputs, put in order, and gradients are
    those of attention in one piece."""
    ranks = 3
    spans = drawn_spans(np.random.default_rng(5), 400)
    mask = _mask(kind, spans)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(2, spans.num_tokens, 8, dtype=torch.double, generator=generator) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    parts = [torch.from_numpy(own) for own in _parts(policy, kind, spans, ranks)]
    outputs = []
    for rank, mine in enumerate(parts):
        if way == "gathered":
            whole = torch.nn.functional.scaled_dot_product_attention(q[:, mine], k, v, attn_mask=mask[mine])
        elif way == "ring":
            order = [parts[(rank - step) % ranks] for step in range(ranks)]
            whole = _merged(q, k, v, mask, mine, order)
        else:
            whole = _merged(q, k, v, mask, mine, [mine, _tiles_read(mask, parts, rank)])
        outputs.append(whole)
    inverse = torch.argsort(torch.cat(parts))
    out = torch.cat(outputs, dim=1)[:, inverse]
    expected, gradients = _in_one_piece(q, k, v, mask, grad)
    torch.testing.assert_close(out, expected)
    for mine, other in zip(torch.autograd.grad(out, (q, k, v), grad), gradients, strict=True):
        torch.testing.assert_close(mine, other)


def _tiles_read(mask, parts, rank):  # type: ignore[no-untyped-def]
    """Keys of other ranks in the tiles, as their owners pack them, of which the rank sees any."""
    tiles = [tile for other, own in enumerate(parts) if other != rank for tile in own.split(128)]
    return torch.cat([tile for tile in tiles if mask[parts[rank]][:, tile].any()] or [parts[rank][:0]])


def _merged(q, k, v, mask, mine, order):  # type: ignore[no-untyped-def]
    """Merge a rank's outputs over some keys after others."""
    size = q.shape[-1]
    total, norm = torch.zeros_like(q[:, mine]), torch.full((*q[:, mine].shape[:2], 1), -torch.inf, dtype=q.dtype)
    for theirs in order:
        scores = (q[:, mine] @ k[:, theirs].transpose(1, 2)) / size**0.5
        scores = scores.masked_fill(~mask[mine][:, theirs], -torch.inf)
        part = torch.logsumexp(scores, dim=2, keepdim=True)
        is_there = part > -torch.inf
        weights = torch.where(is_there, scores - part.where(is_there, torch.zeros_like(part)), -torch.inf).exp()
        both = torch.logaddexp(norm, part)
        safe = both.where(both > -torch.inf, torch.zeros_like(both))
        total = total * (norm - safe).exp() + (weights @ v[:, theirs]) * (part - safe).exp()
        norm = both
    return total

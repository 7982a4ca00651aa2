"""FlexAttention over block masks: what a tile costs in which some pairs are masked, beside a whole one.

``full``: every tile is known to be whole. ``partial``: the same tiles, each of which applies a mask that hides nothing.
Their quotient is what applying a mask inside a tile costs. ``causal`` and ``document`` are masks as models have them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibration.table import Value, with_remarks

if TYPE_CHECKING:
    from calibration.bench import Bench

MASKS = ("full", "partial", "causal", "document")
DOCUMENTS = 8
"""Of unequal length, of a sequence; see ``bounds``."""
BLOCK = 128


@dataclass(frozen=True)
class MaskCase:
    """A sequence of ``tokens`` under a mask, forward or backward; ``heads`` of ``head_dim``."""

    which: str
    mask: str
    tokens: int
    heads: int
    head_dim: int

    def row(self) -> dict[str, Value]:
        """Key columns of ``mask_tiles.csv``, without ``device``."""
        return {
            "dtype": "bf16",
            "pass": self.which,
            "mask": self.mask,
            "heads": self.heads,
            "tokens": self.tokens,
            "head_dim": self.head_dim,
            "note": "torch flex_attention",
        }

    def label(self) -> str:
        """For people."""
        return f"{self.mask} {self.which} {self.tokens} tokens, {self.heads} x {self.head_dim}"


def mask_cases(*, quick: bool = False) -> list[MaskCase]:
    """What is measured. ``quick``: small, and forward only, as the CPU has no backward."""
    if quick:
        return [MaskCase("fwd", mask, 512, 2, 16) for mask in MASKS]
    return [
        MaskCase(which, mask, tokens, 16, head_dim)
        for head_dim in (128, 64)
        for mask in MASKS
        for tokens in (8192,)
        for which in ("fwd", "bwd")
    ]


def bounds(tokens: int) -> list[int]:
    """Ends of the documents: the first takes half of what is there, the next half of the rest, off the tiles' edges."""
    ends, left = [], tokens
    for _ in range(DOCUMENTS - 1):
        left -= left // 2 - 5
        ends.append(tokens - left)
    return [*ends, tokens]


def build_mask(bench: Bench, case: MaskCase) -> tuple[Any, int, int]:
    """The block mask, its tiles, and those in which a mask is applied."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask

    tokens, device = case.tokens, bench.device
    count = tokens // BLOCK
    ends = torch.tensor(bounds(tokens), device=device)
    document = torch.searchsorted(ends, torch.arange(tokens, device=device), right=True)

    def _nothing_hidden(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q + tokens >= k

    def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    def _document(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (document[q] == document[k])

    if case.mask in ("causal", "document"):
        rule = _causal if case.mask == "causal" else _document
        mask = create_block_mask(rule, None, None, tokens, tokens, device=str(device), BLOCK_SIZE=BLOCK)
    else:
        numbers = torch.full((1, 1, count), count, dtype=torch.int32, device=device)
        indices = torch.arange(count, dtype=torch.int32, device=device).expand(1, 1, count, count).contiguous()
        none = torch.zeros_like(numbers)
        whole = case.mask == "full"
        mask = BlockMask.from_kv_blocks(
            none if whole else numbers,
            indices,
            numbers if whole else none,
            indices,
            BLOCK_SIZE=BLOCK,
            mask_mod=_nothing_hidden,
        )
    partial = int(mask.kv_num_blocks.sum())
    full = int(mask.full_kv_num_blocks.sum()) if mask.full_kv_num_blocks is not None else 0
    return mask, partial + full, partial


def _kernel(bench: Bench, attention: Any) -> Any:
    """Compiled, or an error: past its limit of recompilations torch would go on with scores in memory. On a CPU,
    which has not all of it, the plain version, for a dry run."""
    import torch
    import torch._dynamo.config

    if not bench.is_cuda:

        def _plain(*arguments: Any, **options: Any) -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is not compiled
                return attention(*arguments, **options)

        return _plain
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(attention, dynamic=False, fullgraph=True)


def measure_mask(bench: Bench, case: MaskCase) -> dict[str, Value]:
    """A row of ``mask_tiles.csv`` without ``source``."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    mask, tiles, partial = build_mask(bench, case)
    attend = _kernel(bench, flex_attention)
    shape = (1, case.heads, case.tokens, case.head_dim)
    dtype = "bf16" if bench.is_cuda else "fp32"
    q, k, v = (bench.random(*shape, dtype=dtype, grad=case.which == "bwd") for _ in range(3))
    if case.which == "fwd":
        timing, remarks = bench.time(lambda: lambda: attend(q, k, v, block_mask=mask), 8 * q.numel())
    else:
        import torch._functorch.config

        torch._functorch.config.donated_buffer = False
        out = attend(q, k, v, block_mask=mask)
        grad = torch.randn_like(out)
        timing, remarks = bench.time(
            lambda: lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), 16 * q.numel()
        )
    return {
        "device": bench.name,
        **case.row(),
        "tiles": tiles,
        "partial": partial,
        "time_us": timing.median_s * 1e6,
        "note": with_remarks("torch flex_attention", bench.policy.label, remarks),
    }

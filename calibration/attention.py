"""Fused attention: the shapes, and torch's scaled_dot_product_attention forward and backward by backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibration.case import Case, spread
from calibration.table import Value
from semu.errors import ConfigError

if TYPE_CHECKING:
    from calibration.bench import Bench
    from calibration.timing import Call

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS = 16384
"""Tokens of a call, in as many sequences as they make."""
HEADS = ((64, 32, 32), (64, 32, 8), (128, 32, 32), (128, 32, 8), (128, 8, 1), (256, 16, 16), (256, 16, 4))
"""(head_dim, heads, kv_heads)."""
BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
"""Word in ``note`` -> member of torch.nn.attention.SDPBackend."""
VARLEN = "varlen"
"""torch.nn.attention.varlen: sequences packed one behind the other, here of equal lengths."""


def attention_cases(*, quick: bool = False) -> list[Case]:
    """The grid. ``quick``: two small shapes, for a dry run."""
    if quick:
        return spread(
            _case(which, 1, 4, kv_heads, 32, 16, causal, "flash")
            for which in ("fwd", "bwd")
            for kv_heads, causal in ((4, 1), (2, 0))
        )
    return spread(_all_cases())


def _all_cases() -> Iterator[Case]:
    for backend in BACKENDS:
        for which in ("fwd", "bwd"):
            for length in LENGTHS:
                for causal in (1, 0):
                    for head_dim, heads, kv_heads in HEADS:
                        yield _case(which, TOKENS // length, heads, kv_heads, length, head_dim, causal, backend)
                yield _case(which, 1, 32, 8, length, 128, 1, backend)
    for which in ("fwd", "bwd"):
        for length in LENGTHS:
            for head_dim in (64, 128):
                yield _case(which, TOKENS // length, 32, 32, length, head_dim, 1, VARLEN)


def _case(
    which: str, batch: int, heads: int, kv_heads: int, length: int, head_dim: int, causal: int, name: str
) -> Case:
    row: dict[str, Value] = {
        "dtype": "bf16",
        "pass": which,
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "seq_q": length,
        "seq_kv": length,
        "head_dim": head_dim,
        "head_dim_v": head_dim,
        "causal": causal,
        "window": 0,
        "note": "torch varlen" if name == VARLEN else f"torch sdpa {name}",
    }
    tensors = (2 * heads + 2 * kv_heads) * (2 if which == "bwd" else 1)
    return Case("attention", row, 2 * batch * length * head_dim * tensors, {"backend": name})


def attention_flop(row: dict[str, Any]) -> float:
    """FLOP of a row as the tables count them: 2 b h s_q s_kv (d_qk + d_v) forward, (3 d_qk + 2 d_v) backward, causal
    half."""
    widths = row["head_dim"] + row["head_dim_v"]
    if row["pass"] == "bwd":
        widths = 3 * row["head_dim"] + 2 * row["head_dim_v"]
    flop: float = 2.0 * row["batch"] * row["heads"] * row["seq_q"] * row["seq_kv"] * widths
    return flop / 2 if row["causal"] else flop


def build_attention(bench: Bench, case: Case) -> Call:
    """Operands and the call; backward: on a graph that is built here and kept.

    Raises:
        ConfigError: a backend that this device or this torch has not.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attend

    row: dict[str, Any] = dict(case.row)
    if case.options["backend"] == VARLEN:
        return _build_packed(bench, row)
    wanted = BACKENDS[case.options["backend"]]
    backend = getattr(SDPBackend, wanted, None)
    if backend is None:
        raise ConfigError("no such backend in this torch", where="attention", expected=wanted, got=torch.__version__)
    if not bench.is_cuda:
        backend = [backend, SDPBackend.MATH]
    is_backward = row["pass"] == "bwd"

    def _operand(heads: int, width: int) -> Any:
        # [batch, tokens, heads, width] in memory, as a projection leaves it
        values = bench.random(row["batch"], row["seq_q"], heads, width).transpose(1, 2)
        return values.requires_grad_(is_backward)

    q = _operand(row["heads"], row["head_dim"])
    k = _operand(row["kv_heads"], row["head_dim"])
    v = _operand(row["kv_heads"], row["head_dim_v"])
    grouped = row["heads"] != row["kv_heads"]

    def _forward() -> Any:
        with sdpa_kernel(backend):
            return attend(q, k, v, is_causal=bool(row["causal"]), enable_gqa=grouped)

    if not is_backward:
        return _forward
    out = _forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)


def _build_packed(bench: Bench, row: dict[str, Any]) -> Call:
    """Sequences one behind the other in [tokens, heads, width]."""
    import torch

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError as error:
        raise ConfigError("no packed attention in this torch", where="attention", got=torch.__version__) from error

    length, is_backward = row["seq_q"], row["pass"] == "bwd"
    tokens = row["batch"] * length
    ends = torch.arange(0, tokens + 1, length, dtype=torch.int32, device=bench.device)
    q, k, v = (
        bench.random(tokens, heads, row["head_dim"]).requires_grad_(is_backward)
        for heads in (row["heads"], row["kv_heads"], row["kv_heads"])
    )
    window = (-1, 0) if row["causal"] else (-1, -1)

    def _forward() -> Any:
        return varlen_attn(q, k, v, ends, ends, length, length, window_size=window)

    if not is_backward:
        return _forward
    out = _forward()
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

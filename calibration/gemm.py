"""Matrix products: the shapes, and how torch is asked for each layout.

C[m, n] = A[m, k] B[k, n], in the layouts of a linear layer's three products, as public tables name them: ``TN`` forward
(the weight is [n, k]), ``NN`` input gradient (the weight is [k, n]), ``NT`` weight gradient (A is stored [k, m]).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from calibration.case import Case, spread
from calibration.table import Value
from semu.errors import ConfigError

if TYPE_CHECKING:
    from calibration.bench import Bench
    from calibration.timing import Call

TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384)
WEIGHTS = (
    (1024, 1024),
    (2048, 2048),
    (1536, 4096),
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (5120, 5120),
    (13824, 5120),
    (5120, 1728),
    (8192, 8192),
    (10240, 8192),
    (8192, 3584),
    (12288, 1536),
    (32000, 4096),
)
"""(n, k) of linear layers of models from 1 to 70 billion parameters, whole and cut by tensor parallelism."""
EXPERTS = ((1536, 2048), (4096, 1024), (2048, 7168), (28672, 4096))
"""(n, k) of an expert's projections."""
ODD_SHAPES = 40
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}


def gemm_cases(*, quick: bool = False) -> list[Case]:
    """The grid. ``quick``: a few small shapes, for a dry run."""
    if quick:
        shapes = [(64, 48, 32), (32, 64, 128)]
        grouped = _case("bf16", 16, 48, 32, "TN", groups=4)
        return spread(
            [grouped, *(_case(dtype, *shape, layout) for shape in shapes for dtype, layout in _quick_kinds())]
        )
    return spread(_all_cases())


def _quick_kinds() -> list[tuple[str, str]]:
    return [("bf16", layout) for layout in ("TN", "NN", "NT")] + [("fp16", "TN"), ("fp8", "TN")]


def _all_cases() -> Iterator[Case]:
    for m in TOKENS:
        for n, k in WEIGHTS:
            yield _case("bf16", m, n, k, "TN")
            yield _case("fp8", m, n, k, "TN")
            if m >= 1024:
                yield _case("bf16", m, k, n, "NN")  # dX[tokens, in] = dY[tokens, out] W[out, in]
                yield _case("bf16", n, k, m, "NT")  # dW[out, in] = dY[out, tokens] X[tokens, in]
            if m in (1024, 4096, 16384):
                yield _case("fp16", m, n, k, "TN")
    yield from (_case("bf16", *shape, "TN") for shape in odd_shapes(ODD_SHAPES))
    for n, k in EXPERTS:
        for m, groups in ((128, 32), (512, 8), (1024, 32), (4096, 8)):
            yield _case("bf16", m, n, k, "TN", groups=groups)
            yield _case("bf16", n, k, m, "NT", groups=groups)


def odd_shapes(count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Shapes off the grid: m, n, k log-uniform in 256..16384, multiples of 8, 32 or 64 (tiles that do not fit)."""
    draw = random.Random(seed)

    def _size() -> int:
        step = draw.choice((8, 32, 64))
        return max(256, int(256 * 64 ** draw.random()) // step * step)

    return [(_size(), _size(), _size()) for _ in range(count)]


def _case(dtype: str, m: int, n: int, k: int, layout: str, *, groups: int = 1) -> Case:
    scales = ";scales=tensor" if dtype == "fp8" else ""
    out = "bf16" if dtype == "fp8" else dtype
    note = f"layout={layout};acc=False;out={out}{scales}"
    if groups > 1:
        note = f"grouped ng={groups};bmm;{note}"
    row: dict[str, Value] = {"dtype": dtype, "m": m, "n": n, "k": k, "batch": groups, "note": note}
    count = BYTES[dtype] * (m * k + k * n) + BYTES[out] * m * n
    return Case("gemm", row, groups * count, {"layout": layout})


def build_gemm(bench: Bench, case: Case) -> Call:
    """Operands and the call.

    Raises:
        ConfigError: fp8 where the device or torch has none.
    """
    import torch

    row: dict[str, Any] = dict(case.row)
    dtype, m, n, k = (row[name] for name in ("dtype", "m", "n", "k"))
    if dtype == "fp8":
        return _build_fp8(bench, m, n, k)
    layout = case.options["layout"]
    groups = (row["batch"],) if row["batch"] > 1 else ()
    a = bench.random(*groups, k, m, dtype=dtype).mT if layout == "NT" else bench.random(*groups, m, k, dtype=dtype)
    b = bench.random(*groups, n, k, dtype=dtype).mT if layout == "TN" else bench.random(*groups, k, n, dtype=dtype)
    out = torch.empty(*groups, m, n, dtype=a.dtype, device=a.device)
    multiply = torch.bmm if groups else torch.mm
    return lambda: multiply(a, b, out=out)


def _build_fp8(bench: Bench, m: int, n: int, k: int) -> Call:
    import torch

    has_fp8 = hasattr(torch, "_scaled_mm") and hasattr(torch, "float8_e4m3fn")
    if not (has_fp8 and bench.is_cuda and torch.cuda.get_device_capability(bench.device) >= (8, 9)):
        raise ConfigError(
            "no fp8 products here", where="gemm", expected="torch._scaled_mm and compute capability 8.9", got=bench.name
        )
    a = bench.random(m, k).to(torch.float8_e4m3fn)
    b = bench.random(n, k).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=bench.device)
    return lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

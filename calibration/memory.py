"""Memory-bound kernels: which operations at which sizes, and their minimal traffic."""

from __future__ import annotations

from collections.abc import Iterator

from calibration.case import Case, spread
from calibration.table import Value

ROWS = (2048, 8192, 16384)
WIDTHS = (1024, 2048, 4096, 5120, 8192, 12288)
HALF = ("fwd", "bwd")
SIZE = {"bf16": 2, "fp16": 2, "fp32": 4}
ELEMENT_BYTES = {
    ("rms_norm", "fwd"): 2,
    ("rms_norm", "bwd"): 3,
    ("layer_norm", "fwd"): 2,
    ("layer_norm", "bwd"): 3,
    ("gelu", "fwd"): 2,
    ("gelu", "bwd"): 3,
    ("silu", "fwd"): 2,
    ("silu", "bwd"): 3,
    ("swiglu", "fwd"): 1.5,
    ("swiglu", "bwd"): 2.5,
    ("rope", "fwd"): 2,
    ("add", "fwd"): 3,
    ("dropout", "fwd"): 2.5,
    ("dropout", "bwd"): 2.5,
    ("softmax", "fwd"): 2,
    ("softmax", "bwd"): 3,
    ("embedding", "fwd"): 2,
    ("embedding", "bwd"): 3,
    ("cross_entropy", "fwd"): 2,
    ("cross_entropy", "bwd"): 2,
    ("stream_copy", "fwd"): 2,
    ("group_norm", "fwd"): 2,
    ("group_norm", "bwd"): 3,
}
"""Minimal traffic in elements of the operand per element of ``shape``: dropout's mask is a byte beside two bytes;
swiglu's shape is its input, gate and up; cross entropy keeps its log-softmax; embedding's gradient rows are read and
written."""
ADAM_ELEMENTS = 7
"""Parameter and both moments read and written, gradient read (semu.nn.rules.optimizer.optimizer_bytes)."""
SMALL_ROWS, SMALL_WIDTHS = (128, 512, 1024), (1024, 4096)
"""Of calls below 20 MB, on operands from memory and, as the kernel before left them, in the cache."""
SMALL = ("rms_norm", "layer_norm", "gelu", "swiglu", "add", "dropout", "softmax")
HOT = ", one set"
"""In ``note``: operands stay in the cache from call to call."""
GROUPS = 32
GROUP_SHAPES = ((320, 64), (640, 64), (960, 64), (640, 32), (1280, 32), (1280, 16), (2560, 16), (1280, 8), (2560, 8))
"""(channels, pixels of a side) of the U-Net's group norms, of 8 and 32 images."""
CHANNELS_LAST = "torch, channels last"
COPY_BYTES = (1 << 20, 16 << 20, 256 << 20)


def memory_cases(*, quick: bool = False, compiled: bool = False) -> list[Case]:
    """The grid.

    Args:
        quick: small sizes, for a dry run. compiled: element-wise operations fused by torch.compile, too.
    """
    return spread(_quick_cases() if quick else _all_cases(compiled))


def _quick_cases() -> Iterator[Case]:
    for op, which in ELEMENT_BYTES:
        if op != "group_norm":
            yield _element_case(op, which, 8, 64, _dtype(op), _variant(op))
    yield from (_group_case(which, 2, 32, 4, variant) for which in HALF for variant in ("torch", CHANNELS_LAST))
    for variant in ("foreach", "fused"):
        yield _adam_case("fp32", 2, 64, variant)
    yield from (_copy_case(op, 4096) for op in ("memcpy_h2d", "memcpy_d2h"))


def _all_cases(compiled: bool) -> Iterator[Case]:
    for op, which in ELEMENT_BYTES:
        if op in ("cross_entropy", "stream_copy", "group_norm"):
            continue
        for rows, width in ((r, w) for r in SMALL_ROWS for w in SMALL_WIDTHS if op in SMALL):
            for hot in ("", HOT):
                yield _element_case(op, which, rows, width, _dtype(op), _variant(op) + hot)
        for rows in ROWS:
            for width in WIDTHS if op != "rope" else (8, 16, 32, 40, 64):
                yield _element_case(op, which, rows, width, _dtype(op), _variant(op))
                if compiled and op in ("rms_norm", "layer_norm", "gelu", "silu", "swiglu", "rope", "dropout"):
                    yield _element_case(op, which, rows, width, _dtype(op), "torch.compile")
    for which in HALF:
        for channels, side in GROUP_SHAPES:
            for images in (8, 32):
                yield _group_case(which, images, channels, side, "torch")
            yield _group_case(which, 32, channels, side, CHANNELS_LAST)
    for vocab in (32000, 128256):
        for rows in (2048, 8192):
            yield from (_element_case("cross_entropy", which, rows, vocab, "fp32", "torch") for which in HALF)
    for dtype in ("fp32", "bf16"):
        for variant in ("foreach", "fused"):
            for tensors, elements in ((64, 1 << 20), (16, 16 << 20), (4, 128 << 20)):
                yield _adam_case(dtype, tensors, elements, variant)
    for count in (1 << 20, 16 << 20, 256 << 20, 1 << 30):
        yield _element_case("stream_copy", "fwd", 1, count, "bf16", "torch")
    for op in ("memcpy_h2d", "memcpy_d2h"):
        yield from (_copy_case(op, count) for count in COPY_BYTES)


def _dtype(op: str) -> str:
    return "fp32" if op == "cross_entropy" else "bf16"


def _variant(op: str) -> str:
    return "torch eager" if op in ("swiglu", "rope") else "torch"


def _element_case(op: str, which: str, rows: int, width: int, dtype: str, note: str) -> Case:
    """``width``: of a row; rope: query heads of 128, beside a quarter as many key heads."""
    shape, elements = f"{rows}x{width}", rows * width
    options: dict[str, object] = {"rows": rows, "width": width}
    if note.endswith(HOT):
        options["sets"] = 1
    if op == "rope":
        heads = width + max(1, width // 4)
        shape, elements = f"{rows}x({width}+{heads - width})x128", rows * heads * 128
        options["width"] = heads
    if op == "embedding":
        note += ", 32000 tokens, dense gradient"
    count = int(ELEMENT_BYTES[op, which] * SIZE[dtype] * elements)
    row: dict[str, Value] = {"op": op, "pass": which, "dtype": dtype, "shape": shape, "bytes": count, "note": note}
    extra = 2 * 32000 * width if op == "embedding" else 0
    return Case("memory_ops", row, count + extra, options)


def _group_case(which: str, images: int, channels: int, side: int, note: str) -> Case:
    elements = images * channels * side**2
    count = int(ELEMENT_BYTES["group_norm", which] * SIZE["bf16"] * elements)
    row: dict[str, Value] = {
        "op": "group_norm",
        "pass": which,
        "dtype": "bf16",
        "shape": f"{images}x{channels}x{side}x{side}",
        "bytes": count,
        "note": note,
    }
    return Case("memory_ops", row, count, {"shape": (images, channels, side, side)})


def _adam_case(dtype: str, tensors: int, elements: int, variant: str) -> Case:
    count = ADAM_ELEMENTS * SIZE[dtype] * tensors * elements
    row: dict[str, Value] = {
        "op": "adam",
        "pass": "",
        "dtype": dtype,
        "shape": f"{tensors}x{elements}",
        "bytes": count,
        "note": f"torch {variant}",
    }
    return Case("memory_ops", row, count, {"tensors": tensors, "elements": elements, "variant": variant})


def _copy_case(op: str, count: int) -> Case:
    row: dict[str, Value] = {
        "op": op,
        "pass": "",
        "dtype": "uint8",
        "shape": str(count),
        "bytes": count,
        "note": "pinned",
    }
    return Case("memory_ops", row, 2 * count, {"count": count})

"""One row of a table -> section, shape, source and work; the meaning of a table's words.

A source is who measured, followed by the software where the kernel depends on it (``aic/vllm``); each source has
factors in a fit (``semu.fitting.fit``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from semu.fitting.readers.nccl import KINDS
from semu.fitting.samples import Sample

Row = Mapping[str, str]
Converted = tuple[str, tuple[float, ...], str, float]
"""Section, shape, source, work [FLOP or bytes]; work 0: not checked."""


class LeftOut(Exception):
    """A row that is left out, with the reason."""


_PRODUCT_SECTIONS = {"bf16": "", "fp16": "", "fp8": ".fp8", "fp8_block": ".fp8_block"}
_MEMORY_OPS = {
    "norm": ("rmsnorm", "rms_norm", "layernorm", "layer_norm"),
    "activation": ("swiglu", "gelu", "geglu", "silu"),
    "modulate": ("modulate", "mul", "relu", "tanh", "add_scalar"),
    "copy": ("copy", "stream_copy"),
    "optimizer": ("stream_triad", "adam", "fused_adam"),
    **{name: (name,) for name in ("rope", "add", "dropout", "softmax", "embedding", "cross_entropy", "cast")},
}
"""Section -> words of the column ``op`` for it."""
_MEMORY_SECTIONS = {op: section for section, ops in _MEMORY_OPS.items() for op in ops}
_COLLECTIVES = {**KINDS, "p2p": "p2p"}
SEVERAL_KERNELS = ("eager", "foreach")
"""Words of a note for a call of several kernels, where a fused kernel moves less: a separate source."""
_LARGEST = 1e15
"""Largest size: counts up to it are exact in float64, and their products finite."""
_SDPA = "torch sdpa "
_DRY_RUN = "dry run"
_HOT = "l2=hot"
WINDOW = "/window"
"""End of the source's name where attention sees a window, whose tiles at an edge are others than without a window."""
_ENGINES = ("vllm", "trtllm", "sglang")
"""Inference engines: their attention writes the keys and values into a cache first."""
_UPPER_BOUND = "upper bound"
_SUSPECT = "SUSPECT"
SKEWED, _SKEWED_BYTES = "vidur", 1e6
"""A source whose kernel times of all-reduces hold the wait for the last rank; pitfall 6 of the microbenchmark data."""
_ONLY_REPORTED = re.compile(r"nccl-|coreweave|mlm-issue|nvb-issue|fa-issue1051")


def _positive(row: Row, *names: str) -> tuple[float, ...]:
    """Sizes: whole numbers of 1 and more."""
    values = tuple(_number(row, name) for name in names)
    for name, value in zip(names, values, strict=True):
        if value != int(value):
            raise ValueError(f"{name} = {row[name]}")
    return values


def _number(row: Row, name: str) -> float:
    value = float(row[name])
    if not 0 < value <= _LARGEST:  # nor NaN
        raise ValueError(f"{name} = {row[name]}")
    return value


def _note(row: Row) -> str:
    note = row.get("note") or ""
    if _SUSPECT in note:
        raise LeftOut(f"its note: {note}")
    if _UPPER_BOUND in note:
        raise LeftOut("an upper bound, the best shape of a search")
    if _DRY_RUN in note:
        raise LeftOut("a dry run, whose figures mean nothing")
    return note


def _source(row: Row) -> str:
    return (row.get("source") or "").strip() or "unnamed"


def product(row: Row) -> Converted:
    """A row of ``gemm.csv``: one product, or ``batch`` equal ones in a kernel."""
    note, source, dtype = _note(row), _source(row), row["dtype"]
    if dtype not in _PRODUCT_SECTIONS:
        raise LeftOut(f"products of {dtype} have no section")
    m, n, k = _positive(row, "m", "n", "k")
    (groups,) = _positive(row, "batch") if row.get("batch") else (1.0,)
    if "masked" in note:
        raise LeftOut("masked groups: an inference kernel")
    name = "matmul" if groups == 1 else "grouped_matmul"
    in_bytes = 1.0 if dtype.startswith("fp8") else 2.0
    out_bytes = 4.0 if "out=fp32" in note else 2.0
    weight_gradient = float("layout=NT" in note or "bwd_grad_w" in note or "wgrad" in note)
    quantised = float(dtype == "fp8_block" and "quant kernel" in note)
    if dtype == "fp8_block" and not quantised:
        source = f"{source}/kernel"
    shape = (m, n, k, groups, in_bytes, out_bytes, quantised, weight_gradient)
    return f"efficiency.{name}{_PRODUCT_SECTIONS[dtype]}", shape, source, 2.0 * m * n * k * groups


def attention(row: Row) -> Converted:
    """A row of ``attention.csv``: one call, forward, backward or both."""
    note, source = _note(row), _source(row)
    if row["dtype"] not in ("bf16", "fp16", "fp8"):
        raise LeftOut(f"attention in {row['dtype']} has no section")
    is_fp8 = row["dtype"] == "fp8"
    if is_fp8 and row["pass"] != "fwd":
        raise LeftOut("attention's backward in fp8, of which the kernels known compute what a mask hides")
    if _ONLY_REPORTED.match(source):
        raise LeftOut("a user's report: an anchor only")
    b, h, h_kv, s_q, s_kv, d, d_v = _positive(
        row, "batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v"
    )
    causal = float(row["causal"])
    if causal not in (0.0, 1.0):
        raise ValueError(f"causal = {row['causal']}")
    way = row["pass"]
    if way not in ("fwd", "bwd", "fwd+bwd"):
        raise ValueError(f"pass = {way}")
    library = note.split("/")[0].split(" ")[0].lower()
    if note.startswith(_SDPA):  # torch has several backends, which differ as libraries do
        library = note.removeprefix(_SDPA).split(" ")[0]
        source = f"{source}/{library}"
    elif library in (*_ENGINES, "fa2", "fa3", "cudnn", "torch") and library != source:
        source = f"{source}/{library}"
    name = "attention_forward" if way == "fwd" else "attention_backward"
    variant = ".fp8" if is_fp8 else "" if d == 128 else f".head_dim_{d:.0f}"
    window = float(row.get("window") or 0)
    if 0 < window < s_kv:
        if not (causal and s_q == s_kv):
            raise LeftOut("attention in a window that is not causal")
        source = f"{source}{WINDOW}"
        s_kv = 2.0 * window - window * (window - 1.0) / s_q  # the keys of a causal call with as many visible pairs
    dims = {"fwd": d + d_v, "bwd": 3 * d + 2 * d_v, "fwd+bwd": 4 * d + 3 * d_v}[way]
    work = 2.0 * b * h * s_q * s_kv * dims / (1.0 + causal)
    fills_cache = float(way == "fwd" and library in _ENGINES)
    shape = (b, h, h_kv, s_q, s_kv, d, d_v, causal, float(way == "fwd+bwd"), fills_cache)
    return f"efficiency.{name}{variant}", shape, source, work


def memory(row: Row) -> Converted:
    """A row of ``memory_ops.csv``: one memory-bound kernel or copy."""
    note, source, op = _note(row), _source(row), row["op"]
    if not (row["bytes"] or "").strip():
        raise LeftOut("its bytes are not known")
    moved = _number(row, "bytes")
    if _HOT in note:
        raise LeftOut("from a hot cache: says nothing about memory")
    if _ONLY_REPORTED.match(source):
        raise LeftOut("a user's report: an anchor only")
    if op in ("memcpy_h2d", "memcpy_d2h"):
        return "link.pcie.p2p", (2.0, 1.0, moved, 0.0), source, moved
    if op not in _MEMORY_SECTIONS:
        raise LeftOut(f"no section describes {op}")
    section = _MEMORY_SECTIONS[op]
    size = re.match(r"^\d+x(\d+)$", row["shape"] or "")
    width = float(size[1]) if size else 0.0
    if section == "norm":
        source = f"{source}/{note}" if source == "cudnn" and note else f"{source}/{op}"
        if (row.get("pass") or "fwd") not in ("fwd", "forward"):
            source = f"{source}/bwd"
    elif op == "stream_triad":
        source = f"{source}/triad"
    elif section in ("activation", "modulate") or (row.get("pass") or "fwd") not in ("fwd", "forward"):
        source = f"{source}/{op}" + ("" if (row.get("pass") or "fwd").startswith("f") else "/bwd")
    several = next((word for word in SEVERAL_KERNELS if word in note.partition(" | ")[0].split()), None)
    if several is not None:
        source = f"{source}/{several}"
    return f"efficiency.{section}", (moved, width), source, moved


def collective(row: Row) -> Converted:
    """A row of ``collectives.csv``: one collective, or a message between two ranks."""
    note, source = _note(row), _source(row)
    if row["collective"] not in _COLLECTIVES:
        raise LeftOut(f"no section describes {row['collective']}")
    if _ONLY_REPORTED.match(source):
        raise LeftOut("a user's report: an anchor only")
    kind = _COLLECTIVES[row["collective"]]
    ranks, moved = _positive(row, "ranks", "bytes")
    (per_node,) = _positive(row, "ranks_per_node") if row.get("ranks_per_node") else (ranks,)
    nodes = -(-ranks // per_node)
    if source == SKEWED and kind == "all_reduce" and moved < _SKEWED_BYTES:
        raise LeftOut("so small that the ranks' skew, which its time holds, rules it")
    port = "nic" if nodes > 1 else "pcie" if "PCIe" in f"{note} {row.get('topology') or ''}" else "nvlink"
    is_whole = kind == "all_reduce" and port == "nvlink" and ranks == 8
    return f"link.{port}.{kind}", (ranks, nodes, moved, float(is_whole)), source, moved


FRACTION_BYTES_PER_S = 8 * 48.5e9
"""Full rate in ``collective_efficiency_multinode.csv``: eight 400 Gbit/s cards at 48.5 GB/s each [byte/s]."""
FRACTION_DEVICE = "H100-SXM"
_MOST_OF_PEAK = 2.0
"""Largest legal fraction; in the switch a collective may exceed the wire's peak."""
_RING = re.compile(r"(\d+)Node-(\d+)GPU\(NIC ?\)")


def fractions(where: str, row: Row) -> Iterator[Sample]:
    """A row of ``collective_efficiency_multinode.csv``: a ring over several nodes that the cards bound, as times.

    A fraction of the bus bandwidth f of a buffer S is a time S (n-1)/n / (f x 8 x 48.5 GB/s); it counts for the
    all-gather and for the reduce-scatter.
    """
    ring = _RING.fullmatch(row["column"].strip())
    if row["table"] != "nic" or ring is None:
        return
    nodes, ranks, moved = float(ring[1]), float(ring[2]), _number(row, "bytes")
    fraction = float(row["fraction_of_peak_busbw"])
    if not (0 < fraction <= _MOST_OF_PEAK and 2 <= ranks <= _LARGEST and 2 <= nodes <= ranks):
        raise ValueError(f"{row['column']}: {row['fraction_of_peak_busbw']}")
    time_s = moved * (ranks - 1) / ranks / (fraction * FRACTION_BYTES_PER_S)
    for kind in ("all_gather", "reduce_scatter"):
        shape = (ranks, nodes, moved, 0.0)
        yield Sample(f"link.nic.{kind}", shape, time_s, row.get("source") or "simai", FRACTION_DEVICE, where)

"""Shipped coefficients against the measurements: each ``relative_error`` is recomputed from the raw rows."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from semu.hardware.device import DeviceProfile
from semu.hardware.kinds import DType, OpKind, Port, Provenance
from semu.hardware.network import CommGroup, collective_latency
from semu.hardware.profile import load_profile
from semu.hardware.shape_terms import attention_factor

Row = dict[str, str]
Array = NDArray[np.float64]
CSV_NAMES = {
    "h100": "H100-SXM",
    "a100-80g": "A100-SXM",
    "a40": "A40",
    "h200": "H200-SXM",
    "b200": "B200-SXM",
    "a100-pcie": "A100-PCIe",
}
COLLECTIVES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def rows(data_dir: Path, name: str) -> Iterator[Row]:
    path = data_dir / "microbench" / name
    if not path.is_file():
        pytest.skip(f"no {name} in the measured data")
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def columns(found: list[Row], *names: str) -> list[Array]:
    return [np.array([float(row[name]) for row in found]) for name in names]


def error(predicted: Array, found: list[Row]) -> float:
    (measured,) = columns(found, "time_us")
    return float(np.mean(np.abs(predicted / (measured * 1e-6) - 1)))


@pytest.fixture(scope="module")
def gemm(data_dir: Path) -> list[Row]:
    return [
        row
        for row in rows(data_dir, "gemm.csv")
        if row["batch"] == "1" and row["dtype"] in ("bf16", "fp16") and min(int(row[x]) for x in "mnk") >= 256
    ]


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("h100", {"vidur", "aic"}),
        ("a100-80g", {"vidur", "aic"}),
        ("a40", {"vidur"}),
        ("h200", {"aic"}),
        ("b200", {"aic"}),
        ("a100-pcie", {"simumax"}),
    ],
)
def test_matrix_products(gemm: list[Row], name: str, sources: set[str]) -> None:
    profile = load_profile(name)
    found = [row for row in gemm if row["device"] == CSV_NAMES[name] and row["source"] in sources]
    m, n, k = columns(found, "m", "n", "k")
    item = profile.efficiencies[OpKind.MATMUL]
    compute = 2 * m * n * k / (item.flop * profile.peak_flop_per_s(DType.BF16))
    memory = 2 * (m * k + k * n + m * n) / (item.mem * profile.mem_bytes_per_s.value)
    got = error(item.t0_s + (compute**item.p + memory**item.p) ** (1 / item.p), found)
    assert got == pytest.approx(item.relative_error, abs=0.004)
    assert got < 0.1
    assert f"{len(found):,}" in item.source


@pytest.mark.parametrize(
    ("name", "head_dim", "library"),
    [(name, dim, "vllm") for name in ("h100", "h200") for dim in (64, 128, 192, 256)]
    + [("b200", dim, "trtllm") for dim in (64, 128, 256)]
    + [("a100-80g", 128, "vllm")],
)
def test_attention_forward(data_dir: Path, name: str, head_dim: int, library: str) -> None:
    profile = load_profile(name)
    found = [
        row
        for row in rows(data_dir, "attention.csv")
        if (row["device"], row["source"], row["pass"]) == (CSV_NAMES[name], "aic", "fwd")
        and row["note"].startswith(library)
        and int(row["head_dim"]) == head_dim
        and row["window"] == "0"
        and row["dtype"] == "bf16"
    ]
    got = error(attention_times(profile, found, OpKind.ATTENTION_FORWARD, head_dim), found)
    item = profile.efficiency(OpKind.ATTENTION_FORWARD, head_dim=head_dim)
    assert got == pytest.approx(item.relative_error, abs=0.004)
    assert f"{len(found):,}" in item.source


@pytest.mark.parametrize(("name", "source"), [("h200", "cudnn"), ("b200", "simumax"), ("a100-pcie", "simumax")])
def test_attention_backward(data_dir: Path, name: str, source: str) -> None:
    profile = load_profile(name)
    found = [
        row
        for row in rows(data_dir, "attention.csv")
        if (row["device"], row["source"], row["pass"]) == (CSV_NAMES[name], source, "bwd")
        and (row["dtype"], row["head_dim"], row["window"]) == ("bf16", "128", "0")
        and (name != "a100-pcie" or int(row["heads"]) >= 16)
    ]
    got = error(attention_times(profile, found, OpKind.ATTENTION_BACKWARD, 128), found)
    item = profile.efficiencies[OpKind.ATTENTION_BACKWARD]
    assert got == pytest.approx(item.relative_error, abs=0.004)


def attention_times(profile: DeviceProfile, found: list[Row], kind: OpKind, head_dim: int) -> Array:
    """The data's own form: FLOP and bytes from the columns, coefficients from the profile."""
    item = profile.efficiency(kind, head_dim=head_dim)
    names = ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v", "causal")
    b, h, h_kv, s_q, s_kv, d, d_v, causal = columns(found, *names)
    is_forward = kind is OpKind.ATTENTION_FORWARD
    flop = 2 * b * h * s_q * s_kv * (d + d_v if is_forward else 3 * d + 2 * d_v) * np.where(causal == 1, 0.5, 1.0)
    moved = (2 if is_forward else 4) * b * (h * s_q + h_kv * s_kv) * (d + d_v)
    stretch = 1 + item.s0_tokens * np.where(causal == 1, 1.0, 0.5) / s_q
    compute = flop * stretch / (item.flop * profile.peak_flop_per_s(DType.BF16))
    memory = moved / (item.mem * profile.mem_bytes_per_s.value)
    result: Array = item.t0_s + (compute**item.p + memory**item.p) ** (1 / item.p)
    return result


def test_scalar_reference_agrees_with_the_form(data_dir: Path) -> None:
    profile = load_profile("h100")
    found = [row for row in rows(data_dir, "attention.csv") if row["device"] == "H100-SXM" and row["window"] == "0"]
    found = [row for row in found if row["pass"] == "fwd" and row["head_dim"] == "128"][::97]
    assert len(found) > 10
    expected = attention_times(profile, found, OpKind.ATTENTION_FORWARD, 128)
    item = profile.efficiency(OpKind.ATTENTION_FORWARD, head_dim=128)
    for row, time in zip(found, expected, strict=True):
        batch, heads, kv_heads, s, s_kv = (int(row[x]) for x in ("batch", "heads", "kv_heads", "seq_q", "seq_kv"))
        causal, dims = row["causal"] == "1", 256
        stretch = attention_factor(
            batch * s, batch * s * s_kv, heads, 2 if causal else 1, s0=item.s0_tokens, tiles_at_once=0, rest=0
        )
        got = item.latency_s(
            stretch * 2 * batch * heads * s * s_kv * dims / (2 if causal else 1),
            2 * batch * (heads * s + kv_heads * s_kv) * dims,
            profile.peak_flop_per_s(DType.BF16),
            profile.mem_bytes_per_s.value,
        )
        assert got == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("name", ["h100", "a100-80g", "h200", "b200"])
@pytest.mark.parametrize("collective", list(COLLECTIVES))
def test_collectives_in_a_node(data_dir: Path, name: str, collective: str) -> None:
    profile, kind = load_profile(name), OpKind(collective)
    found = [
        row
        for row in rows(data_dir, "collectives.csv")
        if (row["device"], row["source"]) == (CSV_NAMES[name], "aic")
        and row["collective"] == collective.replace("all_to_all", "alltoall")
    ]

    def wire(row: Row) -> float:
        n = int(row["ranks"])
        return COLLECTIVES[collective] * (n - 1) / n * float(row["bytes"])

    got = error(times(profile, kind, found, lambda row: CommGroup("g", int(row["ranks"])), wire), found)
    item = profile.links[Port.NVLINK].of(kind)
    assert got == pytest.approx(item.relative_error, abs=0.004)
    assert item.provenance is Provenance.FITTED


def times(
    profile: DeviceProfile,
    kind: OpKind,
    found: list[Row],
    group: Callable[[Row], CommGroup],
    wire: Callable[[Row], float],
) -> Array:
    return np.array([collective_latency(profile, kind, group(row), wire(row)) for row in found])


@pytest.mark.parametrize(("name", "nodes", "limit"), [("h100", 1, 0.06), ("h100", 2, 0.085), ("a100-80g", 1, 0.105)])
def test_send_receive(data_dir: Path, name: str, nodes: int, limit: float) -> None:
    found = [
        row
        for row in rows(data_dir, "collectives.csv")
        if (row["device"], row["source"], row["collective"]) == (CSV_NAMES[name], "vidur", "send_recv")
        and int(row["ranks_per_node"]) == 2 // nodes
    ]
    predicted = times(
        load_profile(name), OpKind.P2P, found, lambda row: CommGroup("pp", 2, nodes), lambda row: float(row["bytes"])
    )
    assert len(found) == 48
    assert error(predicted, found) < limit


def test_rings_across_nodes_follow_the_table(data_dir: Path) -> None:
    """SimAI's NIC table, 16 to 1024 GPUs: the fraction of the bus bandwidth that a ring reaches."""
    wide, errors = load_profile("h100").override({"nvlink_bytes_per_s": 1e12}), []  # so that only the NICs bind
    for row in rows(data_dir, "collective_efficiency_multinode.csv"):
        column = row["column"]
        if row["table"] != "nic" or "Node-" not in column:
            continue
        n = int(column.split("-")[1].split("GPU")[0])
        wire = float(row["bytes"]) * (n - 1) / n
        time = collective_latency(wide, OpKind.ALL_GATHER, CommGroup("dp", n, n // 8), wire)
        errors.append(abs(wire / 388e9 / time / float(row["fraction_of_peak_busbw"]) - 1))
    assert len(errors) == 77
    assert sum(errors) / len(errors) < 0.085


@pytest.mark.parametrize("ranks", [32, 64, 128, 256, 512, 1024])
def test_reduce_scatter_of_many_nodes(data_dir: Path, ranks: int) -> None:
    """User-reported 8 GiB reduce-scatters: within a quarter."""
    (row,) = [
        row
        for row in rows(data_dir, "collectives.csv")
        if (row["source"], row["ranks"]) == ("nccl-issue1229", str(ranks)) and row["collective"] == "reduce_scatter"
    ]
    wire = float(row["bytes"]) * (ranks - 1) / ranks
    time = collective_latency(load_profile("h100"), OpKind.REDUCE_SCATTER, CommGroup("dp", ranks, ranks // 8), wire)
    assert time == pytest.approx(float(row["time_us"]) * 1e-6, rel=0.25)


def test_all_reduce_of_248_nodes_does_not_pay_a_rings_latency(data_dir: Path) -> None:
    (row,) = [row for row in rows(data_dir, "collectives.csv") if row["ranks"] == "1984"]
    wire = float(row["bytes"]) * 2 * 1983 / 1984
    group = CommGroup("dp", 1984, 248)
    time = collective_latency(load_profile("h200"), OpKind.ALL_REDUCE, group, wire)
    measured = float(row["time_us"]) * 1e-6
    assert time == pytest.approx(measured, rel=0.15)
    ring = wire / 388e9 + 1983 * 9.26e-6
    assert ring > 5 * measured


@pytest.mark.parametrize("name", ["h100", "a100-80g", "h200"])
def test_copy_is_the_stream_benchmark(data_dir: Path, name: str) -> None:
    profile = load_profile(name)
    (row,) = [
        row
        for row in rows(data_dir, "memory_ops.csv")
        if (row["device"], row["op"]) == (CSV_NAMES[name], "stream_copy")
    ]
    fraction = float(row["gbps"]) * 1e9 / profile.mem_bytes_per_s.value
    assert profile.efficiencies[OpKind.COPY].mem == pytest.approx(fraction, abs=0.002)


@pytest.mark.parametrize("name", ["h100", "a100-80g", "a40"])
@pytest.mark.parametrize(
    ("kind", "ops", "smallest"),
    [
        ("norm", {"layernorm"}, 20e6),
        ("activation", {"swiglu", "gelu"}, 40e6),
        ("add", {"add"}, 100e6),
        ("rope", {"rope"}, 40e6),
        ("embedding", {"embedding"}, 40e6),
    ],
)
def test_memory_bound_kinds(data_dir: Path, name: str, kind: str, ops: set[str], smallest: float) -> None:
    profile = load_profile(name)
    found = [
        row
        for row in rows(data_dir, "memory_ops.csv")
        if (row["device"], row["source"]) == (CSV_NAMES[name], "vidur")
        and row["op"] in ops
        and row["bytes"]
        and float(row["bytes"]) >= smallest
    ]
    item = profile.efficiencies[OpKind(kind)]
    (moved,) = columns(found, "bytes")
    got = error(item.t0_s + moved / (item.mem * profile.mem_bytes_per_s.value), found)
    assert got == pytest.approx(item.relative_error, abs=0.004)
    assert item.source.startswith(f"{len(found)} ")

"""What the suite measures: shapes, keys, traffic and FLOP, against the rules of the models that use them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from calibration.attention import attention_cases, attention_flop
from calibration.case import Case, spread
from calibration.collective_cases import bus_factor, collective_cases, group_sizes
from calibration.device.convolution import convolution_cases, convolution_flop
from calibration.device.tile_masks import bounds
from calibration.gemm import WEIGHTS, gemm_cases, odd_shapes
from calibration.memory import ADAM_ELEMENTS, memory_cases
from calibration.steps import step_cases
from calibration.table import SCHEMAS
from semu.hardware.kinds import DType
from semu.nn.rules.optimizer import optimizer_bytes

ROOT = Path(__file__).resolve().parents[2]
GRIDS = {
    "gemm": gemm_cases(),
    "gemm quick": gemm_cases(quick=True),
    "attention": attention_cases(),
    "attention quick": attention_cases(quick=True),
    "memory": memory_cases(compiled=True),
    "memory quick": memory_cases(quick=True),
    "convolutions": convolution_cases(),
    "convolutions quick": convolution_cases(quick=True),
    "collectives": collective_cases(16, 8, "2x8", "bf16"),
}


@pytest.mark.parametrize("name", GRIDS)
def test_each_case_is_a_row_of_its_own_with_all_key_columns(name: str) -> None:
    cases = GRIDS[name]
    schema = SCHEMAS[cases[0].table]
    assert all(set(case.row) == set(schema.key) - {"device"} for case in cases)
    keys = Counter(tuple(case.row[column] for column in schema.key if column != "device") for case in cases)
    assert max(keys.values()) == 1
    assert all(case.set_bytes > 0 for case in cases)
    assert len({case.label() for case in cases}) == len(cases)


def test_a_grid_fits_into_minutes() -> None:
    kernels = len(GRIDS["gemm"]) + len(GRIDS["attention"]) + len(memory_cases())
    assert 800 < kernels < 1500  # at a quarter to half a second each
    assert len(step_cases()) == 22


def test_products_of_a_layer_share_their_sizes() -> None:
    rows = {
        (c.row["m"], c.row["n"], c.row["k"], c.options["layout"]) for c in GRIDS["gemm"] if c.row["dtype"] == "bf16"
    }
    for n, k in WEIGHTS:
        assert {(4096, n, k, "TN"), (4096, k, n, "NN"), (n, k, 4096, "NT")} <= rows
    assert all(m * n * k == 4096 * 28672 * 4096 for m, n, k, _ in rows if {m, n, k} == {4096, 28672})
    assert {c.row["dtype"] for c in GRIDS["gemm"]} == {"bf16", "fp16", "fp8"}


def test_fp8_sizes_are_multiples_of_16() -> None:
    fp8 = [case.row for case in (*GRIDS["gemm"], *GRIDS["gemm quick"]) if case.row["dtype"] == "fp8"]
    assert fp8
    assert all(int(str(row[size])) % 16 == 0 for row in fp8 for size in "mnk")


def test_flop_of_a_convolution() -> None:
    row = {"batch": 2, "channels_in": 3, "channels_out": 5, "side": 8, "kernel": 3, "stride": 2}
    pixels = [(i, y, x) for i in range(2) for y in range(0, 8, 2) for x in range(0, 8, 2)]
    assert convolution_flop(row) == sum(2 * 3 * 5 * 9 for _ in pixels)
    patch = {**row, "kernel": 4, "stride": 4}
    assert convolution_flop(patch) == 2 * (2 * 4) * (3 * 16) * 5  # a product over the patches


def test_documents_of_a_mask_end_with_the_sequence() -> None:
    ends = bounds(8192)
    assert ends[-1] == 8192
    assert len(ends) == 8
    assert ends == sorted(set(ends))


def test_bytes_of_a_product() -> None:
    (case,) = [c for c in GRIDS["gemm quick"] if c.row["m"] == 64 and c.row["dtype"] == "fp8"]
    assert case.set_bytes == 64 * 32 + 32 * 48 + 2 * 64 * 48
    (case,) = [c for c in GRIDS["gemm quick"] if c.row["m"] == 64 and c.row["dtype"] == "fp16"]
    assert case.set_bytes == 2 * (64 * 32 + 32 * 48 + 64 * 48)
    (case,) = [c for c in GRIDS["gemm quick"] if c.row["batch"] == 4]
    assert case.set_bytes == 4 * 2 * (16 * 32 + 32 * 48 + 16 * 48)
    assert str(case.row["note"]).startswith("grouped ng=4;bmm;layout=TN")


def test_odd_shapes_are_the_same_everywhere() -> None:
    shapes = odd_shapes(40)
    assert shapes == odd_shapes(40)
    assert len(set(shapes)) == 40
    assert all(256 <= size <= 16384 and size % 8 == 0 for shape in shapes for size in shape)
    assert sum(any(size % 128 for size in shape) for shape in shapes) > 20


def test_attention_flop_as_the_tables_count() -> None:
    sizes = {"batch": 2, "heads": 4, "seq_q": 512, "seq_kv": 512, "head_dim": 192, "head_dim_v": 128}
    row: dict[str, Any] = {**sizes, "pass": "fwd", "causal": 0}
    forward = 2 * 2 * 4 * 512 * 512 * (192 + 128)
    assert attention_flop(row) == forward
    assert attention_flop({**row, "causal": 1}) == forward / 2
    assert attention_flop({**row, "pass": "bwd"}) == 2 * 2 * 4 * 512 * 512 * (3 * 192 + 2 * 128)
    equal = {**row, "head_dim_v": 192}
    assert attention_flop({**equal, "pass": "bwd"}) == 2.5 * attention_flop(equal)


def test_attention_covers_what_models_use() -> None:
    rows = [case.row for case in GRIDS["attention"]]
    assert {row["head_dim"] for row in rows} == {64, 128, 256}
    assert {row["causal"] for row in rows} == {0, 1}
    assert {row["pass"] for row in rows} == {"fwd", "bwd"}
    assert any(row["heads"] != row["kv_heads"] for row in rows)
    assert all(int(str(row["heads"])) % int(str(row["kv_heads"])) == 0 for row in rows)


def traffic(op: str, which: str, **found: Any) -> int:
    """``bytes`` of the one case with these key columns."""
    (case,) = [
        case
        for case in memory_cases()
        if case.row["op"] == op and case.row["pass"] == which and all(case.row[k] == v for k, v in found.items())
    ]
    return int(str(case.row["bytes"]))


def test_traffic_is_that_of_the_public_tables() -> None:
    # Rows of public tables: rmsnorm 3072x8192, swiglu 3072x49152, add 3072x8192, embedding 256x8192, rope
    # 3584x(16+16)x128 move 4, 3, 6, 4 and 4 bytes per element of 16 bits.
    elements = 2048 * 8192
    assert traffic("rms_norm", "fwd", shape="2048x8192") == 4 * elements
    assert traffic("rms_norm", "bwd", shape="2048x8192") == 6 * elements
    assert traffic("swiglu", "fwd", shape="2048x8192") == 3 * elements
    assert traffic("swiglu", "bwd", shape="2048x8192") == 5 * elements
    assert traffic("add", "fwd", shape="2048x8192") == 6 * elements
    assert traffic("dropout", "fwd", shape="2048x8192") == 5 * elements
    assert traffic("embedding", "fwd", shape="2048x8192") == 4 * elements
    assert traffic("rope", "fwd", shape="2048x(32+8)x128") == 4 * 2048 * 40 * 128
    assert traffic("cross_entropy", "fwd", shape="2048x32000") == 8 * 2048 * 32000


@pytest.mark.parametrize(("dtype", "counted"), [(DType.FP32, 28), (DType.BF16, 20)])
def test_traffic_of_adam_is_that_of_the_optimizers_rule(dtype: DType, counted: int) -> None:
    """Over 16 bits alone a kernel moves 14 bytes an element in the time of 20, which is what the rule counts."""
    rule = optimizer_bytes(1 << 20, tensor_dtype=dtype, grad_dtype=dtype, master_dtype=dtype, state_dtype=dtype)
    assert rule == counted << 20
    moved = ADAM_ELEMENTS * dtype.size_bytes << 20
    assert moved == (rule if dtype is DType.FP32 else 14 << 20)
    assert traffic("adam", "", dtype=dtype.value, shape=f"64x{1 << 20}", note="torch fused") == 64 * moved


def test_groups_of_ranks() -> None:
    assert group_sizes(8, 8) == [2, 4, 8]
    assert group_sizes(2, 2) == [2]
    assert group_sizes(32, 8) == [2, 4, 8, 16, 32]
    assert group_sizes(6, 6) == [2, 4, 6]
    assert group_sizes(4, 1) == [2, 4]
    assert group_sizes(1, 1) == []


def test_collectives_cover_sizes_and_only_pairs_send() -> None:
    rows = [case.row for case in collective_cases(8, 8, "1x8", "bf16")]
    assert {row["bytes"] for row in rows} == {4**power for power in range(5, 16)}
    assert {row["ranks"] for row in rows if row["collective"] == "send_recv"} == {2}
    assert len(rows) == 11 * (4 * 3 + 1)


@pytest.mark.parametrize(("kind", "factor"), [("all_reduce", 1.75), ("all_gather", 0.875), ("send_recv", 1.0)])
def test_bus_factors(kind: str, factor: float) -> None:
    assert bus_factor(kind, 8) == factor


def test_the_order_is_the_same_everywhere_and_drops_twins() -> None:
    cases = [Case("gemm", {"m": m}, 1) for m in (1, 2, 3, 2)]
    assert [case.row["m"] for case in spread(cases)] == [case.row["m"] for case in spread(reversed(cases))]
    assert sorted(int(str(case.row["m"])) for case in spread(cases)) == [1, 2, 3]


def test_the_pure_parts_do_not_need_torch() -> None:
    names = "attention case device.clock collective_cases compare device.convolution gemm device.launches machine"
    names += " measure memory step.step_models steps table device.tile_masks timing"
    code = "import sys; sys.modules['torch'] = None\n" + "".join(f"import calibration.{n}\n" for n in names.split())
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True, timeout=120)

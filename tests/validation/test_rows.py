"""Reading runs files: a bad row names its field and stops no other row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.validation import BadRow, Row, parse_rows, published_rows, read_rows
from semu.validation.row import Measure, Scope, Trust
from semu.validation.rows import PUBLISHED
from tests.validation.rows_kit import RUN, row, run

FIELDS = [key for key in RUN if key != "model"] + [f"model.{key}" for key in RUN["model"]] + ["model"]


def without(field: str) -> dict[str, Any]:
    data = run(id="broken") if field != "id" else run()
    table, _, name = field.rpartition(".")
    del (data[table] if table else data)[name]
    return data


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named_and_the_others_are_read(field: str) -> None:
    rows = parse_rows([run(id="first"), without(field), run(id="last")])
    assert [isinstance(read, Row) for read in rows] == [True, False, True]
    bad = rows[1]
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"{field}: missing field")
    assert bad.id == ("row 2" if field == "id" else "broken")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", 0),
        ("gpus", "8"),
        ("gpus", True),
        ("dp", 1.5),
        ("tp", -1),
        ("pp", None),
        ("vp", 0),
        ("micro_batch", "two"),
        ("global_batch", None),
        ("iteration_time_s", 0),
        ("iteration_time_s", -1.0),
        ("iteration_time_s", float("nan")),
        ("iteration_time_s", float("inf")),
        ("iteration_time_s", "1.5"),
        ("peak_mem_bytes", False),
        ("sequence_parallel", 1),
        ("precision_kind", ""),
        ("recompute_kind", None),
        ("sharding_kind", 1),
        ("schedule_kind", 3),
        ("trust", "E"),
        ("trust", None),
        ("group", ""),
        ("peak_mem_scope", "first"),
        ("peak_mem_measure", "used"),
        ("zero_group", 0),
        ("attention", 7),
        ("overlap.tp_comm", "yes"),
        ("measured_values.activation_bytes", "many"),
        ("model", []),
        ("model.layers", 0),
        ("model.gated_mlp", "no"),
        ("model.norm", None),
        ("model.dropout", "0.1"),
        ("model.moe", 8),
        ("model.mtp_layers", -1),
    ],
)
def test_a_wrong_value_is_named(field: str, value: object) -> None:
    bad, good = parse_rows([run({field: value}, id="odd"), run(id="good")])
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"{field}: ")
    assert isinstance(good, Row)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gpus": 4}, "gpus"),
        ({"gpus": 12, "dp": 12, "global_batch": 24}, "gpus"),
        ({"global_batch": 6}, "global_batch"),
        ({"global_batch": 7, "micro_batch": None}, "global_batch"),
        ({"peak_mem_bytes": 1e9, "peak_mem_measure": "allocated"}, "peak_mem_scope"),
        ({"peak_mem_bytes": 1e9, "peak_mem_scope": "max"}, "peak_mem_measure"),
        ({"trust": "formula"}, "peak_mem_measure"),
    ],
)
def test_fields_that_contradict_each_other(changes: dict[str, object], field: str) -> None:
    (bad,) = parse_rows([run(changes)])
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith(f"{field}: ")


def test_rows_that_are_no_rows() -> None:
    rows = parse_rows([3, None, run(), run()])
    assert [read.id for read in rows] == ["row 1", "row 2", "small", "small (row 4)"]
    assert [isinstance(read, BadRow) for read in rows] == [True, True, False, True]


def test_what_is_not_published_is_none() -> None:
    read = row(micro_batch=None, vp=None, iteration_time_s=None)
    assert (read.micro_batch, read.vp, read.iteration_time_s, read.peak_mem_bytes) == (None, None, None, None)
    assert (read.attention, read.shape.dropout, read.shape.moe, read.scope, read.measure) == (
        "",
        None,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("field", ["attention", "grad_dtype"])
def test_a_remark_of_blanks_is_none(field: str) -> None:
    assert getattr(row({field: "  "}), field) == ""


def test_optional_fields_are_read() -> None:
    read = row(
        {
            "attention": "Unfused (as printed)",
            "overlap.tp_comm": True,
            "overlap.note": "free text",
            "peak_mem_scope": "last_rank",
            "peak_mem_measure": "reserved",
            "peak_mem_bytes": 5e9,
            "measured_values.params_grads_optimizer_bytes": 2e9,
            "model.dropout": 0,
            "model.attention_bias": True,
            "zero_group": 2,
            "trust": "formula",
        }
    )
    assert (read.attention, read.trust, read.scope, read.measure) == (
        "unfused",
        Trust.FORMULA,
        Scope.LAST_RANK,
        Measure.RESERVED,
    )
    assert read.overlap is not None
    assert read.overlap["tp_comm"] is True
    assert read.overlap["pp_p2p"] is None
    assert (read.peak_mem_bytes, read.static_bytes, read.activation_bytes) == (5e9, 2e9, None)
    assert (read.shape.dropout, read.shape.qkv_bias, read.zero_group) == (0.0, True, 2)


# -- files ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"[{]", ":1"),
        (b"[\n1,\n", ":3"),
        (b'{"runs": []}', ""),
        (b"\xff\xfe[]", ""),
        (b"", ":1"),
        (b"[" * 100_000, ""),
    ],
)
def test_files_that_are_no_runs_files(content: bytes, where: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_rows(path)
    assert caught.value.where == f"{path}{where}"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ConfigError, match="cannot read the runs file"):
            read_rows(path)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([run()]).encode())
    assert [read.id for read in read_rows(path)] == ["small"]


def test_published_runs_are_read_whole() -> None:
    rows = published_rows()
    assert 10 <= len(rows) <= 16
    assert [read for read in rows if isinstance(read, BadRow)] == []
    for data in json.loads(PUBLISHED.read_text()):
        assert len(data["source"]) > 20


def test_the_collected_runs_are_read_whole(data_dir: Path) -> None:
    path = data_dir / "runs" / "runs.json"
    rows = read_rows(path)
    assert [read for read in rows if isinstance(read, BadRow)] == []
    assert len(rows) == len(json.loads(path.read_text()))


def test_published_runs_say_what_the_collection_says(data_dir: Path) -> None:
    collected = {data["id"]: data for data in json.loads((data_dir / "runs" / "runs.json").read_text())}
    for data in json.loads(PUBLISHED.read_text()):
        source = collected[data["id"]]
        for key in set(data) - {"group", "how", "overlap", "attention", "measured_values", "model"}:
            assert data[key] == source[key], (data["id"], key)
        assert data["overlap"].items() <= source["overlap"].items()
        assert data["measured_values"].items() <= source["measured_values"].items()
        assert data["model"].items() <= source["model"].items()
        assert source.get("attention", "").startswith(data.get("attention", ""))


@pytest.mark.parametrize(
    ("said", "layers"),
    [(None, 0), (False, 0), (0, 0), (3, 3), ("activations of some layers (2 of 4 at HEAD)", 2), ("some layers", 0)],
)
def test_layers_whose_activations_go_to_the_host(said: object, layers: int) -> None:
    """Words without a number of layers are said to be left out."""
    read = row(cpu_offloading=said)
    assert read.offloaded_layers == layers
    assert len(read.remarks) == (said == "some layers")
    for bad in (-1, True, 2.5):
        (refused,) = parse_rows([run(cpu_offloading=bad)])
        assert isinstance(refused, BadRow) and refused.reason.startswith("cpu_offloading")

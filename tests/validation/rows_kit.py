"""A small published run, ways to change it, and a maker of jobs that leaves out what this version may refuse."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from semu.job import TrainingJob
from semu.runfile import make_job
from semu.validation import Row, parse_rows

RUN: dict[str, Any] = {
    "id": "small",
    "group": "g",
    "trust": "A",
    "profile": "a100-80g",
    "gpus": 2,
    "gpus_per_node": 8,
    "dp": 2,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "vp": 1,
    "micro_batch": 2,
    "global_batch": 8,
    "sequence_parallel": False,
    "precision_kind": "bf16",
    "recompute_kind": "none",
    "sharding_kind": "zero1",
    "schedule_kind": None,
    "iteration_time_s": 0.05,
    "peak_mem_bytes": None,
    "model": {
        "layers": 4,
        "hidden": 256,
        "ffn_hidden": 1024,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 64,
        "vocab": 1024,
        "seq_len": 512,
        "gated_mlp": False,
        "tied_embeddings": True,
        "norm": "layernorm",
        "bias_linear": True,
        "position": "rope",
    },
}
"""The fields that a row must have."""


def run(changes: dict[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    """The small run with some fields changed.

    Args:
        changes: dotted field -> value, ``{"model.layers": 8}``. more: the same for fields without a dot.
    """
    result = copy.deepcopy(RUN)
    for path, value in {**(changes or {}), **more}.items():
        *tables, name = path.split(".")
        table = result
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return result


def row(changes: dict[str, Any] | None = None, /, **more: Any) -> Row:
    """The same, read."""
    (read,) = parse_rows([run(changes, **more)])
    assert isinstance(read, Row), read
    return read


def write_runs(path: Path, *runs: object) -> str:
    """A runs file; its path."""
    path.write_text(json.dumps(runs))
    return str(path)


def plain_job(tables: dict[str, dict[str, Any]]) -> TrainingJob:
    """The job of tables without an explicit layout and an attention kernel, which not every version can be told."""
    parallel = {key: value for key, value in tables["parallel"].items() if key != "layout"}
    training = {key: value for key, value in tables["training"].items() if key != "attention"}
    return make_job({**tables, "parallel": parallel, "training": training})

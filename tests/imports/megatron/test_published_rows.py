"""Published runs that come with their arguments: importing these gives the job that ``semu validate`` makes of the
normalised fields, but for what those fields do not say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.imports.megatron import read_megatron
from semu.job import TrainingJob
from semu.parallel.stage_layers import stage_boundaries
from semu.runfile import make_job
from semu.runfile.importing import describe_model
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.validation.jobs import run_tables
from semu.validation.resolve import candidates
from semu.validation.row import Row
from semu.validation.rows import parse_rows

NOT_IN_ROWS = {"gradient_clipping", "loss_scaling", "moe_dispatcher", "left_out"}
"""Megatron-LM clips gradients unless told otherwise, fp16 has a scale, and gathers tokens of experts by default."""
NOT_IN_ARGUMENTS = {"software_date"}
EXPLAINED: Mapping[str, set[str]] = {
    "vp1-resume-torch-decoupled-lr": {"sends"},  # interleaving hides its sends unless told otherwise
    "vp1-resume-torch-dist": {"sends"},
    "vp2-account-for-embedding": {"sends"},
    "resume-fsdp-dtensor": {"zero"},  # the arguments lack the sharding strategy, which is no_shard by default
    "qk-layernorm-test-mode": {"modules"},  # the fields lack the norms of queries and keys
    "te-tp2-pp2-mla": {"modules"},  # nor those of latents, which these arguments do without
    "tp2-pp2-ep2-etp2": {"workspaces"},  # local layers, whose attention the fields call unfused
}
"""Part of a row's name -> what differs, and why."""


@pytest.fixture(scope="module")
def rows(data_dir: Path) -> list[tuple[Row, dict[str, Any]]]:
    place = data_dir / "runs" / "runs.json"
    if not place.is_file():
        pytest.skip(f"no {place}")
    data = json.loads(place.read_text())
    known = {row.id: row for row in parse_rows(data) if isinstance(row, Row)}
    return [(known[item["id"]], item["megatron_args"]) for item in data if item.get("megatron_args")]


def imported(row: Row, arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    lines = [f"  {name}: {'true' if value is True else value}" for name, value in arguments.items()]
    text = "\n".join(["MODEL_ARGS:", *lines, ""])
    nodes = max(row.gpus // row.gpus_per_node, 1)
    return read_megatron(text, f"{row.profile}:{nodes}x{row.gpus // nodes}", allow_unmodelled=True).tables


def effect(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What counts of a job, whatever the words."""
    job: TrainingJob = make_job(tables)
    parallel, training = job.parallel, job.training
    told = {item.name: getattr(training, item.name) for item in fields(training) if item.name != "overlap"}
    sizes = {
        name: getattr(parallel, name) for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "zero")
    }
    layout = parallel.stage_layout
    has_experts = "experts" in tables["model"]["transformer"]
    return {
        **told,
        **sizes,
        "etp": parallel.expert_tensor_ranks if has_experts else None,
        "cluster": job.cluster,
        "stages": None if layout is None else stage_boundaries(job.model, layout, parallel.pp, parallel.vpp),
        "modules": describe_model(resolve_tables(tables, Places(""))),
        "overlap": (training.overlap.grad_reduce, training.overlap.param_gather, job.overlaps_tensor_parallel),
        "sends": job.overlaps_sends,
    }


def differences(row: Row, arguments: Mapping[str, Any]) -> set[str]:
    ours, theirs = effect(imported(row, arguments)), effect(run_tables(row, next(candidates(row)), row.profile))
    if row.pp == 1:
        ours["stages"] = theirs["stages"]
    return {name for name in ours if ours[name] != theirs[name]} - NOT_IN_ROWS - NOT_IN_ARGUMENTS


def test_jobs_are_those_of_validate(rows: list[tuple[Row, dict[str, Any]]]) -> None:
    assert len(rows) >= 29
    found = {}
    for row, arguments in rows:
        if row.sharding == "fsdp" and row.ep > 1:  # semu refuses the row
            continue
        found[row.id] = differences(row, arguments)
    expected = {name: next((what for part, what in EXPLAINED.items() if part in name), set[str]()) for name in found}
    assert found == expected


def test_predictions_are_those_of_validate(rows: list[tuple[Row, dict[str, Any]]]) -> None:
    """With what the fields do not say added to them, to the last bit."""
    chosen = [pair for pair in rows if "7b-tp4" in pair[0].id or "te-tp2-pp2-resume" in pair[0].id]
    assert len(chosen) == 2
    for row, arguments in chosen:
        ours = imported(row, arguments)
        theirs = run_tables(row, next(candidates(row)), row.profile)
        theirs["training"] |= {name: ours["training"][name] for name in NOT_IN_ROWS if name in ours["training"]}
        one, other = semu.simulate(make_job(ours)), semu.simulate(make_job(theirs))
        assert (one.iteration_time_s, one.peak_memory_bytes) == (other.iteration_time_s, other.peak_memory_bytes)

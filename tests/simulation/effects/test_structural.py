"""What kind of run a job is widens its interval; how wide is the scatter of published runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items

import semu
from calibration import structural_spreads
from calibration.structural_spreads import Residual
from semu.hardware.cluster import Cluster
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.runfile import load_run
from semu.simulation.effects.structural import CAUSES

SPREADS = {cause.name: cause.spread for cause in CAUSES}
ROOT = Path(__file__).parents[3]


def structure_of(job: TrainingJob) -> Mapping[str, tuple[float, float]]:
    """Cause -> its spread and its seconds [s], as the report has them."""
    uncertainty = semu.simulate(job).uncertainty
    assert uncertainty is not None
    return {
        item.kind.removeprefix("structure."): (item.spread, item.time_s)
        for item in uncertainty.kinds
        if item.kind.startswith("structure.")
    }


def dense(**options: object) -> TrainingJob:
    return job_of(gpt(4), text_items(4), **options)  # type: ignore[arg-type]


def test_a_dense_language_model_on_one_node_has_none() -> None:
    assert structure_of(dense()) == {}
    assert structure_of(dense(software="torch")) == {}


@pytest.mark.parametrize("setup", ["vlm-s", "t2v-s"])
def test_more_than_text_is_a_cause_of_its_own_under_torch(setup: str) -> None:
    assert set(structure_of(load_run(setup))) == {"modality", "family"}
    assert set(structure_of(load_run(setup, overrides=['training.software="torch"']))) == {"modality_torch"}


def test_an_encoder_is_more_than_text() -> None:
    assert set(structure_of(job_of(vlm(), vlm_items(4)))) == {"modality", "family"}


def test_towers_that_feed_only_a_loss_were_compared() -> None:
    assert set(structure_of(load_run(str(ROOT / "examples" / "runs" / "clip-towers.toml")))) == {"modality"}


@pytest.mark.parametrize(
    ("software", "cp", "causes"), [("torch", 2, {"context"}), ("torch", 1, set()), ("megatron", 2, set())]
)
def test_context_ranks_under_torch_were_never_compared(software: str, cp: int, causes: set[str]) -> None:
    assert set(structure_of(dense(parallel=Parallel(cp=cp), software=software))) == causes


def test_experts_and_adapters() -> None:
    assert set(structure_of(load_run("mixtral-8x7b", cluster="h100:1x8", parallel="dp8-ep8"))) == {"experts"}
    assert set(structure_of(load_run("llama3-8b", cluster="h100:1x8", overrides=["model.lora.rank=8"]))) == set()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("is_eager", [False, True])
def test_pipelines_of_an_eager_framework_over_nodes(nodes: int, pp: int, is_eager: bool) -> None:
    parallel = Parallel(dp=2 // pp, pp=pp)
    job = job_of(gpt(4), text_items(4), parallel, gpus_per_node=2 // nodes, software="torch", eager_modules=is_eager)
    assert ("eager_pipeline" in structure_of(job)) == (is_eager and nodes > 1 and pp > 1)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("fabric", [None, "efa"])
def test_a_fabric_of_its_own(nodes: int, fabric: str | None) -> None:
    plain = job_of(gpt(4), text_items(4), Parallel(dp=nodes), gpus_per_node=1)
    job = replace(plain, cluster=Cluster("h100", nodes, 1, fabric=fabric))
    assert ("fabric" in structure_of(job)) == (nodes > 1 and fabric is not None)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_network_that_the_profile_was_not_measured_on(nodes: int) -> None:
    """It is a kind of its own, which adds nothing since launches that block are modelled (decision 118)."""
    plain = job_of(gpt(4), text_items(4), Parallel(dp=nodes), gpus_per_node=1)
    cause = next(cause for cause in CAUSES if cause.name == "network")

    def _is_one(**options: Any) -> bool:
        job = replace(plain, cluster=Cluster("h100", nodes, 1, **options))
        assert structure_of(job) == {}
        return cause.holds(job)

    assert _is_one(override={"nic_bytes_per_s": 6e9}) is (nodes > 1)
    assert _is_one(oversubscription=2) is _is_one(oversubscription=2, leaf_nodes=1) is (nodes > 1)
    assert _is_one(nics_per_node=4) is (nodes > 1)
    assert not _is_one() and not _is_one(override={"memory_bytes": 5e10})


@pytest.mark.parametrize("overhead_s", [0.0, 0.5])
def test_a_spread_is_of_the_time_that_is_modelled_and_independent_of_the_coefficients(overhead_s: float) -> None:
    report = semu.simulate(job_of(vlm(), vlm_items(4), overhead_s=overhead_s))
    found = report.uncertainty
    assert found is not None
    modelled = report.iteration_time_s - overhead_s
    others = [item for item in found.kinds if item.kind != "structure.family"]
    known = math.sqrt(sum((item.time_s * item.spread) ** 2 for item in others))
    assert found.sigma_s == pytest.approx(math.hypot(known, SPREADS["family"] * modelled), rel=1e-12)
    low, high = report.iteration_time_interval_s or (0.0, 0.0)
    assert math.log(high / low) / 2 == pytest.approx(1.6448536 * found.sigma_s / report.iteration_time_s, rel=1e-6)


def test_the_fitted_spread_is_that_which_residuals_were_drawn_with() -> None:
    random = Random(0)
    groups = [
        [Residual(f"g{number}", "experts", random.gauss(0, math.hypot(0.1, 0.4)), 0.1) for _ in range(3000)]
        for number in range(4)
    ]
    assert structural_spreads.spread_of(groups) == pytest.approx(0.4, rel=0.05)
    held = structural_spreads.left_out({group[0].group: group for group in groups})
    assert sum(held.values()) / 12000 == pytest.approx(0.9, abs=0.01)
    halves = structural_spreads.left_out({"g0": groups[0]})
    assert halves["g0"] / 3000 == pytest.approx(0.9, abs=0.02)
    assert structural_spreads.left_out({"g0": groups[0][:1]}) == {}


def test_a_group_weighs_as_one_and_what_coefficients_explain_adds_nothing() -> None:
    wide = [Residual("a", "experts", 0.5, 0.3)]
    narrow = [Residual("b", "experts", 0.1, 0.3)] * 9
    assert structural_spreads.spread_of([wide, narrow]) == pytest.approx(math.sqrt((0.5**2 - 0.3**2) / 2))
    assert structural_spreads.spread_of([narrow]) == 0.0


@pytest.mark.slow
def test_shipped_spreads_are_those_of_the_published_runs(data_dir: Path) -> None:
    files = [str(data_dir / "runs" / name) for name in ("runs.json", "runs2.json")]
    command = [sys.executable, "-m", "calibration.structural_spreads", *files, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    found = {one["cause"]: one["spread"] for one in json.loads(out)}
    compared = {
        name: spread for name, spread in SPREADS.items() if name not in ("family", "context")
    }  # which no run is of
    assert found == {name: pytest.approx(spread, abs=0.02) for name, spread in compared.items()}

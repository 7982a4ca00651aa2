"""Every pair of options in the other reports: grid rows, long runs, templates, searches, changes, schedules.

The runs are those of ``test_pairwise.py``. What a report says of a configuration is what evaluating it says; what it
divides sums to the whole; a command that cannot have a job says so by name, and one that asks for variants of it leaves
out those that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.errors import SemuError
from semu.searcher.grid.space import job_at
from tests.proof.test_pairwise import rows, taken


def check_grid(job: semu.TrainingJob, time_s: float) -> None:
    """Rows are what their configurations are; none of the space is lost."""
    micro = job.training.micro_batch
    found = semu.grid(job, {"zero": (0, 1), "micro_batch": (micro, 2 * micro)}, exhaustive=True)
    assert len(found.rows) + len(found.refused) + found.cut_by_memory == found.num_legal <= found.total == 4
    for row in found.rows:
        plain = semu.evaluate(job_at(job, row.point))
        assert row.figures.iteration_time_s == plain.iteration_time_s
        assert row.figures.mfu == plain.mfu
        assert row.fits == plain.fits


def check_goodput(job: semu.TrainingJob, time_s: float) -> None:
    """Every GPU-second of a long run is in one account; no strategy ends the others."""
    found = semu.goodput(job, days=0.2, seeds=1, failures="1h")
    assert any(one.refusal is None for one in found.strategies)
    for one in found.strategies:
        assert one.iteration_s == time_s
        assert one.refusal is None or not one.outcomes
        for outcome in one.outcomes:
            assert sum(outcome.gpu_us.values()) == outcome.wall_us * outcome.gpus
            assert min(outcome.gpu_us.values()) >= 0 <= outcome.iterations


def check_templates(job: semu.TrainingJob, time_s: float) -> None:
    """Whatever nodes are left, pipelines have all of them, all layers and all microbatches."""
    job = replace(job, parallel=replace(job.parallel, zero=0, zero_group=None))
    found = semu.pipeline_templates(job, faults=0)
    layers = len(found.layer_bytes)
    for one in found.templates:
        cuts = [(stage.first, stage.last) for stage in one.stages]
        assert [cut[0] for cut in cuts] == [0, *(cut[1] for cut in cuts[:-1])] and cuts[-1][1] == layers
    for nodes in range(found.fewest_nodes, found.nodes + 1):
        pipelines = found.compose(nodes)
        assert pipelines.nodes == nodes
        assert sum(pipelines.microbatches) * job.training.micro_batch >= job.training.global_batch
        together = semu.simulate_pipelines(found, pipelines)
        assert together.gpus == nodes * job.cluster.gpus_per_node
        assert together.iteration_time_s >= max(one.report.makespan_s for one in together.pipelines)


def check_search(job: semu.TrainingJob, time_s: float) -> None:
    """What is found is what is simulated, and no slower than what it began with."""
    found = semu.search(job, rollouts=3, workers=1)
    assert found.report.iteration_time_s <= found.default.iteration_time_s
    assert semu.evaluate(found.job, plan=found.plan).iteration_time_s == found.report.iteration_time_s


def check_changes(job: semu.TrainingJob, time_s: float) -> None:
    """Every change has figures or a reason."""
    found = semu.what_if(job)
    assert found.base.iteration_time_s == time_s
    assert all((one.estimate is None) == bool(one.reason) for one in found.answers)


def check_schedules(job: semu.TrainingJob, time_s: float) -> None:
    """Every schedule is what its job is."""
    found = semu.compare_schedules(job)
    for row in found.rows:
        assert semu.evaluate(row.job).iteration_time_s == row.estimate.iteration_time_s, row.name


CHECKS: tuple[Callable[[semu.TrainingJob, float], None], ...] = (
    *(check_grid, check_goodput, check_templates, check_search, check_changes, check_schedules),
)


def cases() -> list[tuple[str, int]]:
    """Every eighth row, of the models that a search takes a second for."""
    return [(name, number) for number in range(0, len(rows()), 8) for name in ("dense", "experts")]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "number"), cases())
def test_pairs_of_options_in_other_reports(name: str, number: int, tmp_path: Path) -> None:
    job: Any = taken(name, rows()[number], tmp_path)[0]
    time_s = semu.evaluate(job).iteration_time_s
    refused = []
    for check in CHECKS:
        try:
            check(job, time_s)
        except SemuError as error:
            assert error.exit_code in (2, 3, 4) and error.where, f"{check.__name__}: {error}"
            refused.append(check)
    assert check_changes not in refused and check_goodput not in refused

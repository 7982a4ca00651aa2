"""Cornstarch's cuts: frozen encoders, cuts aware of it and not, against all shares and cuts, to the executor."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from simulation.jobs import job_of
from simulation.multimodal_jobs import items_of, model_of

import semu
from semu.baselines import cornstarch, cornstarch_unaware, megatron
from semu.baselines.modules_in_parallel import PLACEMENTS
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.plan.compile import compile_plan
from semu.plan.verification.rules import verify
from semu.present.report_data import LayerRow

FROZEN = {
    "qwen2.5-vl": ["vision.embedding", "vision.layers"],
    "omni": ["vision.embedding", "vision.layers", "audio.embedding", "audio.layers"],
}
"""A VLM and a VALM whose encoders are frozen; projectors and language model are trained."""
CUTS = {"latency": cornstarch, "forward": cornstarch_unaware}


def job(kind: str, pp: int = 4, segments: str = "mixed") -> TrainingJob:
    model = model_of(kind).freeze(FROZEN[kind])
    return job_of(model, items_of(kind, 4), Parallel(pp=pp, segments=segments), recompute="full")


def cost(row: LayerRow, by: str) -> float:
    return row.forward_s + (row.backward_s if by == "latency" else 0.0)


def heaviest(rows: list[list[float]], shares: tuple[int, ...]) -> float:
    """The lightest heaviest stage of all cuts of every module into its share."""
    found = 0.0
    for weights, share in zip(rows, shares, strict=True):
        cuts = ((0, *inner, len(weights)) for inner in combinations(range(1, len(weights)), share - 1))
        found = max(found, min(max(sum(weights[a:b]) for a, b in pairwise(cut)) for cut in cuts))
    return found


@pytest.mark.parametrize("kind", FROZEN)
@pytest.mark.parametrize("by", CUTS)
def test_no_shares_and_cuts_balance_better(kind: str, by: str) -> None:
    """The stages that are simulated, by the layers' times of the report; all shares, all cuts."""
    found = CUTS[by](job(kind, 5))
    report = found.simulate()
    names = [module.name for module in found.job.model.modules]
    rows = [
        [cost(row, by) for row in report.layer_times if row.module == name for _ in range(row.layers)] for name in names
    ]
    chunks = report.job["chunks"]
    assert isinstance(chunks, list)
    weights = [sum(rows[names.index(c["module"])][slice(*c["blocks"])]) for c in chunks]
    legal = [
        shares
        for shares in product(range(1, 5), repeat=len(names))
        if sum(shares) == 5 and all(n <= len(own) for n, own in zip(shares, rows, strict=True))
    ]
    assert max(weights) == pytest.approx(min(heaviest(rows, shares) for shares in legal), rel=1e-9)
    assert sorted(c["rank"] for c in chunks) == list(range(5))


@pytest.mark.parametrize("kind", FROZEN)
def test_the_busiest_rank_of_an_aware_cut_has_less_to_do(kind: str) -> None:
    aware, unaware = (found(job(kind, 5)).simulate() for found in CUTS.values())

    def most(report: semu.Report) -> float:
        ranks = report.timeline.ranks
        return max(sum(stage.end_s - stage.start_s for stage in rank.stages) for rank in ranks)

    assert aware.job["chunks"] != unaware.job["chunks"]
    assert most(aware) < most(unaware)


def test_what_it_changes() -> None:
    start = job("omni")
    assert cornstarch(start).changes == {"parallel.segments": "apart", "parallel.partition": "latency"}
    assert cornstarch_unaware(start).changes == {"parallel.segments": "apart", "parallel.partition": "forward"}
    again = cornstarch(megatron(start).job)
    assert (again.job.parallel, again.job.training) == (cornstarch(start).job.parallel, start.training)


def test_fewer_ranks_than_modules() -> None:
    with pytest.raises(ConfigError, match="3 modality modules"):
        cornstarch(job("omni", 2)).simulate()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", FROZEN)
@pytest.mark.parametrize("by", CUTS)
@pytest.mark.parametrize("segments", PLACEMENTS)
def test_simulated_searched_planned(kind: str, by: str, segments: str) -> None:
    """In all placements a search finds no slower schedule; the plan is legal and has the ranks that were simulated."""
    found = CUTS[by](job(kind, 3, segments))
    assert found.job.parallel.segments == segments
    report = found.simulate()
    searched = semu.search(found.job, rollouts=20, seed=0)
    assert searched.report.iteration_time_s <= report.iteration_time_s
    plan = compile_plan(found.job)
    verify(plan)
    chunks = report.job["chunks"]
    assert isinstance(chunks, list)
    assert [(c.module, c.rank) for c in plan.chunks] == [(c["module"], c["rank"]) for c in chunks]

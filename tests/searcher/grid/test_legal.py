"""The legal configurations against all combinations, each tried with the constructors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from searcher.grid.cases import all_combinations, dense, documents, experts, is_legal, vision

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.context import Balance
from semu.searcher.grid.legal import Rule, legal_points
from semu.searcher.grid.space import Axis, Space, job_at, with_gpus

SIZES = ("tp", "pp", "vpp", "micro_batch")


def check(job: TrainingJob, vary: Any, fix: dict[str, Any] | None = None) -> Space:
    space = Space.of(job, vary, fix)
    legal = legal_points(job, space)
    expected = [point for point in all_combinations(job, dict(space.values)) if is_legal(job, point)]
    assert sorted(legal.points) == sorted(expected)
    assert len(set(legal.points)) == len(legal.points) > 0
    assert len(legal.points) + sum(cut.count for cut in legal.cuts) == legal.total
    for point in legal.points:
        assert job_at(job, point).parallel.num_gpus == job.cluster.num_gpus
    return space


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("make", "vary", "fix"),
    [
        (dense, (*SIZES, "recompute"), {}),
        (dense, ("tp", "pp", "cp"), {"micro_batch": 2}),
        (dense, {"pp": None, "vpp": (1, 2), "micro_batch": (1, 2, 16)}, {"dp": 2}),
        (dense, {"zero": None, "tp": None, "placement": None, "pp": (1, 2), "vpp": (1, 2)}, {"micro_batch": 1}),
        (dense, {"schedule": ("1f1b", "zb-h1", "zb-v", "chimera", "dualpipe-v"), "pp": (2, 4), "vpp": (1, 2)}, {}),
        (experts, {"tp": None, "ep": None, "pp": (1, 2)}, {"micro_batch": 1}),
        (vision, ("tp", "pp", "vpp"), {"micro_batch": 1, "recompute": "full"}),
        (vision, {"segments": None, "pp": (1, 2, 4), "vpp": (1, 2), "placement": None}, {"micro_batch": 2}),
        (documents, {"cp": (2, 4), "cp_balance": None, "attention_split": (0, 2), "micro_batch": (1, 2, 4)}, {}),
        (documents, {"cp": (2, 4), "cp_balance": ("zigzag", "lpt"), "cp_kind": None, "micro_batch": (2,)}, {}),
    ],
    ids=["sizes", "context", "dp", "zero", "schedules", "experts", "vision", "segments", "policies", "exchanges"],
)
def test_the_legal_ones_are_those_that_can_be_built(make: Callable[[], TrainingJob], vary: Any, fix: Any) -> None:
    check(make(), vary, fix)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "vary"),
    [
        (dense, (*SIZES, "cp", "recompute", "zero")),
        (experts, (*SIZES, "ep", "cp")),
        (vision, (*SIZES, "cp", "recompute")),
        (dense, {"pp": (1, 2, 4), "vpp": None, "schedule": None, "placement": None}),
    ],
    ids=["dense", "experts", "vision", "every-schedule"],
)
def test_all_of_them(make: Callable[[], TrainingJob], vary: Any) -> None:
    check(make(), vary)


def test_modules_apart_need_room() -> None:
    job = vision()
    apart = TrainingJob(job.model, job.cluster, Parallel(dp=4, pp=2, segments="apart"), job.training, job.batch)
    space = check(apart, ("pp", "tp"))
    assert space.values[Axis.PP] == (1, 2, 4, 8)
    cuts = {cut.rule: cut for cut in legal_points(apart, space).cuts}
    assert "modality modules" in cuts[Rule.SIZES].example


def test_rules_are_named() -> None:
    cuts = {cut.rule: cut for cut in legal_points(dense(), Space.of(dense(), {"tp": (3, 8), "pp": None})).cuts}
    assert cuts[Rule.GPUS].count == 4 + 3  # 3 does not divide 8; with tp = 8 only pp = 1 is left
    assert "8" in cuts[Rule.SHARDING].example  # four heads over eight ranks


def test_without_context_ranks_there_is_one_policy() -> None:
    """The first of those that vary; sequences that context ranks cannot share in blocks are cut by microbatch."""
    job = documents()
    vary = {"cp": (1, 4), "cp_balance": ("lpt", "zigzag"), "micro_batch": (1, 2)}
    legal = legal_points(job, Space.of(job, vary))
    found = {(point.cp, point.cp_balance, point.micro_batch) for point in legal.points}
    assert found == {(1, "lpt", 1), (1, "lpt", 2), (4, "lpt", 2), (4, "zigzag", 1), (4, "zigzag", 2)}
    cuts = {cut.rule: cut for cut in legal.cuts}
    assert (cuts[Rule.CONTEXT].count, cuts[Rule.SHARDING].count) == (2, 1)
    assert "fewer than cp = 4 ranks" in cuts[Rule.SHARDING].example


def test_values_of_axes_that_a_job_may_have() -> None:
    """A row of keys has at most as many parts as tiles; one module lies over the pipeline in one way."""
    values = Space.of(documents(), ("attention_split", "segments", "cp_balance")).values
    assert values[Axis.ATTENTION_SPLIT] == (0, 2, 4, 8)
    assert values[Axis.SEGMENTS] == ("mixed",)
    assert Space.of(vision(), ("segments",)).values[Axis.SEGMENTS] == (
        "mixed",
        "separated",
        "apart",
        "replicated",
    )
    assert set(values[Axis.CP_BALANCE]) == {policy.value for policy in Balance}


def test_without_a_pipeline_all_cuts_are_one() -> None:
    job = vision()
    found = legal_points(job, Space.of(job, {"partition": ("parameters", "latency"), "pp": (1, 2)}, {"micro_batch": 1}))
    assert {(point.pp, point.partition) for point in found.points} == {
        (1, "parameters"),
        (2, "parameters"),
        (2, "latency"),
    }
    assert {cut.rule: cut.count for cut in found.cuts}[Rule.PIPELINE] == 1


def test_other_numbers_of_gpus() -> None:
    job = dense()
    assert with_gpus(job, 4).cluster.label() == "h800:1x4"
    assert with_gpus(job, 2).cluster.label() == "h800:1x2"
    assert with_gpus(job, 16).cluster.label() == "h800:4x4"
    for gpus in (6, 0, True):
        with pytest.raises(ConfigError, match="GPUs"):
            with_gpus(job, gpus)


@pytest.mark.parametrize(
    ("vary", "fix", "match"),
    [
        (("tp", "tq"), {}, "unknown axis 'tq'"),
        (("tp",), {"tpp": 2}, "unknown axis 'tpp'"),
        (("tp", "pp"), {"tp": 2}, "fixed and varied"),
        ({"tp": ()}, {}, "no value"),
        ({"tp": (0,)}, {}, "not a value of tp"),
        ({"zero": (4,)}, {}, "unknown ZeRO stage"),
        ({"attention_split": (-1,)}, {}, "not a value of attention_split; expected an integer >= 0"),
        ({"cp_balance": ("lptt",)}, {}, "unknown cp_balance"),
        ((), {"segments": "seperated"}, "separated"),
        ({"recompute": ("sometimes",)}, {}, "unknown recompute"),
        ((), {"micro_batch": "two"}, "not a value"),
    ],
)
def test_bad_axes(vary: Any, fix: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Space.of(dense(), vary, fix)

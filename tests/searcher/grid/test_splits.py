"""GPUs split over modules: the axes ``shares`` and ``modules`` against all combinations, each tried by itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from searcher.grid.cases import framework_rule, vision, voices

from semu.baselines import Baseline
from semu.errors import ConfigError, SemuError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.stage_layers import layer_parts
from semu.searcher.assignment.configuration import configurations
from semu.searcher.grid.bounds import Floors
from semu.searcher.grid.framework import Framework
from semu.searcher.grid.grid_search import grid
from semu.searcher.grid.legal import Rule, legal_points
from semu.searcher.grid.space import Axis, Space, job_at
from semu.searcher.grid.splits import Splits
from semu.simulation.estimate import evaluate

SHARES = {"shares": None, "segments": ("apart", "colocated", "separated"), "pp": (2, 3, 4), "vpp": (1, 2, 3)}


def tried(job: TrainingJob, parallels: Iterator[dict[str, Any]], micro_batch: int = 1) -> dict[str, float]:
    """Label -> iteration [s] of all that can be built, by the constructors alone."""
    found = {}
    for given in parallels:
        try:
            training = job.training
            own = TrainingJob(job.model, job.cluster, Parallel(**given), training, job.batch)
            found[repr(sorted(given.items()))] = evaluate(own).iteration_time_s
        except SemuError:
            continue
    return found


def with_shares(job: TrainingJob) -> Iterator[dict[str, Any]]:
    names = [module.name for module in job.model.modules]
    for segments, pp, vpp in product(SHARES["segments"], SHARES["pp"], SHARES["vpp"]):
        for counts in product(range(1, 5), repeat=len(names)):
            if 8 % pp == 0:
                shares = dict(zip(names, counts, strict=True))
                yield {"dp": 8 // pp, "pp": pp, "vpp": vpp, "segments": segments, "shares": shares}


def with_sizes(job: TrainingJob, dps: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    names = [module.name for module in job.model.modules]
    each = [*product((1, 2, 4), (1, 2, 3, 4, 5, 6, 7))]
    for dp in dps:
        for chosen in product(each, repeat=len(names)):
            if dp * sum(tp * pp for tp, pp in chosen) == 8:
                sizes = {
                    name: {"gpus": dp * tp * pp, "tp": tp, "cp": 1, "pp": pp}
                    for name, (tp, pp) in zip(names, chosen, strict=True)
                }
                pp, tp = sum(pp for _, pp in chosen), max(tp for tp, _ in chosen)
                yield {"dp": dp, "tp": tp, "pp": pp, "segments": "apart", "modules": sizes}


@pytest.mark.parametrize("make", [vision, pytest.param(voices, marks=pytest.mark.slow)])
def test_shares_are_all_that_can_be_built(make: Any) -> None:
    job = make()
    space = Space.of(job, SHARES)
    legal = legal_points(job, space)
    assert len(legal.points) + sum(cut.count for cut in legal.cuts) == legal.total
    assert len(set(legal.points)) == len(legal.points)
    mine = sorted(evaluate(job_at(job, point)).iteration_time_s for point in legal.points)
    assert mine == sorted(tried(job, with_shares(job)).values())


@pytest.mark.parametrize("make", [vision, pytest.param(voices, marks=pytest.mark.slow)])
def test_sizes_are_all_that_can_be_built(make: Any) -> None:
    job = make()
    space = Space.of(job, {"modules": None, "dp": (1, 2)})
    assert space.values[Axis.SEGMENTS] == ("apart",)
    legal = legal_points(job, space)
    assert len(legal.points) + sum(cut.count for cut in legal.cuts) == legal.total
    mine = sorted(evaluate(job_at(job, point)).iteration_time_s for point in legal.points)
    assert mine == sorted(tried(job, with_sizes(job, (1, 2))).values())
    assert len(mine) > 20


@pytest.mark.parametrize(
    ("make", "vary"),
    [
        (vision, {**SHARES, "micro_batch": (1, 2)}),
        (vision, {"shares": None, "pp": (2, 4, 8), "tp": None, "partition": ("latency",)}),
        (vision, {"modules": None, "micro_batch": (1, 2)}),
        (vision, {"modules": None, "cp": (1, 2), "dp": (2,), "partition": ("latency",)}),
        pytest.param(voices, SHARES, marks=pytest.mark.slow),
        pytest.param(voices, {"modules": None, "segments": ("apart", "colocated"), "dp": (2,)}, marks=pytest.mark.slow),
    ],
)
def test_the_best_are_those_of_all(make: Any, vary: Any) -> None:
    job = make()
    bounded = grid(job, vary, top=3, framework="any")
    whole = grid(job, vary, top=3, framework="any", exhaustive=True)
    assert bounded.rows[:3] == whole.rows[:3]
    assert bounded.evaluated < whole.evaluated == whole.num_legal
    every = {
        point: evaluate(job_at(job, point)).iteration_time_s for point in legal_points(job, Space.of(job, vary)).points
    }
    assert [row.figures.iteration_time_s for row in bounded.rows[:3]] == sorted(every.values())[:3]
    floors = Floors(job, every)
    ratios = sorted(floors[point].time_s / seconds for point, seconds in every.items())
    assert ratios[0] > 0 and ratios[-1] <= 1
    assert ratios[len(ratios) // 2] > 0.3


@pytest.mark.parametrize("make", [vision, pytest.param(voices, marks=pytest.mark.slow)])
def test_no_configuration_of_algorithm_3_is_faster(make: Any) -> None:
    """Its sizes are among the grid's, of which the grid finds the fastest."""
    job = make()
    best = grid(job, {"modules": None, "cp": (1, 2)}, fix={"partition": "latency"}, top=1, framework="any").best
    assert best is not None
    seconds = []
    for own in configurations(job):
        if any(m.cp > 2 for m in own.modules):
            continue
        try:
            seconds.append(Baseline.of("", "", job, parallel=own.parallel, training={}).evaluate().iteration_time_s)
        except SemuError:
            continue
    assert len(seconds) > 3
    assert best.figures.iteration_time_s <= min(seconds) * (1 + 1e-9)


def test_equal_sizes_are_shares() -> None:
    """GPUs of modules' own in the sizes of the job are the job's GPUs."""
    job = vision()
    for pps in ((1, 1), (1, 3), (2, 2), (3, 1)):
        words = "/".join(f"tp2-pp{pp}" for pp in pps)
        sizes = grid(job, {"modules": [words]}, framework="any")[0]
        shares = grid(job, {"shares": ["/".join(map(str, pps))], "tp": (2,), "pp": (sum(pps),)}, framework="any")[0]
        assert sizes.figures.iteration_time_s == shares.figures.iteration_time_s


def test_words() -> None:
    job = vision()
    words = Splits(job, ("apart",))
    assert words.read_shares("1/3", "") == words.read_shares("llm=3/vit=1", "") == "vit=1/llm=3"
    assert words.read_sizes("tp2/cp2-pp3-tp1", "") == "vit=tp2-cp1-pp1/llm=tp1-cp2-pp3"
    assert Space.of(job, {"shares": ["balanced"]}).values[Axis.SHARES] == ("balanced",)
    found = grid(job, {"shares": ("1/1", "balanced"), "pp": (2,)}, framework="any")
    assert len({row.figures for row in found}) == 1
    assert found.to_dicts()[0]["shares"] in ("vit=1/llm=1", "balanced")
    assert "modules" not in found.to_dicts()[0]
    assert "shares" not in grid(job, {"pp": (2,)}, framework="any").to_dicts()[0]


def test_shares_that_make_no_pipeline_are_counted() -> None:
    job = vision()
    cuts = {cut.rule: cut.count for cut in legal_points(job, Space.of(job, {"shares": None, "pp": (1, 2, 4)})).cuts}
    assert cuts == {Rule.SHARES: 3 * 4 - 4}


def test_megatron_divides_the_layers_of_the_language_models_own_ranks() -> None:
    job = vision()
    broken = framework_rule(Framework.MEGATRON, job)
    point = legal_points(job, Space.of(job, {"shares": ("1/1",), "pp": (2,)})).points[0]
    layers = len(layer_parts(job.model.modules[1]))
    told = {pp: broken(point._replace(shares=f"vit=1/llm={pp}", pp=pp + 1), 16) for pp in range(1, layers + 1)}
    assert {pp: found is None for pp, found in told.items()} == {pp: layers % pp == 0 for pp in told}
    assert {found is None for found in told.values()} == {True, False}
    sizes = {pp: broken(point._replace(shares="", modules=f"vit=tp1-cp1-pp1/llm=tp1-cp1-pp{pp}"), 16) for pp in told}
    assert {pp: found is None for pp, found in sizes.items()} == {pp: layers % pp == 0 for pp in told}


@pytest.mark.parametrize(
    ("vary", "fix", "match"),
    [
        ({"shares": ("1",)}, {}, "a part for each of 2 modules"),
        ({"shares": ("1/0",)}, {}, "no shares"),
        ({"shares": ("vti=1/llm=1",)}, {}, "vit"),
        ({"shares": ("vit=1/vit=1",)}, {}, "a module twice"),
        ({"shares": ()}, {}, "no value"),
        ({"modules": ("tp2/pp",)}, {}, "no sizes"),
        ({"modules": ("tp2-tp1/pp1",)}, {}, "no sizes"),
        ({"modules": ("dp2/pp1",)}, {}, "no sizes"),
        ({"modules": None, "segments": ("mixed",)}, {}, "apart"),
        ({"modules": ("tp2/pp1",)}, {"segments": "replicated"}, "apart"),
    ],
)
def test_words_that_are_none(vary: Any, fix: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Space.of(vision(), vary, fix)


def test_one_module_is_not_split() -> None:
    from searcher.grid.cases import dense

    with pytest.raises(ConfigError, match="one module"):
        Space.of(dense(), ("shares",))

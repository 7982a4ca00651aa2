"""The partition of DIP §4: placements against every other one, sub-microbatches against their definition."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import gpt, job_of, t2v, t2v_items, text_items, vlm, vlm_items

from semu.errors import ConfigError, ScheduleError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.searcher import layer_placement as placement
from semu.searcher.layer_placement import ModuleLayers, place_layers
from semu.searcher.partitioning import partition
from semu.simulation import prepare


def compositions(total: int, least: list[int]) -> list[tuple[int, ...]]:
    """All ways to give so many layers to chunks."""
    spare = total - sum(least)
    found = product(*(range(spare + 1) for _ in least))
    return [
        tuple(a + b for a, b in zip(least, extra, strict=True)) for extra in found if sum(extra) == spare and spare >= 0
    ]


def slowest(module: ModuleLayers, counts: tuple[int, ...]) -> float:
    return max(module.cost(chunk, len(counts), layers) for chunk, layers in enumerate(counts))


def fullest(modules: tuple[ModuleLayers, ...], layouts: tuple[tuple[int, ...], ...], ranks: int) -> float:
    return max(
        sum(
            module.runs * module.cost(chunk, len(counts), counts[chunk])
            for module, counts in zip(modules, layouts, strict=True)
            for chunk in range(rank, len(counts), ranks)
        )
        for rank in range(ranks)
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, tuple[ModuleLayers, ...]]:
    ranks = draw(st.integers(1, 3))
    modules = []
    for number in range(draw(st.integers(1, 2))):
        segments = draw(st.integers(1, 2 if ranks < 3 else 1))
        chunks = ranks * segments
        has_first, has_last = draw(st.booleans()), draw(st.booleans())
        first, last = draw(st.sampled_from([0.0, 0.5, 1.5, 2.0])), draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
        modules.append(
            ModuleLayers(
                f"m{number}",
                chunks + draw(st.integers(0, 3)),
                segments,
                draw(st.sampled_from([1.0, 0.5, 2.0])),
                first * has_first,
                last * has_last,
                has_first,
                has_last,
                float(draw(st.integers(1, 4))),
            )
        )
    return ranks, tuple(modules)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_placements_are_the_best_of_all(case: tuple[int, tuple[ModuleLayers, ...]]) -> None:
    ranks, modules = case
    found = place_layers(modules, ranks)
    every = []
    for module, counts in zip(modules, found, strict=True):
        chunks = ranks * module.segments
        least = [module.least(chunk, chunks) for chunk in range(chunks)]
        ways = compositions(module.layers, least)
        assert counts in ways
        best = min(slowest(module, way) for way in ways)
        assert slowest(module, counts) == best
        every.append([way for way in ways if slowest(module, way) == best])
    if math.prod(map(len, every)) <= 20_000:
        assert fullest(modules, found, ranks) == min(fullest(modules, way, ranks) for way in product(*every))


def test_modules_one_after_another_lose_little(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = (
        ModuleLayers("a", 10, 1, 1.0, 0.0, 1.5, has_last=True, runs=3.0),
        ModuleLayers("b", 7, 1, 2.0, 1.0, has_first=True),
    )
    exact = place_layers(modules, 4)
    monkeypatch.setattr(placement, "MOST_STATES", 0)
    greedy = place_layers(modules, 4)
    assert [sum(counts) for counts in greedy] == [10, 7]
    assert fullest(modules, exact, 4) <= fullest(modules, greedy, 4) <= 1.2 * fullest(modules, exact, 4)


def test_fewer_layers_than_chunks() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.pp"):
        place_layers([ModuleLayers("m", 3, 1, 1.0)], 4)
    with pytest.raises(ConfigError, match=r"segments\.m"):
        place_layers([ModuleLayers("m", 7, 2, 1.0)], 4)


def vision_job(pp: int = 2, dp: int = 1, empty: tuple[int, ...] = ()) -> TrainingJob:
    return job_of(vlm(layers=4), vlm_items(3 * dp, seed=5, empty=empty), Parallel(pp=pp, dp=dp))


def test_sub_microbatches_by_their_definition() -> None:
    job = vision_job()
    found = {module.name: module for module in partition(job).modules}
    vit, llm = found["vit"], found["llm"]
    assert llm.sub_batch is None
    assert llm.rates == ()
    assert set(llm.parts) == {(1,)}
    images = [len(item.lengths["vision"]) for item in job.batch.microbatches(3, 1)]
    assert len(vit.rates) == max(images)
    assert max(vit.rates) == 1.0
    size = next(number for number, rate in enumerate(vit.rates, start=1) if rate >= 0.95)
    assert vit.sub_batch == size
    assert vit.parts == tuple((math.ceil(count / size),) for count in images)
    fastest = min(vit.time_s, llm.time_s)
    for module in found.values():
        assert module.segments == min(math.floor(module.time_s / fastest + 1e-9), max(sum(module.layers) // 2, 1))
        assert len(module.layers) == 2 * module.segments
    prepare(job, plan=partition(job).plan())


def test_rates_are_of_the_simulator() -> None:
    """A module that is a whole chunk: its stages on so many images take what the rates say."""
    from semu.simulation import simulate
    from semu.workload import Microbatch

    job = vision_job(pp=1)
    vit = partition(job).modules[0]

    def seconds(size: int) -> float:
        streams = {"text": [4 * size + 9], "vision": [16] * size, "vision_tokens": [4] * size}
        report = simulate(job_of(vlm(layers=4), [Microbatch(streams, samples=1)]))
        return sum(s.end_s - s.start_s for s in report.timeline.ranks[0].stages if s.module == "vit")

    rate = [size / seconds(size) for size in (1, 2, len(vit.rates))]
    for size, own in zip((1, 2), rate, strict=False):
        assert own / rate[-1] == pytest.approx(vit.rates[size - 1] / vit.rates[-1], rel=0.05)


def test_items_of_both_modules_of_a_video_model_are_cut() -> None:
    job = job_of(t2v(layers=4), t2v_items(4, seed=1), Parallel(pp=2))
    found = partition(job)
    assert all(module.sub_batch is not None for module in found.modules)
    prepare(job, plan=found.plan())


def test_replicas_have_parts_of_their_own() -> None:
    job = vision_job(dp=2)
    vit = partition(job, sub_batch={"vit": 2}).modules[0]
    images = [len(item.lengths["vision"]) for item in job.batch.microbatches(6, 1)]
    assert vit.parts == tuple((math.ceil(images[2 * i] / 2), math.ceil(images[2 * i + 1] / 2)) for i in range(3))


def test_choices_of_ones_own() -> None:
    job = vision_job()
    vit, llm = partition(job, sub_batch={"vit": 3}, segments={"vit": 2}).modules
    assert (vit.sub_batch, vit.segments, vit.layers) == (3, 2, (1, 1, 1, 1))
    assert llm.segments == 1
    assert partition(job, sub_batch={"vit": 0}).modules[0].sub_batch is None
    for bad in (
        {"sub_batch": {"vti": 3}},
        {"sub_batch": {"vit": -1}},
        {"segments": {"vit": 0}},
        {"segments": {"vit": 9}},
    ):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            partition(job, **bad)  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="llm"):
        partition(job, sub_batch={"llm": 1})
    with pytest.raises(ConfigError, match="segments"):
        partition(vision_job(pp=1), segments={"llm": 2})


def test_no_images_at_all() -> None:
    job = vision_job(empty=(0, 1, 2))
    vit, llm = partition(job).modules
    assert vit.parts == ((0,), (0,), (0,))
    assert (vit.sub_batch, vit.segments, llm.segments) == (1, 1, 1)
    assert vit.time_s == 0.0 < llm.time_s


def test_text_alone() -> None:
    found = partition(job_of(gpt(layers=4), text_items(4), Parallel(pp=2)))
    assert [module.segments for module in found.modules] == [1]
    assert "llm: 1 segment" in found.lines()[0]
    assert found.to_json()["llm"]["layers"] == list(found.modules[0].layers)  # type: ignore[index]

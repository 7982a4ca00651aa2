"""Explicit layouts: blocks on ranks and slots by hand, and jobs against the slow reference bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import WIDTH, Distance, chain, gpt, job_of, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn import Linear, Model
from semu.parallel.config import Overlap, Parallel
from semu.present.report import Report
from semu.simulation import simulate


def parallel_of(table: dict[str, Any], **sizes: Any) -> Parallel:
    return Parallel(layout=table, **sizes)  # type: ignore[arg-type]


def places(report: Report) -> list[tuple[int, int, str, int, int]]:
    """(rank, slot, module, first block, one behind the last) of every chunk."""
    chunks: Any = report.job["chunks"]
    return [(c["rank"], c["virtual_stage"], c["module"], *c["blocks"]) for c in chunks]


def text_job(layers: int, parallel: Parallel, **options: Any) -> TrainingJob:
    return job_of(gpt(layers), text_items(2 * parallel.pp * parallel.dp), parallel, **options)


# -- by hand: a GPT has the blocks embedding, layers.0 ..., head -------------------------------------------------------
@pytest.mark.parametrize(
    ("layers", "table", "pp", "vpp", "ends"),
    [
        (6, {"stages": "Et|t*3|t*2L"}, 3, 1, [2, 5, 8]),
        (6, {"stages": "E|(t|)*2t*4L"}, 2, 2, [1, 2, 3, 8]),
        (6, {"stages": "Et*5|t|(L)"}, 3, 1, [6, 7, 8]),
        (6, {"layers": [1, 3, 2]}, 3, 1, [2, 5, 8]),
        (6, {"layers": [0, 6, 0]}, 3, 1, [1, 7, 8]),
        (6, {"layers": [2, 1, 1, 2]}, 2, 2, [3, 4, 5, 8]),
        (6, {"modules": {"llm": [1, 3, 2]}}, 3, 1, [2, 5, 8]),
        (6, {"first": 1, "last": 1}, 3, 1, [2, 6, 8]),
        (6, {"first": 0}, 2, 1, [1, 8]),
        (8, {"first": 2, "last": 2}, 3, 2, [2, 4, 5, 6, 8, 10]),
        (6, {"account_for_embedding": True, "account_for_loss": True}, 2, 2, [2, 4, 6, 8]),
        (5, {"account_for_embedding": True}, 2, 1, [3, 7]),
    ],
)
def test_stages_of_a_language_model(layers: int, table: dict[str, Any], pp: int, vpp: int, ends: list[int]) -> None:
    report = simulate(text_job(layers, parallel_of(table, pp=pp, vpp=vpp)))
    expected = [
        (stage % pp, stage // pp, "llm", begin, end)
        for stage, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    assert places(report) == expected
    described: Any = report.job["parallel"]
    assert described["layout"] == table


@pytest.mark.parametrize(("pp", "vpp", "ends"), [(3, 1, [3, 5, 8]), (2, 3, [2, 3, 4, 5, 6, 8]), (1, 1, [8])])
def test_layers_evenly(pp: int, vpp: int, ends: list[int]) -> None:
    report = simulate(text_job(6, Parallel(pp=pp, vpp=vpp, partition="layers")))
    assert [chunk[4] for chunk in places(report)] == ends
    described: Any = report.job["parallel"]
    assert described["partition"] == "layers"
    assert "layout" not in described


def vlm_job(parallel: Parallel, **options: Any) -> TrainingJob:
    return job_of(vlm(), vlm_items(2 * parallel.pp), parallel, **options)


VIT_BLOCKS = [path for path, _ in vlm().modules[0].blocks()]
LLM_BLOCKS = [path for path, _ in vlm().modules[1].blocks()]


def test_the_blocks_of_the_vision_language_model() -> None:
    """What the places below count."""
    assert [path.split(".")[1] for path in VIT_BLOCKS[:4]] == ["embedding", "layers", "layers", "layers"]
    assert len(VIT_BLOCKS) == 5
    assert [path.split(".")[1] for path in LLM_BLOCKS] == ["embedding", "layers", "layers", "layers", "head"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("table", "pp", "vpp", "expected"),
    [
        # one module behind the other: two stages of the encoder, two of the backbone
        (
            {"modules": {"vit": [1, 2], "llm": [2, 1]}},
            4,
            1,
            [(0, 0, "vit", 0, 2), (1, 0, "vit", 2, 5), (2, 0, "llm", 0, 3), (3, 0, "llm", 3, 5)],
        ),
        # the same over two ranks: the backbone is their second slot
        (
            {"modules": {"vit": [1, 2], "llm": [2, 1]}},
            2,
            2,
            [(0, 0, "vit", 0, 2), (1, 0, "vit", 2, 5), (0, 1, "llm", 0, 3), (1, 1, "llm", 3, 5)],
        ),
        # the backbone's embedding and its head each in a stage of their own
        (
            {"modules": {"vit": [3], "llm": [0, 3, 0]}},
            2,
            2,
            [(0, 0, "vit", 0, 5), (1, 0, "llm", 0, 1), (0, 1, "llm", 1, 4), (1, 1, "llm", 4, 5)],
        ),
        # over the same stages: the middle one holds the end of the encoder and the beginning of the backbone
        (
            {"modules": {"vit": [2, 1, 0], "llm": [0, 1, 2]}},
            3,
            1,
            [(0, 0, "vit", 0, 3), (1, 0, "vit", 3, 5), (1, 0, "llm", 0, 2), (2, 0, "llm", 2, 5)],
        ),
        # six layers of two modules, two per rank
        (
            {"first": 2},
            3,
            1,
            [(0, 0, "vit", 0, 3), (1, 0, "vit", 3, 5), (1, 0, "llm", 0, 2), (2, 0, "llm", 2, 5)],
        ),
        ({"last": 3}, 2, 1, [(0, 0, "vit", 0, 5), (1, 0, "llm", 0, 5)]),
    ],
)
def test_stages_of_a_vision_language_model(
    table: dict[str, Any], pp: int, vpp: int, expected: list[tuple[int, int, str, int, int]]
) -> None:
    job = vlm_job(parallel_of(table, pp=pp, vpp=vpp))
    report = simulate(job)
    assert places(report) == expected
    assert_equal(report, expand(job))


def test_parameters_follow_the_layout() -> None:
    """A layer of width h: 12 h^2 + 13 h; the tied table V h is on both end ranks, positions s h, last norm 2 h."""
    h, vocab, positions = 128, 512, 256
    layer = 12 * h * h + 13 * h
    report = simulate(text_job(6, parallel_of({"stages": "Et|t*4|tL"}, pp=3)))
    assert [row.parameters for row in report.ranks] == [
        layer + (vocab + positions) * h,
        4 * layer,
        layer + vocab * h + 2 * h,
    ]


def test_unnumbered_blocks_all_count() -> None:
    model = chain(*[Linear(WIDTH, WIDTH) for _ in range(4)], Distance())
    report = simulate(job_of(model, text_items(4), parallel_of({"layers": [1, 4]}, pp=2)))
    assert [chunk[4] for chunk in places(report)] == [1, 5]


# -- the slow reference ------------------------------------------------------------------------------------------------
@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("table", "sizes"),
    [
        ({"stages": "Et*3|t|tL"}, {"pp": 3}),
        ({"layers": [0, 3, 2, 0]}, {"pp": 2, "vpp": 2}),
        ({"layers": [3, 2]}, {"pp": 2, "tp": 2}),
        ({"first": 1}, {"pp": 3, "dp": 2}),
        ({"account_for_loss": True}, {"pp": 3}),
        ({"account_for_embedding": True}, {"pp": 2, "vpp": 3}),
    ],
)
def test_text(table: dict[str, Any], sizes: dict[str, int], recompute: str) -> None:
    job = text_job(5, parallel_of(table, **sizes), recompute=recompute)
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("method", ["block", "uniform"])
def test_recomputed_layers(method: str) -> None:
    options = {"recompute": "full", "recompute_layers": 2, "recompute_method": method}
    job = text_job(5, parallel_of({"layers": [1, 4]}, pp=2), **options)
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("model", ["vlm", "t2v"])
def test_two_modules(model: str, schedule: str) -> None:
    built: Model = vlm() if model == "vlm" else t2v()
    items = vlm_items(4) if model == "vlm" else t2v_items(4)
    first, second = (module.name for module in built.modules)
    table = {"modules": {first: [1, 2], second: [1, 2]}}
    for sizes in ({"pp": 2, "vpp": 2}, {"pp": 4}):
        job = job_of(built, items, parallel_of(table, **sizes), schedule=schedule)
        assert_equal(simulate(job), expand(job))
    job = job_of(built, items, Parallel(pp=2, partition="layers"), schedule=schedule)
    assert_equal(simulate(job), expand(job))


def test_overlap_with_a_layout() -> None:
    options = Overlap(grad_reduce=True, param_gather=True)
    plain = simulate(text_job(6, Parallel(pp=3, dp=2, partition="layers"), overlap=options))
    told = simulate(text_job(6, parallel_of({"layers": [2, 2, 2]}, pp=3, dp=2), overlap=options))
    assert told.iteration_time_s == plain.iteration_time_s
    assert told.peak_memory_bytes == plain.peak_memory_bytes


# -- what is refused ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "table", "sizes", "where", "expected", "nearest"),
    [
        ("gpt", {"layers": [2, 2]}, {"pp": 2}, "parallel.layout.layers", "6 layers", "4 in the last stage"),
        ("gpt", {"layers": [5, 5]}, {"pp": 2}, "parallel.layout.layers", "6 layers", "1 in the last stage"),
        ("gpt", {"layers": [9, 1]}, {"pp": 2}, "parallel.layout.layers", "6 layers", None),
        ("gpt", {"stages": "Et*2|t*3L"}, {"pp": 2}, "parallel.layout.stages", "6 layers", "4 in the last stage"),
        ("gpt", {"layers": [2, 0, 4]}, {"pp": 3}, "parallel.layout.layers", ">= 1 layer", 1),
        ("gpt", {"modules": {"lm": [3, 3]}}, {"pp": 2}, "parallel.layout.modules.lm", "one of llm", "llm"),
        (
            "vlm",
            {"layers": [3, 3]},
            {"pp": 2},
            "parallel.layout.layers",
            "layout.modules with",
            None,
        ),
        ("vlm", {"stages": "Et*3|t*3L"}, {"pp": 2}, "parallel.layout.stages", "layout.modules with layers of", None),
        ("vlm", {"modules": {"llm": [2, 1]}}, {"pp": 2}, "parallel.layout.modules", "vit = [...]", None),
        (
            "vlm",
            {"modules": {"vit": [2], "llm": [3]}},
            {"pp": 2},
            "parallel.layout.modules.vit",
            "3 layers",
            "3 in",
        ),
        (
            "vlm",
            {"modules": {"vit": [1, 1, 1], "llm": [1, 1, 1]}},
            {"pp": 3},
            "parallel.layout.modules.llm",
            "zeros before stage 2",
            2,
        ),
        (
            "vlm",
            {"modules": {"vit": [1, 0, 2], "llm": [0, 0, 3]}},
            {"pp": 3},
            "parallel.layout.modules.vit",
            "zeros only before and behind",
            None,
        ),
        (
            "vlm",
            {"modules": {"vit": [3, 0, 0], "llm": [0, 0, 3]}},
            {"pp": 3},
            "parallel.layout.modules",
            "a layer of some module in every stage",
            1,
        ),
    ],
)
def test_layouts_that_do_not_fit_the_model(
    model: str, table: dict[str, Any], sizes: dict[str, int], where: str, expected: str, nearest: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        if model == "gpt":
            text_job(6, parallel_of(table, **sizes))
        else:
            vlm_job(parallel_of(table, **sizes))
    assert caught.value.where == where
    assert caught.value.expected is not None
    assert expected in caught.value.expected
    if isinstance(nearest, str):
        assert str(caught.value.nearest).startswith(nearest)
    else:
        assert caught.value.nearest == nearest


@pytest.mark.parametrize(("pp", "nearest"), [(4, "pp = 3"), (5, "pp = 6")])
def test_layers_that_do_not_divide(pp: int, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        text_job(6, Parallel(pp=pp, partition="layers"))
    assert (caught.value.where, caught.value.got, caught.value.nearest) == ("parallel.partition", 6, nearest)

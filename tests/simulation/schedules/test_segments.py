"""Modality modules in segments or on ranks of their own: all shares and cuts tried, and the slow reference."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand
from simulation.reference.split import orders_of

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.parallel.pipeline import Chunk
from semu.parallel.segments import SEGMENTS, place_modules
from semu.simulation import prepare, simulate

CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("separated", {"pp": 2, "vpp": 2}),
    ("separated", {"pp": 2, "vpp": 3}),
    ("apart", {"pp": 2}),
    ("apart", {"pp": 4}),
    ("apart", {"pp": 4, "dp": 2}),
)


def job(kind: str, segments: str, **sizes: Any) -> TrainingJob:
    model: Model = vlm() if kind == "vlm" else t2v()
    options = {"schedule": sizes.pop("schedule")} if "schedule" in sizes else {}
    parallel = Parallel(segments=segments, **sizes)
    count = 2 * parallel.pp * parallel.dp
    return job_of(model, vlm_items(count, empty=[1]) if kind == "vlm" else t2v_items(count), parallel, **options)


def places(chunks: list[Chunk]) -> list[tuple[int, ...]]:
    return [(c.module, c.slot, c.rank, c.first, c.last) for c in chunks]


def test_by_hand() -> None:
    """Two modules of 4 and 4 blocks, the first thrice as heavy."""
    blocks, weights = [4, 4], [3.0] * 4 + [1.0] * 4
    names = ["vit", "llm"]
    mixed = place_modules("mixed", names, blocks, weights, 2, 1)
    assert places(mixed) == [(0, 0, 0, 0, 3), (0, 0, 1, 3, 4), (1, 0, 1, 0, 4)]
    separated = place_modules("separated", names, blocks, weights, 2, 2)
    assert places(separated) == [(0, 0, 0, 0, 2), (0, 0, 1, 2, 4), (1, 1, 0, 0, 2), (1, 1, 1, 2, 4)]
    three = place_modules("separated", names, blocks, weights, 2, 3)
    assert [chunk.module for chunk in three] == [0] * 4 + [1] * 2
    told = place_modules("separated", names, blocks, weights, 2, 3, shares={"vit": 1, "llm": 2})
    assert [(c.module, c.slot, c.rank) for c in told] == [
        (0, 0, 0),
        (0, 0, 1),
        *((1, s, r) for s in (1, 2) for r in (0, 1)),
    ]
    apart = place_modules("apart", names, blocks, weights, 4, 1)
    assert places(apart) == [(0, 0, 0, 0, 1), (0, 0, 1, 1, 2), (0, 0, 2, 2, 4), (1, 0, 3, 0, 4)]
    even = place_modules("apart", names, blocks, weights, 4, 1, shares={"vit": 2, "llm": 2})
    assert places(even) == [(0, 0, 0, 0, 2), (0, 0, 1, 2, 4), (1, 0, 2, 0, 2), (1, 0, 3, 2, 4)]


@given(
    st.sampled_from(["separated", "apart"]),
    st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=6), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_no_shares_and_cuts_have_a_lighter_heaviest_stage(
    kind: str, modules: list[list[int]], pp: int, vpp: int
) -> None:
    pp, vpp = (pp, vpp) if kind == "separated" else (pp + vpp, 1)
    total, each = (vpp, pp) if kind == "separated" else (pp, 1)
    legal = [
        shares
        for shares in product(range(1, total + 1), repeat=len(modules))
        if sum(shares) == total and all(n * each <= len(own) for n, own in zip(shares, modules, strict=True))
    ]
    names = [f"m{number}" for number in range(len(modules))]
    weights = [float(weight) for own in modules for weight in own]

    def place() -> list[Chunk]:
        return place_modules(kind, names, [len(own) for own in modules], weights, pp, vpp)

    if not legal:
        with pytest.raises(ConfigError) as caught:
            place()
        assert caught.value.nearest is not None
        return
    chunks = place()
    seen = {(chunk.rank, chunk.slot): chunk.module for chunk in chunks}
    assert len(seen) == len(chunks) == pp * vpp
    groups = [sum(modules[c.module][c.first : c.last]) for c in chunks]

    def heaviest(own: list[int], parts: int) -> int:
        cuts = combinations(range(1, len(own)), parts - 1)
        return min(max(sum(own[a:b]) for a, b in pairwise((0, *cut, len(own)))) for cut in cuts)

    assert max(groups) == min(
        max(heaviest(own, n * each) for own, n in zip(modules, shares, strict=True)) for shares in legal
    )
    for number, own in enumerate(modules):
        mine = [chunk for chunk in chunks if chunk.module == number]
        assert [block for chunk in mine for block in range(chunk.first, chunk.last)] == list(range(len(own)))
        holders = {rank: {c.module for c in chunks if c.rank == rank} for rank in range(pp)}
        assert all(len(found) == (len(modules) if kind == "separated" else 1) for found in holders.values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["vlm", "t2v"])
@pytest.mark.parametrize(("segments", "sizes"), CASES)
def test_against_the_slow_reference(kind: str, segments: str, sizes: dict[str, Any]) -> None:
    made = job(kind, segments, **sizes)
    report = simulate(made)
    assert_equal(report, expand(made))
    described: Any = report.job["parallel"]
    assert described["segments"] == segments


@pytest.mark.parametrize("kind", ["vlm", "t2v"])
@pytest.mark.parametrize(("schedule", "placement"), [("zb-v", "v-shape"), ("looped-bfs", "circular")])
def test_separated_modules_run_schedules_that_want_one_chunk_per_rank_and_slot(
    kind: str, schedule: str, placement: str
) -> None:
    plain = job(kind, "separated", pp=2, vpp=2, placement=placement, schedule=schedule)
    order = prepare(plain).schedule()
    assert order.splits_backward == (schedule == "zb-v")
    assert_equal(simulate(plain), expand(plain, orders=orders_of(order)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["vlm", "t2v"])
@pytest.mark.parametrize("schedule", ["zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"])
def test_mixed_modules_run_them_too(kind: str, schedule: str) -> None:
    """A rank's group of layers may hold the end of one module and the beginning of the next."""
    model, items = (vlm(layers=5), vlm_items(4, empty=[1])) if kind == "vlm" else (t2v(), t2v_items(4))
    made = job_of(model, items, Parallel(pp=2, vpp=2, placement="v-shape"), schedule=schedule)
    order = prepare(made).schedule()
    assert prepare(made).pipeline_shape.num_chunks == 5
    assert_equal(simulate(made), expand(made, orders=orders_of(order)))


@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_separated_is_what_a_layout_of_the_same_layers_is(kind: str) -> None:
    """Every module's layers as ``segments`` cuts them, said outright."""
    made = job(kind, "separated", pp=2, vpp=2)
    chunks: Any = simulate(made).job["chunks"]
    layers: dict[str, list[int]] = {}
    for chunk in chunks:
        paths = [path for path, _ in next(m for m in made.model.modules if m.name == chunk["module"]).blocks()]
        first, last = chunk["blocks"]
        layers.setdefault(chunk["module"], []).append(sum(".layers." in path for path in paths[first:last]))
    assert all(count for counts in layers.values() for count in counts)
    said = job_of(made.model, made.batch.items, Parallel(pp=2, vpp=2, layout={"modules": layers}))  # type: ignore[attr-defined, arg-type]
    assert simulate(said).iteration_time_s == simulate(made).iteration_time_s
    assert simulate(said).peak_memory_bytes == simulate(made).peak_memory_bytes


@pytest.mark.parametrize(("segments", "vpp"), [("separated", 1), ("separated", 2), ("apart", 1)])
def test_a_model_of_one_module_is_cut_as_ever(segments: str, vpp: int) -> None:
    plain = simulate(job_of(gpt(6), text_items(8), Parallel(pp=2, vpp=vpp)))
    other = simulate(job_of(gpt(6), text_items(8), Parallel(pp=2, vpp=vpp, segments=segments)))
    assert other.iteration_time_s == plain.iteration_time_s
    assert other.peak_memory_bytes == plain.peak_memory_bytes


@pytest.mark.parametrize(
    ("options", "where", "nearest"),
    [
        ({"segments": "separate"}, "parallel.segments", "separated"),
        ({"segments": "separated"}, "parallel.vpp", 2),
        ({"segments": "apart", "pp": 1}, "parallel.pp", 2),
        ({"segments": "separated", "vpp": 2, "pp": 6}, "parallel.pp", 5),
        ({"segments": "separated", "vpp": 6}, "parallel.vpp", 4),
        ({"shares": {"vit": 1}}, "parallel.shares", "separated"),
        ({"segments": "separated", "vpp": 2, "shares": {"vit": 0}}, "parallel.shares.vit", 1),
        ({"segments": "separated", "vpp": 3, "shares": {"vit": 1}}, "parallel.shares", None),
        ({"segments": "separated", "vpp": 3, "shares": {"vit": 1, "llm": 1}}, "parallel.shares", "vpp = 2"),
        ({"segments": "separated", "vpp": 4, "shares": {"vit": 1, "llm": 3}}, "parallel.shares.llm", 2),
        ({"segments": "apart", "shares": {"vt": 1, "llm": 1}}, "parallel.shares.vt", "vit"),
        ({"segments": "apart", "partition": "layers"}, "parallel.partition", "parameters"),
        ({"segments": "apart", "layout": {"first": 1}}, "parallel.layout", None),
        ({"segments": "apart", "shares": 3}, "parallel.shares", None),
    ],
)
def test_refusals(options: dict[str, Any], where: str, nearest: object) -> None:
    with pytest.raises(ConfigError) as caught:
        job_of(vlm(), vlm_items(12), Parallel(**{"pp": 2, **options}))
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_the_names() -> None:
    assert SEGMENTS == ("mixed", "separated", "apart", "colocated", "replicated")
    assert Parallel().segments == SEGMENTS[0]

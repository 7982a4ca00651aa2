"""Every schedule of ``ALL_SCHEDULES`` over ranks, microbatches and chunks per rank: legal, never better than a lower
bound, never faster with more microbatches, and its closed forms to the bit; hand-drawn ones where the field draws them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
from schedule.figures import FIGURES, figure

from semu.errors import ScheduleError
from semu.schedule.family import ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy, StudyResult

FEW_P, FEW_M, FEW_V = (1, 2, 3, 4, 7, 8), (1, 2, 3, 4, 6, 7, 8, 12, 16, 32), (1, 2, 3, 4)
COSTS = ((1.0, 1.0, 1.0), (1.0, 0.5, 0.5), (2.0, 3.0, 1.0), (3.0, 2.0, 2.5))
"""F, I and W of a stage [s]."""
MADE_FOR = {"hanayo": 1}
"""Which of these the order of a schedule that depends on costs is made for, where it is not the first."""


def fitting(family: ScheduleFamily, ps: tuple[int, ...], ms: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    return (
        (p, m, v) for p in ps for v in FEW_V for m in ms if family.misfit(p, m, v) is None
    )  # m innermost, for monotonicity


def simple_bound(shape: PipelineShape, f: float, i: float, w: float, splits: bool) -> float:
    """The wait for a rank's first input, and its work; where backwards are whole, the way of its last one back."""
    best = 0.0
    for rank in range(shape.num_ranks):
        places = []
        for chunk in shape.chunks_of(rank):
            depth, at = 0, chunk
            while shape.sources[at]:
                at, depth = shape.sources[at][0], depth + 1
            if shape.chunk_flow[chunk] in shape.microbatch_flow:
                places.append((depth, chunk))
        stages = sum(
            shape.microbatch_flow.count(shape.chunk_flow[chunk]) * shape.chunk_split[chunk] for _, chunk in places
        )
        if places:
            least = min(depth for depth, _ in places)
            after = 0.0 if splits else least * (i + w)
            best = max(best, least * f + stages * (f + i + w) + after)
    return best


def check_legal(family: ScheduleFamily, shape: PipelineShape) -> Schedule:
    schedule = family(shape)
    schedule.validate(shape)
    assert schedule.name == family.name
    assert family.splits_backward or not schedule.splits_backward
    assert Schedule.from_text(schedule.to_text(), family.name) == schedule
    return schedule


def check_figures(family: ScheduleFamily, p: int, m: int, v: int, found: StudyResult, cost: tuple[float, ...]) -> int:
    """Closed forms, exactly; how many there are."""
    f, i, w = cost
    makespan, held = family.makespan(p, m, v, f, i, w), family.activations(p, m, v)
    if makespan is not None:
        assert found.makespan_s == makespan, (p, m, v, cost)
        work = m * v * (f + i + w) * (p if family.placement is not Placement.BIDIRECTIONAL else p / 2)
        assert found.bubble_ratio == pytest.approx(1 - work / (p * makespan), abs=1e-12)
    if isinstance(held, int):
        assert max(found.peak_bytes.tolist()) == held, (p, m, v)
    elif held is not None:
        assert found.peak_bytes.tolist() == held, (p, m, v)
    return (makespan is not None) + (held is not None)


def check_family(name: str, ps: tuple[int, ...], ms: tuple[int, ...]) -> None:
    family, known, before = ALL_SCHEDULES[name], 0, dict[tuple[int, ...], float]()
    for p, m, v in fitting(family, ps, ms):
        shape = family.shape(p, m, v)
        schedule = check_legal(family, shape)
        for number, cost in enumerate(COSTS):
            study = PipelineStudy.of(shape, forward_s=cost[0], input_s=cost[1], weight_s=cost[2])
            found = study.evaluate(schedule)
            known += check_figures(family, p, m, v, found, cost)
            assert found.makespan_s >= simple_bound(shape, *cost, family.splits_backward)
            if family.adapt is None or number == MADE_FOR.get(name, 0):
                assert found.makespan_s >= before.get((p, v, number), 0.0), (p, m, v, cost)
            before[p, v, number] = found.makespan_s
        bound = PipelineStudy.of(shape).lower_bound_s(split=family.splits_backward)
        assert simple_bound(shape, 1, 1, 1, family.splits_backward) <= bound
        assert bound <= PipelineStudy.of(shape).evaluate(schedule).makespan_s
    assert known > 10


@pytest.mark.paper
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALL_SCHEDULES)
def test_legal_bounded_monotone_and_as_the_closed_forms_say(name: str) -> None:
    check_family(name, FEW_P, FEW_M)


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize("name", ALL_SCHEDULES)
def test_the_same_for_every_size(name: str) -> None:
    check_family(name, tuple(range(1, 9)), tuple(range(1, 33)))


@pytest.mark.parametrize("name", ALL_SCHEDULES)
def test_a_size_that_does_not_fit_names_the_rule(name: str) -> None:
    family, refused = ALL_SCHEDULES[name], 0
    for p, m, v in ((p, m, v) for p in FEW_P for m in FEW_M for v in FEW_V):
        misfit = family.misfit(p, m, v)
        if misfit is None:
            continue
        refused += 1
        with pytest.raises(ScheduleError) as caught:
            family.shape(p, m, v)
        assert (caught.value.exit_code, caught.value.where, caught.value.message) == (4, name, misfit.rule)
        assert caught.value.got == misfit.got
        assert caught.value.nearest is not None
    assert (refused == 0) == (not family.rules)


@pytest.mark.parametrize("name", ["zb-auto", "zb-auto-2p"])
def test_the_automatic_schedule_stays_within_its_limit_and_beats_the_handcrafted(name: str) -> None:
    rng = np.random.default_rng(3)
    family, times = ALL_SCHEDULES[name], 1 if name == "zb-auto" else 2
    for p, m in ((1, 4), (2, 5), (3, 9), (4, 8), (6, 13), (8, 24)):
        shape = family.shape(p, m)
        for _ in range(4):
            f, i, w = (rng.integers(1, 9, p) / 4 for _ in range(3))
            study = PipelineStudy.of(shape, forward_s=f, input_s=i, weight_s=w, transfer_s=rng.integers(0, 3) / 8)
            schedule = family.on(study)
            schedule.validate(shape)
            found = study.evaluate(schedule)
            assert max(found.peak_bytes) <= times * p
            rivals = ["zb-h1"] if times == 1 else ["zb-h1", "zb-h2"]
            assert found.makespan_s <= min(study.evaluate(ALL_SCHEDULES[rival](shape)).makespan_s for rival in rivals)
            assert found.makespan_s >= study.lower_bound_s()


def test_zero_bubble_schedules_leave_no_bubble_between_a_ranks_first_and_last_stage() -> None:
    """2401.10241 §2.2 and §6: with f = i = w and m >= 2 p - 1."""
    for name, v in (("zb-h2", 1), ("zb-v", 2)):
        for p in range(1, 9):
            for m in (2 * p - 1, 2 * p, 4 * p):
                shape = ALL_SCHEDULES[name].shape(p, m, v)
                found = PipelineStudy.of(shape).evaluate(ALL_SCHEDULES[name](shape))
                assert found.span_s == 3 * m * v
                assert found.span_bubble_ratio == 0.0


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_in_the_docstring_is_what_is_drawn(name: str) -> None:
    module = __import__(f"semu.schedule.generators.{FIGURES[name][0]}", fromlist=["__doc__"])
    assert figure(name) in (module.__doc__ or "")


def test_frozen_beginnings_and_wrong_placements_are_refused_by_schedules_that_need_all_backwards() -> None:
    chain = PipelineShape.chain(4, 8, 2)
    frozen = PipelineShape(
        4, 8, (0, 1, 2, 3, 3, 2, 1, 0), chain.sources, (False, *chain.has_backward[1:]), chain.chunk_slot
    )
    for name in ("zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"):
        with pytest.raises(ScheduleError, match="needs a backward of every chunk") as caught:
            ALL_SCHEDULES[name](frozen)
        assert caught.value.got == "chunk 0 without backward"
        with pytest.raises(ScheduleError, match="in the placement v-shape"):
            ALL_SCHEDULES[name](chain)
    with pytest.raises(ScheduleError, match="in the placement bidirectional"):
        ALL_SCHEDULES["chimera"](chain)


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "zb-auto", "eager-1f1b", "interleaved-zb", "greedy", "looped-bfs"])
def test_others_run_frozen_beginnings_forward_only(name: str) -> None:
    shape = PipelineShape(3, 6, (0, 1, 2), ((), (0,), (1,)), (False, True, True))
    schedule = ALL_SCHEDULES[name](shape)
    schedule.validate(shape)
    assert [str(stage) for stage in schedule.orders[0]] == [f"0F{i}" for i in range(6)]


def test_zb_h1_of_four_ranks_as_the_paper_draws_it() -> None:
    """2401.10241 Fig. 2, below: four ranks; one W more between turns on each later rank."""
    assert ALL_SCHEDULES["zb-h1"](PipelineShape.chain(4, 4)).to_text().splitlines() == [
        "0F0 0F1 0F2 0F3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1I2 1W1 1I3 1W2 1W3",
        "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2I3 2W1 2W2 2W3",
        "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3W1 3W2 3W3",
    ]


def test_chimera_of_four_ranks_as_the_paper_draws_it() -> None:
    """2107.06925 Fig. 2: four microbatches, 0 and 1 down, 2 and 3 up."""
    family = ALL_SCHEDULES["chimera"]
    assert family(family.shape(4, 4, 2)).to_text().splitlines() == [
        "0F0 0F1 7F2 7B2 7F3 7B3 0B0 0B1",
        "1F0 6F2 1F1 6F3 6B2 1B0 6B3 1B1",
        "5F2 2F0 5F3 2F1 2B0 5B2 2B1 5B3",
        "4F2 4F3 3F0 3B0 3F1 3B1 4B2 4B3",
    ]


@pytest.mark.paper
def test_zb_h2_has_the_bubble_of_the_paper() -> None:
    """2401.10241 Table 1: (p - 1)(T_F + T_B - 2 T_W) between a rank's first stage and its last, 2 p - 1 microbatches'
    activations; 1F1B's is (p - 1)(T_F + T_B + T_W), ZB-H1's (p - 1)(T_F + T_B - T_W)."""
    for p in range(1, 9):
        for m in (2 * p - 1, 2 * p, 2 * p + 5):
            for f, i, w in ((1, 1, 1), (2, 2, 1), (3, 2, 1), (1, 0.5, 0.5), (4, 3, 2)):
                spans = {}
                for name in ("1f1b", "zb-h1", "zb-h2"):
                    shape = ALL_SCHEDULES[name].shape(p, m)
                    study = PipelineStudy.of(shape, forward_s=f, input_s=i, weight_s=w)
                    spans[name] = study.evaluate(ALL_SCHEDULES[name](shape)).span_s - m * (f + i + w)
                wanted = {"1f1b": f + i + w, "zb-h1": f + i - w, "zb-h2": f + i - 2 * w}
                assert spans == {name: (p - 1) * bubble for name, bubble in wanted.items()}, (p, m, f, i, w)


@pytest.mark.paper
def test_chimera_holds_the_activations_of_the_paper() -> None:
    """2107.06925 Table 2: from D / 2 + 1 at the ends to D in the middle, of D microbatches or more."""
    family = ALL_SCHEDULES["chimera"]
    for p in (2, 4, 6, 8):
        for m in (p, 2 * p, 3 * p):
            shape = family.shape(p, m, 2)
            held = PipelineStudy.of(shape, input_s=0.5, weight_s=0.5).evaluate(family(shape)).peak_bytes.tolist()
            assert (held[0], min(held), max(held), held[p // 2]) == (p // 2 + 1, p // 2 + 1, p, p), (p, m)


@pytest.mark.parametrize("name", ALL_SCHEDULES)
def test_every_schedule_says_where_it_is_from(name: str) -> None:
    """In its family, and in words in its file."""
    source = ALL_SCHEDULES[name].source
    papers = re.findall(r"\d{4}\.\d{5}|DIP §7.1", source)
    assert papers or name == "greedy"
    module = __import__(f"semu.schedule.generators.{FIGURES[name.removesuffix('-2p')][0]}", fromlist=["__doc__"])
    assert papers[0] in module.__doc__ if papers else module.__doc__

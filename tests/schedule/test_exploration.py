"""Exploration on plain numbers: never worse than what ships, bubbles and their causes, the rule of an order."""

from __future__ import annotations

import numpy as np
import pytest

from semu.errors import ScheduleError
from semu.schedule.compare import compare_schedules
from semu.schedule.exploration.bubbles import find_bubbles
from semu.schedule.exploration.changes import explain
from semu.schedule.exploration.inverse import find_rule
from semu.schedule.exploration.plain import explore
from semu.schedule.exploration.space import GRID_RULES, Cut, cuts_of, rules_of
from semu.schedule.files import from_csv, to_csv
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES, REGISTRY, schedule_family
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.separation import Separated
from semu.schedule.rules.traversal import Depth
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape
from semu.schedule.study import PipelineStudy


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("p", "m", "costs"), [(4, 8, (1, 1, 1)), (3, 7, (2, 3, 1)), (6, 6, (1, 0.5, 0.5))])
def test_never_worse_than_the_best_that_ships(p: int, m: int, costs: tuple[float, float, float]) -> None:
    f, i, w = costs
    named, _ = compare_schedules(p, m, forward_s=f, input_s=i, weight_s=w)
    plain = explore(p, m, forward_s=f, input_s=i, weight_s=w)
    split = explore(p, m, forward_s=f, input_s=i, weight_s=w, split=True)
    best = min(row.evaluation.makespan_s for row in named)
    assert split.rows[0].time_s <= plain.rows[0].time_s <= best
    for row in split.rows:
        row.schedule.validate(row.study.shape)
        assert row.time_s == row.study.evaluate(row.schedule).makespan_s
        if row.name not in REGISTRY:  # its text is the schedule
            family = schedule_family(row.name)
            assert list(family.on(row.study).orders) == list(row.schedule.orders)


@pytest.mark.slow
def test_four_ranks_and_eight_microbatches_get_less_bubble_than_any_that_ships() -> None:
    """zb-v takes 27 s; separated on a V in both directions within 4.5 microbatches' activations 24.5 s."""
    found = explore(4, 8, split=True)
    best = found.rows[0]
    assert (best.time_s, best.evaluation.peak_bytes.max() / found.held_bytes) == (24.5, 4.5)
    tight = explore(4, 8, split=True, limit_microbatches=3)
    assert tight.rows[0].evaluation.peak_bytes.max() <= 3 * tight.held_bytes
    assert tight.rows[0].time_s > best.time_s


def test_every_cut_and_rule_of_the_space_is_different() -> None:
    cuts = cuts_of(4, 8)
    assert len({cut.placement for cut in cuts}) == 5
    assert cuts_of(3, 7)[-1].placement is not Placement.BIDIRECTIONAL
    assert cuts_of(1, 4) == [Cut(Placement.ONE_TO_ONE, 1)]
    for cut in cuts:
        rules = list(rules_of(cut))
        assert len(set(rules)) == len(rules) > 5
        by_ways = 2 * 3 * 3 * 2  # backwards first or in turn, whose forward, whose backward, two limits
        interleaved = 2 * 2 * 2 if cut.placement is Placement.CIRCULAR else 0  # in turn, when blocked, two limits
        assert len(rules) == (2 * 4 if cut.num_slots == 1 else by_ways + interleaved)
    assert all(text in ALL_SCHEDULES for text in GRID_RULES)


# -- why ranks idle ---------------------------------------------------------------------------------------------------
def test_a_bubble_names_the_stage_that_caused_it() -> None:
    """1F1B on two ranks: rank 0 waits for 1B0, which rank 1 runs after 1F0."""
    study = PipelineStudy.of(PipelineShape.chain(2, 3))
    result = study.evaluate(ALL_SCHEDULES["1f1b"](study.shape))
    bubbles = find_bubbles(study, result)
    told = {
        (b.rank, str(b.before)): (b.lasts_s, str(b.awaited), None if b.cause is None else str(b.cause)) for b in bubbles
    }
    assert told[0, "0B0"] == (2.0, "1B0", "1F0")
    inside = sum(
        result.start_s[at] - result.end_s[at - 1]
        for rank in range(2)
        for at in range(int(result.ptr[rank]) + 1, int(result.ptr[rank + 1]))
    )
    assert sum(b.lasts_s for b in bubbles) == pytest.approx(inside)
    assert np.all(np.diff([b.lasts_s for b in bubbles]) <= 0)


def test_what_removes_the_bubbles_of_1f1b_is_separation() -> None:
    study = PipelineStudy.of(PipelineShape.chain(4, 8))
    rule = Priority(in_flight="p-r")
    told = explain(study, Schedule("1f1b", rule(study.shape)), rule)
    assert told.changes[0].text.startswith("separated inner={priority in-flight=p-r}")
    assert told.changes[0].makespan_s < told.result.makespan_s
    assert 0 < told.changes[0].removed <= len(told.bubbles)
    assert any("which rank" in line for line in told.lines())
    none = PipelineStudy.of(PipelineShape.chain(1, 4))
    assert "no change" in "\n".join(explain(none, ALL_SCHEDULES["1f1b"](none.shape), rule).lines())


# -- the rule of an order ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in ("greedy", "optimus")])
def test_a_shipped_schedule_in_a_file_is_recognised(name: str) -> None:
    family = ALL_SCHEDULES[name]
    v = next(v for v in (family.fewest_slots, 2) if family.misfit(4, 8, v) is None)
    made = family(family.shape(4, 8, v))
    found = find_rule(from_csv(to_csv(made), "file.csv"))
    assert found.differs == 0
    assert schedule_family(found.name)(found.shape).orders == made.orders


def test_a_rule_in_a_file_is_found_again() -> None:
    study = PipelineStudy.of(Placement.V_SHAPE.shape(4, 8, 2))
    for rule, shape in (
        (Separated(Priority(forward=Depth(), in_flight="2*p*v")), study.shape),
        (Priority("forward", in_flight=3), PipelineShape.chain(4, 8)),
        (Priority("forward", backward=Depth(is_last=True)), PipelineShape.chain(4, 8)),
    ):
        made = Schedule("made", rule(shape))
        found = find_rule(from_csv(to_csv(made), "file.csv"))
        assert found.differs == 0, found
        assert list(schedule_family(found.name).on(PipelineStudy.of(shape)).orders) == list(made.orders)


def test_an_order_without_a_rule_gets_the_nearest() -> None:
    made = ALL_SCHEDULES["1f1b"](PipelineShape.chain(2, 4))
    swapped = [*made.orders[0][:1], made.orders[0][2], made.orders[0][1], *made.orders[0][3:]]
    found = find_rule(Schedule("odd", [swapped, made.orders[1]]))
    assert 0 < found.differs <= 4
    with pytest.raises(ScheduleError, match="no known placement"):
        find_rule(Schedule.from_text("0F0 0B0 1F0 1B0 2F0 2B0"))

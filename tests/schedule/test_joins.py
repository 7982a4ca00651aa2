"""Shapes whose modules join the parts of one another, by hand: what a job with sub-microbatches must order."""

from __future__ import annotations

import numpy as np
import pytest
from schedule.shapes import predecessors

from semu.errors import ScheduleError
from semu.schedule.generators.gpipe import gpipe
from semu.schedule.graph import graph_of
from semu.schedule.problem import lower
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.units import units_of

SHAPE = PipelineShape(
    num_ranks=2,
    num_microbatches=2,
    chunk_rank=(0, 1, 0, 1),
    sources=((), (0,), (1,), (2,)),
    has_backward=(True,) * 4,
    chunk_module=("vit", "vit", "llm", "llm"),
    chunk_split=(3, 3, 1, 1),
    part_counts=((3, 0), (3, 0), (1, 1), (1, 1)),
    joins=True,
)
"""Three parts of the first microbatch's images, none of the second's."""


def keys(*names: str) -> list[StageKey]:
    return [StageKey.parse(name) for name in names]


def test_a_module_needs_all_parts_of_another() -> None:
    assert SHAPE.every_part(0) == [0, 1, 2]
    assert predecessors(SHAPE, StageKey.parse("1F2")) == keys("0F2")
    assert predecessors(SHAPE, StageKey.parse("2F0")) == keys("1F0", "1F1", "1F2")
    assert predecessors(SHAPE, StageKey.parse("2F1")) == []
    assert predecessors(SHAPE, StageKey.parse("1B1")) == keys("1F1", "2B0")
    assert predecessors(SHAPE, StageKey.parse("0B1")) == keys("0F1", "1B1")


def test_arrays_know_the_same() -> None:
    arrays = graph_of(SHAPE)
    assert arrays.exists.sum() == 3 + 3 + 2 + 2
    for stage in range(arrays.num_stages):
        pair, phase = divmod(stage, 4)
        if arrays.exists[pair] and phase < 2:
            found = arrays.pred[arrays.pred_ptr[stage] : arrays.pred_ptr[stage + 1]]
            assert {arrays.key(before) for before in found} == set(predecessors(SHAPE, arrays.key(stage)))


def test_units_are_numbered_through_and_every_piece_is_sent() -> None:
    units = units_of(SHAPE, None)
    assert units.repeats == 1
    names = [units.name(unit) for unit in range(units.num_units)]
    stages, sends = names[: units.num_stages], names[units.num_stages :]
    assert len(stages) == len(set(stages)) == 2 * (3 + 3 + 2 + 2)
    assert stages[:4] == ["0F0", "0B0", "0F1", "0B1"]
    assert sends.count("send 1F1 to rank 0") == 1
    assert sends.count("send 2B0 to rank 1") == 3  # a gradient for each part
    assert "send 2B1 to rank 1" not in sends
    before = {(names[a], names[b]) for a, b in units.edges.tolist()}
    assert ("send 1F1 to rank 0", "2F0") in before
    assert ("2B0", "send 2B0 to rank 1") in before


def test_a_schedule_of_parts_becomes_nodes() -> None:
    schedule = gpipe(SHAPE)
    schedule.validate(SHAPE)
    assert [str(stage) for stage in schedule.orders[0]][:5] == ["0F0", "0F1", "0F2", "2F0", "2F1"]
    problem = lower(schedule, SHAPE, overlapped_sends=True)
    assert len(problem.transfers) == units_of(SHAPE, None).num_transfers
    assert sorted(problem.unit_of_nodes.tolist()) == list(range(units_of(SHAPE, None).num_units))
    node = problem.stages.index(StageKey.parse("2F0"))
    waits = problem.pred[problem.pred_ptr[node] : problem.pred_ptr[node + 1]]
    assert np.all(waits >= problem.num_stages)
    assert len(waits) == 3


def test_an_order_that_starts_a_module_too_early_deadlocks() -> None:
    early = Schedule.from_text(
        "0F0 0F1 2F0 0F2 2F1 2B1 2B0 0B0 0B1 0B2\n1F0 1F1 1F2 3F0 3F1 3B1 3B0 1B0 1B1 1B2", "early"
    )
    with pytest.raises(ScheduleError, match="deadlocks"):
        early.validate(SHAPE)

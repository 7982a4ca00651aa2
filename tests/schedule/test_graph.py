"""``PipelineGraph`` against the definition of what stages need, and the maps of its views back to its numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from schedule.shapes import pipelines, predecessors

from semu.errors import ScheduleError
from semu.schedule.graph import PipelineGraph
from semu.schedule.phases import PHASES
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.units import PipelineUnits

F, B, I, W = PHASES  # noqa: E741


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_stages_need_what_the_definition_says(shape: PipelineShape) -> None:
    """A W needs its B, which stands for its I; nothing else names an I."""
    graph = PipelineGraph.of(shape)
    for chunk in range(shape.num_chunks):
        for part in shape.every_part(chunk):
            for phase in PHASES if shape.has_backward[chunk] else (F,):
                stage = StageKey(chunk, phase, part)
                wanted = [StageKey(chunk, B, part)] if phase is W else predecessors(shape, stage)
                found = graph.predecessors(stage)
                assert len(found) == len(set(found)) and set(found) == set(wanted)


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_chunks_get_gradients_of_their_readers(shape: PipelineShape) -> None:
    readers = PipelineGraph.of(shape).readers
    for chunk in range(shape.num_chunks):
        trained = [r for r, sources in enumerate(shape.sources) if chunk in sources and shape.has_backward[r]]
        assert [*readers[chunk]] == (trained if shape.has_backward[chunk] else [])


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_pair_edges_lead_back_to_predecessors(shape: PipelineShape) -> None:
    """Pairs that exist, numbered through: forward, then whole backward."""
    graph = PipelineGraph.of(shape)
    edges, pairs = graph.pair_edges, np.flatnonzero(graph.exists)
    number = {
        stage: 2 * n + phase for n, pair in enumerate(pairs) for phase, stage in enumerate((4 * pair, 4 * pair + 1))
    }
    assert len(edges.ptr) == 2 * len(pairs) + 1
    assert [number[before] for before in graph.pred[edges.place].tolist()] == edges.pred.tolist()
    for stage, at in number.items():
        wanted = graph.pred[graph.pred_ptr[stage] : graph.pred_ptr[stage + 1]].tolist()
        assert edges.pred[edges.ptr[at] : edges.ptr[at + 1]].tolist() == [number[before] for before in wanted]


@settings(max_examples=100, deadline=None)
@given(pipelines())
def test_units_lead_back_to_stages(shape: PipelineShape) -> None:
    graph, units = PipelineGraph.of(shape), PipelineUnits.of(shape)
    at = units.repeated(np.arange(units.num_stages)).tolist()
    assert [str(graph.key(stage)) for stage in units.stage_numbers.ravel()] == [units.name(unit) for unit in at]
    needs = {(before, after) for after in at for before in _needed(graph, units.stage_numbers.ravel()[at.index(after)])}
    own = dict(zip(at, units.stage_numbers.ravel().tolist(), strict=True))
    local = {(own[a], b) for a, b in units.edges.tolist() if a in own and b in own}
    carried = {
        (own[a], b)
        for a, b in zip(units.repeated(units.producer).tolist(), units.repeated(units.consumer).tolist(), strict=True)
    }
    assert local | carried == needs and not local & carried


def _needed(graph: PipelineGraph, stage: int) -> list[int]:
    return graph.pred[graph.pred_ptr[stage] : graph.pred_ptr[stage + 1]].tolist()


def test_a_source_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ScheduleError, match="reads one that does not exist"):
        _ = PipelineGraph.of(PipelineShape(1, 1, (0,), ((1,),), (True,))).pred

"""``lower`` against a slow lowering, stage object by stage object, and schedules as objects against arrays."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.shapes import pipelines, predecessors, transfer_of

from semu.schedule import ALL_SCHEDULES, SCHEDULES
from semu.schedule.generators.interleaved import is_surely_legal
from semu.schedule.phases import PHASES
from semu.schedule.placement import Placement
from semu.schedule.problem import PipelineProblem, Transfer, lower
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey

F, B, I, W = PHASES  # noqa: E741


# -- the slow lowering -------------------------------------------------------------------------------------------------
def slow_stages(schedule: Schedule, splits: bool) -> list[list[StageKey]]:
    """Per rank; behind a whole backward among split ones stands a W in which nothing happens."""
    return [
        [
            each
            for stage in order
            for each in (
                [stage, StageKey(stage.chunk, W, stage.microbatch)] if splits and stage.phase is B else [stage]
            )
        ]
        for order in schedule.orders
    ]


def slow_transfers(stages: list[StageKey], shape: PipelineShape) -> list[Transfer]:
    """By pairs of ranks; those of one pair as their producers run, those of one producer by consumer."""
    result = []
    for stage in stages:
        if stage.phase is F:
            targets = [chunk for chunk, sources in enumerate(shape.sources) if stage.chunk in sources]
        else:
            targets = [source for source in shape.sources[stage.chunk] if shape.has_backward[source]]
        here = shape.chunk_rank[stage.chunk]
        for chunk in targets if stage.phase is not W else []:
            there = shape.chunk_rank[chunk]
            if there != here:
                parts = shape.shared(stage.chunk, stage.microbatch, chunk)
                result += [Transfer(stage, here, there, StageKey(chunk, stage.phase, part)) for part in parts]
    return sorted(result, key=lambda transfer: (transfer.source, transfer.target))


def slow_predecessors(
    orders: list[list[StageKey]], transfers: list[Transfer], shape: PipelineShape, overlapped_sends: bool
) -> list[list[int]]:
    """Of every node: of a stage first transfers, then stages of its rank."""
    stages = [stage for order in orders for stage in order]
    rank = [number for number, order in enumerate(orders) for _ in order]
    node = {stage: number for number, stage in enumerate(stages)}
    for stage, number in [*node.items()]:  # either of I and B stands for the other
        if stage.phase in (B, I):
            node[StageKey(stage.chunk, I if stage.phase is B else B, stage.microbatch)] = number
    is_split = any(stage.phase is W for stage in stages)
    found: list[list[int]] = [[] for _ in range(len(stages) + len(transfers))]
    for number, transfer in enumerate(transfers, len(stages)):
        found[number].append(node[transfer.stage])
        found[node[transfer.consumer]].append(number)
        following = node[transfer.stage] + (2 if is_split and transfer.stage.phase is B else 1)
        if not overlapped_sends and following < len(stages) and rank[following] == transfer.source:
            found[following].append(number)
    for number, stage in enumerate(stages):
        found[number] += [
            node[before]
            for before in predecessors(shape, stage)
            if shape.chunk_rank[before.chunk] == shape.chunk_rank[stage.chunk]
        ]
    return found


def assert_lowered(schedule: Schedule, shape: PipelineShape, overlapped_sends: bool) -> None:
    problem = lower(schedule, shape, overlapped_sends=overlapped_sends)
    splits = any(stage.phase is W for order in schedule.orders for stage in order)
    orders = slow_stages(schedule, splits)
    stages = [stage for order in orders for stage in order]
    transfers = slow_transfers(stages, shape)
    needs = slow_predecessors(orders, transfers, shape, overlapped_sends)
    for one in (problem, pickle.loads(pickle.dumps(problem))):
        assert one.schedule == schedule
        assert one.stages == tuple(stages) and one.transfers == tuple(transfers)
        assert [one.pred[a:b].tolist() for a, b in pairwise(one.pred_ptr.tolist())] == needs
    pairs = [(transfer.source, transfer.target) for transfer in transfers]
    sizes = [*map(len, orders), *(pairs.count(pair) for pair in sorted(set(pairs)))]
    assert problem.stream_ptr.tolist() == np.cumsum([0, *sizes]).tolist()
    assert [problem.units.unit(stage) for stage in stages] == problem.unit_of_nodes[: len(stages)].tolist()
    carriers = [transfer_of(problem.units, transfer.stage, transfer.consumer) for transfer in transfers]
    assert carriers == problem.unit_of_nodes[len(stages) :].tolist()
    assert_edges(problem)


def assert_edges(problem: PipelineProblem) -> None:
    """Edges in the order of their first transfers."""
    keys = [(t.stage.chunk, t.consumer.chunk, t.stage.phase) for t in problem.transfers]
    number, edge, microbatch = problem.transfer_edges
    assert [*number] == [*dict.fromkeys(keys)]
    assert edge.tolist() == [number[key] for key in keys]
    assert microbatch.tolist() == [transfer.stage.microbatch for transfer in problem.transfers]


# -- pipelines and orders ----------------------------------------------------------------------------------------------
@st.composite
def legal_orders(draw: st.DrawFn, shape: PipelineShape) -> Schedule:
    """Any order in which every rank can go on; backwards are whole, or some of them are split."""
    may_split = not shape.is_cut and draw(st.booleans())
    todo: list[StageKey] = []
    for chunk in range(shape.num_chunks):
        for part in shape.every_part(chunk):
            phases = ([I, W] if may_split and draw(st.booleans()) else [B]) if shape.has_backward[chunk] else []
            todo += [StageKey(chunk, phase, part) for phase in (F, *phases)]
    done: set[StageKey] = set()
    orders: list[list[StageKey]] = [[] for _ in range(shape.num_ranks)]
    while todo:
        stage = draw(st.sampled_from([stage for stage in todo if done.issuperset(predecessors(shape, stage))]))
        todo.remove(stage)
        done |= {stage, StageKey(stage.chunk, B if stage.phase is I else stage.phase, stage.microbatch)}
        orders[shape.chunk_rank[stage.chunk]].append(stage)
    return Schedule("random", orders)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(pipelines(), st.booleans(), st.data())
def test_any_order_becomes_the_nodes_of_the_slow_lowering(
    shape: PipelineShape, overlapped_sends: bool, data: st.DataObject
) -> None:
    assert_lowered(data.draw(legal_orders(shape)), shape, overlapped_sends)


@pytest.mark.parametrize("name", ["interleaved", "zb-h1", "zb-v", "chimera", "hanayo"])
def test_published_orders_become_the_nodes_of_the_slow_lowering(name: str) -> None:
    family = ALL_SCHEDULES[name]
    shape = family.shape(4, 8, 1 if family.placement is Placement.ONE_TO_ONE else 2)
    for overlapped_sends in (True, False):
        assert_lowered(family(shape), shape, overlapped_sends)


# -- schedules as objects and as arrays --------------------------------------------------------------------------------
@given(pipelines(), st.data())
def test_a_schedule_is_the_same_from_objects_and_from_arrays(shape: PipelineShape, data: st.DataObject) -> None:
    made = data.draw(legal_orders(shape))
    again = Schedule(made.name, made.columns)
    assert again == made and hash(again) == hash(made)
    assert again.orders == made.orders
    assert pickle.loads(pickle.dumps(again)) == made
    assert Schedule("another", made.columns) != made
    assert Schedule.from_text(made.to_text(), made.name) == made


# -- what nobody need try ----------------------------------------------------------------------------------------------
@st.composite
def chains(draw: st.DrawFn) -> PipelineShape:
    """Groups of one to three chunks that read any earlier ones; the first chunks may have no backward."""
    p, v = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    m = p * draw(st.integers(1, 3)) if v > 1 else draw(st.integers(1, 9))
    sizes = draw(st.lists(st.integers(1, 3), min_size=p * v, max_size=p * v))
    group = [number for number, size in enumerate(sizes) for _ in range(size)]
    sources = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, chunk - 1), max_size=2)))) if chunk else ()
        for chunk in range(len(group))
    )
    frozen = draw(st.integers(0, len(group) // 2))
    return PipelineShape(
        p,
        m,
        tuple(number % p for number in group),
        sources,
        tuple(chunk >= frozen for chunk in range(len(group))),
        tuple(number // p for number in group),
    )


@settings(max_examples=60, deadline=None)
@given(chains(), st.sampled_from(["1f1b", "interleaved"]))
def test_a_surely_legal_order_is_legal(shape: PipelineShape, name: str) -> None:
    assert is_surely_legal(shape)
    SCHEDULES[name](shape).validate(shape)


@pytest.mark.parametrize(
    "shape",
    [
        PipelineShape.chain(2, 3, 2),  # three microbatches in groups of two
        PipelineShape(2, 2, (0, 1, 1, 0), ((), (0,), (1,), (2,)), (True,) * 4, (0, 0, 1, 1)),  # a V
        PipelineShape(2, 2, (0, 1), ((1,), ()), (True, True)),  # reads a later chunk
    ],
)
def test_what_must_be_tried(shape: PipelineShape) -> None:
    assert not is_surely_legal(shape)

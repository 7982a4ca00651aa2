"""``semu.prepare(job).restore(edges)`` against the slow reference under any schedule; units, names, cycles, threads.

Under any legal order, restored stages and transfers run when they run where every operator is written out.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.shapes import legal_schedules, predecessors, transfer_of
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items
from simulation.reference.costs import symbols_of
from simulation.reference.expansion import Replica, Writer
from simulation.reference.model import CutModel

import semu
from semu.errors import ConfigError, GraphError, ScheduleError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule.schedule import Schedule, StageKey
from semu.schedule.units import PipelineUnits
from semu.simulation import JobCheckpoint

NAMES = ("vlm", "gpt")


@cache
def job_named(name: str) -> TrainingJob:
    """Two data-parallel replicas with other images; one replica whose sends and collectives hide."""
    if name == "vlm":
        return job_of(vlm(frozen=["vit.layers.0"]), vlm_items(8, empty=(3,)), Parallel(dp=2, tp=2, pp=4))
    return job_of(gpt(), text_items(5), Parallel(tp=2, pp=3), overlap=overlap(tensor=True, pipeline=True))


@cache
def state_of(name: str) -> JobCheckpoint:
    return semu.prepare(job_named(name))


def written_out(job: TrainingJob, schedule: Schedule) -> list[Replica]:
    """Every replica operator by operator, its stages in the order of the schedule."""
    model, dp = CutModel(job), job.parallel.dp
    items = job.batch.microbatches(job.num_microbatches * dp, job.training.micro_batch, job.training.seq_len)
    replicas = []
    for number in range(dp):
        writer = Writer(model, number, [symbols_of(item, job.parallel.tp) for item in items[number::dp]], {})
        writer.orders = [[(s.chunk, s.phase.value, s.microbatch) for s in order] for order in schedule.orders]
        replicas.append(writer.write())
    return replicas


def assert_restored(name: str, schedule: Schedule | str) -> None:
    """Stages and transfers of all replicas against every operator, those of the slowest against the report."""
    job, state = job_named(name), state_of(name)
    units, legal = state.units, state.schedule(schedule)
    times = state.restore(state.edges_of(schedule))
    expected = written_out(job, legal)
    assert state.replicas.first.tolist() == list(range(job.parallel.dp)), "the replicas are meant to differ"
    for replica, one in enumerate(expected):
        spans = {}
        for order in legal.orders:
            for stage in order:
                spans[units.unit(stage)] = one.span((stage.chunk, stage.phase.value, stage.microbatch))
        for key, node in one.nodes.items():
            if key[0] == "send":
                _, source, target, phase, microbatch = key
                ends = (StageKey(int(str(chunk)), Phase(phase), int(str(microbatch))) for chunk in (source, target))
                spans[transfer_of(units, *ends)] = (node.start_s, node.end_s)
        assert sorted(spans) == list(range(units.num_units))
        for unit, span in spans.items():
            assert (times.start[replica, unit], times.end[replica, unit]) == span, units.name(unit)
        assert times.makespan_s[replica] == one.makespan_s
    report = state.report(legal)
    assert report.makespan_s == times.makespan_s.max()
    for rank in report.timeline.ranks:
        for piece in rank.stages:
            unit = units.unit(StageKey(piece.chunk, piece.phase, piece.microbatch))
            row = report.slowest_replica
            assert (piece.start_s, piece.end_s) == (times.start[row, unit], times.end[row, unit])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_restored_times_are_those_of_every_operator_written_out(name: str, schedule: str) -> None:
    assert_restored(name, schedule)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(data=st.data())
def test_restored_times_under_any_legal_order(name: str, data: st.DataObject) -> None:
    assert_restored(name, data.draw(legal_schedules(state_of(name).pipeline_shape)))


def test_overlapped_parameter_gathers_delay_no_stage_of_a_restored_schedule() -> None:
    parallel = Parallel(dp=2, pp=2)
    states = [
        semu.prepare(job_of(gpt(), text_items(6), parallel, overlap=overlap(parameters=p))) for p in (True, False)
    ]
    with_gathers, without = states
    edges = without.edges_of()
    assert with_gathers.edges_of().tolist() == edges.tolist()
    assert with_gathers.nodes.num_units > without.nodes.num_units == without.units.num_units
    seen, expected = with_gathers.restore(edges), without.restore(edges)
    assert seen.end[:, : without.units.num_units].tolist() == expected.end.tolist()
    assert with_gathers.report().makespan_s > without.report().makespan_s


@pytest.mark.parametrize("name", NAMES)
def test_one_replica_alone_gets_the_times_that_it_gets_among_all(name: str) -> None:
    state = state_of(name)
    edges = state.edges_of()
    times = state.restore(edges)
    for replica in range(len(state.replicas.count)):
        alone = state.restore(edges, replica=replica)
        assert alone.start.tolist() == [times.start[replica].tolist()]
        assert alone.end.tolist() == [times.end[replica].tolist()]


# -- without a schedule ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_microbatches_without_a_schedule_run_as_soon_as_they_can(name: str) -> None:
    """Every unit starts when its inputs are there or when the unit before it on its stream ends; never two at once."""
    state = state_of(name)
    units = state.units
    times = state.restore(np.zeros((0, 2), dtype=np.int32))
    for start, end, latency in zip(times.start, times.end, state.nodes.latency, strict=True):
        assert end.tolist() == (start + latency).tolist()
        ready = np.zeros(units.num_units)
        np.maximum.at(ready, units.edges[:, 1], end[units.edges[:, 0]])
        assert (start >= ready).all()
        for stream in range(units.num_streams):
            mine = np.flatnonzero(units.stream == stream)
            order = mine[np.lexsort((end[mine], start[mine]))]
            for before, after in pairwise(order.tolist()):
                assert start[after] == max(ready[after], end[before]), units.name(after)
            assert start[order[0]] == ready[order[0]]


# -- what may not be -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_edges_that_close_a_cycle_are_printed(name: str) -> None:
    state = state_of(name)
    units = state.units
    number = {units.name(unit): unit for unit in range(units.num_units)}
    known = {tuple(pair) for pair in units.edges.tolist()}
    first, later = number["0F0"], number["1F0"]
    before = state.restore(state.edges_of()).end.tolist()
    for edges in ([(later, first)], [*state.edges_of().tolist(), (number["0F1"], first)]):
        with pytest.raises(GraphError, match="the edges close a cycle") as caught:
            state.restore(np.array(edges))
        text = str(caught.value).split("close a cycle: ")[1].split(" (=>")[0]
        words = re.split(r" (->|=>) ", text)
        assert words[0] == words[-1]
        places = [number[word] for word in words[::2]]
        steps = list(zip(places[:-1], words[1::2], places[1:], strict=True))
        assert len(steps) >= 2
        for unit, arrow, following in steps:
            assert (unit, following) in (known if arrow == "->" else {tuple(edge) for edge in edges})
        assert any(arrow == "=>" for _, arrow, _ in steps)
    assert state.restore(state.edges_of()).end.tolist() == before


def test_unknown_and_illegal_schedules_are_refused() -> None:
    state = state_of("gpt")
    with pytest.raises(ConfigError, match="1f1b"):
        state.edges_of("1f1c")
    orders = [list(order) for order in state.schedule("1f1b").orders]
    orders[0].reverse()
    with pytest.raises(ScheduleError, match="deadlocks"):
        state.edges_of(Schedule.build("reversed", orders))


# -- several threads -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_threads_that_restore_different_schedules_do_not_disturb_each_other(name: str) -> None:
    state = state_of(name)
    whole = [state.edges_of(schedule) for schedule in ("1f1b", "gpipe")]
    edges = [*whole, whole[0][:9], whole[0][:0]]
    alone = [state.restore(pairs) for pairs in edges]
    assert len({times.end.tobytes() for times in alone}) >= 3
    turns = [number % len(edges) for number in range(200)]
    Random(0).shuffle(turns)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda number: state.restore(edges[number]), turns))
    for number, times in zip(turns, together, strict=True):
        assert times.start.tobytes() == alone[number].start.tobytes()
        assert times.end.tobytes() == alone[number].end.tobytes()
        assert times.order.tobytes() == alone[number].order.tobytes()


# -- numbers and names ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_units_have_a_number_and_a_name(name: str) -> None:
    state = state_of(name)
    units, shape = state.units, state.pipeline_shape
    assert isinstance(units, PipelineUnits)
    names = [units.name(unit) for unit in range(units.num_units)]
    assert len(set(names)) == len(names)
    stages = {stage for order in state.schedule("gpipe").orders for stage in order}
    assert {names[units.unit(stage)]: units.unit(stage) for stage in stages} == {
        str(stage): units.unit(stage) for stage in stages
    }
    sends = [unit for unit, text in enumerate(names) if text.startswith("send ")]
    assert len(stages) + len(sends) == units.num_units
    for unit in sends:
        word, rank = re.fullmatch(r"send (\w+) to rank (\d+)", names[unit]).groups()  # type: ignore[union-attr]
        stage = StageKey.parse(word)
        readers = [s for s in stages if stage in predecessors(shape, s) and shape.chunk_rank[s.chunk] == int(rank)]
        assert [transfer_of(units, stage, reader) for reader in readers] == [unit]

"""``StageInsides.bind``, which binds all stages of a kind at once, against a loop over single stages."""

from __future__ import annotations

import random
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items

from semu.parallel.config import Parallel
from semu.simulation import prepare
from semu.simulation.bindings import Binding, Releases, StageInsides, natural_starts

JOBS = {
    "text": job_of(gpt(), text_items(6), Parallel(dp=2, pp=2)),
    "vlm": job_of(vlm(), vlm_items(4), Parallel(dp=1, pp=2, vpp=1)),
}


@pytest.mark.parametrize("kind", sorted(JOBS))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_stages_of_a_kind_are_bound_as_one_by_one(kind: str, seed: int) -> None:
    draw = random.Random(seed)
    insides = StageInsides(prepare(JOBS[kind]))
    units, replicas = insides.units, len(insides.shape)
    every = [unit for unit in range(units.num_units) if unit % units.size < units.num_stages]
    found, which = insides.of_each(np.array(every))
    for unit, number in zip(every, which.tolist(), strict=True):
        assert found[number] is insides.of(unit)
    bindings = []
    for _ in range(draw.randint(1, 5)):
        number = draw.randrange(len(found))
        mine = [unit for unit, own in zip(every, which.tolist(), strict=True) if own == number]
        chosen = np.array(draw.sample(mine, draw.randint(1, len(mine))))
        count = draw.randint(1, found[number].program.num_ops)
        op = np.array([draw.randrange(found[number].program.num_ops) for _ in range(count)])
        source = np.array([[draw.randrange(units.num_units) for _ in op] for _ in chosen])
        lag = np.array([[draw.random() for _ in op] for _ in range(replicas)]) if draw.random() < 0.5 else None
        if draw.random() < 0.3:
            source = source[:, :1]
        bindings.append(Binding(chosen, source, op, lag))
    edges, slots = insides.bind(bindings, units.num_units + 3)

    rows = []  # (unit, source, operator, what is read, lags)
    for binding in bindings:
        for unit, sources in zip(binding.units.tolist(), binding.source.tolist(), strict=True):
            for place, op in enumerate(binding.op.tolist()):
                lags = [0.0] * replicas if binding.lag is None else binding.lag[:, place].tolist()
                source = sources[place] if len(sources) > 1 else sources[0]
                rows.append((unit, source, op, -1 if binding.lag is None else op, lags))
    rows.sort(key=lambda row: row[0])
    slot_of: dict[tuple[int, int], int] = {}
    for unit, own in groupby(rows, key=lambda row: row[0]):
        for op in sorted({row[2] for row in own}):
            slot_of[unit, op] = len(slot_of)
    assert [edges.target.tolist(), edges.source.tolist()] == [[row[0] for row in rows], [row[1] for row in rows]]
    assert edges.slot.tolist() == [slot_of[row[0], row[2]] for row in rows]
    assert edges.op.tolist() == [row[3] for row in rows]
    assert edges.lag.T.tolist() == [row[4] for row in rows]
    assert slots.op.tolist() == [op for _, op in slot_of]
    counts = np.bincount([unit for unit, _ in slot_of], minlength=units.num_units + 3)
    assert slots.ptr.tolist() == [0, *np.cumsum(counts).tolist()]
    for (unit, op), number in slot_of.items():
        inside = insides.of(unit)
        assert slots.start[:, number].tolist() == natural_starts(inside.program, inside.latency)[:, op].tolist()
        first = int(slots.cost_ptr[unit])
        assert (slots.op_latency[:, first : first + inside.program.num_ops] == inside.latency).all()
        begin = int(slots.prog_ptr[slots.prog[unit]])
        assert slots.op_stream[begin : begin + inside.program.num_ops].tolist() == inside.program.stream.tolist()


def test_bindings_of_no_operator_bind_nothing() -> None:
    insides = StageInsides(prepare(JOBS["text"]))
    none = np.zeros(0, dtype=np.int64)
    edges, slots = insides.bind([Binding(np.array([0]), none, none), Binding(np.array([3]), none, none)], 20)
    assert len(edges.source) == len(slots.op) == 0
    assert slots.ptr.tolist() == [0] * 21


def test_releases_are_those_of_touched_stages() -> None:
    from dataclasses import replace

    job = replace(JOBS["text"], training=replace(JOBS["text"].training, launch=True))
    run = prepare(job).timed().run
    assert isinstance(run.release, Releases)
    assert len(run.release) == len([*run.release]) > 0
    for replica, node in run.release:
        late = run.release[replica, node]
        assert (replica, node) in run.release
        assert run.release.get((replica, node)) is late
        assert (late >= 0).all()
    assert (-1, 0) not in run.release
    assert run.release.get((-1, 0)) is None

"""1F1B straight to arrays against the same schedule drawn stage by stage and lowered."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.schedule import SCHEDULES
from semu.schedule.problem import lower
from semu.schedule.regular import REGULAR, regular_problem
from semu.schedule.shape import PipelineShape

ARRAYS = ("stream_ptr", "pred_ptr", "pred", "node_rank", "chunk", "phase", "microbatch", "unit_of_nodes")


@st.composite
def shapes(draw: st.DrawFn) -> PipelineShape:
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
@given(shapes(), st.sampled_from(REGULAR), st.booleans())
def test_it_is_what_lowering_makes(shape: PipelineShape, name: str, overlapped: bool) -> None:
    schedule = SCHEDULES[name](shape)
    schedule.validate(shape)
    slow = lower(schedule, shape, overlapped_sends=overlapped)
    fast = regular_problem(name, shape, overlapped_sends=overlapped)
    assert fast is not None
    for array in ARRAYS:
        assert getattr(fast, array).dtype == getattr(slow, array).dtype
        assert np.array_equal(getattr(fast, array), getattr(slow, array)), array
    assert (fast.num_stages, fast.num_nodes) == (slow.num_stages, slow.num_nodes)
    assert all(map(np.array_equal, fast.unit_orders, slow.unit_orders))
    assert [*fast.transfer_edges[0].items()] == [*slow.transfer_edges[0].items()]
    assert all(map(np.array_equal, fast.transfer_edges[1:], slow.transfer_edges[1:]))
    for own in (fast, pickle.loads(pickle.dumps(fast))):
        assert own.schedule == schedule and schedule == own.schedule and hash(own.schedule) == hash(schedule)
        assert own.stages == slow.stages and own.transfers == slow.transfers


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gpipe", PipelineShape.chain(2, 4)),
        ("1f1b", PipelineShape.chain(2, 3, 2)),  # three microbatches in groups of two
        ("1f1b", PipelineShape(2, 2, (0, 1, 1, 0), ((), (0,), (1,), (2,)), (True,) * 4, (0, 0, 1, 1))),  # a V
        ("1f1b", PipelineShape(2, 2, (0, 1), ((1,), ()), (True, True))),  # reads a later chunk
    ],
)
def test_what_it_does_not_lower(name: str, shape: PipelineShape) -> None:
    assert regular_problem(name, shape, overlapped_sends=True) is None

"""Costs of some shapes, and of some rows, are the same bits as those cut out of everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.jobs import job_of, vlm, vlm_items

from semu.compile.layout import Layout, build_layout
from semu.costs.evaluation import distinct_shapes
from semu.costs.roofline import CostModel
from semu.costs.shape_costs import ShapeCosts, distinct_rows
from semu.errors import InternalError
from semu.hardware.kinds import OpKind
from semu.parallel.config import Parallel


@pytest.fixture(scope="module")
def layout() -> Layout:
    return build_layout(job_of(vlm(), vlm_items(9), Parallel(tp=2, pp=2)), lambda library: [1.0])


def fresh(layout: Layout) -> ShapeCosts:
    shapes = distinct_shapes(vlm_items(9, empty=[4]), 1, layout.job.parallel.token_divisor)
    return ShapeCosts(CostModel(layout.library, layout.job.profile), shapes.columns)


@given(chosen=st.lists(st.integers(0, 8), max_size=12))
def test_some_shapes_are_rows_of_all(layout: Layout, chosen: list[int]) -> None:
    everything, some, numbers = fresh(layout), fresh(layout), np.array(chosen, dtype=np.int64)
    assert np.array_equal(some.latencies_of(numbers), everything.latency[numbers])
    assert np.array_equal(some.sizes_of(numbers), everything.size[numbers])
    assert not {"latency", "size", "columns"} & set(vars(some))  # nothing was costed for all shapes
    assert np.array_equal(everything.latencies_of(numbers), everything.latency[numbers])
    assert np.array_equal(everything.sizes_of(numbers), everything.size[numbers])


@given(data=st.data())
def test_some_rows_are_rows_of_all(layout: Layout, data: st.DataObject) -> None:
    costs, library = fresh(layout), layout.library
    rows = np.array(
        data.draw(st.lists(st.integers(0, len(library.operators) - 1), unique=True, max_size=20)), dtype=np.int64
    )
    size_rows = data.draw(st.lists(st.integers(-1, len(library.sizes) - 1), max_size=9))
    columns = library.evaluate(costs.symbols, rows, np.zeros(0, dtype=np.int64))
    assert np.array_equal(costs.model.latencies(columns, rows), costs.latency.T[rows])
    sizes = costs.sizes_of_rows(size_rows)
    for row, values in zip(size_rows, sizes, strict=True):
        assert np.array_equal(values, costs.size.T[row] if row >= 0 else np.zeros(9))


def test_a_custom_rule_is_asked_once_about_everything(layout: Layout) -> None:
    asked = []
    model = CostModel(layout.library, layout.job.profile, {OpKind.MATMUL: lambda seen: asked.append(len(seen.flop))})
    costs = ShapeCosts(model, fresh(layout).symbols)
    for number in range(3):
        costs.latencies_of(np.array([number]))
    assert asked == [9] * sum(operator.kind is OpKind.MATMUL for operator in layout.library.operators)


@given(
    table=st.lists(st.tuples(*[st.integers(-1, 1)] * 3), min_size=1, max_size=12),
    symbols=st.lists(st.sampled_from("abc"), unique=True),
)
def test_distinct_rows(table: list[tuple[int, int, int]], symbols: list[str]) -> None:
    columns = {name: np.array([row[i] for row in table], dtype=np.int64) for i, name in enumerate("abc")}
    distinct, place = distinct_rows(columns, symbols)
    rows = [tuple(int(columns[name][number]) for name in symbols) for number in range(len(table))]
    assert [tuple(row) for row in distinct.tolist()] == sorted(set(rows))
    assert [tuple(distinct[number].tolist()) for number in place] == rows


def test_a_symbol_without_values_is_a_defect() -> None:
    with pytest.raises(InternalError, match="text"):
        distinct_rows({"a": np.zeros(2, dtype=np.int64)}, ["text"])

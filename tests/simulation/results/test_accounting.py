"""Where the time goes and how much was done: gaps of the compute streams, whole-number totals of the work."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.memory.test_memory_peaks import memories_of
from simulation.reference.costs import value

from semu.graph.dim import Dim, DimTable, Poly
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.simulation.results.time_breakdown import _pipeline_gaps, _totals

JOBS = {
    "text": lambda: job_of(gpt(), text_items(6), Parallel(pp=3)),
    "overlapped": lambda: job_of(gpt(), text_items(6), Parallel(pp=3), overlap=overlap(pipeline=True)),
    "replicas": lambda: job_of(gpt(), text_items(9), Parallel(dp=3, pp=2)),
    "vlm": lambda: job_of(vlm(), vlm_items(8, empty=(1, 2)), Parallel(dp=2, pp=4)),
    "vlm overlapped": lambda: job_of(vlm(), vlm_items(8), Parallel(dp=2, pp=4), overlap=overlap(pipeline=True)),
    "t2v": lambda: job_of(t2v(), t2v_items(6), Parallel(dp=2, pp=5), schedule="gpipe"),
    "one rank": lambda: job_of(gpt(), text_items(3)),
    "interleaved": lambda: job_of(vlm(), vlm_items(8), Parallel(dp=2, pp=2, vpp=3), overlap=overlap(pipeline=True)),
}


@pytest.mark.parametrize("name", JOBS)
def test_gaps_stage_by_stage(name: str) -> None:
    """A gap is the transfer's as far as one that ends with it lasted (the longest of several), else a bubble."""
    job: TrainingJob = JOBS[name]()
    run, memories = memories_of(job)
    problem = run.problem
    explained, rest = _pipeline_gaps(run, np.ones(problem.num_stages))
    for replica in range(run.num_replicas):
        by_transfers = bubbles = 0.0
        for memory in memories:
            last = 0.0
            for node in memory.nodes.tolist():
                start = float(run.start[replica, node])
                before = problem.pred[problem.pred_ptr[node] : problem.pred_ptr[node + 1]].tolist()
                lasted = [
                    float(run.end[replica, p] - run.start[replica, p])
                    for p in before
                    if p >= problem.num_stages and run.end[replica, p] == start
                ]
                part = min(start - last, max(lasted, default=0.0))
                by_transfers += part
                bubbles += start - last - part
                last = float(run.end[replica, node])
        assert (explained[replica], rest[replica]) == (by_transfers, bubbles)
    assert explained.sum() > 0 or job.parallel.pp == 1


NAMES = ("text.shard", "text.pairs", "vision.shard")
TERMS = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=2).map(lambda names: tuple(sorted(names))),
    st.integers(-(2**40), 2**40),
    max_size=4,
)


@given(st.lists(TERMS, min_size=1, max_size=5), st.lists(st.integers(0, 2**20), min_size=3, max_size=3), st.data())
def test_totals_are_exact_whatever_their_size(
    terms: list[dict[tuple[str, ...], int]], sizes: list[int], data: st.DataObject
) -> None:
    dims: list[Dim] = [Poly(t) if t.keys() - {()} else t.get((), 0) for t in terms]
    uses = data.draw(st.lists(st.integers(0, 5000), min_size=2, max_size=2))
    columns = {name: np.array([size, size // 2 + 1]) for name, size in zip(NAMES, sizes, strict=True)}
    shapes = [{name: int(column[i]) for name, column in columns.items()} for i in range(2)]
    expected = [sum(use * value(dim, shape) for use, shape in zip(uses, shapes, strict=True)) for dim in dims]
    assert _totals(DimTable.build(dims), columns, np.array(uses)) == expected

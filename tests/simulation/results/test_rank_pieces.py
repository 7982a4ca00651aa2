"""Pieces of ranks that are made when a critical path meets them, against the timeline that has all of them."""

from __future__ import annotations

import pytest
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items

from semu.engine.critical_paths import critical_path
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.simulation import prepare
from semu.simulation.results.rank_timeline import _in_order, _Sends, rank_pieces

JOBS = {
    "text": job_of(gpt(), text_items(8), Parallel(dp=2, pp=2, zero=1), overlap=overlap(gradients=True)),
    "vlm": job_of(vlm(), vlm_items(4), Parallel(pp=2)),
    "two chunks a rank": job_of(gpt(), text_items(4), Parallel(pp=2, vpp=2), schedule="interleaved"),
    "launches": job_of(gpt(), text_items(4), Parallel(pp=2), launch=True),
    "split backwards": job_of(gpt(), text_items(4), Parallel(pp=2), schedule="zb-h1"),
}


@pytest.mark.parametrize("name", sorted(JOBS))
def test_every_piece_is_that_of_the_timeline(name: str) -> None:
    job: TrainingJob = JOBS[name]
    lived = prepare(job).lived()
    ranks = rank_pieces(lived.iteration, lived.head.memories, lived.head.slowest, lived.costs)
    assert len(ranks) == len(lived.timeline.ranks) > 1
    for pieces, shown in zip(ranks, lived.timeline.ranks, strict=True):
        stages = [pieces.stage(number) for number in range(len(pieces.stage_start_s))]
        outer = [pieces.outer(number) for number in range(len(pieces.outer_start_s))]
        assert (tuple(stages), tuple(outer)) == (shown.stages, shown.outer)
        assert [*outer] == sorted(outer, key=lambda piece: (piece.start_s, piece.end_s, piece.name))
        assert pieces.stage_start_s == [stage.start_s for stage in stages]
        assert pieces.stage_end_s == [stage.end_s for stage in stages]
        assert pieces.outer_start_s == [piece.start_s for piece in outer]
        assert pieces.outer_end_s == [piece.end_s for piece in outer]
    assert critical_path(ranks) == critical_path(lived.timeline)


def test_what_happens_at_the_same_time_is_in_order_of_names() -> None:
    import numpy as np

    from semu.hardware.kinds import Port, Provenance

    link = Provenance.DEFAULT, Port.NVLINK
    times = np.array([2.0, 1.0, 1.0])
    first, second = _Sends(), _Sends()
    first.add("0F", "to rank 1", link, np.array([0, 11, 2]), (times, times + 1), np.array([8, 8, 8]))
    second.add("0B", "to rank 1", link, np.array([3, 4, 5]), (times, times + 1), np.array([8, 0, 8]))
    assert [len(first), len(second)] == [3, 2]
    every = [*first, *second]
    assert first[1:] == every[1:3]
    names = [every[number].name for number in _in_order([first, second])]
    at_one = ["send 0B5 to rank 1", "send 0F11 to rank 1", "send 0F2 to rank 1"]
    assert names == [*at_one, "send 0B3 to rank 1", "send 0F0 to rank 1"]

"""Ranks whose chunks run the same blocks share what happens to their parameters: it is what each has alone."""

from __future__ import annotations

import pytest
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items

import semu_models
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.parallel.config import Parallel
from semu.simulation import prepare
from semu.simulation.data_parallel.collectives import _of_rank
from semu.simulation.data_parallel.gathers_before_forwards import _gather
from semu.simulation.data_parallel.reduce import plan_reductions
from semu.simulation.data_parallel.step import _find_step, rank_steps
from semu.simulation.memory.static import rank_static, resident_memory


def experts(zero: int) -> TrainingJob:
    """A mixture of experts on two nodes."""
    cluster, parallel = Cluster("h100", 2, 8), Parallel(dp=2, tp=2, pp=4, ep=2, zero=zero)
    training = Training(micro_batch=1, global_batch=8, seq_len=1024)
    return TrainingJob(semu_models.build("mixtral-8x7b"), cluster, parallel, training)


def small(model: str, zero: int) -> TrainingJob:
    made, items = (gpt(layers=8), text_items(8)) if model == "gpt" else (vlm(layers=4), vlm_items(8))
    return job_of(made, items, Parallel(dp=2, pp=4, zero=zero), overlap=overlap(gradients=True, parameters=True))


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("name", ["gpt", "vlm", "experts"])
def test_ranks_have_what_each_has_alone(name: str, zero: int) -> None:
    job = experts(zero) if name == "experts" else small(name, zero)
    prepared = prepare(job)
    layout, timed = prepared.layout, prepared.timed()
    alike = layout.cut.alike
    assert len({*alike}) < len(alike) or name == "vlm"
    assert [static for static, _ in resident_memory(layout)] == [rank_static(layout, rank) for rank in range(4)]
    for rank, step in enumerate(rank_steps(prepared)):
        assert vars(step) == vars(_find_step(prepared, rank))
    for rank, gather in prepared.gathers.items():
        alone = _gather(prepared, rank, {})
        assert (gather.slices, gather.groups, gather.last) == (alone.slices, alone.groups, alone.last)
    reductions = plan_reductions(timed)
    gradients, plan = reductions.gradients, reductions.plan
    assert gradients is not None
    for rank, (first, stop) in enumerate(zip(gradients.trained.ptr, gradients.trained.ptr[1:], strict=False)):
        alone = _of_rank(prepared, rank, gradients.trained, gradients.order[first:stop].tolist())
        begin = int(plan.ptr[rank])
        mine = slice(begin, begin + len(alone.pieces))
        assert [*plan.pieces[mine]] == alone.pieces
        assert [*plan.groups[mine]] == alone.groups
        assert plan.members[mine] == (
            tuple(alone.members) if job.training.overlap.grad_reduce else (None,) * len(alone.pieces)
        )

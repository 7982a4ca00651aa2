"""DistMM-Pipe: towers on ranks of their own, losses of several microbatches together."""

from __future__ import annotations

from dataclasses import replace

import pytest

import semu
import semu_models
from semu.baselines import distmm
from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.plan.compile import compile_plan
from semu.plan.verification.rules import verify
from semu.schedule.shape import StageKey
from semu.workload import pair_batch


def job(pp: int = 4, m: int = 8, **sizes: int) -> TrainingJob:
    parallel = semu.Parallel(dp=1, pp=pp, **sizes)
    training = semu.Training(global_batch=4 * m, micro_batch=4)
    return TrainingJob(
        semu_models.clip_vit_b_32(), semu.Cluster("a800", 1, pp), parallel, training, pair_batch(patches_per_image=49)
    )


@pytest.mark.parametrize("every", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [2, 3, 5])
def test_every_rank_runs_its_tower_and_losses_come_in_groups(pp: int, every: int) -> None:
    found = distmm(job(pp), every=every)
    shape = found.checkpoint.pipeline_shape
    found.schedule.validate(shape)
    for rank in range(pp):
        names = {shape.chunk_module[chunk] for chunk in shape.chunks_of(rank)}
        assert len(names - {"head"}) == 1, "one tower to a rank"
    assert len(shape.gangs[0]) == 2
    for head in shape.gangs[0]:
        own = [stage for stage in found.schedule.orders[shape.chunk_rank[head]] if stage.chunk == head]
        expected = []
        for first in range(0, 8, every):
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                expected += [StageKey(head, phase, m) for m in range(first, first + every)]
        assert own == expected
    verify(compile_plan(found.job, found.schedule))


def test_text_of_two_towers_of_one_rank_each() -> None:
    """Either rank has a tower (chunks 0 and 1) and the loss (2 and 3): FlexPipe Fig. 3 with groups of two."""
    found = distmm(job(2, 4), every=2)
    assert found.schedule.to_text().splitlines() == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0F2 0B1 0F3 2F2 2F3 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1F2 1B1 1F3 3F2 3F3 3B2 3B3 1B2 1B3",
    ]


def test_larger_groups_hold_more() -> None:
    peaks = [max(distmm(job(), every=every).evaluate().peak_memory_bytes) for every in (1, 2, 4, 8)]
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]


@pytest.mark.parametrize(
    ("start", "every", "where", "nearest"),
    [
        (job(), 3, "training.global_batch", 6),
        (job(1), 4, "parallel.pp", 2),
        (job(2, 8, vpp=2), 4, "parallel.pp", 2),
        (replace(job(), training=replace(job().training, global_batch=24)), 4, "training.global_batch", 4),
    ],
)
def test_refusals(start: TrainingJob, every: int, where: str, nearest: int) -> None:
    with pytest.raises(ConfigError) as caught:
        distmm(start, every=every)
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_a_model_without_towers() -> None:
    text = semu.TrainingJob(semu_models.gpt2(), semu.Cluster("a800", 1, 2), semu.Parallel(dp=1, pp=2))
    with pytest.raises(ConfigError, match="meet in a loss"):
        distmm(text)

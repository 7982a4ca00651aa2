"""A search: many configurations of one model in one process, in any order, against each of them simulated alone."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.results.test_estimate import figures

import semu
from semu import memo
from semu.job import TrainingJob
from semu.nn.model import Model
from semu.simulation import prepare
from semu.simulation.estimate import evaluate_metrics
from semu.simulation.memory.peaks import PipelineMemory
from semu.simulation.memory.unsharded import pipeline_unsharded

MODELS = {"gpt": (gpt, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}
SIZES = [(1, 1, 4, 1), (2, 1, 2, 2), (2, 2, 2, 1), (4, 1, 2, 1), (2, 1, 4, 1), (2, 2, 1, 1), (1, 2, 2, 2), (3, 1, 2, 1)]


def grid(name: str, model: Model, seed: int, count: int) -> list[TrainingJob]:
    """Some configurations of a model, and beside each those that differ in one setting: ZeRO, whether parameters are
    kept, microbatches equal or not, how many of them there are."""
    random, jobs = Random(seed), []
    for dp, tp, pp, vpp in random.sample(SIZES, count):
        zero, is_equal, rounds = random.randint(0, 1), random.random() < 0.5, random.randint(1, 2)
        hidden = overlap(
            tensor=random.random() < 0.5,
            pipeline=random.random() < 0.5,
            gradients=random.random() < 0.7,
            parameters=random.random() < 0.7,
        )
        recompute = random.choice(["none", "selective", "full"])
        schedule = "interleaved" if vpp > 1 else random.choice(["1f1b", "gpipe"])
        per_node = random.choice([0, dp * tp * pp // 2]) if dp * tp * pp % 2 == 0 else 0
        beside = [(sharding, False, is_equal, rounds) for sharding in (zero, 1 - zero, 2, 3)]
        beside += [(3, True, is_equal, rounds), (3, True, not is_equal, rounds), (3, True, is_equal, 3 - rounds)]
        beside += [(zero, False, not is_equal, rounds), (zero, False, is_equal, 3 - rounds)]
        for sharding, keeps, equal, times in beside:
            total = dp * pp * times
            items = MODELS[name][1]
            jobs.append(
                job_of(
                    model,
                    items(1, seed=seed) * total if equal else items(total, seed=seed),
                    semu.Parallel(dp=dp, tp=tp, pp=pp, vpp=vpp, zero=sharding, reshard_after_forward=not keeps),
                    overlap=hidden,
                    schedule=schedule,
                    recompute=recompute,
                    gpus_per_node=per_node,
                )
            )
    return jobs


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_grid_of_one_model(name: str) -> None:
    count, seed = 4, len(name)
    alone = []
    for job in grid(name, MODELS[name][0](layers=4), seed, count):
        memo.clear()
        own = MODELS[name][0](layers=4)
        alone.append(figures(semu.simulate(TrainingJob(own, job.cluster, job.parallel, job.training, job.batch))))
    memo.clear()
    jobs = grid(name, MODELS[name][0](layers=4), seed, count)
    turns = [*range(len(jobs))] * 2
    Random(seed).shuffle(turns)
    for number in turns:
        found = semu.evaluate(jobs[number])
        assert figures(found) == alone[number], number
        few = (found.iteration_time_s, found.mfu, found.bubble_ratio, max(found.peak_memory_bytes))
        assert evaluate_metrics(jobs[number]) == (few, found.judged_bytes), number


def test_the_fullest_rank_is_found_where_stages_wait_inside() -> None:
    """Doubtful stages of all kinds: what bears on them from outside, and not; exact summits count on several ranks."""
    counts = dict.fromkeys(("plain", "touched"), 0)
    for seed, name in enumerate(MODELS):
        for job in grid(name, MODELS[name][0](layers=4), seed, 2):
            iteration = prepare(job).iteration()
            run = iteration.run
            memory = PipelineMemory(iteration, pipeline_unsharded(iteration))
            peaks = np.array([peak.size_bytes for peak in memory.peaks])
            for seed_of in range(3):  # whichever rank is the fullest
                resident = np.random.default_rng(seed_of).permutation(len(peaks)) * int(peaks.max() // 8)
                assert memory.fullest(resident) == (peaks + resident).max()
            found = memory.summits
            doubtful = {tuple(pair) for pair in np.argwhere(found.high > found.low).tolist()}
            touched = doubtful & (run.release.keys() | run.inside.keys())
            counts["touched"] += len(touched)
            counts["plain"] += len(doubtful) - len(touched)
    assert min(counts.values()) > 0, counts

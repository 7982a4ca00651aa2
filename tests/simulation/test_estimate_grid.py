"""A search: many configurations of one model in one process, in any order, against each of them simulated alone."""

from __future__ import annotations

from random import Random

import pytest
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.test_estimate import figures, forget

import semu
from semu.job import TrainingJob
from semu.nn.model import Model

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


@pytest.mark.parametrize("name", MODELS)
def test_a_grid_of_one_model(name: str) -> None:
    count, seed = 4, len(name)
    alone = []
    for job in grid(name, MODELS[name][0](layers=4), seed, count):
        forget()
        own = MODELS[name][0](layers=4)
        alone.append(figures(semu.simulate(TrainingJob(own, job.cluster, job.parallel, job.training, job.batch))))
    forget()
    jobs = grid(name, MODELS[name][0](layers=4), seed, count)
    turns = [*range(len(jobs))] * 2
    Random(seed).shuffle(turns)
    for number in turns:
        assert figures(semu.evaluate(jobs[number])) == alone[number], number

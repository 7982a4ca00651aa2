"""A search: many configurations of one model in one process, in any order, against each of them simulated alone."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.test_estimate import figures, forget

import semu
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn.model import Model

MODELS = {"gpt": (gpt, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}
SIZES = [(1, 1, 4, 1), (2, 1, 2, 2), (2, 2, 2, 1), (4, 1, 2, 1), (2, 1, 4, 1), (2, 2, 1, 1), (1, 2, 2, 2), (3, 1, 2, 1)]


def grid(name: str, model: Model, seed: int, count: int) -> list[TrainingJob]:
    """Some configurations of a model that semu accepts: microbatches equal and unequal, few and many."""
    random, items = Random(seed), MODELS[name][1]
    options = product(SIZES, (0, 1), ("none", "selective", "full"), (1, 2), (False, True), ("1f1b", "gpipe"))
    jobs: list[TrainingJob] = []
    for (dp, tp, pp, vpp), zero, recompute, rounds, is_equal, schedule in random.sample([*options], 4 * count):
        total = dp * pp * rounds
        try:
            job = job_of(
                model,
                items(1, seed=rounds) * total if is_equal else items(total, seed=rounds),
                semu.Parallel(dp=dp, tp=tp, pp=pp, vpp=vpp, zero=zero),
                overlap=overlap(
                    tensor=random.random() < 0.5,
                    pipeline=random.random() < 0.5,
                    gradients=random.random() < 0.7,
                    parameters=random.random() < 0.7,
                ),
                schedule="interleaved" if vpp > 1 else schedule,
                recompute=recompute,
                gradient_clipping=random.random() < 0.2,
                gpus_per_node=random.choice([0, dp * tp * pp // 2]) if dp * tp * pp % 2 == 0 else 0,
            )
        except ConfigError:
            continue
        jobs.append(job)
    return jobs[:count]


@pytest.mark.parametrize("name", MODELS)
def test_a_grid_of_one_model(name: str) -> None:
    count, seed = 14, len(name)
    alone = []
    for number in range(count):
        forget()
        alone.append(figures(semu.simulate(grid(name, MODELS[name][0](layers=4), seed, count)[number])))
    forget()
    jobs = grid(name, MODELS[name][0](layers=4), seed, count)
    assert len(jobs) == count
    turns = [*range(count)] * 2
    Random(seed).shuffle(turns)
    for number in turns:
        assert figures(semu.evaluate(jobs[number])) == alone[number], number

"""What is remembered of a model with experts depends on the groups in which these are spread."""

from __future__ import annotations

import random
from itertools import product
from unittest.mock import patch

import pytest

import semu
import semu_models
from semu import memo
from semu.compile import layout

Figures = tuple[object, ...]


def jobs_of(name: str) -> list[semu.TrainingJob]:
    model, found = semu_models.build(name), []
    choices = [
        *product(("h100", "a100-80g"), (1, 2), (1, 2), (4, 8), (2, 4), (0, 1, 3), ("alltoall", "allgather"), (1, 2))
    ]
    random.Random(7).shuffle(choices)
    for device, tp, pp, dp, ep, zero, dispatcher, micro_batch in choices:
        gpus = dp * tp * pp
        training = semu.Training(
            micro_batch=micro_batch, global_batch=16, seq_len=1024, moe_dispatcher=dispatcher, schedule="1f1b"
        )
        parallel = semu.Parallel(dp=dp, tp=tp, pp=pp, ep=ep, zero=zero)
        try:
            found.append(
                semu.TrainingJob(model, semu.Cluster(device, max(1, gpus // 8), min(8, gpus)), parallel, training)
            )
        except semu.ConfigError:
            continue
    return found[:8]


def figures(job: semu.TrainingJob) -> Figures:
    found = semu.evaluate(job)
    return found.iteration_time_s, found.mfu, found.bubble_ratio, found.peak_memory_bytes, dict(found.breakdown_s)


@pytest.mark.slow
def test_configurations_in_any_order_are_those_of_a_fresh_process() -> None:
    for name in ("mixtral-8x7b", "deepseek-v2-lite"):
        jobs = jobs_of(name)
        for job in jobs:
            semu.evaluate(job)
        remembered = [figures(job) for job in reversed(jobs)][::-1]
        fresh = []
        for job in jobs:
            memo.clear()
            fresh.append(figures(job))
        assert remembered == fresh
        assert len({found[0] for found in fresh}) > 4


def test_experts_are_traced_once_for_a_configuration() -> None:
    (job, *_) = jobs_of("mixtral-8x7b")
    semu.evaluate(job)
    with patch.object(layout, "ModelTracer", side_effect=AssertionError("traced again")):
        semu.evaluate(job)


def test_experts_are_traced_once_for_their_groups() -> None:
    """How many replicas there are, and what of parameters they share, changes nothing that is traced."""
    model = semu_models.build("mixtral-8x7b")
    training = semu.Training(micro_batch=1, global_batch=32, seq_len=1024)
    jobs = [
        semu.TrainingJob(
            model, semu.Cluster("h100", nodes, 8), semu.Parallel(dp=nodes, tp=8, ep=ep, zero=zero), training
        )
        for nodes, ep, zero in ((1, 8, 0), (2, 8, 0), (2, 8, 1), (2, 4, 1))
    ]
    semu.evaluate(jobs[0])
    with patch.object(layout, "ModelTracer", side_effect=AssertionError("traced again")):
        figures(jobs[1])
        figures(jobs[2])
    with patch.object(layout, "ModelTracer", wraps=layout.ModelTracer) as traced:
        figures(jobs[3])
    assert traced.call_count == 1

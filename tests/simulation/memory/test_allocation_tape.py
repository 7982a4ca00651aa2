"""What a rank asks of the allocator, worked out for all stages at once, against a walk from stage to stage."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulation.reference.tape import SlowTape
from simulation.results.test_estimate import FEATURES, job_with
from simulation.results.test_estimate import random_job as any_model
from simulation.schedules.test_schedule_interplay import random_job as any_schedule
from simulation.schedules.test_stage_plan import random_case as any_plan

from semu.errors import SemuError
from semu.job import TrainingJob
from semu.schedule.stage_plan import StagePlan
from semu.simulation import prepare
from semu.simulation.memory.allocation_tape import PipelineTapes
from semu.simulation.memory.reserved import static_requests

I64 = NDArray[np.int64]


def with_feature(random: Random) -> TrainingJob:
    return job_with(random.choice(FEATURES), random.randrange(10**6))


KINDS: dict[str, Callable[[Random], TrainingJob | tuple[TrainingJob, StagePlan]]] = {
    "models": lambda random: any_model(random.randrange(10**6)),
    "features": with_feature,
    "schedules": any_schedule,
    "plans": any_plan,
}


def in_order(slot: I64, size: I64) -> tuple[list[int], list[int]]:
    """Slots by the order in which they first appear."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(own, len(numbers)) for own in slot.tolist()], size.tolist()


def compare(kind: str, seed: int) -> int:
    """All ranks of all distinct replicas; returns how many events there were."""
    try:
        made = KINDS[kind](Random(seed))
        job, plan = made if isinstance(made, tuple) else (made, None)
        iteration = prepare(job, plan=plan).iteration()
    except SemuError:  # not every random job is legal
        return 0
    layout = iteration.layout
    for rank, like in enumerate(layout.cut.alike):
        assert static_requests(layout, rank) == static_requests(layout, like)
    events = 0
    for replica in range(iteration.run.num_replicas):
        tapes = PipelineTapes(iteration, replica)
        for rank in range(job.parallel.pp):
            found = in_order(*tapes.of(rank).record())
            assert found == in_order(*SlowTape(iteration, rank, replica).record()), (rank, replica)
            events += len(found[0])
    return events


@settings(max_examples=5, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**9))
def test_any_job_asks_what_a_walk_asks(kind: str, seed: int) -> None:
    compare(kind, seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_some_jobs_of_every_kind_ask_for_memory(kind: str) -> None:
    assert sum(compare(kind, seed) for seed in range(3)) > 100


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**9))
def test_many_jobs_ask_what_a_walk_asks(kind: str, seed: int) -> None:
    compare(kind, seed)

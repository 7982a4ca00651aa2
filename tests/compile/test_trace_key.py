"""Jobs whose blocks are remembered under one key trace with the same options, whatever shards their parameters."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from simulation.jobs import gpt, job_of, text_items

import semu
from semu.compile.model_memo import trace_key
from semu.compile.tracer import ModelTracer
from semu.errors import SemuError
from semu.job import TrainingJob
from semu.nn import Model
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.parallel.mesh import Mesh

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"autocast": "fp32_norms"},
    {"precision": "fp8"},
    {"precision": "fp8", "fp8_weights": "primary"},
)


def sharded(model: Model, software: str, options: dict[str, Any], zero: int, keeps: bool, pp: int) -> TrainingJob:
    parallel = Parallel(dp=2, tp=2, pp=pp, zero=zero, reshard_after_forward=not keeps)
    return job_of(model, text_items(4), parallel, software=software, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("software", ["torch", "megatron", "megatron-deepspeed"])
def test_one_key_has_one_set_of_options(software: str, options: dict[str, Any]) -> None:
    model, found = gpt(), dict[object, TraceOptions]()
    runs = 0
    for zero, keeps, pp in product(range(4), (False, True), (1, 2)):
        try:
            run = sharded(model, software, options, zero, keeps, pp)
        except SemuError:
            continue
        key = trace_key(run, Mesh(run.parallel, run.cluster), has_experts=False)
        traced = ModelTracer(run).options
        assert found.setdefault(key, traced) == traced
        runs += 1
    assert runs > 3 or software != "torch"


def test_what_was_evaluated_before_changes_nothing() -> None:
    settings = [("torch", {}, zero, keeps, pp) for zero, keeps, pp in ((1, False, 1), (2, False, 1), (3, True, 2))]
    shared = gpt()
    together = [semu.evaluate(sharded(shared, *each)).iteration_time_s for each in settings]
    assert together == [semu.evaluate(sharded(gpt(), *each)).iteration_time_s for each in settings]

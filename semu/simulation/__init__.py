"""``simulate``: a training job becomes a ``Report``.

The steps, one file each: ``tracer`` and ``layout`` (trace, cut, join), ``evaluate`` (stage costs of every distinct
microbatch), ``gather``, ``pipeline`` and ``reduction`` (times, with ``transfers``), ``memory``, ``accounting``,
``rank_timeline``, ``tables`` and ``assemble`` (the report).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semu.engine.costs import CostModel, LatencyRules
from semu.errors import ConfigError, unknown_name
from semu.job import Precision, TrainingJob
from semu.report import Report
from semu.schedule import SCHEDULES
from semu.schedule.problem import lower
from semu.simulation.assemble import assemble_report
from semu.simulation.evaluate import BatchShapes, distinct_shapes, evaluate, template_latencies
from semu.simulation.gather import parameter_gathers
from semu.simulation.layout import build_layout
from semu.simulation.pipeline import run_replicas
from semu.simulation.reduction import rank_tails

__all__ = ["simulate"]


def simulate(
    job: TrainingJob,
    *,
    latency_rules: LatencyRules | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Predict one training iteration: time, memory of every rank, timeline.

    Args:
        job: what to train, on what, how.
        latency_rules: custom latencies by operator kind; they replace semu's roofline where they return a number.
        progress: called with a line at the start of each step.
    Returns:
        The report. A job that does not fit in memory is reported (``fits`` is False), not refused.
    Raises:
        ConfigError: sizes or options that do not fit together, or that this version does not model.
        ScheduleError: the schedule cannot order this pipeline.
    """
    say = progress if progress is not None else _silent
    _refuse_unmodelled(job)
    parallel, training = job.parallel, job.training
    say("reading the batch")
    count = job.num_microbatches * parallel.dp
    microbatches = job.batch.microbatches(count, training.micro_batch, training.seq_len)
    shapes = distinct_shapes(microbatches, parallel.dp, parallel.token_divisor)
    _check_streams(job, shapes)
    say("tracing the model")
    serial = not training.overlap.tensor_parallel
    layout = build_layout(
        job,
        lambda library: template_latencies(
            library, shapes, CostModel(library, job.cluster.profile, latency_rules), serial=serial
        ),
    )
    say("costing the stages")
    evaluation = evaluate(layout, shapes, CostModel(layout.library, job.cluster.profile, latency_rules))
    say("running the pipeline")
    pipeline = layout.pipeline_shape(job.num_microbatches)
    schedule = SCHEDULES[training.schedule](pipeline)
    schedule.validate(pipeline)
    problem = lower(schedule, pipeline, overlapped_sends=training.overlap.pipeline)
    gathers = parameter_gathers(layout, evaluation.cost_model)
    run = run_replicas(layout, evaluation, problem, gathers)
    tails = rank_tails(layout, evaluation, run)
    say("finding the memory peaks")
    return assemble_report(layout, evaluation, run, tails, gathers)


def _silent(_: str) -> None:
    return None


def _refuse_unmodelled(job: TrainingJob) -> None:
    """Say no to what this version would get wrong."""
    parallel = job.parallel
    for name, legal in (("vpp", 1), ("cp", 1), ("ep", 1)):
        value = getattr(parallel, name)
        if value != legal:
            raise ConfigError(
                f"{name} = {value} is not modelled by this version",
                where=f"parallel.{name}",
                expected=str(legal),
                got=value,
                nearest=legal,
            )
    if parallel.zero > 1:
        raise ConfigError(
            f"ZeRO-{parallel.zero} is not modelled by this version",
            where="parallel.zero",
            expected="0 or 1",
            got=parallel.zero,
            nearest=1,
        )
    if job.training.precision is Precision.FP8:
        raise ConfigError(
            "fp8 training (casts and scaling factors) is not modelled by this version",
            where="training.precision",
            expected="bf16, fp16, tf32 or fp32",
            got="fp8",
            nearest="bf16",
        )
    consumers = [source for module in job.model.modules for source in module.sources]
    twice = next((name for name in consumers if consumers.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            "a module that feeds several others is not modelled by this version",
            where=f"model.{twice}",
            expected="at most one module with it among its sources",
            got=consumers.count(twice),
            nearest=1,
        )
    if job.training.schedule not in SCHEDULES:
        raise unknown_name("schedule", job.training.schedule, SCHEDULES, where="training.schedule")


def _check_streams(job: TrainingJob, shapes: BatchShapes) -> None:
    """Every stream that the model reads must be in the batch, with something in it."""
    have = {name.split(".")[0] for name in shapes.columns if name.endswith(".tokens")}
    for module in job.model.modules:
        for spec in module.inputs:
            if spec.stream not in have:
                raise ConfigError(
                    f"module {module.name} reads the stream {spec.stream!r}, which the batch does not have",
                    where="batch.kind",
                    expected=f"a batch with the stream {spec.stream!r}",
                    got=", ".join(sorted(have)) or "an empty batch",
                )
    if not any(int(np.sum(column)) for name, column in shapes.columns.items() if name.endswith(".tokens")):
        raise ConfigError("the batch is empty", where="batch", expected="at least one token", got="none")

"""``nearest_fit``: changes of a job that does not fit in memory, the memory that they save and the time that they add.

Single changes come first, in the order in which people try them. Where none of them is enough, those ``WIDTH`` that
save the most memory are made and the others tried on top of each, up to ``MOST_CHANGES`` at once. The global batch
stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from semu.errors import ConfigError, ScheduleError
from semu.hardware.kinds import DType
from semu.job import Precision, Recompute, TrainingJob
from semu.job.offload import OFFLOADS
from semu.present.report import FittingChange, Report

MOST_CHANGES = 3
WIDTH = 3

Settings = Mapping[str, object]
"""Key of the run file -> value."""


def nearest_fit(
    job: TrainingJob,
    report: Report,
    simulate: Callable[[TrainingJob], Report],
    progress: Callable[[str], None] | None = None,
) -> tuple[FittingChange, ...]:
    """Changes after which a job fits, the fastest first; empty: none of those tried fits.

    Args:
        job: what does not fit. report: what came of it. simulate: runs another job.
        progress: called with a line before each job.
    """
    peak = max(report.peak_memory_bytes)
    bases: list[tuple[TrainingJob, dict[str, object]]] = [(job, {})]
    seen: set[frozenset[tuple[str, object]]] = set()
    for _ in range(MOST_CHANGES):
        tried: list[tuple[Report, TrainingJob, dict[str, object]]] = []
        for base, made in bases:
            for more in single_changes(base):
                settings = {**made, **more}
                if frozenset(settings.items()) in seen:
                    continue
                seen.add(frozenset(settings.items()))
                if progress is not None:
                    words = " ".join(f"{key}={value}" for key, value in settings.items())
                    progress(f"looking for a change that fits: {words}")
                with suppress(ConfigError, ScheduleError):
                    other = changed(base, more)
                    tried.append((simulate(other), other, settings))
        host = job.cluster.profile.host.memory_bytes.value
        fitting = [one for one in tried if one[0].fits and max(one[0].host_memory_bytes or (0,)) <= host]
        fitting.sort(key=lambda one: one[0].iteration_time_s)
        if fitting:
            return tuple(
                FittingChange(
                    settings=settings,
                    peak_memory_bytes=max(one.peak_memory_bytes),
                    saved_bytes=peak - max(one.peak_memory_bytes),
                    iteration_time_s=one.iteration_time_s,
                    added_time_s=one.iteration_time_s - report.iteration_time_s,
                )
                for one, _, settings in fitting
            )
        helped = [one for one in tried if max(one[0].peak_memory_bytes) < peak]
        helped.sort(key=lambda one: max(one[0].peak_memory_bytes))
        bases = [(other, settings) for _, other, settings in helped[:WIDTH]]
    return ()


def single_changes(job: TrainingJob) -> Iterator[dict[str, object]]:
    """What may be changed about a job, in the words of the run file; whether a change is legal is seen later."""
    training, parallel = job.training, job.parallel
    if training.recompute is Recompute.NONE:
        yield {"training.recompute": "selective"}
    if training.recompute is not Recompute.FULL:
        yield {"training.recompute": "full", "training.recompute_policy": "every_second_matmul"}
        yield {"training.recompute": "full"}
    if parallel.tp > 1 and not parallel.sequence_parallel:
        yield {"parallel.sequence_parallel": True}
    size = training.micro_batch
    while size > 1:
        size = next(n for n in range(size - 1, 0, -1) if training.micro_batch % n == 0)
        yield {"training.micro_batch": size}
    if parallel.dp > 1:
        for zero in range(parallel.zero + 1, 4):
            yield {"parallel.zero": zero}
    if job.gathers_once:
        yield {"parallel.reshard_after_forward": True}
    if parallel.dp % 2 == 0:
        for name, width in (("tp", parallel.tp), ("pp", parallel.pp)):
            if name == "pp" or 2 * width <= job.cluster.gpus_per_node:
                yield {
                    f"parallel.{name}": 2 * width,
                    "parallel.dp": parallel.dp // 2,
                    "training.global_batch": training.global_batch,
                }
    if training.grad_dtype is DType.FP32 and training.precision is not Precision.FP32:
        yield {"training.grad_dtype": training.precision.tensor_dtype.value}
    if training.optimizer_state_dtype is DType.FP32:
        yield {"training.optimizer_state_dtype": "bf16"}
    if training.offload is None:
        yield {"training.offload": "optimizer"}
        yield {"training.offload": "activations"}
        yield {"training.offload": "weights"}
    else:
        for word in OFFLOADS:
            if word not in training.offload:
                yield {"training.offload": (*training.offload, word)}


def changed(job: TrainingJob, settings: Settings) -> TrainingJob:
    """The job with other settings.

    Raises:
        ConfigError: they do not fit together.
    """
    values: dict[str, dict[str, object]] = {"parallel": {}, "training": {}}
    for key, value in settings.items():
        table, _, name = key.partition(".")
        values[table][name] = value
    if values["training"].get("recompute") is not None:
        values["training"]["recompute_modules"] = None
    if "dp" in values["parallel"] and job.parallel.zero_group is not None:
        values["parallel"]["zero_group"] = None
    return replace(
        job,
        parallel=replace(job.parallel, **values["parallel"]),  # type: ignore[arg-type]
        training=replace(job.training, **values["training"]),  # type: ignore[arg-type]
    )

"""``find_figures``: what a table of configurations says of each, and nothing else; the same numbers as ``headline``.

Of memory only the fullest rank counts, so that a stage is looked at event by event only where it could raise the peak
of all ranks; where the time goes is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from semu.compile.layout import Layout
from semu.costs.evaluation import Evaluation
from semu.job import TrainingJob
from semu.simulation.checkpoint import prepare
from semu.simulation.data_parallel.gather import ParameterGather
from semu.simulation.data_parallel.step import RankTail
from semu.simulation.memory.peaks import PipelineMemory
from semu.simulation.memory.ranks import resident_memory
from semu.simulation.memory.unsharded import pipeline_unsharded
from semu.simulation.pipeline import PipelineRun
from semu.simulation.results.breakdown import bubble_ratio, count_work
from semu.simulation.results.headline import iteration_time, possible_flop


class Figures(NamedTuple):
    """What ``semu.evaluate`` says of a configuration: times [s], memory of the fullest rank [bytes]."""

    iteration_time_s: float
    mfu: float
    bubble_ratio: float
    peak_memory_bytes: int


def figures_of(job: TrainingJob) -> Figures:
    """The figures of a job, bit by bit those of ``semu.evaluate``.

    Raises:
        ConfigError, ScheduleError: as ``evaluate``.
    """
    checkpoint = prepare(job)
    own, run, tails = checkpoint.run()
    return find_figures(own.layout, own.evaluation, run, tails, own.gathers)


def find_figures(
    layout: Layout,
    evaluation: Evaluation,
    run: PipelineRun,
    tails: list[RankTail],
    gathers: Mapping[int, ParameterGather],
) -> Figures:
    """The figures of a simulated job.

    Args:
        layout, evaluation, run, tails, gathers: as ``headline``.
    """
    iteration = iteration_time(layout.job, run, tails)
    held = pipeline_unsharded(layout, evaluation, run, gathers, [tail.reductions for tail in tails])
    resident = np.array([static.total + workspace for static, workspace in resident_memory(layout)], dtype=np.int64)
    return Figures(
        iteration_time_s=iteration,
        mfu=count_work(layout, evaluation).model_flop / possible_flop(layout.job, iteration),
        bubble_ratio=bubble_ratio(run, int(np.argmax(run.makespan()))),
        peak_memory_bytes=PipelineMemory(layout, evaluation, run, held).fullest(resident),
    )

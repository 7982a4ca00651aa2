"""``find_figures``: what a table of configurations says of each, and nothing else; the same numbers as ``headline``.

Of memory only the fullest rank counts, so that a stage is looked at event by event only where it could raise the peak
of all ranks; where the time goes is not asked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from semu.job import TrainingJob
from semu.simulation.iteration import Iteration
from semu.simulation.memory.peaks import PipelineMemory
from semu.simulation.memory.static import resident_memory
from semu.simulation.memory.unsharded import pipeline_unsharded
from semu.simulation.preparation import prepare
from semu.simulation.results.headlines import possible_flop
from semu.simulation.results.time_breakdown import bubble_ratio, count_work


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
    return find_figures(prepare(job).iteration())


def find_figures(iteration: Iteration) -> Figures:
    """The figures of a simulated iteration."""
    run, time_s = iteration.run, iteration.time_s
    resident = [static.total + workspace for static, workspace in resident_memory(iteration.layout)]
    memory = PipelineMemory(iteration, pipeline_unsharded(iteration))
    return Figures(
        iteration_time_s=time_s,
        mfu=count_work(iteration).model_flop / possible_flop(iteration.job, time_s),
        bubble_ratio=bubble_ratio(run, int(np.argmax(run.makespan()))),
        peak_memory_bytes=memory.fullest(np.array(resident, dtype=np.int64)),
    )

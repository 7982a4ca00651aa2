"""Pipeline schedules as data: ``Schedule`` = order of stages per rank; one file per generator."""

from collections.abc import Callable, Mapping

from semu.schedule.gpipe import gpipe
from semu.schedule.interleaved import interleaved
from semu.schedule.one_f_one_b import one_f_one_b
from semu.schedule.schedule import PipelineShape, Schedule, StageKey

SCHEDULES: Mapping[str, Callable[[PipelineShape], Schedule]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
}
"""Schedule generators by the name that run.toml and the command line use."""

__all__ = ["SCHEDULES", "PipelineShape", "Schedule", "StageKey"]

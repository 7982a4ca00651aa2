"""Pipeline schedules as data: ``Schedule`` = order of stages per rank; one file per generator.

``ALL_SCHEDULES`` holds every schedule (``registry``), ``SCHEDULES`` the generators of Megatron-LM's;
``PipelineStudy`` evaluates any of them on plain numbers, ``draw_grid`` shows one to people, ``files`` reads and writes,
``stage_table`` has a line per stage with times and memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey

if TYPE_CHECKING:
    from semu.schedule.family import ScheduleFamily
    from semu.schedule.files import read_schedule, write_schedule
    from semu.schedule.grid import draw_grid
    from semu.schedule.passes import merge_backward, split_backward
    from semu.schedule.placement import FlowModule, Placement, stage_flow
    from semu.schedule.registry import ALL_SCHEDULES, SCHEDULES
    from semu.schedule.study import PipelineStudy
    from semu.schedule.study import StudyResult as Evaluation

_HOMES = {
    "ALL_SCHEDULES": "registry",
    "Evaluation": "study",
    "FlowModule": "placement",
    "PipelineStudy": "study",
    "Placement": "placement",
    "SCHEDULES": "registry",
    "ScheduleFamily": "family",
    "draw_grid": "grid",
    "merge_backward": "passes",
    "read_schedule": "files",
    "split_backward": "passes",
    "stage_flow": "placement",
    "write_schedule": "files",
}
_CLASSES = {"Evaluation": "StudyResult"}
"""Public names of classes that are called otherwise in their files."""

__all__ = [
    "ALL_SCHEDULES",
    "SCHEDULES",
    "Evaluation",
    "FlowModule",
    "PipelineShape",
    "PipelineStudy",
    "Placement",
    "Schedule",
    "ScheduleFamily",
    "StageKey",
    "draw_grid",
    "is_executed",
    "merge_backward",
    "read_schedule",
    "split_backward",
    "stage_flow",
    "write_schedule",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"semu.schedule.{_HOMES[name]}"), _CLASSES.get(name, name))


def is_executed(name: str) -> bool:
    """Whether a job can run a schedule of this name, in the placement that it needs."""
    from semu.schedule.registry import ALL_SCHEDULES

    return name in ALL_SCHEDULES

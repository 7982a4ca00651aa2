"""Pipeline schedules as data: ``Schedule`` = order of stages per rank; one file per generator, each a table over the
rules (``Priority``, ``Alternate``, ...) that anyone can use; ``separate`` puts weight gradients in bubbles.

``ALL_SCHEDULES`` holds every schedule (``registry``), each also an attribute (``semu.schedule.zb_v(shape)``);
``SCHEDULES`` the generators of Megatron-LM's. ``PipelineStudy`` evaluates any of them on plain numbers, ``draw_grid``
shows one to people, ``files`` reads and writes, ``stage_table`` has a line per stage with times and memory.
"""

from typing import TYPE_CHECKING

from semu.schedule.family import ScheduleFamily
from semu.schedule.files import read_schedule, write_schedule
from semu.schedule.grid import draw_grid
from semu.schedule.passes import merge_backward, split_backward
from semu.schedule.placement import FlowModule, Placement, stage_flow
from semu.schedule.registry import ALL_SCHEDULES, SCHEDULES, is_executed
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.around import Around
from semu.schedule.rules.best_of import BestOf
from semu.schedule.rules.block import Block
from semu.schedule.rules.earliest_start import EarliestStart
from semu.schedule.rules.instructions import Instruction
from semu.schedule.rules.pattern import Pattern
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.separation import Separated, separate
from semu.schedule.rules.sweep import Sweep
from semu.schedule.rules.text import parse_rule, rule_text
from semu.schedule.rules.traversal import Breadth, Depth, Oldest
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy
from semu.schedule.study import StudyResult as Evaluation

__all__ = [
    "ALL_SCHEDULES",
    "SCHEDULES",
    "Alternate",
    "Around",
    "BestOf",
    "Block",
    "Breadth",
    "Depth",
    "EarliestStart",
    "Evaluation",
    "FlowModule",
    "Instruction",
    "Oldest",
    "Pattern",
    "PipelineShape",
    "PipelineStudy",
    "Placement",
    "Priority",
    "Rule",
    "Schedule",
    "ScheduleFamily",
    "Separated",
    "StageKey",
    "Sweep",
    "draw_grid",
    "is_executed",
    "merge_backward",
    "parse_rule",
    "read_schedule",
    "rule_text",
    "separate",
    "split_backward",
    "stage_flow",
    "write_schedule",
]

if not TYPE_CHECKING:  # a type checker knows the names above alone

    def __getattr__(name: str) -> ScheduleFamily:
        """The schedule of a name, ``_`` for ``-``: a function of a pipeline's shape.

        Raises:
            AttributeError: no schedule has it.
        """
        try:
            return ALL_SCHEDULES[name.replace("_", "-")]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None

# The names of ``semu.schedule``, each beside the module that has it. Schedules are attributes too, which type checkers
# do not know.

from semu.schedule.family import ScheduleFamily as ScheduleFamily
from semu.schedule.files import read_schedule as read_schedule
from semu.schedule.files import write_schedule as write_schedule
from semu.schedule.grid import draw_grid as draw_grid
from semu.schedule.passes import merge_backward as merge_backward
from semu.schedule.passes import split_backward as split_backward
from semu.schedule.placement import FlowModule as FlowModule
from semu.schedule.placement import Placement as Placement
from semu.schedule.placement import stage_flow as stage_flow
from semu.schedule.registry import ALL_SCHEDULES as ALL_SCHEDULES
from semu.schedule.registry import SCHEDULES as SCHEDULES
from semu.schedule.registry import is_executed as is_executed
from semu.schedule.rules.alternate import Alternate as Alternate
from semu.schedule.rules.around import Around as Around
from semu.schedule.rules.best_of import BestOf as BestOf
from semu.schedule.rules.block import Block as Block
from semu.schedule.rules.earliest_start import EarliestStart as EarliestStart
from semu.schedule.rules.instructions import Instruction as Instruction
from semu.schedule.rules.pattern import Pattern as Pattern
from semu.schedule.rules.priority import Priority as Priority
from semu.schedule.rules.rule import Rule as Rule
from semu.schedule.rules.separation import Separated as Separated
from semu.schedule.rules.separation import separate as separate
from semu.schedule.rules.sweep import Sweep as Sweep
from semu.schedule.rules.text import parse_rule as parse_rule
from semu.schedule.rules.text import rule_text as rule_text
from semu.schedule.rules.traversal import Breadth as Breadth
from semu.schedule.rules.traversal import Depth as Depth
from semu.schedule.rules.traversal import Oldest as Oldest
from semu.schedule.schedule import Schedule as Schedule
from semu.schedule.shape import PipelineShape as PipelineShape
from semu.schedule.shape import StageKey as StageKey
from semu.schedule.study import PipelineStudy as PipelineStudy
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

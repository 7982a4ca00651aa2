# The names of ``semu``, each beside the module that has it: read by type checkers, and by ``__init__.py`` on first use.
# ``__all__`` is what ``dir(semu)`` shows; the others are shown by their modules.

from semu import baselines as baselines
from semu import engine as engine
from semu import errors as errors
from semu import graph as graph
from semu import hardware as hardware
from semu import masks as masks
from semu import memo as memo
from semu import nn as nn
from semu import parallel as parallel
from semu import schedule as schedule
from semu import workload as workload
from semu.costs.result_cache import ResultCache as ResultCache
from semu.door.assigning import assign as assign
from semu.door.assigning import assignment_study as assignment_study
from semu.door.assigning import workload_study as workload_study
from semu.door.comparing import compare as compare
from semu.door.contexts import context as context
from semu.door.contexts import write_permutations as write_permutations
from semu.door.long_runs import goodput as goodput
from semu.door.searching import compare_schedules as compare_schedules
from semu.door.searching import explore_schedules as explore_schedules
from semu.door.searching import grid as grid
from semu.door.searching import search as search
from semu.door.searching import what_if as what_if
from semu.door.simulating import evaluate as evaluate
from semu.door.simulating import prepare as prepare
from semu.door.simulating import simulate as simulate
from semu.door.templates import pipeline_templates as pipeline_templates
from semu.engine.checkpoint import Checkpoint as Checkpoint
from semu.engine.shapes import ShapeSweep as ShapeSweep
from semu.engine.shapes import sweep as sweep
from semu.engine.simulator import GraphTimeline as GraphTimeline
from semu.engine.simulator import Simulation as Simulation
from semu.engine.simulator import run as run
from semu.engine.span import Span as Span
from semu.engine.timeline import IterationTimeline as IterationTimeline
from semu.engine.timeline import MemoryCurve as MemoryCurve
from semu.errors import ConfigError as ConfigError
from semu.errors import GraphError as GraphError
from semu.errors import ScheduleError as ScheduleError
from semu.errors import SemuError as SemuError
from semu.graph.graph import Graph as Graph
from semu.graph.level import Level as Level
from semu.graph.operator import OpKind as OpKind
from semu.graph.operator import Phase as Phase
from semu.graph.parts import include as include
from semu.graph.subgraph import Replication as Replication
from semu.graph.tensor import Role as Role
from semu.hardware.cluster import Cluster as Cluster
from semu.hardware.kinds import DType as DType
from semu.hardware.kinds import Port as Port
from semu.hardware.kinds import Provenance as Provenance
from semu.job import Precision as Precision
from semu.job import Recompute as Recompute
from semu.job import Training as Training
from semu.job import TrainingJob as TrainingJob
from semu.nn.model import InputSpec as InputSpec
from semu.nn.model import ModalityModule as ModalityModule
from semu.nn.model import ModalityRole as ModalityRole
from semu.nn.model import Model as Model
from semu.nn.trace.block import Input as Input
from semu.nn.trace.block import trace as trace
from semu.parallel.config import Overlap as Overlap
from semu.parallel.config import Parallel as Parallel
from semu.parallel.layout import PipelineLayout as PipelineLayout
from semu.parallel.modules import ModuleParallel as ModuleParallel
from semu.plan.compile import compile_plan as compile_plan
from semu.plan.plan import ExecutionPlan as ExecutionPlan
from semu.present.estimate import Estimate as Estimate
from semu.present.report import Report as Report
from semu.resilience.templates.together import simulate_pipelines as simulate_pipelines
from semu.runfile.resolve import load_run as load_run
from semu.schedule.schedule import Schedule as Schedule
from semu.schedule.stage_plan import StagePlan as StagePlan
from semu.searcher.assignment.assigner import Assigner as Assigner
from semu.searcher.assignment.assignment import Assignment as Assignment
from semu.searcher.grid.result import GridResult as GridResult
from semu.searcher.planner.planner import Planner as Planner
from semu.searcher.report import SearchReport as SearchReport
from semu.simulation import JobCheckpoint as JobCheckpoint

__version__: str

__all__ = [
    "Assigner",
    "Cluster",
    "Estimate",
    "ExecutionPlan",
    "Graph",
    "JobCheckpoint",
    "Model",
    "Parallel",
    "Planner",
    "Report",
    "SemuError",
    "Simulation",
    "Training",
    "TrainingJob",
    "__version__",
    "assign",
    "baselines",
    "compare_schedules",
    "compile_plan",
    "context",
    "evaluate",
    "explore_schedules",
    "goodput",
    "grid",
    "nn",
    "pipeline_templates",
    "prepare",
    "schedule",
    "search",
    "simulate",
    "what_if",
    "workload",
]

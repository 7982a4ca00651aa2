"""semu: how long a training step takes, what it costs in memory, and how to make it shorter; before renting a GPU.

    import semu, semu_models

    job = semu.TrainingJob(
        model=semu_models.vlm_m(),
        cluster=semu.Cluster("h800", nodes=8, gpus_per_node=8),
        parallel=semu.Parallel(dp=8, tp=2, pp=4),
        training=semu.Training(micro_batch=1, global_batch=128, recompute="full"),
        batch=semu.workload.vlm_batch(seed=0),
    )
    print(semu.simulate(job))

Names are imported on first use, so that ``import semu`` costs nothing that is not needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semu import baselines, engine, errors, graph, hardware, nn, parallel, schedule, workload
    from semu.costs.result_cache import ResultCache
    from semu.engine.checkpoint import Checkpoint
    from semu.engine.shapes import ShapeSweep, sweep
    from semu.engine.simulator import GraphTimeline, Simulation, run
    from semu.engine.span import Span
    from semu.engine.timeline import IterationTimeline, MemoryCurve
    from semu.errors import ConfigError, GraphError, ScheduleError, SemuError
    from semu.graph.graph import Graph
    from semu.graph.level import Level
    from semu.graph.operator import OpKind, Phase
    from semu.graph.parts import include
    from semu.graph.subgraph import Replication
    from semu.graph.tensor import Role
    from semu.hardware.cluster import Cluster
    from semu.hardware.kinds import DType, Port, Provenance
    from semu.job import Precision, Recompute, Training, TrainingJob
    from semu.nn.model import InputSpec, ModalityModule, ModalityRole, Model
    from semu.nn.trace.block import Input, trace
    from semu.parallel.config import Overlap, Parallel
    from semu.parallel.layout import PipelineLayout
    from semu.parallel.modules import ModuleParallel
    from semu.plan.compile import compile_plan
    from semu.plan.plan import ExecutionPlan
    from semu.present.estimate import Estimate
    from semu.present.report import Report
    from semu.schedule.schedule import Schedule
    from semu.schedule.stage_plan import StagePlan
    from semu.simulation import JobCheckpoint, prepare, simulate
    from semu.simulation.estimate import evaluate
    from semu.simulation.schedules.comparing import compare_schedules

__version__ = "0.1.0"

_HOMES = {
    "Checkpoint": "semu.engine.checkpoint",
    "Cluster": "semu.hardware.cluster",
    "ConfigError": "semu.errors",
    "DType": "semu.hardware.kinds",
    "Estimate": "semu.present.estimate",
    "ExecutionPlan": "semu.plan.plan",
    "Graph": "semu.graph.graph",
    "GraphError": "semu.errors",
    "GraphTimeline": "semu.engine.simulator",
    "GridResult": "semu.searcher.grid.result",
    "Input": "semu.nn.trace.block",
    "InputSpec": "semu.nn.model",
    "IterationTimeline": "semu.engine.timeline",
    "JobCheckpoint": "semu.simulation",
    "Level": "semu.graph.level",
    "MemoryCurve": "semu.engine.timeline",
    "ModalityModule": "semu.nn.model",
    "ModalityRole": "semu.nn.model",
    "Model": "semu.nn.model",
    "OpKind": "semu.graph.operator",
    "Overlap": "semu.parallel.config",
    "ModuleParallel": "semu.parallel.modules",
    "Parallel": "semu.parallel.config",
    "PipelineLayout": "semu.parallel.layout",
    "Planner": "semu.searcher.planner.planner",
    "Phase": "semu.graph.operator",
    "Port": "semu.hardware.kinds",
    "Precision": "semu.job",
    "Provenance": "semu.hardware.kinds",
    "Recompute": "semu.job",
    "Replication": "semu.graph.subgraph",
    "Report": "semu.present.report",
    "ResultCache": "semu.costs.result_cache",
    "Role": "semu.graph.tensor",
    "Schedule": "semu.schedule.schedule",
    "ScheduleError": "semu.errors",
    "SearchReport": "semu.searcher.report",
    "SemuError": "semu.errors",
    "ShapeSweep": "semu.engine.shapes",
    "Simulation": "semu.engine.simulator",
    "Span": "semu.engine.span",
    "StagePlan": "semu.schedule.stage_plan",
    "Training": "semu.job",
    "TrainingJob": "semu.job",
    "compare_schedules": "semu.simulation.schedules.comparing",
    "compile_plan": "semu.plan.compile",
    "evaluate": "semu.simulation.estimate",
    "prepare": "semu.simulation",
    "run": "semu.engine.simulator",
    "grid": "semu.searcher.grid.grid_search",
    "include": "semu.graph.parts",
    "search": "semu.searcher.job_search",
    "simulate": "semu.simulation",
    "sweep": "semu.engine.shapes",
    "trace": "semu.nn.trace.block",
    "what_if": "semu.searcher.what_if.sensitivity",
}
_MODULES = ("baselines", "engine", "errors", "graph", "hardware", "nn", "parallel", "schedule", "workload")

__all__ = [
    "Checkpoint",
    "Cluster",
    "ConfigError",
    "DType",
    "Estimate",
    "ExecutionPlan",
    "Graph",
    "GraphError",
    "GraphTimeline",
    "GridResult",
    "Input",
    "InputSpec",
    "IterationTimeline",
    "JobCheckpoint",
    "Level",
    "MemoryCurve",
    "ModalityModule",
    "ModalityRole",
    "Model",
    "ModuleParallel",
    "OpKind",
    "Overlap",
    "Parallel",
    "Phase",
    "PipelineLayout",
    "Planner",
    "Port",
    "Precision",
    "Provenance",
    "Recompute",
    "Replication",
    "Report",
    "ResultCache",
    "Role",
    "Schedule",
    "ScheduleError",
    "SearchReport",
    "SemuError",
    "ShapeSweep",
    "Simulation",
    "Span",
    "StagePlan",
    "Training",
    "TrainingJob",
    "__version__",
    "baselines",
    "compare_schedules",
    "compile_plan",
    "engine",
    "errors",
    "evaluate",
    "graph",
    "grid",
    "hardware",
    "include",
    "nn",
    "parallel",
    "prepare",
    "run",
    "schedule",
    "search",
    "simulate",
    "sweep",
    "trace",
    "what_if",
    "workload",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"semu.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'semu' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

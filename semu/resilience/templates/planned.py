"""``compile_pipelines``: the execution plan of pipelines that share a batch, equal or not."""

from __future__ import annotations

from collections.abc import Callable

from semu.plan.compile import compile_plan, compile_views
from semu.plan.joined import join_plans
from semu.plan.plan import ExecutionPlan
from semu.resilience.templates.template_set import PipelineSet, TemplateSet
from semu.resilience.templates.timed import pipeline_job, prepare_views
from semu.resilience.templates.together import JointReport, PipelineResult, simulate_pipelines


def compile_pipelines(
    templates: TemplateSet,
    pipelines: PipelineSet,
    *,
    together: JointReport | None = None,
    progress: Callable[[str], None] | None = None,
) -> ExecutionPlan:
    """Every pipeline's plan, joined into one; ranks and microbatches pipeline after pipeline in the set's order.

    Args:
        templates: where the pipelines come from. pipelines: what ``compose`` or ``of_sizes`` returned.
        together: what ``simulate_pipelines`` says of them; None: it is asked. progress: called with what is done.
    Raises:
        ConfigError: memory strategies that a plan cannot say.
    """
    tell = progress or (lambda _text: None)
    found = together or simulate_pipelines(templates, pipelines, progress=progress)
    plans = {}
    for one in found.pipelines:
        tell(f"compiling a pipeline of {one.template.nodes} nodes, {one.microbatches} microbatches")
        plans[one.template, one.microbatches] = _compiled(templates, one)
    keys = list(zip(pipelines.pipelines, pipelines.microbatches, strict=True))
    return join_plans(
        [plans[key] for key in keys],
        shards=[[stage.gpus for stage in template.stages] for template, _ in keys],
        iteration_time_s=found.iteration_time_s,
    )


def _compiled(templates: TemplateSet, one: PipelineResult) -> ExecutionPlan:
    """The plan of one pipeline alone; a rank is a stage, whatever GPUs it has."""
    stages = one.template.stages
    asked = templates.job, templates.module_of, one.template.nodes, stages, one.microbatches
    sizes = sorted({stage.gpus for stage in stages})
    if len(sizes) == 1:
        return compile_plan(pipeline_job(*asked), estimate=one.report)
    views = prepare_views(*asked)
    gpus = [stage.gpus for stage in stages]
    return compile_views([views[size] for size in sizes], [sizes.index(own) for own in gpus], one.report, gpus)

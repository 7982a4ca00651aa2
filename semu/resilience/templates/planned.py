"""``compile_pipelines``: the execution plan of pipelines that share a batch, equal or not."""

from __future__ import annotations

from collections.abc import Callable

from semu.errors import ConfigError
from semu.plan.compile import compile_plan
from semu.plan.joined import join_plans
from semu.plan.plan import ExecutionPlan
from semu.resilience.templates.template_set import PipelineSet, TemplateSet
from semu.resilience.templates.timed import pipeline_job
from semu.resilience.templates.together import JointReport, simulate_pipelines


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
        ConfigError: stages of different numbers of GPUs in one pipeline; memory strategies that a plan cannot say.
    """
    tell = progress or (lambda _text: None)
    for template in pipelines.pipelines:
        sizes = sorted({one.gpus for one in template.stages})
        if len(sizes) > 1:
            raise ConfigError(
                f"the pipeline of {template.nodes} nodes has stages of {' and '.join(map(str, sizes))} GPUs",
                where="nodes",
                expected="templates whose stages have as many GPUs each; others are simulated, not planned",
            )
    found = together or simulate_pipelines(templates, pipelines, progress=progress)
    plans = {}
    for one in found.pipelines:
        tell(f"compiling a pipeline of {one.template.nodes} nodes, {one.microbatches} microbatches")
        job = pipeline_job(
            templates.job, templates.module_of, one.template.nodes, one.template.stages, one.microbatches
        )
        plans[one.template, one.microbatches] = compile_plan(job, estimate=one.report)
    keys = list(zip(pipelines.pipelines, pipelines.microbatches, strict=True))
    return join_plans(
        [plans[key] for key in keys],
        shards=[template.stages[0].gpus for template, _ in keys],
        iteration_time_s=found.iteration_time_s,
    )

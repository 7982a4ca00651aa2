"""The job that a ``StagePlan`` makes of another one, and what this version does not model under a plan."""

from __future__ import annotations

from dataclasses import replace

from semu.compile.layout import Layout
from semu.errors import ConfigError, ScheduleError
from semu.job import TrainingJob
from semu.parallel.layout import PipelineLayout
from semu.parallel.towers import refuse_towers
from semu.schedule.stage_plan import StagePlan


def planned_job(job: TrainingJob, plan: StagePlan) -> TrainingJob:
    """The job with the chunks, and in place of its schedule's name the orders, that a plan brings; then sends overlap
    unless the job says otherwise, as under every schedule from a file.

    Raises:
        ScheduleError: chunks that are not pp x K_i. ConfigError: what this version does not model under a plan.
    """
    _refuse(job, plan)
    if (plan.orders is not None or plan.layers is not None) and job.training.schedule_file is None:
        name = plan.orders.name if plan.orders is not None else ""
        job = replace(job, training=replace(job.training, schedule_file=name or "plan"))
    if plan.layers is None:
        return job
    pp = job.parallel.pp
    for name, counts in plan.layers.items():
        if len(counts) % pp or not counts:
            raise ScheduleError(
                "not as many chunks on every rank",
                where=f"plan.layers.{name}",
                expected=f"a multiple of pp = {pp}",
                got=len(counts),
                nearest=max(len(counts) // pp, 1) * pp,
            )
    vpp = sum(map(len, plan.layers.values())) // pp
    layout = PipelineLayout(modules=dict(plan.layers))
    return replace(job, parallel=replace(job.parallel, vpp=vpp, layout=layout, segments="mixed", shares={}))


def _refuse(job: TrainingJob, plan: StagePlan) -> None:
    """Say no to what this version would get wrong under a plan."""
    parallel, training = job.parallel, job.training
    if parallel.spreads_vocabulary:
        raise ConfigError(
            "a plan for a vocabulary that is split over the pipeline is not modelled by this version",
            where="parallel.vocabulary",
            expected="ends, or a named schedule",
            got=parallel.vocabulary,
            nearest="ends",
        )
    if plan.layers is not None or plan.parts or any(plan.variants):
        refuse_towers(parallel, "a plan of chunks, sub-microbatches or variants")
    if parallel.copies > 1:
        raise ConfigError(
            "a plan for a bidirectional placement is not modelled by this version",
            where="parallel.placement",
            expected="circular, or a schedule file without sub-microbatches and variants (text or .csv)",
            got=parallel.placement,
            nearest="circular",
        )
    is_cut, has_variants = bool(plan.parts), any(plan.variants)
    if not (is_cut or has_variants):
        return
    what = "sub-microbatches" if is_cut else "variants of chunks"
    options: tuple[str, ...] = ("recompute_layers", "recompute_every", "recompute_policy")
    options += ("offload_layers", "offload_fraction") if has_variants else ()
    given = {name: getattr(training, name) for name in options}
    for where, expected, got, is_bad in (
        ("parallel.zero", "0 or 1", parallel.zero, parallel.zero > 1),
        ("parallel.modules", "one parallelism for all modules", ", ".join(parallel.modules), bool(parallel.modules)),
        ("parallel.placement", "circular", parallel.placement, parallel.placement != "circular"),
        ("overlap.expert_parallel", "false", True, job.hides_exchanges),
        ("training.launch", "false", training.launches, training.launches),
        ("training.offload", "no offloaded weights", "weights", training.offload_plan.weights),
        *((f"training.{name}", "nothing", value, value is not None) for name, value in given.items()),
        ("model", "a model whose losses stay within a replica", "contrastive", job.model.reads_replicas),
    ):
        if is_bad:
            raise ConfigError(
                f"{what} are not modelled with this by this version", where=where, expected=expected, got=got
            )


def refuse_split(layout: Layout, schedule: str = "") -> None:
    """Backwards under a plan are whole; ``schedule``: the one that splits them, named where 1F1B is no way out."""
    if layout.recipe.plan is not None:
        named = schedule if layout.job.parallel.placement != "circular" else ""
        raise ConfigError(
            (f"the schedule {named!r}: " if named else "")
            + "split backwards under a plan of sub-microbatches and variants are not modelled by this version",
            where="training.schedule",
            expected="a schedule with whole backwards" + (", or no plan" if named else ""),
            got=named or "split backwards",
            nearest=None if named else "1f1b",
        )


def refuse_contention(layout: Layout) -> None:
    """Transfers under a plan run as if alone."""
    if layout.recipe.plan is not None:
        raise ConfigError(
            "shared links under a plan of sub-microbatches and variants are not modelled by this version",
            where="contention",
            expected="false",
            got=True,
            nearest=False,
        )

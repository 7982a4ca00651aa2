"""``assignment_page``: methods of assignment on one page; ``workload_page``: what samples ask of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semu.present.page import Column, Page
from semu.present.page.results import add_timelines
from semu.units import GIB, format_time

if TYPE_CHECKING:
    from semu.searcher.assignment.study import AssignmentStudy
    from semu.searcher.assignment.workload import WorkloadStudy

MOST_LOADS = 200_000
"""Microbatches of all methods and modules whose loads are drawn."""


def assignment_page(study: AssignmentStudy) -> Page:
    """Methods as bars and a table, what every microbatch weighs under each, the best one's pipeline."""
    best, modules = study.best, study.costs.modules
    page = Page(
        f"Assigned: {len(best.ids):,} samples to {best.dp} replicas x {best.num_microbatches} microbatches",
        [f"{best.job.model.name} on {best.job.cluster.label()}; iteration {study.iteration} of {study.source.path}"],
    )
    methods = study.to_json()["methods"]
    page.add_bars(
        "Iteration by method",
        [(own["method"], own["iteration_time_s"], format_time(own["iteration_time_s"])) for own in methods],
    )
    rows = [
        {
            **own,
            **{f"balance of {name}": own["balance"][name] for name in modules},
            **{f"bound of {name}": own["balance_bound"][name] for name in modules},
            "fits": "yes" if own["fits"] else "no",
        }
        for own in methods
    ]
    columns = (
        Column("method", "method"),
        Column("iteration_time_s", "iteration [s]", 4, is_bar=True),
        Column("fitted_pipeline_s", "fitted pipeline [s]", 4),
        Column("bound_s", "its bound [s]", 4),
        *(Column(f"balance of {name}", f"{name} max/mean", 3) for name in modules),
        *(Column(f"bound of {name}", f"{name} at least", 3) for name in modules),
        Column("replica_balance", "replicas max/mean", 3),
        Column("microbatches", "microbatches", 0),
        Column("deferred", "deferred", 0),
        Column("peak_memory_bytes", "peak [GiB]", 2, GIB),
        Column("fits", "fits"),
        Column("seconds", "took [s]", 3),
    )
    page.add_table("Methods", rows, columns)
    _add_loads(page, study)
    _add_microbatches(page, study)
    add_timelines(page, [(best.method, best.checkpoint.report().timeline)], f"as {best.method} assigns them")
    page.add_list("Cannot assign these", [f"{row.name}: {row.refused}" for row in study.rows if row.found is None])
    return page


def _add_loads(page: Page, study: AssignmentStudy) -> None:
    """Loads of microbatches as squares: methods with as many microbatches as the best one, a module at a time."""
    best, modules = study.best, study.costs.modules
    size = best.dp * best.num_microbatches
    alike = [found for _, found in study.able if found.num_microbatches == best.num_microbatches]
    shown = alike[: max(1, MOST_LOADS // (size * len(modules)))]
    panels = [
        {"name": f"{found.method}: {name}", "of": page.arrays.add(found.module_loads(name, found.dealt), "f4")}
        for found in shown
        for name in modules
    ]
    data = {
        "what": "load of",
        "unit": "s",
        "panels": panels,
        "rows": {"name": "replica", "count": best.dp},
        "columns": {"name": "microbatch", "count": best.num_microbatches},
    }
    said = "; ".join(f"{name}: heaviest over mean {value:.3f}" for name, value in best.balance.items())
    others = [found.method for _, found in study.able if found not in shown]
    note = "forward and backward of a module, under fitted costs; a row per replica, a column per microbatch"
    page.add_chart(
        "Loads of the microbatches",
        "matrix",
        data,
        said,
        note + (f"; not shown: {', '.join(others)}" if others else ""),
    )


def _add_microbatches(page: Page, study: AssignmentStudy) -> None:
    best, loads = study.best, study.best.loads_s
    rows = [
        {
            "replica": replica,
            "microbatch": number,
            "samples": len(best.readers(replica, number)),
            "tokens": int(best.samples.lengths[best.readers(replica, number)].sum()),
            "loss": float(best.loss_weights[replica, number]),
            **{f"load of {name}": of[replica][number] for name, of in loads.items()},
        }
        for replica in range(best.dp)
        for number in range(best.num_microbatches)
    ]
    columns = (
        Column("replica", "replica", 0),
        Column("microbatch", "microbatch", 0),
        Column("samples", "samples", 0),
        Column("tokens", "tokens", 0, is_bar=True),
        *(Column(f"load of {name}", f"{name} [s]", 4) for name in loads),
        Column("loss", "loss weight", 4),
    )
    page.add_table(f"Microbatches as {best.method} has them", rows, columns)


def workload_page(study: WorkloadStudy) -> Page:
    """Shares of the work as bars, GPUs now and in proportion, how draws of batches agree, and how well costs fit."""
    document, name = study.to_json(), study.costs.checkpoint.layout.job.model.name
    page = Page(
        f"Workload: {document['count']:,} samples for {name}",
        [str(study.source.path), *([document["warning"]] if document["warning"] else [])],
    )
    wanted = " : ".join(f"{own['wanted_gpus']} {own['module']}" for own in document["modules"])
    facts = [
        ("GPUs", f"{study.gpus} in a replica; in proportion to all samples' work {wanted}"),
        ("b_min", f"{document['b_min']:,} samples" if document["converged"] else "not found: draws go on differing"),
        ("confidence", f"{1 - document['alpha']:.0%} that at most {document['error']:.0%} of batches differ"),
        ("iteration", f"{document['global_batch']:,} samples"),
    ]
    if (near := document["nearest_breakpoint"]) is not None:
        facts.append(("next change", f"where the work of {near['module']} is {near['factor']:.3f} times as much"))
    page.add_facts("At a glance", facts)
    page.add_bars(
        "Share of the work",
        [(own["module"], own["share"], f"{own['share']:.1%} of the work") for own in document["modules"]],
        "stages of all pipeline ranks, forward and backward, under fitted costs",
    )
    columns = (
        Column("module", "module"),
        Column("share", "share of work [%]", 1, 0.01, is_bar=True),
        Column("gpus", "GPUs now", 2),
        Column("wanted_gpus", "GPUs in proportion", 0),
        Column("mean_s", "mean of a sample [ms]", 3, 1e-3),
        Column("largest_s", "largest sample [ms]", 3, 1e-3),
    )
    page.add_table("Modules", document["modules"], columns)
    trials = [
        {**trial, "seen": ", ".join(":".join(map(str, one)) for one in trial["seen"])} for trial in document["trials"]
    ]
    drawn = (
        Column("samples", "samples of a batch", 0),
        Column("trials", "draws", 0),
        Column("share", "same [%]", 1, 0.01, is_bar=True),
        Column("seen", f"allocations drawn ({':'.join(study.modules)})"),
    )
    page.add_table("Draws of batches", trials, drawn)
    return page

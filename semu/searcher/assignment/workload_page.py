"""``workload_page``: what samples ask of modules on one page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semu.present.page import Column, Page

if TYPE_CHECKING:
    from semu.searcher.assignment.workload import WorkloadStudy


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
    columns = (
        Column("samples", "samples of a batch", 0),
        Column("trials", "draws", 0),
        Column("share", "same [%]", 1, 0.01, is_bar=True),
        Column("seen", f"allocations drawn ({':'.join(study.modules)})"),
    )
    page.add_table("Draws of batches", trials, columns)
    return page

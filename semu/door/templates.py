"""``pipeline_templates`` of a job or a run, and what is written of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from semu.door.runs import of_runs
from semu.files import make_folder, write_file, write_text
from semu.resilience.templates import making
from semu.resilience.templates.template_set import PipelineSet, PipelineTemplate, TemplateSet
from semu.resilience.templates.together import JointReport

_MOST_KINDS = 6
"""Kinds of pipelines in a picture, the largest first."""
pipeline_templates = of_runs(making.pipeline_templates)


def save_templates(
    found: TemplateSet, composed: PipelineSet | None, together: JointReport | None, folder: str | os.PathLike[str]
) -> list[Path]:
    """Write ``templates.json``, ``templates.png``, ``report.html``; of a composition ``pipelines.png``, of its
    iteration ``iteration.png`` and ``trace.json.gz``, a Chrome trace of all pipelines; the files.

    Raises:
        ConfigError: a folder or a file that cannot be written.
    """
    from semu.present.plots.templates import PipelineRow, draw_pipelines, draw_together
    from semu.present.traces import write_trace
    from semu.resilience.pages import templates_page

    path, per_node = make_folder(Path(folder)), found.job.cluster.gpus_per_node
    document = found.to_json() | ({} if composed is None else {"composition": composed.to_json()})
    if together is not None:
        document["simulated"] = together.to_json()
    table = path / "templates.json"
    write_text(table, json.dumps(document, indent=2, allow_nan=False) + "\n")

    def _row(one: PipelineTemplate, note: str) -> PipelineRow:
        stages, gpu = [], 0
        for stage in one.stages:
            stages.append((stage.first, stage.last, gpu // per_node))
            gpu += stage.gpus
        return PipelineRow(f"{one.nodes} nodes", tuple(stages), note)

    title = f"{found.title}: pipeline templates"
    rows = [_row(one, f"{one.speed.period_s:.3g} s a microbatch") for one in found.templates]
    about = f"{found.faults} failures at once, {found.fewest_nodes} to {found.nodes} nodes"
    files = [table, write_file(path / "templates.png", lambda file: draw_pipelines(file, title, about, rows))]
    if composed is not None:
        dealt = zip(composed.pipelines, composed.microbatches, composed.times_s, strict=True)
        pipelines = [_row(one, f"{m} microbatches, {time:.3g} s") for one, m, time in dealt]
        said = f"{composed.nodes} nodes: an iteration takes {composed.iteration_s:.4g} s"
        files.append(
            write_file(path / "pipelines.png", lambda file: draw_pipelines(file, found.title, said, pipelines[:40]))
        )
    if together is not None:
        named = [
            (f"{one.count} x {one.template.nodes} nodes, {one.microbatches} microbatches each", one.report.timeline)
            for one in together.pipelines[:_MOST_KINDS]
        ]
        said = f"an iteration takes {together.iteration_time_s:.4g} s, MFU {together.mfu:.1%}"
        files.append(write_file(path / "iteration.png", lambda file: draw_together(file, found.title, said, named)))
        write_trace(path / "trace.json.gz", together.timeline(), title=found.title, metadata=document["simulated"])
        files.append(path / "trace.json.gz")
    return [*files, templates_page(found, composed, together).save(path / "report.html")]

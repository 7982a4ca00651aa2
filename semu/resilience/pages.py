"""``goodput_page``, ``templates_page``: long runs and pipeline templates as pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semu.present.page import Column, Page
from semu.present.page.results import add_memory, add_timelines
from semu.present.plots.goodput import RunCurve
from semu.resilience.accounts import Account
from semu.resilience.events import US_PER_S
from semu.resilience.pictures import goodput_picture
from semu.resilience.templates.template_set import PipelineSet, TemplateSet
from semu.resilience.templates.together import JointReport
from semu.units import format_time, format_usd

if TYPE_CHECKING:
    from semu.resilience.report import GoodputReport, StrategyResult

_HOUR_US = 3600 * US_PER_S
_STRATEGIES = (
    Column("name", "strategy"),
    Column("goodput", "goodput [%]", 1, 0.01, is_bar=True),
    Column("low", "5 % of runs below [%]", 1, 0.01),
    Column("high", "95 % below [%]", 1, 0.01),
    Column("gpu_goodput", "per GPU held [%]", 1, 0.01),
    Column("nodes", "nodes", 0),
    Column("every_s", "save every [s]", 0),
    Column("days", "days", 1),
    Column("usd", "USD", 0),
    Column("interruptions", "interruptions", 1),
    Column("saves", "saves", 0),
)
_TEMPLATES = (
    Column("nodes", "nodes", 0),
    Column("stages", "stages", 0),
    Column("period_s", "a microbatch [s]", 4, is_bar=True),
    Column("fill_s", "fill [s]", 4),
    Column("cut", "layers x GPUs of each stage"),
)
_PIPELINES = (
    Column("pipelines", "pipelines", 0),
    Column("nodes", "nodes of each", 0),
    Column("stages", "stages", 0),
    Column("microbatches", "microbatches of each", 0),
    Column("makespan_s", "last stage ends [s]", 4, is_bar=True),
    Column("bubble_ratio", "bubble [%]", 1, 0.01),
    Column("fits", "fits"),
)
_MOST_KINDS = 6


def goodput_page(report: GoodputReport) -> Page:
    """Strategies as a table, where GPU-seconds go, the first run over time, goodput against the time between failures,
    what would help."""
    said = f"one every {report.mtbf_s / 3600.0:.3g} h" if np.isfinite(report.mtbf_s) else "none"
    runs = "1 run" if report.seeds == 1 else f"{report.seeds} runs"
    page = Page(report.title, [f"{report.days:g} days, {runs}; failures: {report.failures} ({said})"])
    ran = [one for one in report.strategies if one.outcomes]
    if ran:
        page.add_facts("At a glance", _answers(report))
        page.add_table("Strategies", [_row(report, one) for one in ran], _STRATEGIES)
        shares = {f"{one.name}, {one.goodput:.1%}": _shares(one.shares()) for one in ran}
        page.add_stacks("Where GPU-seconds go", shares, "shares of wall x GPUs, spares too; means of the runs")
        page.add_table(
            "GPU-hours of the first run",
            [_hours(one) for one in ran],
            [
                Column("name", "strategy"),
                *(Column(what.value, what.value, 1) for what in Account),
                Column("all", "all", 1),
            ],
        )
        _add_runs(page, goodput_picture(report).curves)
    if report.against_mtbf:
        _add_against(page, report.against_mtbf)
    page.add_bars(
        "What would help most",
        [(one.change, one.goodput, f"{one.goodput:.1%}") for one in report.helps],
        f"{report.best.name}, goodput with the change",
    )
    page.add_list("No progress", [f"{one.name}: {one.reason}" for one in report.strategies if one.reason is not None])
    page.add_list("Assumed", report.assumed)
    page.add_list("What strategies do", [f"{one.name}: {one.title}" for one in report.strategies])
    return page


def _answers(report: GoodputReport) -> list[tuple[str, str]]:
    best = report.best
    low, high = best.interval
    found = [("best strategy", best.name), ("goodput", f"{best.goodput:.1%}, 90 % of runs {low:.1%} to {high:.1%}")]
    if report.tokens is not None:
        budget = best.budget(report.tokens, report.gpu_hour_usd)
        days, usd = budget.get("days"), budget.get("usd")
        found.append((f"{report.tokens:,.0f} tokens", "never" if days is None else f"{days:,.1f} days"))
        found += [] if usd is None else [("cost", format_usd(usd))]
    return found


def _row(report: GoodputReport, one: StrategyResult) -> dict[str, object]:
    low, high = one.interval
    budget = {} if report.tokens is None else one.budget(report.tokens, report.gpu_hour_usd)
    every = one.settings.get("memory_every_s", one.settings.get("storage_every_s"))
    counts = {name: one.mean(name) for name in ("interruptions", "saves")}
    own = {"name": one.name, "nodes": one.nodes, "goodput": one.goodput}
    return {**own, "gpu_goodput": one.gpu_goodput, "low": low, "high": high, "every_s": every, **budget, **counts}


def _shares(shares: Mapping[Account, float]) -> dict[str, float]:
    return {what.value: share for what, share in shares.items()}


def _hours(one: StrategyResult) -> dict[str, object]:
    """Of the first run, by account; together wall x GPUs."""
    amounts = {what.value: amount / _HOUR_US for what, amount in one.outcomes[0].gpu_us.items()}
    return {"name": one.name, **amounts, "all": sum(amounts.values())}


def _add_runs(page: Page, curves: Sequence[RunCurve]) -> None:
    """The first run of the best strategies: progress and nodes in windows of equal length."""
    if not curves:
        return
    days = curves[0].days
    speeds = [(one.name, one.speed) for one in curves]
    nodes = [(one.name, one.nodes) for one in curves]
    said = "; ".join(f"{name} {float(speed.mean()):.1%}" for name, speed in speeds)
    note = "over that of the job without failures; work that a failure takes back is taken from where it was done"
    _add_steps(page, "Throughput over time", "throughput", days, speeds, f"mean of the run: {said}", note)
    fewest = "; ".join(f"{name} {int(alive.min())} to {int(alive.max())}" for name, alive in nodes)
    _add_steps(page, "Nodes over time", "nodes alive", days, nodes, fewest, "")


def _add_steps(
    page: Page,
    heading: str,
    name: str,
    days: NDArray[np.float64],
    rows: Sequence[tuple[str, NDArray[Any]]],
    said: str,
    note: str,
) -> None:
    series = [{"name": one, "of": page.arrays.add([*values, values[-1]], "f8"), "isStep": True} for one, values in rows]
    data = {"x": {"name": "day", "of": page.arrays.add(days, "f8")}, "y": {"name": name}, "series": series}
    page.add_chart(heading, "lines", data, said, note)


def _add_against(page: Page, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    hours = [mtbf_s / 3600.0 for mtbf_s, _ in next(iter(curves.values()))]
    series = [{"name": name, "of": page.arrays.add([y for _, y in points], "f8")} for name, points in curves.items()]
    x = {"name": "mean time between failures of the job's nodes [h]", "of": page.arrays.add(hours, "f8"), "isLog": True}
    said = "; ".join(f"{name} {points[0][1]:.1%} to {points[-1][1]:.1%}" for name, points in curves.items())
    data = {"x": x, "y": {"name": "goodput"}, "series": series}
    note = f"{hours[0]:.3g} to {hours[-1]:.3g} h"
    page.add_chart("Goodput against the time between failures", "lines", data, said, note)


def templates_page(found: TemplateSet, composed: PipelineSet | None, together: JointReport | None) -> Page:
    """Templates, what some nodes are composed into, and their iteration on one time axis."""
    page = Page(
        f"{found.title}: pipeline templates",
        [
            f"{found.faults} failures at once of {found.nodes} nodes; any number from {found.fewest_nodes} nodes on "
            f"is used by at least {found.faults + 1} pipelines"
        ],
    )
    if composed is not None:
        facts = [("nodes", str(composed.nodes)), ("pipelines", str(len(composed.pipelines)))]
        if together is not None:
            facts += [("iteration", format_time(together.iteration_time_s)), ("MFU", f"{together.mfu:.1%}")]
            facts += [("waiting for gradients", format_time(together.reduction_s))]
        batch, share = composed.nearby_batch
        if share:
            facts.append(("a better batch", f"{batch:,} samples take {share:.1%} less time each"))
        page.add_facts("At a glance", facts)
    rows = [{**vars(one.speed), "stages": len(one.stages), "cut": one.text()} for one in found.templates]
    page.add_table("Templates", rows, _TEMPLATES)
    if together is not None:
        pipelines = [{**row, "fits": "yes" if row["fits"] else "no"} for row in together.to_dicts()]
        page.add_table("Pipelines", pipelines, _PIPELINES)
        shown = together.pipelines[:_MOST_KINDS]
        add_timelines(page, [(f"{one.count} x {one.template.nodes} nodes", one.report.timeline) for one in shown])
        add_memory(page, shown[0].report)
    return page

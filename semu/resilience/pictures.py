"""What the pictures of a long run show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from semu.present.plots.goodput import GoodputPicture, RunCurve
from semu.resilience.events import US_PER_S

if TYPE_CHECKING:
    from semu.resilience.report import GoodputReport, StrategyResult

_MOST_CURVES = 4
_US_PER_DAY = 86400 * US_PER_S
_WINDOWS = 240


def goodput_picture(report: GoodputReport) -> GoodputPicture:
    """Where GPU-seconds go, and the first run of the best strategies over time."""
    ran = [one for one in report.strategies if one.outcomes]
    ranked = sorted(ran, key=lambda one: -one.gpu_goodput)[:_MOST_CURVES]
    return GoodputPicture(
        report.title,
        f"{report.days:g} days, failures: {report.failures}",
        {f"{one.name} {one.goodput:.1%}": {what.value: share for what, share in one.shares().items()} for one in ran},
        tuple(_curve(one) for one in ranked),
        ran[0].job_nodes if ran else 1,
    )


def _curve(one: StrategyResult) -> RunCurve:
    """Progress in windows of equal length, and nodes alive at the end of each: what a failure takes back is taken from
    the window in which it was done."""
    outcome = one.outcomes[0]
    log, edges = outcome.log, np.linspace(0.0, outcome.wall_us, _WINDOWS + 1)
    done = np.interp(edges, log[:, 0], log[:, 3])
    speed = np.diff(done) * one.iteration_s * US_PER_S / np.diff(edges)
    nodes = log[np.searchsorted(log[:, 0], edges[1:], side="right") - 1, 1]
    return RunCurve(one.name, edges / _US_PER_DAY, speed, nodes)

"""``save_bars``: a log or a trace beside the simulation, as a picture of bars."""

from __future__ import annotations

import os
from pathlib import Path

from semu.files import write_file
from semu.units import GIB
from semu.validation.logs.log_result import LogComparison
from semu.validation.traces.trace_result import TraceComparison

MOST_PAIRS = 30
"""Number of a log's quantities that are drawn."""


def save_bars(result: LogComparison | TraceComparison, path: str | os.PathLike[str]) -> Path:
    """Draw the comparison as a PNG, in seconds and GiB.

    Raises:
        ConfigError: the file cannot be written.
    """
    from semu.present.plots import BarPair, BarPanel, draw_bars

    if isinstance(result, TraceComparison):
        subtitle = result.subject
        kinds = tuple(BarPair(row.family.value, row.busy.measured, row.busy.simulated) for row in result.rows)
        totals = tuple(BarPair(name, both.measured, both.simulated) for name, both in result.totals.items())
        panels = [BarPanel("busy time per iteration [s]", kinds)]
        if result.measured.iteration_s is not None:
            panels.append(BarPanel("time of the iteration [s]", totals))
    else:
        subtitle = f"{result.format} log: median of the iterations after the warm-up"
        panels = []
        for unit, axis, size in (("s", "iteration time [s]", 1.0), ("byte", "memory [GiB]", GIB)):
            pairs = tuple(
                BarPair(
                    one.name.replace(" (", "\n("),
                    one.value / size,
                    None if one.simulated is None else one.simulated / size,
                )
                for one in result.quantities
                if one.unit == unit
            )
            if len(pairs) > MOST_PAIRS:
                subtitle += f"; {axis.partition(' [')[0]}: {MOST_PAIRS} of {len(pairs)} quantities"
            if pairs:
                panels.append(BarPanel(axis, pairs[:MOST_PAIRS]))
    return write_file(Path(path), lambda file: draw_bars(file, panels, title=result.title, subtitle=subtitle))

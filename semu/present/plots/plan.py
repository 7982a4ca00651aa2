"""``draw_plan``: the stages of an execution plan over time, and the messages between its ranks as thin lines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from semu.engine.timeline import IterationTimeline
from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import INK, line_key
from semu.present.plots.timeline import draw_ranks, legend_of

Message: TypeAlias = tuple[int, int, float, float, bool]
"""Rank that sends, rank that receives, start [s], end [s], whether it is a gradient."""
_ACTIVATION, _GRADIENT = "#1F1F1F", "#A3003C"
_EDGES = (0.06, 0.92)
"""Top and bottom of the stages within a rank's row."""


def draw_plan(
    path: str | os.PathLike[str],
    timeline: IterationTimeline,
    messages: Sequence[Message],
    *,
    title: str,
    subtitle: str,
) -> None:
    """Draw a plan as a PNG: every rank's stages as ``draw_timeline`` draws them, and a line for every message, from the
    edge of the rank that sends when it begins to the edge of the rank that receives when it has arrived.

    Args:
        path: the file to make. timeline: stages of all ranks, nothing else. messages: between ranks.
        title, subtitle: headlines.
    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.collections import LineCollection

    num_ranks = len(timeline.ranks)
    height_in = float(np.clip(9.0 / num_ranks, 0.25, 0.9)) * num_ranks
    styles = {False: ("activation sent", _ACTIVATION), True: ("gradient sent", _GRADIENT)}
    lines = {way: [_line(message) for message in messages if message[4] is way] for way in styles}
    sent = {label: line_key(color, linewidth=1.2) for way, (label, color) in styles.items() if lines[way]}
    sheet = make_sheet(height_in, title, subtitle, legend_of(timeline) | sent)
    axes = sheet.axes()
    axes.set_xlim(0, timeline.makespan_s if timeline.makespan_s > 0 else 1)
    draw_ranks(axes, timeline, height_in)
    width = float(np.clip(600.0 / max(len(messages), 1), 0.25, 0.9))
    for way, (_, color) in styles.items():
        drawn = LineCollection(lines[way], colors=[color], linewidths=width, alpha=0.75, zorder=5)
        axes.add_collection(drawn, autolim=False)
    axes.spines["bottom"].set_color(INK)
    sheet.save(path)


def _line(message: Message) -> list[tuple[float, float]]:
    """Both ends of a message; rows go downwards."""
    source, target, begin, end, _ = message
    top, bottom = _EDGES
    leaves, arrives = (bottom, top) if target > source else (top, bottom)
    return [(begin, source + leaves), (end, target + arrives)]

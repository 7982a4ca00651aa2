"""``draw_pipelines``: pipelines of unequal stages, their layers drawn to scale; ``draw_together``: their iterations."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from semu.engine.timeline import IterationTimeline
from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import FONT_SIZE, INK, PALETTE, TEXT, add_boxes, area_key, frame, ink_on, mix
from semu.present.plots.timeline import draw_ranks, legend_of
from semu.records import dataclass

_ROW_IN = 0.44
_RANK_IN, _TITLE_IN, _GAP_IN = 0.34, 0.3, 0.5


@dataclass(frozen=True)
class PipelineRow:
    """A pipeline.

    Attributes:
        label: beside it. stages: (first layer, one behind the last, node) of each. note: behind it.
    """

    label: str
    stages: tuple[tuple[int, int, int], ...]
    note: str = ""


def draw_pipelines(path: str | os.PathLike[str], title: str, subtitle: str, rows: Sequence[PipelineRow]) -> None:
    """Draw pipelines below one another over the layers of the model as a PNG; colours are nodes.

    Args:
        path: the file to make. title, subtitle: headline. rows: pipelines, from top to bottom.
    Raises:
        OSError: the file cannot be written.
    """
    layers = max(last for row in rows for _, last, _ in row.stages)
    sheet = make_sheet(_ROW_IN * len(rows) + 0.2, title, subtitle, {"a stage; colours are nodes": area_key(PALETTE[0])})
    axes = sheet.axes(2.4)
    for number, row in enumerate(rows):
        for first, last, node in row.stages:
            color = mix(PALETTE[node % len(PALETTE)], 0.25 * (node // len(PALETTE) % 3))
            at = (np.array([float(first)]), np.array([float(last)]), np.array([float(number)]))
            add_boxes(axes, *at, (0.12, 0.88), color, 1.0)
            text = f"{last - first}"
            axes.text((first + last) / 2, number + 0.5, text, ha="center", va="center", color=ink_on(color), size=8)
        axes.text(layers * 1.01, number + 0.5, row.note, va="center", color=INK, size=FONT_SIZE - 2)
    axes.set_xlim(0, layers * 1.16)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([number + 0.5 for number in range(len(rows))], [row.label for row in rows])
    frame(axes, "layer")
    sheet.save(path)


def draw_together(
    path: str | os.PathLike[str], title: str, subtitle: str, rows: Sequence[tuple[str, IterationTimeline]]
) -> None:
    """Draw iterations of pipelines below one another on one time axis as a PNG, a row for each rank.

    Args:
        path: the file to make. title, subtitle: headline. rows: what each pipeline is, and its iteration.
    Raises:
        OSError: the file cannot be written.
    """
    heights = [max(0.8, _RANK_IN * len(timeline.ranks)) for _, timeline in rows]
    legend = {name: key for _, timeline in rows for name, key in legend_of(timeline).items()}
    total = sum(heights) + (_GAP_IN + _TITLE_IN) * (len(rows) - 1) + _TITLE_IN
    sheet = make_sheet(total, title, subtitle, legend)
    end_s = max(max(timeline.iteration_time_s, timeline.makespan_s) for _, timeline in rows)
    stacked = sheet.stacked_axes(heights, _GAP_IN + _TITLE_IN, above_in=_TITLE_IN)
    for axes, (label, timeline), height_in in zip(stacked, rows, heights, strict=True):
        axes.set_xlim(0.0, end_s)
        draw_ranks(axes, timeline, height_in)
        axes.set_title(label, size=FONT_SIZE, loc="left", **TEXT)
    sheet.save(path)

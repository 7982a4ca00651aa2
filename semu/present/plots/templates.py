"""``draw_pipelines``: pipelines of unequal stages, their layers drawn to scale."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import FONT_SIZE, INK, PALETTE, add_boxes, area_key, frame, ink_on, mix

_ROW_IN = 0.44


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

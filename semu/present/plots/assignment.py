"""``draw_assignment``: load of every microbatch by module, in the order of the file and as assigned."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import DASHED, FONT_SIZE, INK, PALETTE, area_key, frame, line_key, mix
from semu.records import dataclass

_ROW_IN, _GAP_IN = 1.7, 0.5
_LIGHTER = 0.6


@dataclass(frozen=True, eq=False)
class AssignmentPicture:
    """An assignment and what was before it.

    Attributes:
        title, subtitle: headline. modules: names. method: that assigned.
        before, after: float64[num_modules, num_microbatches of all replicas] [s], forward and backward of each.
    """

    title: str
    subtitle: str
    modules: tuple[str, ...]
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    method: str


def draw_assignment(path: str | os.PathLike[str], picture: AssignmentPicture) -> None:
    """Draw a panel per module as a PNG: microbatches sorted by load, steps in the order of the file behind bars as
    assigned, and the mean as a line.

    Args:
        path: the file to make. picture: what to draw.
    Raises:
        OSError: the file cannot be written.
    """
    legend = {
        picture.method: area_key(PALETTE[0]),
        "order of the file": area_key(mix(PALETTE[1], _LIGHTER)),
        "mean": line_key(INK, **DASHED),
    }
    rows = len(picture.modules)
    sheet = make_sheet(_ROW_IN * rows + _GAP_IN * (rows - 1), picture.title, picture.subtitle, legend)
    stacked = sheet.stacked_axes([_ROW_IN] * rows, _GAP_IN)
    for axes, name, before, after in zip(stacked, picture.modules, picture.before, picture.after, strict=True):
        for values, color in ((before, mix(PALETTE[1], _LIGHTER)), (after, PALETTE[0])):
            heights = np.sort(values)[::-1]
            place = (np.arange(len(heights)) + 0.5) / len(heights)
            axes.bar(place, heights, width=0.8 / len(heights), color=color, linewidth=0)
        axes.axhline(after.mean(), color=INK, **DASHED)
        axes.set(xlim=(0, 1), xticks=[], ylim=(0, 1.08 * max(before.max(), after.max(), 1e-12)))
        said = "microbatches of all replicas, heaviest first" if name == picture.modules[-1] else ""
        frame(axes, said, f"{name} [s]", labelsize=FONT_SIZE - 2)
    sheet.save(path)

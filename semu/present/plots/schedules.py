"""``draw_schedules``: pipeline schedules below one another on one time axis, a row per rank."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.present.plots import style
from semu.present.plots.canvas import DPI, RIGHT_IN, WIDTH_IN, make_sheet
from semu.records import dataclass
from semu.schedule.graph import PipelineGraph
from semu.schedule.phases import PHASES
from semu.schedule.study import StudyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HUES = (style.BLUE, style.VERMILLION, style.GREEN, style.ORANGE)
"""Of F, B, I and W."""
_NAMES = ("forward", "backward", "input gradient", "weight gradient")
_WHITENING = (0.0, 0.5)
"""Mixed into the hue of a rank's first chunk, and of its second; further chunks in turn."""
_IDLE = "#F1F1F1"
_LABEL_IN = 2.3
_GAP_IN = 0.13
_SMALLEST_NUMBER, _LARGEST_NUMBER = 5.0, 8.0


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule in the picture.

    Attributes:
        evaluation: its times. arrays: its pipeline. note: a line under its name, such as its peak memory.
    """

    evaluation: StudyResult
    arrays: PipelineGraph
    note: str = ""


def draw_schedules(path: str | os.PathLike[str], rows: Sequence[ScheduleRow], *, title: str, subtitle: str) -> None:
    """Draw schedules as a PNG.

    Boxes carry the microbatch's number where it fits; a rank's second chunk is lighter; idle time is grey.

    Args:
        path: the file to make. rows: from top to bottom, at least one. title, subtitle: headline.
    Raises:
        OSError: the file cannot be written.
    """
    used = sorted({int(phase) for row in rows for phase in np.unique(row.evaluation.stages % 4)})
    legend = {_NAMES[phase]: style.area_key(_HUES[phase]) for phase in used}
    if any(row.arrays.shape.num_slots > 1 for row in rows):
        legend["second chunk of a rank"] = style.area_key(style.mix("#555555", _WHITENING[1]))
    legend["idle"] = style.area_key(_IDLE)
    ranks = [len(row.evaluation.busy_s) for row in rows]
    rank_in = float(np.clip(12.0 / sum(ranks), 0.07, 0.17))
    heights = [max(rank_in * count, 0.42) for count in ranks]
    sheet = make_sheet(sum(heights) + _GAP_IN * (len(rows) - 1), title, subtitle, legend)
    end_s = max(row.evaluation.makespan_s for row in rows) or 1.0
    stacked = sheet.stacked_axes(heights, _GAP_IN, left_in=_LABEL_IN)
    for axes, row, height_in in zip(stacked, rows, heights, strict=True):
        axes.set(xlim=(0, end_s), ylim=(len(row.evaluation.busy_s), 0))
        _draw_row(axes, row, height_in)
        _draw_frame(axes, row, is_last=row is rows[-1])
    sheet.save(path)


def _draw_row(axes: Axes, row: ScheduleRow, height_in: float) -> None:
    found, ranks = row.evaluation, len(row.evaluation.busy_s)
    rank = np.repeat(np.arange(ranks, dtype=np.float64), np.diff(found.ptr))
    axes.axhspan(0, ranks, facecolor=_IDLE, linewidth=0)
    pixels_per_s = DPI * (WIDTH_IN - _LABEL_IN - RIGHT_IN) / axes.get_xlim()[1]
    widths = (found.end_s - found.start_s) * pixels_per_s
    edge = 0.4 if len(widths) and np.median(widths) > 5 else 0.0
    slot = np.array(row.arrays.shape.chunk_slot, dtype=np.int64)[row.arrays.chunk[found.stages // 4]] % 2
    for phase in range(len(PHASES)):
        for parity in (0, 1):
            chosen = np.flatnonzero((found.stages % 4 == phase) & (slot == parity))
            if not len(chosen):
                continue
            color = style.mix(_HUES[phase], _WHITENING[parity])
            style.add_boxes(axes, found.start_s[chosen], found.end_s[chosen], rank[chosen], (0.04, 0.96), color, edge)
            _draw_numbers(axes, row, chosen, rank, widths, height_in / ranks, color)


def _draw_numbers(
    axes: Axes,
    row: ScheduleRow,
    chosen: NDArray[np.int64],
    rank: NDArray[np.float64],
    widths: NDArray[np.float64],
    rank_in: float,
    color: style.Color,
) -> None:
    parts = row.arrays.part[row.evaluation.stages[chosen] // 4].tolist()
    for at, part in zip(chosen.tolist(), parts, strict=True):
        room = (widths[at] - 1.5) * 72 / DPI / (0.64 * len(str(part)))
        size = min(_LARGEST_NUMBER, 0.72 * rank_in * 72, float(room))
        if size < _SMALLEST_NUMBER:
            continue
        middle = (row.evaluation.start_s[at] + row.evaluation.end_s[at]) / 2
        text = axes.text(middle, rank[at] + 0.54, str(part), size=size, color=style.ink_on(color), family=style.FONT)
        text.set(ha="center", va="center_baseline", parse_math=False)


def _draw_frame(axes: Axes, row: ScheduleRow, *, is_last: bool) -> None:
    found = row.evaluation
    lines = [f"bubble {100 * found.bubble_ratio:.1f} %", *([row.note] if row.note else [])]
    for text, down, size, weight in (
        (found.name, 0.58, style.FONT_SIZE - 0.5, "bold"),
        ("\n".join(lines), 0.54, style.FONT_SIZE - 3.0, "normal"),
    ):
        va = "bottom" if weight == "bold" else "top"
        label = axes.text(-0.012, down, text, size=size, weight=weight, ha="right", va=va, **style.TEXT)
        label.set_transform(axes.transAxes)
    axes.set_yticks([])
    axes.axvline(found.makespan_s, color=style.INK, linewidth=1.0)
    if is_last:
        style.frame(axes, "time [s]", hidden=("top", "right", "left"))
        axes.spines["bottom"].set_color(style.INK)
    else:
        style.frame(axes, hidden=("top", "right", "left", "bottom"))
        axes.set_xticks([])

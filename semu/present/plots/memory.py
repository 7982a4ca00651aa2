"""``draw_memory``: the allocated bytes of every rank over time, by role."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.engine.sampling import pool_step_function
from semu.engine.timeline import IterationTimeline, RankTimeline
from semu.graph.tensor import Role
from semu.present.plots import style
from semu.present.plots.canvas import DPI, WIDTH_IN, Sheet, make_sheet
from semu.units import GIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_ROLE_COLORS = {
    Role.PARAMETER: style.BLUE,
    Role.GRADIENT: style.SKY,
    Role.OPTIMIZER_STATE: "#A9B4BC",
    Role.ACTIVATION: style.ORANGE,
    Role.WORKSPACE: style.VERMILLION,
    Role.COMMUNICATION: style.PINK,
}
"""Static roles cold, others warm."""
_MAX_PANELS = 8
_COLUMNS = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3}
_ROW_IN, _ONLY_ROW_IN = 2.4, 3.6
_GAP_IN, _GUTTER_IN = 0.4, 0.3
"""Room above a panel for its name, and between columns."""
_LABEL_RISE_PT = 6.0
"""From a peak's dot to its label."""


def draw_memory(
    path: str | os.PathLike[str], timeline: IterationTimeline, *, title: str, peak_bytes: Sequence[int] = ()
) -> None:
    """Draw the allocated memory over time as a PNG, a panel per rank, stacked by role.

    Shows at most eight ranks: those with the highest peaks. Each pixel column shows the highest allocation within its
    time, so that no peak is lost. The highest is marked with its size and the stage in which it occurs.

    Args:
        path: the file to make. timeline: what to draw. title: headline.
        peak_bytes: per rank, the peak of the replica that is fullest there, as reports give it; the timeline is of the
            slowest replica, so a line marks it where it is higher. Empty: the timeline's own.
    Raises:
        OSError: the file cannot be written.
    """
    memory_sheet(timeline, title, peak_bytes).save(path)


def memory_sheet(timeline: IterationTimeline, title: str, peak_bytes: Sequence[int] = ()) -> Sheet:
    """What ``draw_memory`` writes, as a sheet."""
    own = {rank.rank: rank.peak.size_bytes for rank in timeline.ranks}
    peaks = own | dict(zip(own, peak_bytes, strict=True)) if peak_bytes else own
    chosen = sorted(timeline.ranks, key=lambda rank: (-peaks[rank.rank], rank.rank))[:_MAX_PANELS]
    ranks = sorted(chosen, key=lambda rank: rank.rank)
    num_columns = _COLUMNS.get(len(ranks), 4)
    num_rows = -(-len(ranks) // num_columns)
    height_in = num_rows * ((_ONLY_ROW_IN if num_rows == 1 else _ROW_IN) + _GAP_IN)
    legend = _legend(ranks)
    if any(peaks[rank.rank] > own[rank.rank] for rank in ranks):
        legend["peak of the fullest replica"] = style.line_key(style.INK, **style.DOTTED)
    sheet = make_sheet(height_in, title, _subtitle(timeline, ranks, peaks), legend)
    panels = _panels(sheet, num_rows, num_columns, len(ranks))
    end_s = timeline.iteration_time_s if timeline.iteration_time_s > 0 else 1.0
    top_gib = 1.18 * max(max(peaks[rank.rank], rank.memory.capacity_bytes) for rank in ranks) / GIB
    for position, (axes, rank) in enumerate(zip(panels, ranks, strict=True)):
        axes.set(xlim=(0, end_s), ylim=(0, top_gib))
        _draw_curve(axes, rank, end_s, round(axes.get_position().width * WIDTH_IN * DPI))
        points_per_gib = axes.get_position().height * sheet.height_in * 72 / top_gib
        _mark_peak(axes, rank, end_s, points_per_gib, peaks[rank.rank])
        is_lowest = position + num_columns >= len(ranks)
        _draw_frame(axes, rank, is_lowest=is_lowest, is_leftmost=position % num_columns == 0)
    return sheet


def _subtitle(timeline: IterationTimeline, ranks: list[RankTimeline], peaks: dict[int, int]) -> str:
    highest = max(timeline.ranks, key=lambda rank: peaks[rank.rank])
    text = f"peak {format_bytes(peaks[highest.rank])} on rank {highest.rank}"
    if any(peaks[rank.rank] > rank.peak.size_bytes for rank in timeline.ranks):
        text += " of the fullest replica, curves of the slowest"
    capacities = {rank.memory.capacity_bytes for rank in ranks}
    if len(capacities) == 1:
        text += f"  ·  capacity {format_bytes(capacities.pop())}"
    if len(ranks) < len(timeline.ranks):
        text += f"  ·  the {len(ranks)} fullest of {len(timeline.ranks)} ranks"
    return text


def _legend(ranks: list[RankTimeline]) -> dict[str, Artist]:
    """The roles that hold anything on any of the ranks, in the order of the enum, capacity and peak."""
    held = {
        role for rank in ranks for role, row in zip(rank.memory.roles, rank.memory.by_role, strict=True) if row.any()
    }
    roles = {role.value: style.area_key(_ROLE_COLORS[role]) for role in Role if role in held}
    return roles | {
        "capacity": style.line_key(style.LIMIT, **style.DASHED),
        "peak": style.dot_key(style.INK, markersize=4.5),
    }


def _panels(sheet: Sheet, num_rows: int, num_columns: int, count: int) -> list[Axes]:
    """Axes row by row, each with a gap above it."""
    left, bottom, width, height = sheet.box
    gap, gutter = _GAP_IN / sheet.height_in, _GUTTER_IN / WIDTH_IN
    cell_width, cell_height = (width + gutter) / num_columns, height / num_rows
    panels = []
    for position in range(count):
        row, column = divmod(position, num_columns)
        corner = (left + column * cell_width, bottom + (num_rows - 1 - row) * cell_height)
        panels.append(sheet.figure.add_axes((*corner, cell_width - gutter, cell_height - gap)))
    return panels


def _draw_curve(axes: Axes, rank: RankTimeline, end_s: float, width_pixels: int) -> None:
    """Areas on top of each other; the highest is drawn first and covered by the next, which leaves no seams.

    Each pixel column shows the moment at which most was allocated: an exact area would wash out what is shorter.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    memory = rank.memory
    edges_s = np.linspace(0, end_s, width_pixels + 1)
    x = np.repeat(edges_s, 2)
    kept = pool_step_function(memory.times_s, memory.total, edges_s)
    rows = dict(zip(memory.roles, memory.by_role[:, kept], strict=True))
    level: NDArray[np.int64] = np.zeros(len(kept), dtype=np.int64)
    levels = []
    for role in Role:
        if role in rows and rows[role].any():
            level = level + rows[role]
            levels.append((role, level / GIB))
    for role, heights_gib in reversed(levels):
        # A path of its own: axes.stairs measures every segment for autoscaling, axes.fill_between is half a pixel off.
        corners = np.stack((x, np.concatenate(([0.0], np.repeat(heights_gib, 2), [0.0]))), axis=1)
        axes.add_artist(PathPatch(Path(corners), facecolor=_ROLE_COLORS[role], linewidth=0))
    axes.axhline(memory.capacity_bytes / GIB, color=style.LIMIT, **style.DASHED)


def _mark_peak(axes: Axes, rank: RankTimeline, end_s: float, points_per_gib: float, fullest_bytes: int) -> None:
    """A dot with the peak's size and stage, written towards the middle of the panel and clear of the capacity line;
    where the fullest replica's peak is higher, a line there, and its size in place of the curve's."""
    peak = rank.peak
    share = peak.time_s / end_s
    height_gib, capacity_gib = peak.size_bytes / GIB, rank.memory.capacity_bytes / GIB
    label = f"{format_bytes(peak.size_bytes)} in {peak.stage}" if peak.stage else format_bytes(peak.size_bytes)
    axes.plot([peak.time_s], [height_gib], color=style.INK, marker="o", markersize=4.5, zorder=4)
    if fullest_bytes > peak.size_bytes:
        height_gib, share, label = fullest_bytes / GIB, 0.5, f"{format_bytes(fullest_bytes)} in the fullest replica"
        axes.axhline(height_gib, color=style.INK, zorder=4, **style.DOTTED)
    line_pt = (capacity_gib - height_gib) * points_per_gib
    rise_pt = line_pt + 4 if 0 <= line_pt < _LABEL_RISE_PT + 1.3 * style.FONT_SIZE else _LABEL_RISE_PT
    axes.annotate(
        label,
        (share * end_s, height_gib),
        xytext=(0, rise_pt),
        textcoords="offset points",
        ha="left" if share < 0.25 else "right" if share > 0.75 else "center",
        va="bottom",
        size=style.FONT_SIZE - 0.5,
        zorder=5,
        parse_math=False,
        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0},
        **style.TEXT,
    )


def _draw_frame(axes: Axes, rank: RankTimeline, *, is_lowest: bool, is_leftmost: bool) -> None:
    """Name, ticks and labels; inner panels have ticks without numbers."""
    axes.set_title(f"rank {rank.rank} (gpu {rank.gpu})", loc="left", size=style.FONT_SIZE, pad=5, **style.TEXT)
    across, up = "time [s]" if is_lowest else "", "allocated [GiB]" if is_leftmost else ""
    style.frame(axes, across, up, labelsize=style.FONT_SIZE - 1, labelbottom=is_lowest, labelleft=is_leftmost)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(style.INK)

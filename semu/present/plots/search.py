"""Pictures of a search: two timelines on one axis, memory of the fullest rank, best makespan over time."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from semu.engine.timeline import IterationTimeline
from semu.present.plots.canvas import DPI, LEFT_IN, RIGHT_IN, WIDTH_IN, make_sheet
from semu.present.plots.style import (
    BLUE,
    DASHED,
    DOTTED,
    FONT_SIZE,
    INK,
    LIMIT,
    TEXT,
    VERMILLION,
    dot_key,
    frame,
    line_key,
)
from semu.present.plots.timeline import bubble_text, draw_ranks, legend_of
from semu.units import GIB, format_bytes, format_time

_HUES = (VERMILLION, BLUE)
"""Before and after."""
_GAP_IN = 0.42


def draw_timelines(
    path: str | os.PathLike[str], timelines: Sequence[tuple[str, IterationTimeline]], *, title: str
) -> None:
    """Draw iterations below one another on one time axis as a PNG, as ``draw_timeline`` draws one.

    Args:
        path: the file to make. timelines: name and iteration, from top to bottom. title: headline.
    Raises:
        OSError: the file cannot be written.
    """
    ends = [max(own.iteration_time_s, own.makespan_s) for _, own in timelines]
    heights = [float(np.clip(5.5 / len(own.ranks), 0.2, 0.6)) * len(own.ranks) for _, own in timelines]
    legend = {label: key for _, own in timelines for label, key in legend_of(own).items()}
    said = "  ·  ".join(f"{name} {format_time(own.iteration_time_s)}" for name, own in timelines)
    sheet = make_sheet(sum(heights) + _GAP_IN * len(timelines), title, f"iteration: {said}", legend)
    stacked = sheet.stacked_axes(heights, _GAP_IN, above_in=_GAP_IN)
    for axes, (name, own), height_in in zip(stacked, timelines, heights, strict=True):
        axes.set_xlim(0, max(ends) or 1.0)
        draw_ranks(axes, own, height_in)
        axes.axvspan(max(own.iteration_time_s, own.makespan_s), max(ends), color="white", linewidth=0, zorder=10)
        axes.set_title(f"{name}{bubble_text(own)}", loc="left", size=FONT_SIZE, pad=3, **TEXT)
        if axes is not stacked[-1]:
            axes.set_xlabel("")
            axes.tick_params(axis="x", labelbottom=False)
    sheet.save(path)


def draw_fullest(
    path: str | os.PathLike[str],
    timelines: Sequence[tuple[str, IterationTimeline]],
    *,
    limit_bytes: int,
    title: str,
    peak_bytes: Sequence[Sequence[int]] = (),
) -> None:
    """Draw the allocated memory of each iteration's fullest rank over time as a PNG.

    Each pixel column shows the highest allocation within its time, so that no peak is lost.

    Args:
        path: the file to make. timelines: name and iteration, two at most. limit_bytes: of a rank. title: headline.
        peak_bytes: of each iteration, per rank, the peak of the replica that is fullest there; the timelines are of the
            slowest replica, so a line marks it where it is higher. Empty: the timelines' own.
    Raises:
        OSError: the file cannot be written.
    """
    highest = [list(own) for own in peak_bytes] or [[r.peak.size_bytes for r in own.ranks] for _, own in timelines]
    ranks = [own.ranks[most.index(max(most))] for (_, own), most in zip(timelines, highest, strict=True)]
    names = [name for name, _ in timelines]
    legend = {f"{name}, rank {rank.rank}": line_key(hue) for name, rank, hue in zip(names, ranks, _HUES, strict=False)}
    legend["limit"] = line_key(LIMIT, **DASHED)
    peaks = [f"{name} {format_bytes(max(most))}" for name, most in zip(names, highest, strict=True)]
    marked = [max(most) > rank.peak.size_bytes for most, rank in zip(highest, ranks, strict=True)]
    if any(marked):
        legend["peak of the fullest replica (curves: the slowest)"] = line_key(INK, **DOTTED)
    sheet = make_sheet(3.6, title, "highest allocation: " + "  ·  ".join(peaks), legend)
    axes = sheet.axes()
    end_s = max(own.iteration_time_s for _, own in timelines) or 1.0
    pixels = round((WIDTH_IN - LEFT_IN - RIGHT_IN) * DPI)
    edges = np.linspace(0, end_s, pixels + 1)
    for most, is_marked, hue in zip(highest, marked, _HUES, strict=False):
        if is_marked:
            axes.axhline(max(most) / GIB, color=hue, **DOTTED)
    for (_, own), rank, hue in zip(timelines, ranks, _HUES, strict=False):
        drawn = rank.highest_memory(edges)
        inside = edges[:-1] < own.iteration_time_s
        axes.step(edges[:-1][inside], drawn.total[inside] / GIB, color=hue, linewidth=1.2, where="post")
    axes.axhline(limit_bytes / GIB, color=LIMIT, **DASHED)
    axes.set_xlim(0, end_s)
    axes.set_ylim(0, 1.08 * max([limit_bytes, *map(max, highest)]) / GIB)
    frame(axes, "time [s]", "allocated [GiB]")
    sheet.save(path)


def draw_curve(
    path: str | os.PathLike[str],
    points: Sequence[tuple[float, float]],
    *,
    end: tuple[float, float],
    bound_s: float,
    title: str,
    in_seconds: bool = True,
) -> None:
    """Draw the best makespan over the time of a search as a PNG, with the lower bound.

    Args:
        path: the file to make. points: seconds since the search began and makespan [s] of every incumbent.
        end: when the search ended, and the makespan of its result [s]. bound_s: lower bound [s]; 0: there is none.
        title: headline. in_seconds: False: rollouts and moves tried stand in place of seconds, which differ every time.
    Raises:
        OSError: the file cannot be written.
    """
    found = [(at, value) for at, value in points if np.isfinite(value)]
    legend = {"best makespan": line_key(BLUE), "result, simulated in full": dot_key(BLUE, markersize=5)}
    said = f"{format_time(end[1])} after " + (
        format_time(end[0]) if in_seconds else f"{end[0]:,.0f} rollouts and moves"
    )
    if bound_s > 0:
        legend["lower bound"] = line_key(INK, **DASHED)
        said += f"  ·  {100 * (end[1] / bound_s - 1):.2f} % above the lower bound {format_time(bound_s)}"
    sheet = make_sheet(3.6, title, said, legend)
    axes = sheet.axes()
    times = [at for at, _ in found] + [max([end[0], *(at for at, _ in found)])]
    values = [value for _, value in found] + [found[-1][1] if found else end[1]]
    axes.step(times, values, color=BLUE, linewidth=1.6, where="post")
    axes.plot([times[-1]], [end[1]], color=BLUE, marker="o", markersize=5, clip_on=False)
    if bound_s > 0:
        axes.axhline(bound_s, color=INK, **DASHED)
    axes.set_xlim(0, times[-1] or 1.0)
    low, high = min([*values, end[1], bound_s or end[1]]), max([*values, end[1]])
    room = 0.08 * (high - low) or 0.05 * high or 1.0
    axes.set_ylim(low - room, high + room)
    frame(axes, "time of the search [s]" if in_seconds else "rollouts and moves tried", "makespan [s]")
    sheet.save(path)

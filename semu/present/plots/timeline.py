"""``draw_timeline``: the stages of every rank over time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from semu.engine.timeline import IterationTimeline, OuterSlice, StageSlice
from semu.graph.operator import OpKind, Phase
from semu.present.plots import style
from semu.present.plots.canvas import DPI, LEFT_IN, RIGHT_IN, WIDTH_IN, Sheet, make_sheet
from semu.records import dataclass
from semu.units import format_time

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_Span: TypeAlias = tuple[int, float, float]
"""Row, start [s], end [s]."""

_MODULE_HUES = (style.BLUE, style.VERMILLION, style.GREEN, style.PINK, style.ORANGE, "#7A5C3E")
"""The palette without its lightest colours, then a brown."""
_WHITENING = {Phase.FORWARD: 0.6, Phase.WEIGHT_GRADIENT: -0.35}
"""What is mixed into a module's hue; other phases show the hue itself."""
_IDLE_LOOK: Mapping[str, Any] = {"edgecolor": "#D4D4D4", "linewidth": 0, "hatch": "////"}
_IDLE_FACE = "#F8F8F8"
_PIPELINE_END: Mapping[str, Any] = {"linewidth": 1.1, "linestyle": (0, (4, 3))}
_TRANSFER, _DATA_PARALLEL, _OUTER_COMPUTE = "#3A3A3A", "#B8860B", "#555555"
_SMALLEST_NUMBER, _LARGEST_NUMBER = 6.5, 10.0
"""Font sizes of microbatch numbers [pt]."""
_LEAST_SHARE = 0.2
"""Numbers are left out when fewer boxes than this could carry one."""


@dataclass(frozen=True)
class _Scale:
    """From data to pixels, and where things lie within a rank's row (0 is its top, 1 the next rank's).

    Attributes:
        pixels_per_s, pixels_per_row: size of the axes.
        stages, transfers, data_parallel: (low, high) of the lanes.
    """

    pixels_per_s: float
    pixels_per_row: float
    stages: tuple[float, float]
    transfers: tuple[float, float]
    data_parallel: tuple[float, float]


def draw_timeline(path: str | os.PathLike[str], timeline: IterationTimeline, *, title: str) -> None:
    """Draw the stages of every rank over time as a PNG.

    A module has a hue, lighter forward and darker backward; boxes carry the microbatch's number where it fits. Under
    the stages of a rank lie two thin lanes, transfers and data-parallel communication, whose slices are drawn at
    least a pixel wide. Idle time shows as hatched ground.

    Args:
        path: the file to make. timeline: what to draw. title: headline.
    Raises:
        OSError: the file cannot be written.
    """
    timeline_sheet(timeline, title).save(path)


def timeline_sheet(timeline: IterationTimeline, title: str) -> Sheet:
    """What ``draw_timeline`` writes, as a sheet."""
    num_ranks = len(timeline.ranks)
    height_in = float(np.clip(9.0 / num_ranks, 0.2, 0.8)) * num_ranks
    sheet = make_sheet(height_in, title, _subtitle(timeline), legend_of(timeline))
    axes = sheet.axes()
    end_s = max(timeline.iteration_time_s, timeline.makespan_s)
    axes.set_xlim(0, end_s if end_s > 0 else 1)
    draw_ranks(axes, timeline, height_in)
    return sheet


def draw_ranks(axes: Axes, timeline: IterationTimeline, height_in: float) -> None:
    """Draw the ranks of an iteration into axes whose time axis is set.

    Args:
        axes: where. timeline: what. height_in: of the axes [inch].
    """
    axes.set_ylim(len(timeline.ranks), 0)
    scale = _scale(timeline, height_in, axes.get_xlim()[1])
    _draw_idle(axes, timeline, scale)
    _draw_stages(axes, timeline, scale)
    _draw_outer(axes, timeline, scale)
    axes.axvline(timeline.makespan_s, color=style.INK, **_PIPELINE_END)
    _draw_frame(axes, timeline, scale)


def _subtitle(timeline: IterationTimeline) -> str:
    times = f"iteration {format_time(timeline.iteration_time_s)}  ·  pipeline {format_time(timeline.makespan_s)}"
    return times + (bubble_text(timeline) or "  ·  bubble ratio of the pipeline 0 %")


def bubble_text(timeline: IterationTimeline) -> str:
    """The bubble ratio, to stand behind other figures; empty for a pipeline that takes no time."""
    ratio = f"  ·  bubble ratio of the pipeline {100 * timeline.bubble_ratio:.1f} %"
    return ratio if timeline.ranks and timeline.makespan_s > 0 else ""


def _styles(timeline: IterationTimeline) -> dict[tuple[str, Phase], tuple[float, float, float]]:
    """Colour of each module and phase, modules in order of their first chunk."""
    chunk_of: dict[str, int] = {}
    phases: set[tuple[str, Phase]] = set()
    for rank in timeline.ranks:
        for stage in rank.stages:
            chunk_of[stage.module] = min(stage.chunk, chunk_of.get(stage.module, stage.chunk))
            phases.add((stage.module, stage.phase))
    modules = sorted(chunk_of, key=lambda module: (chunk_of[module], module))
    hues = {module: _MODULE_HUES[number % len(_MODULE_HUES)] for number, module in enumerate(modules)}
    order = list(Phase)
    known = sorted(phases, key=lambda pair: (modules.index(pair[0]), order.index(pair[1])))
    return {(module, phase): style.mix(hues[module], _WHITENING.get(phase, 0.0)) for module, phase in known}


def _is_transfer(slice_: OuterSlice) -> bool:
    return slice_.kind is OpKind.P2P


def legend_of(timeline: IterationTimeline) -> dict[str, Artist]:
    """Label -> handle of what occurs in the timeline."""
    entries = {
        f"{module} {phase.name.lower().replace('_', ' ')}": style.area_key(color)
        for (module, phase), color in _styles(timeline).items()
    }
    outer = [slice_ for rank in timeline.ranks for slice_ in rank.outer]
    if any(_is_transfer(slice_) for slice_ in outer):
        entries["transfer"] = style.area_key(_TRANSFER)
    if any(slice_.kind.is_communication and not _is_transfer(slice_) for slice_ in outer):
        entries["data-parallel collective"] = style.area_key(_DATA_PARALLEL)
    if any(not slice_.kind.is_communication for slice_ in outer):
        entries["optimizer"] = style.area_key(_OUTER_COMPUTE)
    entries["idle"] = style.area_key(_IDLE_FACE, **_IDLE_LOOK)
    entries["end of pipeline"] = style.line_key(style.INK, **_PIPELINE_END)
    return entries


def _scale(timeline: IterationTimeline, height_in: float, span_s: float) -> _Scale:
    """Lanes take room only when something is in them."""
    communication = [s for rank in timeline.ranks for s in rank.outer if s.kind.is_communication]
    lanes = [any(_is_transfer(s) for s in communication), any(not _is_transfer(s) for s in communication)]
    stages_end = 0.92 - 0.13 * sum(lanes)
    transfers = (stages_end + 0.035, stages_end + 0.125) if lanes[0] else (stages_end, stages_end)
    low = transfers[1] + 0.035
    return _Scale(
        pixels_per_s=DPI * (WIDTH_IN - LEFT_IN - RIGHT_IN) / span_s,
        pixels_per_row=DPI * height_in / len(timeline.ranks),
        stages=(0.06, stages_end),
        transfers=transfers,
        data_parallel=(low, low + 0.09),
    )


def _draw_spans(
    axes: Axes, spans: Iterable[_Span], lane: tuple[float, float], color: object, edge: float, least_s: float = 0.0
) -> None:
    """Boxes of one colour, at least ``least_s`` wide, with white edges of ``edge`` points."""
    columns = np.array(list(spans), dtype=np.float64).reshape(-1, 3)
    if len(columns):
        rows, starts, ends = columns.T
        style.add_boxes(axes, starts, np.maximum(ends, starts + least_s), rows, lane, color, edge)


def _draw_idle(axes: Axes, timeline: IterationTimeline, scale: _Scale) -> None:
    from matplotlib.patches import Rectangle

    low, high = scale.stages
    for row in range(len(timeline.ranks)):
        size = axes.get_xlim()[1], high - low
        axes.add_artist(Rectangle((0, row + low), *size, facecolor=_IDLE_FACE, **_IDLE_LOOK))


def _draw_stages(axes: Axes, timeline: IterationTimeline, scale: _Scale) -> None:
    stages: dict[tuple[str, Phase], list[tuple[int, StageSlice]]] = defaultdict(list)
    widths = []
    for row, rank in enumerate(timeline.ranks):
        for stage in rank.stages:
            stages[stage.module, stage.phase].append((row, stage))
            widths.append((stage.end_s - stage.start_s) * scale.pixels_per_s)
    edge = 0.7 if widths and np.median(widths) > 6 else 0.0
    low, high = scale.stages
    size = min(_LARGEST_NUMBER, 0.5 * (high - low) * scale.pixels_per_row * 72 / DPI)
    for (module, phase), color in _styles(timeline).items():
        group = stages[module, phase]
        _draw_spans(axes, ((row, s.start_s, s.end_s) for row, s in group), scale.stages, color, edge)
        if size >= _SMALLEST_NUMBER:
            _draw_numbers(axes, group, scale, size, style.ink_on(color))


def _draw_numbers(axes: Axes, group: list[tuple[int, StageSlice]], scale: _Scale, size: float, ink: str) -> None:
    """The microbatch's number in each box that is wide enough, unless that is true of only a few boxes.

    Most numbers of a group have one size; only boxes narrower than most have smaller ones.
    """
    texts = [str(stage.microbatch) for _, stage in group]
    widths_pt = np.array([(s.end_s - s.start_s) * scale.pixels_per_s - 3 for _, s in group]) * 72 / DPI
    fitting = widths_pt / (0.64 * np.array([len(text) for text in texts]))
    readable = fitting >= _SMALLEST_NUMBER
    if np.mean(readable) < _LEAST_SHARE:
        return
    fitting = np.minimum(fitting, min(size, float(np.quantile(fitting[readable], 0.25))))
    middle = sum(scale.stages) / 2
    for position in np.flatnonzero(readable).tolist():
        row, stage = group[position]
        axes.text(
            (stage.start_s + stage.end_s) / 2,
            row + middle,
            texts[position],
            size=float(fitting[position]),
            color=ink,
            family=style.FONT,
            ha="center",
            va="center_baseline",
            parse_math=False,
        )


def _draw_outer(axes: Axes, timeline: IterationTimeline, scale: _Scale) -> None:
    """Transfers and data-parallel communication in their lanes, computation outside stages among the stages."""
    spans: dict[tuple[float, float], list[_Span]] = defaultdict(list)
    for row, rank in enumerate(timeline.ranks):
        for slice_ in rank.outer:
            lane = scale.transfers if _is_transfer(slice_) else scale.data_parallel
            spans[lane if slice_.kind.is_communication else scale.stages].append((row, slice_.start_s, slice_.end_s))
    colors = {scale.transfers: _TRANSFER, scale.data_parallel: _DATA_PARALLEL, scale.stages: _OUTER_COMPUTE}
    for lane, color in colors.items():
        _draw_spans(axes, spans[lane], lane, color, 0.0, 1.2 / scale.pixels_per_s)


def _draw_frame(axes: Axes, timeline: IterationTimeline, scale: _Scale) -> None:
    """Ticks and labels; every rank is named unless rows are too low for that."""
    num_ranks = len(timeline.ranks)
    step = -(-num_ranks // 40)
    named = list(range(0, num_ranks, step))
    labels = [f"rank {timeline.ranks[row].rank}" for row in named]
    axes.set_yticks([row + sum(scale.stages) / 2 for row in named], labels)
    style.frame(axes, "time [s]", hidden=("top", "right", "left"))
    axes.tick_params(axis="y", length=0, labelsize=style.FONT_SIZE)
    axes.spines["bottom"].set_color(style.INK)

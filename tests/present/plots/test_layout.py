"""Of every kind of picture, laid out: nothing leaves the sheet, nothing covers anything else, no mark is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.transforms import Bbox
from present.plots.artists import figure_of

from semu.present.comparison import Comparison, Side
from semu.present.plots import ScheduleRow, draw_memory, draw_schedules, draw_timeline, style
from semu.present.plots.bars import BarPair, BarPanel, draw_bars
from semu.present.plots.comparison import draw_comparison
from semu.present.plots.diagonal import looks_of
from semu.present.plots.fit import FitPoints, draw_fit
from semu.present.plots.goodput import GoodputPicture, RunCurve, draw_against_mtbf, draw_goodput
from semu.present.plots.grid import CellTable, ConfigurationCloud, draw_heat_map, draw_pareto
from semu.present.plots.mask import MaskPanel, MaskPicture, draw_mask
from semu.present.plots.planner import draw_iterations
from semu.present.plots.search import draw_curve, draw_fullest, draw_timelines
from semu.present.plots.templates import PipelineRow, draw_pipelines, draw_together
from semu.present.plots.tornado import TornadoBar, TornadoRow, draw_tornado
from semu.present.plots.validation import ScatterPoint, draw_validation
from semu.schedule.compare import compare_schedules
from semu.units import GIB
from tests.present.timeline_fixture import make_timeline

PATH = Path("picture.png")
TWO = [("Megatron-LM", make_timeline(2, 4, 2)), ("search", make_timeline(2, 3, 2))]
PARTS = {"compute": 3.0, "bubble": 1.5, "optimizer": 0.5, "transfers": 0.3}
DAYS = np.array([0.0, 1.0, 3.0])
CURVES = tuple(RunCurve(name, DAYS, np.array([speed, 0.5]), np.array([4, 3])) for name, speed in (("a", 1), ("b", 2)))
SPENT = {"a": {"work": 0.5, "lost": 0.5}, "b": {"work": 0.9, "lost": 0.1}, "c": {"work": 1.0, "lost": 0.0}}
MTBF = {"a": [(3600.0, 0.25), (36000.0, 0.5)], "b": [(3600.0, 0.9), (36000.0, 1.0)]}
SIZES = np.geomspace(1e6, 1e9, 5)
RUNS = [ScatterPoint(group, 10.0**k, 1.1 * 10.0**k) for group in ("a", "b") for k in range(4)]
MEMORY = [ScatterPoint("a", k * GIB, k * GIB) for k in (3.0, 40.0)]
SCHEDULES = [
    ScheduleRow(one.evaluation, one.study.arrays) for one in compare_schedules(2, 4, names=["1f1b", "gpipe"])[0]
]
CELLS = CellTable(
    "cells", "of a grid", "tp", "pp", ("1", "2", "4"), ("1", "2"),
    np.array([[1.0, 2.0, np.nan], [3.0, 0.5, 1.5]]), (("1.0 s", "2.0 s", ""), ("3.0 s", "0.5 s", "1.5 s")), "time",
)  # fmt: skip
CLOUD = ConfigurationCloud(
    "front", "of a grid", np.array([1.0, 1.5, 3.0]), np.array([60.0, 40.0, 20.0]) * GIB, ("dp8", "tp8", "pp8"),
    np.array([2.0]), np.array([90.0]) * GIB, int(80 * GIB),
)  # fmt: skip
TORNADO = [
    TornadoRow("network", (TornadoBar("half", 1.2, True), TornadoBar("double", 0.9, True))),
    TornadoRow("memory", (TornadoBar("less", 1.0, True),)),
    TornadoRow("batch", (TornadoBar("twice", 1.9, False),)),
]
PANELS = (MaskPanel("a", np.arange(2), np.array([1.0, 3.0])), MaskPanel("b", np.array([1, 0]), np.array([2.0, 2.0])))
PICTURES: dict[str, Callable[[], object]] = {
    "bars": lambda: draw_bars(
        PATH,
        [BarPanel(axis, (BarPair("forward", 1.0, 1.25), BarPair("backward", None, 2.0))) for axis in ("[s]", "[GiB]")],
        title="bars", subtitle="two panels",
    ),
    "comparison": lambda: draw_comparison(
        PATH,
        Comparison((
            Side("mine", "simulated", 5.3, (4.5, 7.0), parts_s=PARTS, memory={0: 3.0 * GIB, 1: 5.0 * GIB}),
            Side("yours", "simulated", 4.8, parts_s={"compute": 4.0, "bubble": 0.8}, memory={0: 9.0 * GIB}),
            Side("of a log", "log", 6.0),
        )),
    ),
    "comparison of times": lambda: draw_comparison(PATH, Comparison((Side("a", "log", 6.0), Side("b", "log", 5.0)))),
    "curve": lambda: draw_curve(
        PATH, points=[(0.5, 30.0), (3.0, 26.5)], end=(4.0, 26.75), bound_s=25.0, title="curve", in_seconds=True
    ),
    "fit": lambda: draw_fit(
        PATH, [FitPoints("a", has, SIZES, SIZES * 1e-9, SIZES * 1.1e-9) for has in (True, False)],
        title="fit", subtitle="of two", size="FLOP",
    ),
    "fullest": lambda: draw_fullest(PATH, TWO, limit_bytes=int(16 * GIB), title="memory"),
    "goodput": lambda: draw_goodput(PATH, GoodputPicture("goodput", "of three", SPENT, CURVES, 4)),
    "goodput by failures": lambda: draw_against_mtbf(PATH, "goodput", "of two", MTBF, 7200.0),
    "heat map": lambda: draw_heat_map(PATH, CELLS),
    "iterations": lambda: draw_iterations(
        PATH, times={"a": [1.0, 2.0, None], "b": [1.5, None, 2.5]}, latency=[0.1, 0.2, 0.3], items=[10, 20, 30],
        counted="images", missed=[10], first=10, title="a loop", said="of three",
    ),
    "mask": lambda: draw_mask(PATH, MaskPicture("mask", "tiles", np.array([[2, 0], [1, 2]], dtype=np.int8), PANELS, 2)),
    "memory": lambda: draw_memory(PATH, TWO[0][1], title="memory"),
    "pareto": lambda: draw_pareto(PATH, CLOUD),
    "pipelines": lambda: draw_pipelines(
        PATH, "pipelines", "of templates",
        [PipelineRow("two", ((0, 4, 0), (4, 8, 1)), "slow"), PipelineRow("one", ((0, 8, 2),), "fast")],
    ),
    "pipelines together": lambda: draw_together(
        PATH, "iterations", "of three", [(f"of {ranks}", make_timeline(ranks, 3, 2)) for ranks in (1, 2, 4)]
    ),
    "schedules": lambda: draw_schedules(PATH, SCHEDULES, title="schedules", subtitle="two"),
    "timeline": lambda: draw_timeline(PATH, TWO[0][1], title="timeline"),
    "timelines": lambda: draw_timelines(PATH, TWO, title="timelines"),
    "tornado": lambda: draw_tornado(PATH, TORNADO, 1.0, title="what if", subtitle="of three"),
    "validation": lambda: draw_validation(PATH, RUNS, MEMORY, title="validation"),
}  # fmt: skip
BESIDE = {"mask", "memory", "validation", "fit"}
"""Pictures whose axes do not all stand at the common margins."""


@cache
def laid_out(name: str) -> tuple[Figure, dict[str, Bbox]]:
    """A picture, and the extents of what must not overlap: headline, subtitle, legend, axes with all that is theirs."""
    figure = figure_of(PICTURES[name])
    FigureCanvasAgg(figure)
    renderer = figure.canvas.get_renderer()
    found = {text.get_text(): text.get_window_extent(renderer) for text in figure.texts if text.get_text()}
    found |= {f"legend {k}": one.get_window_extent(renderer) for k, one in enumerate(figure.legends)}
    found |= {f"axes {k}": axes.get_tightbbox(renderer) for k, axes in enumerate(figure.axes)}
    return figure, found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PICTURES)
def test_nothing_leaves_the_sheet_or_covers_anything_else(name: str) -> None:
    figure, found = laid_out(name)
    width, height = figure.canvas.get_width_height()
    for what, box in found.items():
        assert box.x0 >= -1 and box.x1 <= width + 1 and box.y0 >= -1 and box.y1 <= height + 1, what
    for (what, one), (other, two) in combinations(found.items(), 2):
        across, up = min(one.x1, two.x1) - max(one.x0, two.x0), min(one.y1, two.y1) - max(one.y0, two.y0)
        assert across <= 1 or up <= 2, (what, other, across, up)


@pytest.mark.parametrize("name", PICTURES)
def test_axes_fill_the_sheet(name: str) -> None:
    """They end at one right margin of 0.3 inches; no more than 0.75 inches or a tenth of the height is empty."""
    figure, found = laid_out(name)
    width, height = figure.get_size_inches()
    frames = [axes.get_position() for axes in figure.axes]
    if name not in BESIDE:
        assert all((1 - frame.x1) * width == pytest.approx(0.3) for frame in frames)
        assert len({round(frame.x0, 9) for frame in frames}) == 1
    spans = sorted((box.y0 / figure.bbox.height, box.y1 / figure.bbox.height) for box in found.values())
    reached = 0.0
    for low, high in [*spans, (1.0, 1.0)]:
        assert (low - reached) * height <= max(0.75, 0.1 * height), (low, reached, height)
        reached = max(reached, high)


def marks(axes: Axes) -> Iterator[tuple[str, float]]:
    """Coordinates of points and bars that stand for data, each with its axis."""
    for line in axes.lines:
        if line.get_transform() == axes.transData:
            yield from (("x", float(x)) for x in line.get_xdata() if np.isfinite(x))
            yield from (("y", float(y)) for y in line.get_ydata() if np.isfinite(y))
    for bar in axes.patches:
        if isinstance(bar, Rectangle):
            yield from (("x", bar.get_x() + part * bar.get_width()) for part in (0, 1))
            yield from (("y", bar.get_y() + part * bar.get_height()) for part in (0, 1))


@pytest.mark.parametrize("name", PICTURES)
def test_no_mark_is_cut_off(name: str) -> None:
    for axes in laid_out(name)[0].axes:
        limits = {"x": sorted(axes.get_xlim()), "y": sorted(axes.get_ylim())}
        for axis, value in marks(axes):
            low, high = limits[axis]
            room = 1e-9 * max(abs(low), abs(high))
            assert low - room <= value <= high + room, (axis, value, low, high)


def test_idle_ground_lies_under_the_whole_time_of_every_rank() -> None:
    timeline = make_timeline(3, 4, 2)
    (axes,) = figure_of(lambda: draw_timeline(PATH, timeline, title="t")).axes
    ground = [one for one in axes.patches if isinstance(one, Rectangle) and one.get_hatch()]
    assert [(one.get_x(), one.get_width()) for one in ground] == [(0.0, axes.get_xlim()[1])] * 3
    assert [int(one.get_y()) for one in ground] == [0, 1, 2]
    assert all(0.4 < one.get_height() < 1.0 for one in ground)


@pytest.mark.parametrize("color", ["#123456", "#ff8000", "#000000"])
def test_colours_mix_channel_by_channel(color: str) -> None:
    red, green, blue = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    assert style.mix(color, 0.0) == pytest.approx((red, green, blue))
    assert style.mix(color, 1.0) == pytest.approx((1.0, 1.0, 1.0))
    assert style.mix(color, -1.0) == pytest.approx((0.0, 0.0, 0.0))
    assert style.mix(color, 0.25) == pytest.approx(tuple(0.75 * one + 0.25 for one in (red, green, blue)))


def test_no_two_names_look_alike() -> None:
    names = [str(k) for k in range(len(style.PALETTE) * 3)]
    looks = looks_of([*names, *names], "os^")
    assert list(looks) == names and len(set(looks.values())) == len(names)
    assert [looks[name][1] for name in names[:: len(style.PALETTE)]] == ["o", "s", "^"]


def test_dollars_of_headlines_are_no_formulas() -> None:
    figure = figure_of(lambda: draw_timeline(PATH, TWO[0][1], title="$5 and $6"))
    shown = [text for text in figure.texts if text.get_text()]
    assert shown[0].get_text() == "$5 and $6"
    assert not any(text.get_parse_math() for text in shown)

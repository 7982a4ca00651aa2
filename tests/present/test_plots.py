"""The pictures have the right size and show what the timeline holds: pixels are read back and measured."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from semu.engine.timeline import IterationTimeline, MemoryCurve
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.present.plots import draw_memory, draw_timeline
from semu.present.plots.canvas import DPI, LEFT_IN, RIGHT_IN, WIDTH_IN
from semu.present.plots.style import ink_on, mix
from semu.units import GIB, format_bytes
from tests.present.plots.artists import figure_of
from tests.present.timeline_fixture import make_timeline

WIDTH_PX = 1620
PLOT_LEFT_PX, PLOT_RIGHT_PX = LEFT_IN * DPI, (WIDTH_IN - RIGHT_IN) * DPI


@pytest.fixture(scope="module")
def timeline() -> IterationTimeline:
    return make_timeline()


def pixels(path: Path) -> np.ndarray:
    """uint8[height, width, 3]."""
    return np.rint(imread(path)[..., :3] * 255).astype(np.uint8)


def is_color(image: np.ndarray, color: tuple[float, float, float]) -> np.ndarray:
    """Where the picture has exactly this colour."""
    return np.all(np.abs(image.astype(int) - np.rint(np.array(color) * 255).astype(int)) <= 1, axis=-1)


@pytest.mark.parametrize(("num_ranks", "height_px"), [(1, 329), (4, 617), (16, 1313)])
def test_timeline_picture_has_the_expected_size(num_ranks: int, height_px: int, tmp_path: Path) -> None:
    draw_timeline(tmp_path / "t.png", make_timeline(num_ranks, 6, 2), title="size")
    assert pixels(tmp_path / "t.png").shape == (height_px, WIDTH_PX, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("num_ranks", "height_px"), [(1, 685), (2, 685), (4, 877), (5, 877), (16, 877)])
def test_memory_picture_has_the_expected_size(num_ranks: int, height_px: int, tmp_path: Path) -> None:
    draw_memory(tmp_path / "m.png", make_timeline(num_ranks, 6, 2), title="size")
    assert pixels(tmp_path / "m.png").shape == (height_px, WIDTH_PX, 3)


def test_stages_lie_at_their_times(timeline: IterationTimeline, tmp_path: Path) -> None:
    """On each rank's row, the pixels of llm backward stages are those of the timeline."""
    draw_timeline(tmp_path / "t.png", timeline, title="times")
    image = pixels(tmp_path / "t.png")
    colored = is_color(image, mix("#D55E00", 0.0))
    colored[int(image.shape[0] * 0.86) :] = False
    top, bottom = np.flatnonzero(colored.any(axis=1))[[0, -1]]
    pixels_per_s = (PLOT_RIGHT_PX - PLOT_LEFT_PX) / timeline.iteration_time_s
    row_height = (bottom - top) / (3 + 0.6)
    for row, rank in enumerate(timeline.ranks):
        line = int(top + row * row_height + 4)
        stages = [s for s in rank.stages if s.module == "llm" and s.phase is Phase.BACKWARD]
        expected = np.zeros(WIDTH_PX, dtype=bool)
        for stage in stages:
            first, last = (PLOT_LEFT_PX + time * pixels_per_s for time in (stage.start_s, stage.end_s))
            expected[round(first) + 2 : round(last) - 2] = True
        assert expected.sum() > 200
        assert colored[line][expected].all()
        assert abs(int(colored[line].sum()) - int(expected.sum())) <= 5 * len(stages)


@pytest.mark.slow
def test_pictures_show_only_what_occurs(timeline: IterationTimeline, tmp_path: Path) -> None:
    """Without outer operators there is no transfer, no collective, no optimizer, neither drawn nor in the legend."""
    bare = replace(timeline, ranks=tuple(replace(rank, outer=()) for rank in timeline.ranks))
    colors = {OpKind.P2P: "#3A3A3A", OpKind.REDUCE_SCATTER: "#B8860B", OpKind.OPTIMIZER: "#555555"}
    counts = {}
    for name, source in (("full", timeline), ("bare", bare)):
        draw_timeline(tmp_path / f"{name}.png", source, title="")
        image = pixels(tmp_path / f"{name}.png")
        counts[name] = [int(is_color(image, mix(color, 0.0)).sum()) for color in colors.values()]
    # Text has a few pixels of any grey, but none of the collectives' yellow.
    assert np.subtract(counts["full"], counts["bare"]).min() > 300
    assert max(counts["bare"]) < 150
    assert counts["bare"][1] == 0


def test_split_backward_has_its_own_colors(timeline: IterationTimeline, tmp_path: Path) -> None:
    def split(stage, number: int):
        phase = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)[number % 2]
        return replace(stage, phase=phase) if stage.phase is Phase.BACKWARD else stage

    ranks = tuple(
        replace(rank, stages=tuple(split(stage, number) for number, stage in enumerate(rank.stages)))
        for rank in timeline.ranks
    )
    draw_timeline(tmp_path / "t.png", replace(timeline, ranks=ranks), title="split")
    image = pixels(tmp_path / "t.png")
    for share in (0.0, -0.35, 0.6):
        assert is_color(image, mix("#D55E00", share)).sum() > 1000


def test_memory_heights_are_the_bytes(timeline: IterationTimeline, tmp_path: Path) -> None:
    """Constant curves of known size: the coloured areas have those proportions, under a capacity line that is there."""
    roles = (Role.PARAMETER, Role.ACTIVATION)
    curve = MemoryCurve(
        times_s=np.array([0.0, timeline.iteration_time_s]),
        by_role=np.array([[10 * GIB, 10 * GIB], [30 * GIB, 30 * GIB]]),
        roles=roles,
        capacity_bytes=50 * GIB,
    )
    peak = replace(timeline.ranks[0].peak, size_bytes=40 * GIB, time_s=0.0, stage="")
    rank = replace(timeline.ranks[0], find_peak=lambda _: peak, build_memory=lambda: curve)
    draw_memory(tmp_path / "m.png", replace(timeline, ranks=(rank,)), title="areas")
    column = pixels(tmp_path / "m.png")[:, 900]
    panel = slice(0, 580)
    parameter = is_color(column[np.newaxis], mix("#0072B2", 0.0))[0][panel]
    activation = is_color(column[np.newaxis], mix("#E69F00", 0.0))[0][panel]
    assert activation.sum() == pytest.approx(3 * parameter.sum(), abs=6)  # the axis covers a row or two
    ground = np.flatnonzero(parameter)[-1]
    image = pixels(tmp_path / "m.png")
    line = np.flatnonzero(is_color(image, mix("#B00020", 0.0))[panel].sum(axis=1) > 500).mean()
    assert (ground - line) / (parameter.sum() + activation.sum()) == pytest.approx(50 / 40, abs=0.02)


def test_a_single_spike_is_drawn(timeline: IterationTimeline, tmp_path: Path) -> None:
    """A peak of one point among 100,000 survives thinning, at full height."""
    count = 100_000
    by_role = np.full((1, count), 10 * GIB)
    by_role[0, 70_000] = 45 * GIB
    curve = MemoryCurve(np.linspace(0, timeline.iteration_time_s, count), by_role, (Role.ACTIVATION,), 50 * GIB)
    peak = replace(timeline.ranks[0].peak, size_bytes=45 * GIB, time_s=0.0)
    rank = replace(timeline.ranks[0], find_peak=lambda _: peak, build_memory=lambda: curve)
    draw_memory(tmp_path / "m.png", replace(timeline, ranks=(rank,)), title="spike")
    image = pixels(tmp_path / "m.png")[:580].astype(int)
    warm = is_color(image, mix("#E69F00", 0.0))
    heights = warm.sum(axis=0)
    usual = np.median(heights[200:1500])
    x = PLOT_LEFT_PX + 0.7 * (PLOT_RIGHT_PX - PLOT_LEFT_PX)
    assert heights[int(x) - 1 : int(x) + 2].max() == pytest.approx(4.5 * usual, rel=0.03)
    assert np.sum(heights > 2 * usual) == 1


@pytest.mark.slow
def test_fullest_ranks_are_chosen(tmp_path: Path) -> None:
    """With more than eight ranks, a picture of all and one of the eight fullest are the same."""
    timeline = make_timeline(10, 4, 1)
    by_peak = sorted(timeline.ranks, key=lambda rank: (-rank.peak.size_bytes, rank.rank))
    fullest = tuple(rank for rank in timeline.ranks if rank in by_peak[:8])
    emptiest = tuple(rank for rank in timeline.ranks if rank in by_peak[2:])
    for name, ranks in (("all", timeline.ranks), ("fullest", fullest), ("emptiest", emptiest)):
        draw_memory(tmp_path / f"{name}.png", replace(timeline, ranks=ranks), title="")
    images = {name: pixels(tmp_path / f"{name}.png") for name in ("all", "fullest", "emptiest")}
    panels = slice(200, None)  # below the headline, which counts the ranks
    assert np.array_equal(images["all"][panels], images["fullest"][panels])
    assert not np.array_equal(images["all"][panels], images["emptiest"][panels])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("draw", [draw_timeline, draw_memory])
def test_bytes_are_deterministic(draw, timeline: IterationTimeline, tmp_path: Path) -> None:
    for name, source in (("a.png", timeline), ("b.png", make_timeline())):
        draw(tmp_path / name, source, title="same $x_1$ title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert b"tEXt" not in (tmp_path / "a.png").read_bytes()


def test_long_titles_stay_inside(timeline: IterationTimeline, tmp_path: Path) -> None:
    draw_timeline(tmp_path / "t.png", timeline, title="a very long title " * 30)
    image = pixels(tmp_path / "t.png")
    assert (image[:60, :1400] < 128).any()
    assert (image[:60, int(PLOT_RIGHT_PX) + 10 :] == 255).all()


def test_text_is_legible_on_every_color() -> None:
    """Contrast of at least 3.5 between ink and box (WCAG asks 3 of large text)."""

    def luminance(color: tuple[float, float, float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    for hue in ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#7A5C3E"):
        for share in (0.6, 0.0, -0.35):
            box = mix(hue, share)
            light, dark = sorted((luminance(box), luminance(mix(ink_on(box), 0.0))), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3.5, (hue, share)


@pytest.mark.extras
def test_importing_does_not_load_matplotlib() -> None:
    code = "import sys, semu.present.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.extras
def test_pyplot_stays_out(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tests.present.timeline_fixture import make_timeline\n"
        "from semu.present.plots import draw_memory, draw_timeline\n"
        "timeline = make_timeline(2, 2, 1)\n"
        "for number, draw in enumerate((draw_memory, draw_timeline)):\n"
        "    draw(f'{sys.argv[1]}/{number}.png', timeline, title='')\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


def test_the_fullest_replicas_peak_is_the_number_of_the_text(tmp_path: Path) -> None:
    """Another replica than the one drawn holds more on a rank: headline and mark are its peak."""
    timeline = make_timeline(2, 4, 1)
    own = [rank.peak.size_bytes for rank in timeline.ranks]
    fullest = (max(own) + 3 * GIB, own[1])
    figure = figure_of(lambda: draw_memory(tmp_path / "m.png", timeline, title="", peak_bytes=fullest))
    texts = [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]
    assert f"{format_bytes(fullest[0])} in the fullest replica" in texts
    assert any(f"peak {format_bytes(fullest[0])} on rank 0 of the fullest replica" in text for text in texts)
    heights = [line.get_ydata()[0] for line in figure.axes[0].lines]
    assert any(abs(height - fullest[0] / GIB) < 1e-9 for height in heights)
    assert not any("fullest" in text.get_text() for text in figure.axes[1].texts)

"""``iterations.png``: every iteration is seen however few there are, and numbered by whole numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semu.present.plots import planner


@pytest.mark.parametrize("count", [1, 2, 25])
def test_iterations_are_seen_and_numbered(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheets: list[Any] = []
    make = planner.make_sheet
    monkeypatch.setattr(planner, "make_sheet", lambda *given: sheets.append(make(*given)) or sheets[-1])
    planner.draw_iterations(
        tmp_path / "iterations.png",
        times={"Megatron-LM": [3.0] * count, "planned": [2.0] * count},
        latency=[1.0] * count,
        items=[7] * count,
        counted="images",
        missed=[1],
        first=1,
        title="a loop",
        said="of some iterations",
    )
    assert (tmp_path / "iterations.png").stat().st_size > 0
    axes = sheets[0].figure.axes
    drawn = [line for frame in axes for line in frame.lines if line.get_linewidth()]
    assert [len(line.get_xdata()) for line in drawn] == [count] * 3
    assert all((line.get_marker() == "o") == (count <= 20) for line in drawn)
    low, high = axes[-1].get_xlim()
    ticks = [tick for tick in axes[-1].get_xticks() if low <= tick <= high]
    assert ticks and all(tick == round(tick) for tick in ticks)
    assert all(frame.get_ylim()[0] == 0 for frame in axes if frame.lines)

"""One number for one thing: what a picture says is what the text and the JSON of the same run say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.text import Text

from semu.cli import main
from semu.units import format_time


def drawn(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[str]], dict[str, Any]]:
    """The texts of every picture that a command writes, in order, and its document."""
    pictures: list[list[str]] = []
    inner = Figure.savefig

    def keep(self: Figure, *arguments: Any, **options: Any) -> None:
        pictures.append([text.get_text() for text in self.findobj(Text) if isinstance(text, Text) and text.get_text()])
        inner(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    assert main([*words, "--out", str(folder)]) in (0, 3)
    (found,) = [folder / name for name in ("result.json", "grid.json") if (folder / name).is_file()]
    return pictures, json.loads(found.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "words",
    [
        "vlm-s",
        "vlm-s --cluster h800:4x8 --parallel dp2-tp4-pp4",  # two different replicas
        "llama3-8b --cluster h100:1x8 --parallel tp2 --set training.recompute=full",
        "lm-7b --set cluster.override.memory_bytes=1.5e10",  # does not fit
    ],
)
@pytest.mark.sampled(2)
def test_of_a_simulation(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, report = drawn(["simulate", *words.split(), "--trace", "none"], tmp_path, monkeypatch)
    timeline, memory = (" · ".join(picture) for picture in pictures)
    assert f"iteration {report['iteration_time_s']:.3f} s" in timeline
    assert f"pipeline {report['makespan_s']:.3f} s" in timeline
    assert f"bubble ratio of the pipeline {100 * report['bubble_ratio']:.1f} %" in timeline
    peaks = [size / 2**30 for size in report["peak_memory_bytes"]]
    fullest = peaks.index(max(peaks))
    assert f"peak {max(peaks):.2f} GiB on rank {fullest}" in memory
    assert f"capacity {report['capacity_bytes'] / 2**30:.2f} GiB" in memory
    labels = [float(size) for size in re.findall(r"(\d+\.\d\d) GiB in", memory)]
    assert labels == [float(f"{peak:.2f}") for peak in peaks]


@pytest.mark.slow
def test_of_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "search lm-7b --set training.global_batch=4 --rollouts 8"
    pictures, result = drawn(words.split(), tmp_path, monkeypatch)
    timelines, memory, curve = (" · ".join(picture) for picture in pictures)
    before, after = result["baseline"], result["search"]
    for name, one in (("Megatron-LM", before), ("search", after)):
        assert f"{name} {format_time(one['iteration_time_s'])}" in timelines
        assert f"bubble ratio of the pipeline {100 * one['bubble_ratio']:.1f} %" in timelines
        size = max(one["peak_memory_bytes"])
        assert f"{name} {size / 2**30:.2f} GiB" in memory
        assert f"{name}, rank {one['peak_memory_bytes'].index(size)}" in memory
    assert f"{format_time(result['makespan_s'])} after" in curve
    assert f"{100 * result['gap']:.2f} % above the lower bound {format_time(result['lower_bound_s'])}" in curve


@pytest.mark.slow
def test_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "plan vlm-s --set training.global_batch=2 --rollouts 5 --iterations 2"
    (picture,), result = drawn(words.split(), tmp_path, monkeypatch)
    factor, alike = result["gain_over_megatron"], result["gain_over_megatron_alike"]
    said = f"{factor:.3f} x Megatron-LM's speed ({alike:.3f} x with the recomputation that fits best)"
    assert said in " · ".join(picture)


@pytest.mark.slow
def test_of_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "grid lm-7b --vary tp=1:2,pp=2:4 --set training.global_batch=64"
    (scatter, heat, timeline, _), found = drawn(words.split(), tmp_path, monkeypatch)
    best = next(row for row in found["rows"] if row["fits"])
    label = " ".join(f"{axis}{best[axis]}" for axis in ("dp", "tp", "pp"))
    assert any(text.startswith(label) for text in scatter)
    assert f"{best['iteration_time_s']:.4g} s, {best['peak_memory_bytes'] / 2**30:.0f} GiB" in heat
    assert any(f"iteration {best['iteration_time_s']:.3f} s" in text for text in timeline)

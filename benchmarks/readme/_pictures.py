"""``PICTURES``: every picture of README.md that a command of seconds draws, with the figures that it shows.

A picture is stale when those figures change, not when its pixels do: fonts and versions of matplotlib move pixels.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.readme._commands import run_json
from benchmarks.readme._mechanisms import CHARTS, Chart
from benchmarks.readme._weave import PICTURES_FOLDER, ROOT

DEMO = "simulate vlm-m --cluster h800:8x8 --parallel dp8-tp2-pp4"
GRID = "grid gpt3-175b --gpus 512"
WHAT_IF = "what-if vlm-m"
SCHEDULES = "schedules --ranks 4 --microbatches 8"
GOODPUT = (
    "goodput llama3.1-405b --cluster h100:2048x8 --failures 419/54d --save 10s --restart 10min "
    "--strategy checkpoint,async,in-memory,tiered,spares"
)
PIPELINES = (
    "templates lm-7b --cluster h100:13x1 --parallel pp13 --set parallel.zero=0 --set training.recompute=full "
    "--faults 1 --nodes 11"
)
SCHEDULES_VLM = "schedules vlm-l --compare interleaved,looped-bfs,zb-v,hanayo"

FIGURES = (
    *("name", "iteration_time_s", "makespan_s", "bubble_ratio", "breakdown_s", "gain", "key", "value"),
    *("peak_memory_bytes", "peak_microbatches", "capacity_bytes", "fits"),
    *("goodput", "microbatches"),
    *("legal", "cut_by_memory", "cut_by_bound", "dp", "tp", "pp", "vpp", "micro_batch", "recompute"),
)
"""Keys of a command's JSON whose values a picture may show; all others, such as warnings, do not count."""
DIGITS = 9
"""Significant digits of a number that count."""


@dataclass(frozen=True)
class Picture:
    """A picture that a command draws.

    Attributes:
        name: of the file in ``examples/pictures``. command: words after ``semu``; its ``--json`` has the figures.
        drawn: name of the file that the command writes into ``--out``; None: ``benchmarks/schedules.py`` draws it.
    """

    name: str
    command: str
    drawn: str | None

    def digest(self) -> str:
        """SHA-256 of the command and of the figures that it prints, the first 16 digits."""
        text = json.dumps([self.command, _figures(run_json(self.command))])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draw(self) -> None:
        """Draw the picture anew."""
        with tempfile.TemporaryDirectory() as folder:
            if self.drawn is None:
                words = ["-c", f"from pathlib import Path; from schedules import draw; draw(Path({folder!r}))"]
            else:
                words = ["-m", "semu.cli", *self.command.split(), "--out", folder]
            paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
            subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, env=environment)
            shutil.copyfile(Path(folder) / (self.drawn or self.name), PICTURES_FOLDER / self.name)


def _figures(value: Any, *, counts: bool = False) -> Any:
    """What counts in a document: values below the keys in ``FIGURES``, floats rounded; None: nothing."""
    if isinstance(value, dict):
        parts = {key: _figures(own, counts=counts or key in FIGURES) for key, own in value.items()}
        return {key: own for key, own in parts.items() if own is not None} or None
    if isinstance(value, list):
        items = [_figures(own, counts=counts) for own in value]
        return items if any(own is not None for own in items) else None
    if not counts:
        return None
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


PICTURES: dict[str, Picture | Chart] = {
    picture.name: picture
    for picture in (
        *CHARTS.values(),
        Picture("timeline.png", DEMO, "timeline.png"),
        Picture("memory.png", DEMO, "memory.png"),
        Picture("schedules.png", SCHEDULES, None),
        Picture("schedules_vlm.png", SCHEDULES_VLM, "schedules.png"),
        Picture("grid.png", GRID, "pareto.png"),
        Picture("what_if.png", WHAT_IF, "what_if.png"),
        Picture("goodput.png", GOODPUT, "goodput_mtbf.png"),
        Picture("pipelines.png", PIPELINES, "iteration.png"),
    )
}

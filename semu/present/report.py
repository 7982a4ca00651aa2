"""``Report``: the results of a simulation for people (``repr``), for programs (``to_json``) and on disk (``save``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semu.files import make_folder, write_file
from semu.present.report_data import (
    ContentionSummary,
    FittingChange,
    IterationSamples,
    RankMemoryRow,
    ReportData,
    TopOperator,
)
from semu.present.report_text import render

__all__ = [
    "ContentionSummary",
    "FittingChange",
    "IterationSamples",
    "RankMemoryRow",
    "Report",
    "TopOperator",
]


@dataclass(frozen=True, repr=False)
class Report(ReportData):
    """Result of ``semu.simulate``; its attributes are those of ``ReportData``."""

    def __repr__(self) -> str:
        return render(self)

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``result.json``, ``trace.json``, ``timeline.png`` and ``memory.png``.

        Args:
            directory: made if it is not there; existing files of these names are replaced, each at once when it is
                complete.
        Returns:
            The files written.
        Raises:
            ConfigError: the directory cannot be made or written to.
        """
        from semu.present.plots import draw_memory, draw_timeline
        from semu.present.traces import write_trace

        folder, timeline, title, shown = make_folder(Path(directory)), self.timeline, self.title, self.title
        if self.num_distinct_replicas > 1:
            shown += f", replica {self.slowest_replica} (the slowest of {self.num_distinct_replicas} different ones)"
        writers: dict[str, Callable[[Path], object]] = {
            "result.json": lambda path: path.write_text(json.dumps(self.to_json(), indent=2) + "\n"),
            "trace.json": lambda path: write_trace(path, timeline, title=title, metadata={"semu": self.job}),
            "timeline.png": lambda path: draw_timeline(path, timeline, title=shown),
            "memory.png": lambda path: draw_memory(path, timeline, title=shown),
        }
        return [write_file(folder / name, write) for name, write in writers.items()]

"""``Report``: the results of a simulation for people (``repr``), for programs (``to_json``) and on disk (``save``)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
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
        folder = make_folder(Path(directory))
        return [write_file(folder / name, write) for name, write in self._writers()]

    def _writers(self) -> Sequence[tuple[str, Callable[[Path], None]]]:
        def result(path: Path) -> None:
            path.write_text(json.dumps(self.to_json(), indent=2) + "\n")

        def trace(path: Path) -> None:
            from semu.present.traces import write_trace

            write_trace(path, self.timeline, title=self.title, metadata={"semu": self.job})

        def timeline(path: Path) -> None:
            from semu.present.plots import draw_timeline

            draw_timeline(path, self.timeline, title=self.title + self._replica_note())

        def memory(path: Path) -> None:
            from semu.present.plots import draw_memory

            draw_memory(path, self.timeline, title=self.title + self._replica_note())

        return [("result.json", result), ("trace.json", trace), ("timeline.png", timeline), ("memory.png", memory)]

    def _replica_note(self) -> str:
        """Which replica the pictures show, where there are several different ones."""
        if self.num_distinct_replicas == 1:
            return ""
        return f", replica {self.slowest_replica} (the slowest of {self.num_distinct_replicas} different ones)"

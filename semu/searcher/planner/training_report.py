"""``TrainingReport``: what a planner did over many iterations; table, JSON, files."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from semu.files import make_folder, write_file
from semu.frames import Tabular
from semu.records import dataclass
from semu.searcher.planner.planned_iteration import Outcome
from semu.searcher.planner.training_loop import IterationRow
from semu.units import fit_columns, fit_lines

if TYPE_CHECKING:
    from semu.present.page import Page
    from semu.searcher.planner.shown_iterations import ShownIteration

SHOWN = 12
"""Iterations that the table shows: the first and the last ones of more."""
_MEASURED = ("latency_s", "prepare_s", "cpu_s", "trained_s", "stall_s")
_PLANNED = (
    *("index", "microbatches", "items", "outcome", "planned_s", "heuristic_s", "megatron_s", "gain"),
    *("alike_s", "gain_alike"),
    *("fits", "peak_memory_bytes", "rollouts", "moves", "ended_by", "error"),
)
_WORDS = ("outcome", "ended_by", "error")
_MAY_LACK = ("planned_s", "heuristic_s", "megatron_s", "alike_s", "fits", "peak_memory_bytes")
"""Attributes of a row that are no numbers, and numbers that may be None."""


@dataclass(frozen=True)
class TrainingReport(Tabular):
    """Result of a simulated training loop.

    Attributes:
        model: name. rows: iterations in order. asked: how many were wanted.
        ended_by: ``iterations``, ``stream``, ``interrupt`` or ``error``.
        is_reproducible: the same seed and stream give the same plans again; measured times never are.
        workers: threads of a search. speed: as ``train``. shown: iterations whose timelines the page has.
    """

    model: str
    rows: Sequence[IterationRow]
    asked: int
    ended_by: str
    is_reproducible: bool
    workers: int
    speed: float = 1.0
    shown: Sequence[ShownIteration] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Iterations by outcome."""
        found = Counter(row.outcome for row in self.rows)
        return {outcome.value: found[outcome] for outcome in Outcome}

    @property
    def hit_rate(self) -> float:
        """Share of the iterations whose search had ended when they began."""
        return self.counts[Outcome.PLANNED.value] / len(self.rows) if self.rows else 0.0

    @property
    def hidden_share(self) -> float | None:
        """Share of the planning time that training did not wait for, all iterations but the first; None: no others."""
        latency = sum(row.latency_s for row in self.rows[1:])
        return 1.0 - min(sum(row.stall_s for row in self.rows[1:]) / latency, 1.0) if latency > 0 else None

    @property
    def stall_s(self) -> float:
        """Time that training waited for plans, but for the first [s]."""
        return sum(row.stall_s for row in self.rows[1:])

    def mean(self, name: str) -> float | None:
        """Mean of an attribute over the iterations that have it."""
        values = [value for row in self.rows if (value := getattr(row, name)) is not None]
        return float(np.mean(values)) if values else None

    def gain(self, name: str) -> float | None:
        """Time of all iterations under a schedule over that under the plans; those that cannot run either are left out.

        Args:
            name: ``megatron_s``, ``alike_s`` or ``heuristic_s``.
        """
        pairs = [(getattr(row, name), row.planned_s) for row in self.rows]
        known = [(other, own) for other, own in pairs if other is not None and own]
        return sum(other for other, _ in known) / sum(own for _, own in known) if known else None

    def latency(self, percent: float, name: str = "latency_s") -> float | None:
        """A percentile of planning's latency, or of ``cpu_s``, all iterations but the first [s]."""
        values = [getattr(row, name) for row in self.rows[1:]]
        return float(np.percentile(values, percent)) if values else None

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each iteration."""
        return [{**row_json(row), **measured_json(row)} for row in self.rows]

    def to_json(self) -> dict[str, object]:
        """Everything; what was measured, and so differs every time, is under ``measured``."""
        return {
            "model": self.model,
            "iterations": len(self.rows),
            "asked": self.asked,
            "ended_by": self.ended_by,
            "is_reproducible": self.is_reproducible,
            "workers": self.workers,
            "outcomes": self.counts,
            "hit_rate": self.hit_rate,
            "gain_over_megatron": self.gain("megatron_s"),
            "gain_over_megatron_alike": self.gain("alike_s"),
            "gain_over_heuristic": self.gain("heuristic_s"),
            "mean_planned_s": self.mean("planned_s"),
            "mean_heuristic_s": self.mean("heuristic_s"),
            "mean_megatron_s": self.mean("megatron_s"),
            "mean_megatron_alike_s": self.mean("alike_s"),
            "errors": sum(row.error is not None for row in self.rows),
            "rows": [row_json(row) for row in self.rows],
            "measured": {
                "hidden_share": self.hidden_share,
                "stall_s": self.stall_s,
                "first_plan_s": self.rows[0].stall_s if self.rows else None,
                "latency_median_s": self.latency(50),
                "latency_p95_s": self.latency(95),
                "cpu_median_s": self.latency(50, "cpu_s"),
                "cpu_p95_s": self.latency(95, "cpu_s"),
                "speed": self.speed,
                "rows": [{"index": row.index, **measured_json(row)} for row in self.rows],
            },
        }

    def __repr__(self) -> str:
        if not self.rows:
            return f"no iteration was trained; ended by {self.ended_by}"
        names = [name for name in self.rows[0].items if not name.endswith("_tokens")]
        head = ["iteration", *names, "plan from", "plan", "heuristic", "Megatron-LM", "vs Megatron-LM", "planned in"]
        table = [head]
        half = SHOWN // 2
        shown = self.rows if len(self.rows) <= SHOWN else [*self.rows[:half], None, *self.rows[-half:]]
        for row in shown:
            if row is None:
                table.append(["..."] + [""] * (len(head) - 1))
                continue
            table.append(
                [
                    str(row.index),
                    *(str(row.items.get(name, 0)) for name in names),
                    row.outcome.value + ("" if row.fits is not False else " (does not fit)"),
                    seconds_or_refusal(row.planned_s),
                    seconds_or_refusal(row.heuristic_s),
                    seconds_or_refusal(row.megatron_s),
                    "" if row.gain is None else f"{row.gain:.3f} x",
                    f"{row.latency_s:.2f} s",
                ]
            )
        lines = [*fit_columns(table, [head != "plan from" for head in head]), *self.summary()]
        return fit_lines("\n".join(lines))

    def summary(self) -> list[str]:
        """What all iterations came to, in sentences."""
        lines = [f"{len(self.rows)} of {self.asked} iterations, ended by {self.ended_by}"]
        lines.append("plans: " + ", ".join(f"{count} {name}" for name, count in self.counts.items() if count))
        means = [self.mean("planned_s"), self.mean("heuristic_s"), self.mean("megatron_s")]
        lines.append(
            "mean iteration: "
            + ", ".join(
                f"{name} {value:.4f} s"
                for name, value in zip(("plan", "heuristic", "Megatron-LM"), means, strict=True)
                if value is not None
            )
        )
        gains = [
            ("Megatron-LM's speed", self.gain("megatron_s")),
            ("its speed with the recomputation that fits best", self.gain("alike_s")),
            ("the heuristic's speed", self.gain("heuristic_s")),
        ]
        lines.append("; ".join(f"{value:.3f} x {name}" for name, value in gains if value is not None))
        unplanned = self.counts[Outcome.FALLBACK.value]
        if unplanned:
            lines.append(
                f"{unplanned} began before any plan of their batch was simulated: what they ran may be slower than the "
                "heuristic's plan; all others are not"
            )
        median, late = self.latency(50), self.latency(95)
        if self.hidden_share is not None and median is not None and late is not None:
            lines.append(
                f"planning took {median:.2f} s in the median, {late:.2f} s at the 95th percentile "
                f"({self.latency(50, 'cpu_s'):.2f} s and {self.latency(95, 'cpu_s'):.2f} s of processors); "
                f"{100 * self.hidden_share:.2f} % of it was hidden; training waited {self.stall_s:.3f} s in all"
            )
        if self.speed != 1.0:
            lines.append(f"iterations went by {self.speed:g} times as fast as simulated")
        lines.append(f"before the first iteration training waited {self.rows[0].stall_s:.2f} s for its plan")
        errors = [row for row in self.rows if row.error is not None]
        lines += [f"iteration {row.index}: {row.error}" for row in errors[:SHOWN]]
        if len(errors) > SHOWN:
            lines.append(f"and {len(errors) - SHOWN} more errors")
        return lines

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``result.json``, ``iterations.png`` and ``report.html``.

        Raises:
            ConfigError: the folder cannot be written.
        """
        folder = make_folder(Path(directory))
        text = json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"
        files: list[tuple[str, Callable[[Path], object]]] = [
            ("result.json", lambda path: path.write_text(text, encoding="utf-8"))
        ]
        if self.rows:
            from semu.present.plots.planner import draw_iterations

            files.append(("iterations.png", partial(draw_iterations, **self._picture())))
        written = [write_file(folder / name, write) for name, write in files]
        return [*written, self.page().save(folder / "report.html")]

    def page(self) -> Page:
        """Times and planning of every iteration, as one HTML file."""
        from semu.searcher.planner.page import loop_page  # circle: a page is of a whole report

        return loop_page(self)

    def _picture(self) -> Mapping[str, Any]:
        names = ("Megatron-LM", "heuristic", "plan")
        times = {
            name: [getattr(row, key) for row in self.rows]
            for name, key in zip(names, ("megatron_s", "heuristic_s", "planned_s"), strict=True)
        }
        counted = next((name for name in ("vision", "video", "audio") if name in self.rows[0].items), "text")
        gain, alike = self.gain("megatron_s"), self.gain("alike_s")
        said = "" if alike is None else f" ({alike:.3f} x with the recomputation that fits best)"
        said = "" if gain is None else f"{gain:.3f} x Megatron-LM's speed{said}  ·  "
        said += ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        return {
            "times": times,
            "latency": [row.latency_s for row in self.rows],
            "items": [row.items.get(counted, 0) for row in self.rows],
            "counted": {"vision": "images", "video": "clips", "audio": "clips"}.get(counted, "sequences"),
            "missed": [row.index for row in self.rows if row.outcome is not Outcome.PLANNED],
            "first": self.rows[0].index,
            "title": f"{self.model}: every iteration planned while the one before trains",
            "said": said,
        }


def row_json(row: IterationRow) -> dict[str, object]:
    """A row without what was measured."""
    return {**{name: getattr(row, name) for name in _PLANNED}, "outcome": row.outcome.value}


def measured_json(row: IterationRow) -> dict[str, float]:
    """What was measured of a row."""
    return {name: getattr(row, name) for name in _MEASURED}


def row_of_json(table: Mapping[str, Any]) -> IterationRow:
    """A row of its ``row_json`` and what was measured.

    Raises:
        KeyError, TypeError, ValueError: something else.
    """
    table = {"alike_s": None, **table}  # which earlier versions did not write
    values = {item.name: table[item.name] for item in fields(IterationRow)}
    numbers = [*values["items"].values()] if isinstance(values["items"], dict) else [None]
    for name, value in values.items():
        if name in _WORDS or name == "items":
            continue
        if value is None and name in _MAY_LACK:
            continue
        numbers.append(value)
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ValueError("something else than numbers")
    if not isinstance(values["ended_by"], str) or not isinstance(values["error"], str | None):
        raise ValueError("something else than words")
    return IterationRow(**{**values, "outcome": Outcome(values["outcome"])})


def seconds_or_refusal(value: float | None) -> str:
    """A time, or that there is none."""
    return "cannot run" if value is None else f"{value:.4f} s"

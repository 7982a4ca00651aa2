"""DIP Fig. 10: memory of the first pipeline rank of VLM-M over an iteration: Megatron-LM, Optimus, DIP without memory
strategies per layer (*non-adaptive*: every layer by the leanest scheme), DIP within Optimus' peak, DIP.

DIP speaks of fluctuations without defining them. Here: the standard deviation over time of what the rank has allocated,
between the start of its first backward stage and the end of its last forward stage (``_memory``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import semu
from benchmarks.paper._jobs import baseline, job_of, searched
from benchmarks.paper._memory import curve_of, fluctuation, steady_window, swing, thinned
from benchmarks.paper._pictures import COLORS, NAMES, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.engine.timeline import RankTimeline
from semu.units import GIB

SETUP, RANK = "vlm-m", 0
PEAK_GAIN, CALMER, FASTER = 25.3, 52.9, 12.2
LABELS = {
    **NAMES,
    "non-adaptive": "DIP (non-adaptive)",
    "equal": "DIP, within Optimus' peak",
    "dip": "DIP, all of the memory",
}
HUES = {**COLORS, "non-adaptive": "#7FB2D9", "equal": "#CC79A7"}
SHOWN = ("megatron", "optimus", "non-adaptive", "equal", "dip")
COLUMNS = 900
"""Of the picture's curves."""


@dataclass(frozen=True)
class Held:
    """A system's iteration as the first rank sees it.

    Attributes:
        time_s: iteration time [s]. rank: the rank's timeline. window: of its steady state [s].
    """

    time_s: float
    rank: RankTimeline
    window: tuple[float, float]

    @classmethod
    def of(cls, report: semu.Report) -> Held:
        """Of a simulated iteration."""
        rank = report.timeline.ranks[RANK]
        return cls(report.iteration_time_s, rank, steady_window(rank))

    @property
    def peak_gib(self) -> float:
        """Most that is allocated [GiB]."""
        return self.rank.memory.peak_bytes / GIB

    @property
    def fluctuation_gib(self) -> float:
        """Standard deviation in steady state [GiB]."""
        return fluctuation(curve_of(self.rank), *self.window) / GIB

    @property
    def swing_gib(self) -> float:
        """Highest less lowest in steady state [GiB]."""
        return swing(curve_of(self.rank), *self.window) / GIB


def measured(choices: Choices) -> dict[str, Held]:
    """All systems on the first batch."""
    job = job_of(SETUP, choices)
    found = {name: Held.of(baseline(name, job, choices).simulate()) for name in ("megatron", "optimus")}
    found["non-adaptive"] = Held.of(searched(job, choices, strategies=("full",)).report)
    found["dip"] = Held.of(searched(job, choices).report)
    limit = max(found["optimus"].rank.memory.peak_bytes, 1)
    found["equal"] = Held.of(searched(job, choices, memory_limit_bytes=limit).report)
    return found


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See ``_scripts.Script``."""
    if quick:
        choices = choices.changed(rollouts=20)
    found = measured(choices)
    moved = {} if quick else dict(_moved(choices))
    return PaperResult(
        "fig10",
        "memory of the first rank of VLM-M over an iteration",
        "DIP Fig. 10",
        tuple(rows_of(found, moved)),
        (_draw(found, out / "fig10.png"),),
        _text(found),
    )


def _moved(choices: Choices) -> Iterator[tuple[str, dict[str, Held]]]:
    for name, value in (("recompute", "full"), ("merge", 2)):
        yield f"{name} {value}", measured(choices.changed(**{name: value}))


def rows_of(found: Mapping[str, Held], moved: Mapping[str, Mapping[str, Held]]) -> list[PaperRow]:
    """Theirs beside ours."""

    def row(what: str, theirs: float, pick: str, note: str) -> PaperRow:
        own = figures(found)[pick]
        sensitivity = {words: figures(other)[pick] for words, other in moved.items()}
        if pick == "calmer":
            sensitivity["DIP within Optimus' peak"] = figures(found, "equal")[pick]
        return PaperRow(what, theirs, own, "%", margin=0.2, sensitivity=sensitivity, note=note)

    megatron, optimus, own = (found[name] for name in ("megatron", "optimus", "dip"))
    return [
        row(
            "Optimus' peak above Megatron-LM's",
            PEAK_GAIN,
            "peak",
            f"{optimus.peak_gib:.1f} and {megatron.peak_gib:.1f} GiB, weights and optimizer included; both recompute "
            "as few layers as fit on their fullest rank, so peaks say little. DIP's baselines leave memory unused",
        ),
        row(
            "DIP's fluctuations below Megatron-LM's",
            CALMER,
            "calmer",
            f"DIP in all of the device's memory; standard deviation {own.fluctuation_gib:.2f} and "
            f"{megatron.fluctuation_gib:.2f} GiB; highest less lowest {own.swing_gib:.1f} and "
            f"{megatron.swing_gib:.1f} GiB",
        ),
        PaperRow(
            "non-adaptive DIP's fluctuations below Megatron-LM's",
            None,
            100 * (1 - found["non-adaptive"].fluctuation_gib / found["megatron"].fluctuation_gib),
            "%",
            note="all layers recomputed; DIP gives no number",
        ),
        row(
            "DIP within Optimus' peak: faster than Optimus by",
            FASTER,
            "faster",
            f"{found['equal'].time_s:.3f} and {optimus.time_s:.3f} s, both within {optimus.peak_gib:.1f} GiB",
        ),
        PaperRow(
            "DIP's peak over what the device has",
            None,
            100 * own.peak_gib * GIB / own.rank.memory.capacity_bytes,
            "%",
            note="DIP: full utilisation of the available memory",
        ),
    ]


def figures(found: Mapping[str, Held], name: str = "dip") -> dict[str, float]:
    """The three numbers that DIP prints [%]. ``name``: which DIP fluctuates."""
    megatron, optimus = found["megatron"], found["optimus"]
    return {
        "peak": 100 * (optimus.peak_gib / megatron.peak_gib - 1),
        "calmer": 100 * (1 - found[name].fluctuation_gib / megatron.fluctuation_gib),
        "faster": 100 * (optimus.time_s / found["equal"].time_s - 1),
    }


def _text(found: Mapping[str, Held]) -> str:
    lines = [
        "Fluctuation: standard deviation over time of the rank's allocated memory from its first backward to its last "
        "forward. Peaks are the rank's own.",
        "",
        "| system | iteration [s] | peak [GiB] | fluctuation [GiB] | highest less lowest [GiB] |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, held in found.items():
        numbers = f"{held.time_s:.3f} | {held.peak_gib:.2f} | {held.fluctuation_gib:.2f} | {held.swing_gib:.2f}"
        lines.append(f"| {LABELS[name]} | {numbers} |")
    return "\n".join(lines)


def _draw(found: Mapping[str, Held], path: Path) -> Path:
    figure, (axes,) = new_figure(9.5, 4.6)
    longest = max(found[name].time_s for name in SHOWN)
    capacity = found["dip"].rank.memory.capacity_bytes / GIB
    for name in SHOWN:
        held = found[name]
        columns = max(int(COLUMNS * held.time_s / longest), 1)
        times, values = thinned(curve_of(held.rank), held.time_s, columns)
        axes.step(times, values / GIB, where="post", color=HUES[name], linewidth=1.3, label=LABELS[name])
    axes.axhline(capacity, color="#B00020", linestyle=(0, (5, 3)), linewidth=1.2, label="the device's memory")
    axes.set_xlim(0, longest)
    axes.set_ylim(0, 1.3 * capacity)
    axes.set_xlabel("time in the iteration [s]")
    axes.set_ylabel("allocated on rank 0 [GiB]")
    axes.set_title("VLM-M: memory of the first pipeline rank", fontsize=11)
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper center")
    return save(figure, path)

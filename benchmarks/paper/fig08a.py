"""DIP Fig. 8a: the five setups of Table 3 under Megatron-LM, nnScaler*, Optimus and DIP, on average over iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.paper._jobs import Run, baseline, baseline_runs, job_of, on_batch, seeds_of
from benchmarks.paper._pictures import COLORS, NAMES, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper._steps import best
from benchmarks.paper.choices import Choices

SETUPS = ("vlm-s", "vlm-m", "vlm-l", "t2v-s", "t2v-l")
SYSTEMS = ("megatron", "nnscaler", "optimus")
GAINS = {"vlm": (15.6, 76.2), "t2v": (36.6, 97.3)}
"""Least and largest gain in throughput over a baseline, of the kind's setups [%]."""
TEXT = """
Every baseline is planned once and runs {batches} iterations; DIP searches the first {searched} of them one by one.
Gains are on those {searched}, which all systems run. Optimus cannot run T2V. The paper prints the range of the gains of
each kind, not the bars.

| mean iteration [s] | {head} |
| --- | {line} |
{table}

A second number is the mean of all {batches}, where there is one. *n do not fit* counts iterations whose peak is beyond
the device: a static plan cannot know every batch.
"""


RESOLUTION = " Batches of 512 px are as uneven as the paper's (Fig. 4d); T2V-S under them stands in its own row."


@dataclass(frozen=True)
class Bars:
    """A setup.

    Attributes:
        runs: system -> its iterations; those that DIP runs too come first. searched: how many these are.
    """

    runs: dict[str, list[Run]]
    searched: int

    def mean(self, system: str, *, of_all: bool = False) -> float:
        """Mean time of the common iterations, or of all [s]."""
        own = self.runs[system]
        return float(np.mean([run.time_s for run in (own if of_all else own[: self.searched])]))

    def gain(self, system: str) -> float:
        """What DIP gains in throughput [%]."""
        return 100 * (self.mean(system) / self.mean("dip") - 1)

    @property
    def baselines(self) -> list[str]:
        """Names of those that can run it."""
        return [name for name in SYSTEMS if name in self.runs]


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    batches = 4 if quick else choices.batches.value
    searched = 1 if quick else choices.searched_batches.value
    setups = SETUPS[::3] if quick else SETUPS
    found = {setup: bars_of(setup, choices, seeds_of(choices, batches), searched) for setup in setups}
    moved: dict[str, dict[str, Bars]] = {}
    if not quick:
        seeds = seeds_of(choices, 2)
        for name, value in (("vpp", 2), ("recompute", "full"), ("images_mean", None)):
            moved[f"{name} {value}"] = {"vlm-s": bars_of("vlm-s", choices.changed(**{name: value}), seeds, 2)}
        size = choices.resolution.alternatives[0]
        moved[f"resolution {size[0]}"] = {"t2v-s": bars_of("t2v-s", choices.changed(resolution=size), seeds, 2)}
        moved["vpp 2"]["t2v-s"] = bars_of("t2v-s", choices.changed(vpp=2), seeds, 2)
    rows = []
    for kind, printed in GAINS.items():
        own = [bars.gain(name) for setup, bars in found.items() if setup.startswith(kind) for name in bars.baselines]
        for word, theirs, ours in zip(("least", "largest"), printed, (min(own), max(own)), strict=True):
            rows.append(
                PaperRow(
                    f"{kind.upper()}: {word} throughput over a baseline, of all setups",
                    1 + theirs / 100,
                    1 + ours / 100,
                    "x",
                    margin=0.1,
                    note=f"DIP prints a gain of {theirs} %. Margin 10 %: DIP's simulator before calibration."
                    + (RESOLUTION if kind == "t2v" else ""),
                )
            )
    for setup, bars in found.items():
        for name in bars.baselines:
            told = {word: others[setup].gain(name) for word, others in moved.items() if setup in others}
            rows.append(
                PaperRow(f"{setup}: gain of DIP over {NAMES[name]}", None, bars.gain(name), "%", sensitivity=told)
            )
    fastest = all(bars.gain(name) > 0 for bars in found.values() for name in bars.baselines)
    rows.append(PaperRow("DIP is the fastest on every setup (1: yes)", 1.0, float(fastest), ""))
    return PaperResult(
        name="fig08a",
        title="end-to-end on five setups",
        source="DIP Fig. 8a",
        rows=tuple(rows),
        pictures=(draw(out / "fig08a.png", found),),
        text=table(found, batches, searched),
    )


def bars_of(setup: str, choices: Choices, seeds: Sequence[int], searched: int) -> Bars:
    """All systems on a setup; the first ``searched`` iterations are DIP's too."""
    job = job_of(setup, choices)
    is_vlm = setup.startswith("vlm")
    names = [name for name in SYSTEMS if is_vlm or name != "optimus"]
    runs = {name: list(baseline_runs(baseline(name, job, choices), choices, seeds)) for name in names}
    steps = [(seed, best(on_batch(job, choices, seed), choices)) for seed in seeds[:searched]]
    runs["dip"] = [Run(seed, step.time_s, step.fits, step.mfu) for seed, step in steps]
    return Bars(runs, searched)


def table(found: dict[str, Bars], batches: int, searched: int) -> str:
    """The text with all means."""
    lines = []
    systems = [*SYSTEMS, "dip"]
    for setup, bars in found.items():
        cells = []
        for name in systems:
            if name not in bars.runs:
                cells.append("-")
                continue
            own = bars.runs[name]
            words = f"{bars.mean(name):.2f}"
            if len(own) > searched:
                words += f" / {bars.mean(name, of_all=True):.2f}"
            missing = sum(not run.fits for run in own)
            cells.append(words + (f", {missing} do not fit" if missing else ""))
        mfu = float(np.mean([run.mfu for run in bars.runs["dip"]]))
        lines.append(f"| {setup} | " + " | ".join(cells) + f" | {mfu:.3f} |")
    head = " | ".join([*(NAMES[name] for name in systems), "MFU of DIP"])
    line = " | ".join(["---"] * (len(systems) + 1))
    return TEXT.format(batches=batches, searched=searched, head=head, line=line, table="\n".join(lines))


def draw(path: Path, found: dict[str, Bars]) -> Path:
    """Throughput over Megatron-LM's on every setup."""
    figure, (axes,) = new_figure(10, 3.8)
    systems = [*SYSTEMS, "dip"]
    for name in systems:
        places, own = [], []
        for place, bars in enumerate(found.values()):
            if name in bars.runs:
                there = [other for other in systems if other in bars.runs]
                places.append(place + 0.21 * (there.index(name) - (len(there) - 1) / 2))
                own.append(bars.mean("megatron") / bars.mean(name))
        seconds = [bars.mean(name) for bars in found.values() if name in bars.runs]
        bars_drawn = axes.bar(places, own, 0.2, color=COLORS[name], label=NAMES[name])
        axes.bar_label(bars_drawn, [f"{value:.3g} s" for value in seconds], fontsize=7, padding=1)
    axes.set_xticks(range(len(found)), [name.upper() for name in found])
    axes.set_ylabel("throughput over Megatron-LM's")
    axes.axhline(1.0, color="#222222", linewidth=0.6)
    axes.margins(y=0.14)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.14))
    return save(figure, path)

"""How the time of ``prepare`` and of ``restore`` grows: with microbatches, distinct shapes, tensor-parallel ranks.

``prepare`` finds blocks that were traced before and no shape that was costed before. ``draw`` makes the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from _rows import Row
from _timing import turns

import semu
from semu.runfile import load_run
from semu.workload.batch import AbstractBatch, Microbatch

SETUP = "vlm-m"
NUM_RESTORES = 10


@dataclass(frozen=True)
class CycledBatch(AbstractBatch):
    """The first microbatches of another batch, again and again.

    Attributes:
        source: the other batch. distinct: how many of its microbatches.
    """

    source: AbstractBatch
    distinct: int

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """``count`` microbatches, number i the source's number i mod ``distinct``."""
        few = self.source.microbatches(min(count, self.distinct), micro_batch, seq_len)
        return [few[number % len(few)] for number in range(count)]

    @property
    def default_seq_len(self) -> int | None:
        """The source's."""
        return self.source.default_seq_len

    def describe(self) -> dict[str, object]:
        """The source and how much of it."""
        return {"kind": "cycled", "distinct": self.distinct, "source": self.source.describe()}


@dataclass(frozen=True)
class Growth:
    """Times against one size.

    Attributes:
        name: of the size. sizes: its values. fixed: what stays, in words.
        prepare_s, restore_s: per size, times [s] of all turns.
    """

    name: str
    sizes: tuple[int, ...]
    fixed: str
    prepare_s: tuple[tuple[float, ...], ...]
    restore_s: tuple[tuple[float, ...], ...]

    def exponent(self, times_s: Sequence[Sequence[float]]) -> float:
        """Slope of log time over log size in the upper half of the sizes, fastest turns."""
        upper = slice(len(self.sizes) // 2, None)
        fastest_s = [min(of_size) for of_size in times_s]
        return float(np.polyfit(np.log(self.sizes[upper]), np.log(fastest_s[upper]), 1)[0])

    @property
    def upper(self) -> str:
        """The sizes that the exponent is fitted to."""
        return f"{self.sizes[len(self.sizes) // 2]} to {self.sizes[-1]}"


def measure_growth(quick: bool) -> list[Growth]:
    """The three growths, all sizes of one in turns."""
    most_microbatches, most_shapes = (64, 64) if quick else (512, 2048)
    seconds = 1.0 if quick else 15.0
    counts, shapes, peers = _doubled(8, most_microbatches), _doubled(1, most_shapes), _doubled(1, 8)
    tp8 = "dp1-tp8-pp4"
    return [
        _measure("microbatches", counts, [_job(tp8, n) for n in counts], "all different, tp 8", seconds),
        _measure(
            "distinct shapes",
            shapes,
            [_job(tp8, most_shapes, distinct=n) for n in shapes],
            f"{most_shapes} microbatches, tp 8",
            seconds,
        ),
        _measure(
            "tensor-parallel ranks", peers, [_job(f"dp1-tp{n}-pp4", 64) for n in peers], "64 microbatches", seconds
        ),
    ]


def growth_rows(growths: Sequence[Growth]) -> Iterator[Row]:
    """Exponents of the first two; largest over smallest median of the third."""
    for growth in growths:
        for name, times_s in (("prepare", growth.prepare_s), ("restore", growth.restore_s)):
            title = f"{name} against {growth.name}"
            if growth is growths[-1]:
                medians = [median(of_size) for of_size in times_s]
                value, unit, goal = max(medians) / min(medians), "x the time", 1.3
                reference = f"slowest over fastest of {growth.sizes[0]} to {growth.sizes[-1]}, medians; {growth.fixed}"
            else:
                value, unit, goal = growth.exponent(times_s), "exponent", 1.1
                reference = f"log-log fit over {growth.upper}; {growth.fixed}"
            yield Row(title, value, unit, reference, f"<= {goal}", value <= goal)


def draw(path: Path, growths: Sequence[Growth]) -> None:
    """One panel per size: fastest turns in seconds, and a line of slope 1 where growth is expected.

    Args:
        path: PNG to write.
    """
    from matplotlib.figure import Figure

    colors = {"prepare": "#1b6ca8", "restore": "#c1440e"}
    figure = Figure(figsize=(12.0, 4.4), layout="constrained", facecolor="white")
    figure.suptitle(
        f"Time against size of the simulation ({SETUP}, 4 pipeline ranks): prepare once, restore every schedule"
    )
    axes = figure.subplots(1, len(growths), sharey=True)
    for panel, growth in zip(axes, growths, strict=True):
        for name, times_s in (("prepare", growth.prepare_s), ("restore", growth.restore_s)):
            fastest_s = [min(of_size) for of_size in times_s]
            panel.plot(growth.sizes, fastest_s, marker="o", markersize=4, color=colors[name], label=name)
            if growth is not growths[-1]:
                upper = growth.sizes[len(growth.sizes) // 2 :]
                line_s = [fastest_s[-1] * size / upper[-1] for size in upper]
                label = "slope 1: proportional" if name == "restore" else None
                panel.plot(upper, line_s, linestyle=":", color="#777777", label=label, zorder=0)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(growth.sizes, [str(size) for size in growth.sizes], fontsize=8)
        panel.minorticks_off()
        panel.set_xlabel(f"{growth.name}\n({growth.fixed})")
        panel.grid(True, color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("fastest turn [s]")
    axes[-1].legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="center")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _doubled(first: int, last: int) -> tuple[int, ...]:
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def _job(parallel: str, num_microbatches: int, distinct: int | None = None) -> semu.TrainingJob:
    tp = semu.Parallel.parse(parallel).tp
    job = load_run(
        SETUP,
        [f"training.global_batch={num_microbatches}", "training.schedule=1f1b"],
        cluster=f"h800:{max(tp // 2, 1)}x{min(4 * tp, 8)}",
        parallel=parallel,
    )
    batch = CycledBatch(job.batch, distinct if distinct is not None else num_microbatches)
    return replace(job, batch=batch)


def _measure(name: str, sizes: tuple[int, ...], jobs: Sequence[semu.TrainingJob], fixed: str, seconds: float) -> Growth:
    """Times of all sizes in turns, after one that is not counted."""
    prepare = {str(n): partial(_prepare, job) for n, job in zip(sizes, jobs, strict=True)}
    states = [run() for run in prepare.values()]
    restore = {str(n): partial(_restore, state, state.edges_of()) for n, state in zip(sizes, states, strict=True)}
    prepare_s, restore_s = turns(prepare, seconds), turns(restore, seconds / 3)
    return Growth(
        name,
        sizes,
        fixed,
        tuple(tuple(prepare_s[str(n)]) for n in sizes),
        tuple(tuple(t / NUM_RESTORES for t in restore_s[str(n)]) for n in sizes),
    )


def _prepare(job: semu.TrainingJob) -> semu.JobCheckpoint:
    return semu.prepare(job, cache=semu.ResultCache())


def _restore(state: semu.JobCheckpoint, edges: np.ndarray) -> None:
    for _ in range(NUM_RESTORES):
        state.restore(edges)

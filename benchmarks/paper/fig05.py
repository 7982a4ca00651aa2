"""DIP §3.1 and Fig. 5: modality modules mixed in one pipeline segment against separated into segments of their own.

DIP: on ViT 2B + LM 5B (8 H800, TP2 PP4) separated partitioning alone is 13.1 % faster than the best mixed one; on VLM-S
Megatron-LM with the modality-aware partitioner is 17.3 % faster than without (Table 5). DIP tells neither the batch nor
which schedules ran; PipeWeaver §5 speaks of optimal ones. Decided here: 20 packed sequences of dynamic data, the
multiple of PP nearest to Table 1's 12.8 PFLOP; full recomputation, as in the setup. As drawn, mixed is one segment
(Fig. 5a) and separated one per module (Fig. 5b); beside it, both have as many as suit them. The best mixed cut is
searched: from the cuts balanced by parameters and by simulated time, layers move over stage boundaries as long as the
iteration gets shorter. Separated modules are cut by parameters or by time, whichever is faster. Cuts and schedules are
chosen on one iteration (seed 0) and compared on eight others, as plans made before training are (quick: two). Both run
under the same schedules: Megatron-LM's (1F1B, interleaved where there are several segments), the list scheduler (within
the memory of 1F1B, interleaved twice that), and the fastest of these and of breadth-first and coarse-grained ones that
fit in the device. Sub-microbatches (Fig. 5c) are not part of it.

As one of ``python -m benchmarks.paper`` it takes data and microbatches from the choices of all scripts instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "benchmarks")]

import semu
from benchmarks._rows import Row, print_rows
from benchmarks.paper._jobs import batch_of, job_of, model_flop
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.files import write_file
from semu.parallel.stage_layers import layer_parts
from semu.runfile import load_run

DIP = 13.1
DIP_TABLE_5 = 17.3
PP = 4
MEGATRON = ("1f1b",)
LISTED = ("greedy",)
ALL = ("1f1b", "greedy", "eager-1f1b", "looped-bfs", "optimus")
SEEDS = tuple(range(1, 9))
"""Iterations on which cuts are compared."""
SEGMENTS = (1, 2, 3, 4, 5)
PFLOP = 12.8e15
"""Of an iteration of ViT 2B + LM 5B (DIP Table 1)."""
STEPS = (4, 2, 1)
"""Layers that the search moves over a boundary at a time."""
BALANCES = ("parameters", "latency")


@dataclass(frozen=True)
class Found:
    """The fastest way to run a cut.

    Attributes:
        time_s: of the iteration that it was chosen on. schedule: its name. words: the cut. setup: of ``base``.
        parallel: options of ``Parallel`` that make the cut. choices: of the job and its data; None: the setup's own.
    """

    time_s: float
    schedule: str
    words: str
    setup: str
    parallel: dict[str, Any]
    choices: Choices | None = None

    def mean_s(self, seeds: Sequence[int]) -> float:
        """Mean time of other iterations, cut where this one is."""
        job = base(self.setup, self.choices)
        chunks = semu.prepare(replace(job, parallel=replace(job.parallel, **self.parallel))).layout.chunks
        said = {"partition": "parameters", "segments": "mixed", "shares": {}, "layout": layout_of(job, chunks)}
        cut = replace(job.parallel, **{**self.parallel, **said})
        times = []
        for seed in seeds:
            batch = batch_of(job, self.choices, seed) if self.choices else semu.workload.vlm_batch(seed=seed)
            prepared = semu.prepare(replace(job, parallel=cut, batch=batch))
            times.append(prepared.estimate(self.schedule).iteration_time_s)
        return sum(times) / len(times)


@cache
def base(setup: str, choices: Choices | None = None) -> semu.TrainingJob:
    """The setup with 20 sequences, VLM-S with its own 16; under choices, as many as they say, ViT 2B + LM 5B the
    multiple of PP nearest to Table 1's 12.8 PFLOP."""
    if choices is None:
        return load_run(setup, ["training.global_batch=20"] if setup == "vlm-7b" else [])
    job = job_of(setup, choices)
    if setup != "vlm-7b":
        return job
    sizes = [replace(job, training=replace(job.training, global_batch=n)) for n in range(PP, 64, PP)]
    return min(sizes, key=lambda own: abs(model_flop(own) - PFLOP))


def fastest(
    setup: str, schedules: Sequence[str], words: str, choices: Choices | None = None, **parallel: Any
) -> Found | None:
    """The fastest of some schedules that order this cut and fit; None: none does."""
    job = base(setup, choices)
    prepared = semu.prepare(replace(job, parallel=replace(job.parallel, **parallel)))
    best: Found | None = None
    for name in schedules:
        try:
            estimate = prepared.estimate(name)
        except semu.SemuError:
            continue
        if estimate.fits and (best is None or estimate.iteration_time_s < best.time_s):
            best = Found(estimate.iteration_time_s, name, words, setup, parallel, choices)
    return best


def better(found: Found | None, best: Found | None) -> bool:
    return found is not None and (best is None or found.time_s < best.time_s)


def layout_of(job: semu.TrainingJob, chunks: Sequence[Any]) -> dict[str, dict[str, list[int]]]:
    """``[parallel.layout]`` of a cut."""
    stages = job_stages(chunks)
    layers: dict[str, list[int]] = {}
    for number, module in enumerate(job.model.modules):
        layers[module.name] = [0] * stages
        for part in layer_parts(module):
            own = next(
                c.chunk for c in chunks if c.chunk.module == number and c.chunk.first <= part.layer < c.chunk.last
            )
            layers[module.name][own.slot * PP + own.rank] += 1
    return {"modules": layers}


def job_stages(chunks: Sequence[Any]) -> int:
    """Stages of all segments."""
    return PP * (1 + max(int(c.chunk.slot) for c in chunks))


def moved(layout: dict[str, dict[str, list[int]]], boundary: int, way: int) -> dict[str, dict[str, list[int]]] | None:
    """The cut with so many layers taken from the stage behind a boundary; None: a stage is empty then."""
    modules = layout["modules"]
    counts = [sum(own) for own in zip(*modules.values(), strict=True)]
    counts[boundary] += way
    counts[boundary + 1] -= way
    if min(counts) < 1:
        return None
    result: dict[str, list[int]] = {}
    begin = 0
    for name, own in modules.items():
        end = begin + sum(own)
        starts = [sum(counts[:stage]) for stage in range(len(counts))]
        result[name] = [max(0, min(end, a + n) - max(begin, a)) for a, n in zip(starts, counts, strict=True)]
        begin = end
    return {"modules": result}


def best_mixed(schedules: Sequence[str], choices: Choices | None = None, *, quick: bool) -> Found:
    """The best cut into one segment."""
    job = base("vlm-7b", choices)
    best: Found | None = None
    for balance in BALANCES:
        chunks = semu.prepare(replace(job, parallel=replace(job.parallel, partition=balance))).layout.chunks
        found = fastest("vlm-7b", schedules, f"by {balance}", choices, layout=layout_of(job, chunks))
        best = found if better(found, best) else best
    assert best is not None
    for step in () if quick else STEPS:
        is_new = True
        while is_new:
            is_new = False
            for boundary in range(PP - 1):
                for way in (-step, step):
                    layout = moved(best.parallel["layout"], boundary, way)
                    if layout is None:
                        continue
                    words = "searched: " + ", ".join(f"{name} {own}" for name, own in layout["modules"].items())
                    found = fastest("vlm-7b", schedules, words, choices, layout=layout)
                    if found is not None and better(found, best):
                        best, is_new = found, True
    return best


def best_of(
    setup: str,
    schedules: Sequence[str],
    balances: Sequence[str],
    counts: Sequence[int] = (2,),
    choices: Choices | None = None,
    **parallel: Any,
) -> Found:
    """The fastest balance and number of segments of a cut."""
    best: Found | None = None
    for balance in balances:
        for count in counts:
            words = f"{count} segments by {balance}"
            found = fastest(setup, schedules, words, choices, partition=balance, vpp=count, **parallel)
            if better(found, best):
                best = found
    assert best is not None
    return best


def compared(name: str, mixed: Found, separated: Found, theirs: str, seeds: Sequence[int]) -> Row:
    times = mixed.mean_s(seeds), separated.mean_s(seeds)
    gain = 100 * (times[0] / times[1] - 1)
    chosen = 100 * (mixed.time_s / separated.time_s - 1)
    reference = (
        f"{theirs}; mixed {times[0]:.3f} s ({mixed.schedule}; {mixed.words}), separated {times[1]:.3f} s "
        f"({separated.schedule}; {separated.words}); on the iteration they are chosen on {chosen:.1f} %"
    )
    return Row(name, gain, "% faster", reference, "> 0", gain > 0)


def measure(quick: bool, choices: Choices | None = None) -> Iterator[Row]:
    """All rows; of the setups' own data and microbatches, or of choices."""
    theirs = f"DIP measured: {DIP} %"
    seeds, counts = (SEEDS[:2], SEGMENTS[:3]) if quick else (SEEDS, SEGMENTS)
    for name, schedules in (("Megatron-LM's schedules", MEGATRON), ("list scheduler", LISTED), ("best schedule", ALL)):
        mixed = best_mixed(schedules, choices, quick=quick)
        separated = best_of("vlm-7b", schedules, BALANCES, choices=choices, segments="separated")
        yield compared(f"separated over best mixed, {name}", mixed, separated, theirs, seeds)
    for name, schedules in (("Megatron-LM's schedules", MEGATRON), ("best schedule", ALL)):
        mixed = best_of("vlm-7b", schedules, BALANCES, counts, choices)
        separated = best_of("vlm-7b", schedules, BALANCES, counts[1:], choices, segments="separated")
        yield compared(f"the same, up to {counts[-1]} segments, {name}", mixed, separated, theirs, seeds)
    yield over_megatron("vlm-7b", "not in DIP", seeds, choices)
    yield over_megatron("vlm-s", f"DIP Table 5, measured: {DIP_TABLE_5} %", seeds, choices)


def over_megatron(setup: str, theirs: str, seeds: Sequence[int], choices: Choices | None = None) -> Row:
    """Separated against Megatron-LM's two virtual stages, both cut by parameters."""
    mixed = best_of(setup, MEGATRON, BALANCES[:1], choices=choices)
    separated = best_of(setup, MEGATRON, BALANCES[:1], choices=choices, segments="separated")
    word = {"vlm-7b": "ViT 2B + LM 5B", "vlm-s": "VLM-S"}[setup]
    return compared(f"separated over Megatron-LM's VPP, {word}", mixed, separated, theirs, seeds)


TEXT = """
Modality modules mixed in one pipeline segment against separated into segments of their own; no sub-microbatches. DIP
tells neither batch nor schedules, so three kinds of schedules run, and both cuts with as many segments as suit them.
Everything is recomputed here: a number of layers per chunk would not mean the same under both cuts. Gains are means of
iterations that the cuts were not chosen on.

Under Megatron-LM's schedules, which DIP most likely means, both of its numbers come out. The rows that differ are other
readings: a schedule made for the stages' times mends most of what a mixed cut loses, and a mixed cut with several
segments loses nothing. Under the samples' own 18 images (*images_mean None*) the ViT's one segment is so much heavier
than the LM's that separating does not help without sub-microbatches.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    found = list(measure(quick, choices))
    told: dict[str, dict[str, float]] = {}
    seeds = SEEDS[:2] if quick else SEEDS
    for value in () if quick else (2.0, None):
        other = choices.changed(images_mean=value)
        word = f"images_mean {value}"
        own = [over_megatron(setup, "", seeds, other) for setup in ("vlm-7b", "vlm-s")]
        mixed = best_mixed(MEGATRON, other, quick=False)
        separated = best_of("vlm-7b", MEGATRON, BALANCES, choices=other, segments="separated")
        own.append(compared("separated over best mixed, Megatron-LM's schedules", mixed, separated, "", seeds))
        for row in own:
            assert row.value is not None
            told.setdefault(row.name, {})[word] = row.value
    rows = []
    for row in found:
        theirs = DIP if f"{DIP} %" in row.reference else DIP_TABLE_5 if f"{DIP_TABLE_5} %" in row.reference else None
        rows.append(
            PaperRow(row.name, theirs, row.value, "%", 0.25, told.get(row.name, {}), row.reference.partition("; ")[2])
        )
    picture = out / "fig05.png"
    write_file(picture, lambda path: draw(str(path), found))
    return PaperResult("fig05", "separated against mixed partitioning", "DIP §3.1", tuple(rows), (picture,), TEXT)


def draw(path: str, rows: list[Row]) -> None:
    """Bars of every comparison, DIP's figures as lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    place = range(len(rows))
    axes.barh(place, [row.value or 0.0 for row in rows], color="#2f6db3", label="semu")
    axes.axvline(DIP, color="#d1495b", label=f"DIP §3.1: {DIP} %")
    axes.axvline(DIP_TABLE_5, color="#d1495b", linestyle=":", label=f"DIP Table 5 (VLM-S): {DIP_TABLE_5} %")
    axes.set_yticks(list(place), [row.name for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("separated modules faster by [%]")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    print_rows(__doc__, measure, draw)

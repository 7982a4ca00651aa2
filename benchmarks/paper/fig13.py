"""DIP Fig. 13: all (dp, tp, pp) of VLM-M on 64 H800, powers of two with tp <= 8; DIP measured DP8 TP2 PP4 as the best,
with an MFU of 29.7 %. Here the same grid, on calibrated coefficients and on the data sheet's (alpha = 1).

DIP tells neither the global batch nor how layers were cut and recomputed. Decided here: 128 packed sequences; as in
DIP §4 every modality is cut into as many stages as there are pipeline ranks (two chunks per rank, interleaved); of each
chunk as few layers are recomputed as memory allows (DIP §5.3 chooses memory optimisations per layer). A configuration
fits where what the caching allocator is estimated to hold does. DIP's searched schedules are not part of it.

As one of ``python -m benchmarks.paper`` it takes its batch from the choices of all scripts instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(_ROOT), str(_ROOT / "benchmarks")]

import semu
import semu_models
from benchmarks._rows import Row, print_rows
from benchmarks.paper._jobs import batch_of
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.files import write_file
from semu.hardware.data_sheets import data_sheet
from semu.parallel.layout import PipelineLayout

GPUS = 64
GLOBAL_BATCH = 128
LAYERS = {"vit": 63, "llm": 64}
BEST = (8, 2, 4)
MEASURED_MFU = 0.297
GIB = 2**30


@dataclass(frozen=True)
class Point:
    """A place of the grid.

    Attributes:
        sizes: dp, tp, pp. layers: recomputed of each chunk, None: full recomputation.
        calibrated, spec: estimates; None: it does not fit.
        reserved_gib: of the fullest rank.
    """

    sizes: tuple[int, int, int]
    layers: int | None
    calibrated: semu.Estimate | None
    spec: semu.Estimate | None
    reserved_gib: float

    @property
    def name(self) -> str:
        return "DP{} TP{} PP{}".format(*self.sizes)


def even(layers: int, parts: int) -> tuple[int, ...]:
    """As equal as can be, the longer ones first."""
    return tuple(layers // parts + (number < layers % parts) for number in range(parts))


def job(
    cluster: semu.Cluster, sizes: tuple[int, int, int], layers: int | None, choices: Choices | None = None
) -> semu.TrainingJob:
    """A configuration; ``choices``: of its batch, None: 128 sequences of the workload's own mix."""
    dp, tp, pp = sizes
    chunks = PipelineLayout(modules={name: even(count, pp) for name, count in LAYERS.items()})
    parallel = semu.Parallel(dp=dp, tp=tp, pp=pp, zero=1, vpp=2 if pp > 1 else 1, layout=chunks if pp > 1 else None)
    training = semu.Training(
        micro_batch=1,
        global_batch=GLOBAL_BATCH if choices is None else choices.grid_batch.value,
        recompute="none" if layers == 0 else "full",
        recompute_layers=layers or None,
        schedule="interleaved" if pp > 1 else "1f1b",
    )
    made = semu.TrainingJob(MODEL, cluster, parallel, training, batch=semu.workload.vlm_batch(seed=0))
    return made if choices is None else replace(made, batch=batch_of(made, choices, choices.first_seed.value))


MODEL = semu_models.vlm_m()
CALIBRATED = semu.Cluster("h800", nodes=GPUS // 8, gpus_per_node=8)
SPEC = semu.Cluster(data_sheet(CALIBRATED.profile), nodes=GPUS // 8, gpus_per_node=8)


def reserved(estimate: semu.Estimate) -> int:
    """What the allocator of the fullest rank holds [bytes]."""
    held = estimate.reserved_memory_bytes
    assert held is not None
    return max(held)


def measure_point(sizes: tuple[int, int, int], choices: Choices | None = None) -> Point:
    """The fastest way to run a configuration that fits."""

    def run(layers: int | None) -> tuple[semu.Estimate, bool]:
        found = semu.evaluate(job(CALIBRATED, sizes, layers, choices))
        return found, found.fits and reserved(found) <= found.capacity_bytes

    best, fits = run(None)
    if not fits:
        return Point(sizes, None, None, None, reserved(best) / GIB)
    chosen: int | None = None
    low, high = 0, -(-max(LAYERS.values()) // sizes[2]) + 1  # high: all of them, as full recomputation does it
    while low < high:
        middle = (low + high) // 2
        found, fits = run(middle)
        if fits:
            best, chosen, high = found, middle, middle
        else:
            low = middle + 1
    return Point(sizes, chosen, best, semu.evaluate(job(SPEC, sizes, chosen, choices)), reserved(best) / GIB)


def grid(*, quick: bool) -> list[tuple[int, int, int]]:
    sizes = [(GPUS // (tp * pp), tp, pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8, 16, 32, 64) if tp * pp <= GPUS]
    return [item for item in sizes if not quick or item in (BEST, (2, 8, 4))]


def rank_of_best(points: list[Point], kind: str) -> int | None:
    """Place of DIP's optimum among the configurations that fit, 1: the first; None: it does not fit."""
    ranked = sorted((p for p in points if p.calibrated is not None), key=lambda p: -getattr(p, kind).mfu)
    return next((place for place, point in enumerate(ranked, start=1) if point.sizes == BEST), None)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    yield from rows_of([measure_point(sizes) for sizes in grid(quick=quick)])


def rows_of(points: list[Point]) -> Iterator[Row]:
    """MFU of every configuration, and the place of DIP's optimum among them."""
    for point in points:
        if point.calibrated is None or point.spec is None:
            note = f"does not fit: the allocator holds {point.reserved_gib:.1f} GiB under full recomputation"
            yield Row(f"MFU, {point.name}", None, "%", note)
            continue
        layers = "all" if point.layers is None else str(point.layers)
        note = f"data sheet {100 * point.spec.mfu:.1f} %; recomputed layers per chunk: {layers}"
        yield Row(f"MFU, {point.name}", 100 * point.calibrated.mfu, "%", note)
    for kind, words in (("calibrated", "calibrated"), ("spec", "data sheet")):
        place = rank_of_best(points, kind)
        yield Row(f"place of DP8 TP2 PP4, {words}", place, "place", "DIP measured: first", "1", place == 1)
    optimum = next(point for point in points if point.sizes == BEST)
    for kind, words in (("calibrated", "calibrated"), ("spec", "data sheet")):
        found = getattr(optimum, kind)
        ratio = None if found is None else found.mfu / MEASURED_MFU
        yield Row(f"MFU of DP8 TP2 PP4 over DIP's, {words}", ratio, "", "DIP measured 29.7 %")


TEXT = """
All data-, tensor- and pipeline-parallel sizes that are powers of two, tp <= 8; every modality cut into two chunks per
rank, of each chunk as few layers recomputed as memory allows, interleaved 1F1B. *Calibrated*: the shipped H800;
*data sheet*: alpha = 1, DIP's simulator before calibration. Of DIP's measurements only the optimum and its MFU are
printed; the average accuracy of 97.6 % is of the drawn points, which cannot be read off.
"""


MARGIN = "Margin 10 %: DIP's simulator before calibration. DIP ran schedules of its own, this is interleaved 1F1B."


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    points = [measure_point(sizes, choices) for sizes in grid(quick=quick)]
    moved: dict[str, Point] = {}
    for name, value in () if quick else (("images_mean", None), ("images_mean", 2.0), ("grid_batch", 128)):
        moved[f"{name} {value}"] = measure_point(BEST, choices.changed(**{name: value}))
    own = next(point for point in points if point.sizes == BEST)
    ranked = sorted((p for p in points if p.calibrated is not None), key=lambda p: -getattr(p.calibrated, "mfu", 0.0))
    rows = [
        PaperRow(f"place of DP8 TP2 PP4 among {len(points)}, {words}", 1.0, None if place is None else float(place), "")
        for kind, words in (("calibrated", "calibrated"), ("spec", "data sheet"))
        for place in (rank_of_best(points, kind),)
    ]
    for kind, words in (("calibrated", "calibrated"), ("spec", "data sheet")):
        told = {word: getattr(p, kind).mfu for word, p in moved.items() if getattr(p, kind) is not None}
        found = getattr(own, kind)
        rows.append(
            PaperRow(
                f"MFU of DP8 TP2 PP4, {words}",
                MEASURED_MFU,
                None if found is None else found.mfu,
                "",
                0.1,
                told,
                MARGIN if kind == "calibrated" else "",
            )
        )
    if ranked:
        best = ranked[0].calibrated
        assert best is not None
        rows.append(PaperRow(f"best MFU, of {ranked[0].name}", MEASURED_MFU, best.mfu, "", 0.1))
    picture = out / "fig13.png"
    size = choices.grid_batch.value
    write_file(picture, lambda path: draw(str(path), list(rows_of(points)), size))
    title = "every parallel configuration of VLM-M on 64 H800"
    return PaperResult("fig13", title, "DIP Fig. 13", tuple(rows), (picture,), TEXT)


def draw(path: str, rows: list[Row], global_batch: int = GLOBAL_BATCH) -> None:
    """Bars of every configuration that fits, the best first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [(row.name.removeprefix("MFU, "), row.value, row.reference) for row in rows if row.name.startswith("MFU, ")]
    bars = sorted(((n, v, float(r.split()[2])) for n, v, r in shown if v is not None), key=lambda bar: -bar[1])
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    place = range(len(bars))
    axes.bar([x - 0.2 for x in place], [bar[1] for bar in bars], 0.4, label="semu, calibrated", color="#2f6db3")
    axes.bar([x + 0.2 for x in place], [bar[2] for bar in bars], 0.4, label="semu, data sheet", color="#c9ced6")
    best = [number for number, bar in enumerate(bars) if bar[0] == "DP{} TP{} PP{}".format(*BEST)]
    axes.plot(
        best, [100 * MEASURED_MFU] * len(best), "*", color="#d1495b", markersize=13, label="DIP, measured: its best"
    )
    axes.set_xticks(list(place), [bar[0].replace(" ", "\n") for bar in bars], fontsize=8)
    axes.set_ylabel("MFU [%]")
    absent = sum(value is None for _, value, _ in shown)
    axes.set_title(
        f"VLM-M on 64 H800, {global_batch} sequences: what fits, the fastest first ({absent} more do not fit)",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    print_rows(__doc__, measure, draw)

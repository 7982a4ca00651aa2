"""Assigning samples: how long a method takes, how good it is against an exact solver, how long b_min takes.

Samples are drawn with a fixed seed: images and text of log-normal sizes, as ``drawn`` makes them. Times are of one
core, warm, from columns of samples to an ``Assignment``; reading a file is a row of its own. Goals are the issue's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _compiled import bind, compiled
from _rows import Row, print_rows
from _timing import fastest, fastest_cpu

import semu
from semu.runfile import load_run
from semu.searcher.assignment.allocation import stable_batch
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.kernels.bins import deal
from semu.searcher.assignment.methods.table import METHODS
from semu.workload.metadata import read_metadata
from semu.workload.packing import offsets
from semu.workload.samples import Items, Samples

BATCHES = 20
PAIRS = (
    ("vlm-s", 16),
    ("qwen2-vl-7b", 4),
    ("vlm-m", 16),
    ("vlm-7b", 16),
    ("qwen2-vl-2b", 4),
    ("qwen2.5-vl-3b", 4),
    ("qwen2.5-vl-7b", 4),
    ("qwen2.5-vl-32b", 4),
)
"""Shipped vision-language models that take images of any size, with the patches that become a token."""


def drawn(count: int, seed: int, merge: int = 16) -> Samples:
    """Samples of 1 to 5 images and log-normal text. ``merge``: patches that become a token."""
    generator = np.random.default_rng(seed)
    images = np.minimum(generator.geometric(0.5, count), 5)
    sides = np.clip(np.exp(generator.normal(2.2, 0.5, int(images.sum()))), 3, 24).astype(np.int64)
    text = np.clip(np.exp(generator.normal(5.0, 1.0, count)), 4, 2000).astype(np.int64)
    return Samples(text, {"vision": Items(offsets(images), merge * sides**2, sides**2)})


def plain_deal(loads: list[tuple[int, ...]], bins: int) -> list[int]:
    """What the kernel does, in plain Python: largest first, each to the bin that is lowest with it."""
    held = [[0] * len(loads[0]) for _ in range(bins)]
    found = [0] * len(loads)
    for item in sorted(range(len(loads)), key=lambda number: -max(loads[number])):
        own = loads[item]
        best = min(range(bins), key=lambda number: max(a + b for a, b in zip(held[number], own, strict=True)))
        found[item] = best
        held[best] = [a + b for a, b in zip(held[best], own, strict=True)]
    return found


def kernel_deal(loads: np.ndarray, bins: int) -> np.ndarray:  # type: ignore[type-arg]
    """The same by the kernel."""
    order = np.argsort(-loads.max(axis=1), kind="stable")
    found, zeros = np.empty(len(loads), np.int64), np.zeros(len(loads), np.int64)
    deal(order, zeros, bins, loads, np.zeros(loads.shape[1], np.int64), zeros, -1, np.empty(0, np.int64), found)
    return found


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    seconds = 0.5 if quick else 4.0
    job = load_run("vlm-s", ["training.global_batch=1024"], cluster="h800:32x8", parallel="dp32-tp2-pp4")
    assigner = Assigner(job, "entrain", samples=drawn(3000, 1))
    goals = {"order": None, "coupled": None, "entrain-literal": None, "entrain": 20.0}
    yield from _speed(assigner, 4096, seconds, goals)
    if not quick:
        wide = load_run("vlm-s", ["training.global_batch=16384"], cluster="h800:512x8", parallel="dp512-tp2-pp4")
        yield from _speed(Assigner(wide, samples=drawn(65536, 1)), 65536, seconds, {"coupled": None, "entrain": 400.0})
    yield from _against_others(seconds)
    yield from _against_the_optimum(20 if quick else 200)
    yield from _methods(4 if quick else BATCHES)
    yield from _with_search(1 if quick else 4, 20 if quick else 200)
    work = np.random.default_rng(0).lognormal(0, 1, (100_000 if quick else 1_000_000, 2))
    found = fastest({"b_min": lambda: stable_batch(work, 16, also=4096)}, 0.0)
    value = found["b_min"]
    yield Row("b_min", value, "s", f"{len(work):,} samples, global batch 4,096", "<= 5", value <= 5)
    yield from _reading(2_000 if quick else 50_000)


def _speed(assigner: Assigner, count: int, seconds: float, goals: dict[str, float | None]) -> Iterator[Row]:
    samples = drawn(count, 5)
    runs = {name: partial(assigner, samples, method=name) for name in goals}
    found = fastest_cpu(runs, seconds)  # type: ignore[arg-type]
    for name, goal in goals.items():
        value = 1e3 * found[name]
        said, holds = (None, None) if goal is None else (f"<= {goal:g}", value <= goal)
        yield Row(
            f"{count:,} samples, {name}",
            value,
            "ms",
            f"vlm-s, dp {assigner.job.parallel.replicas}, K 32, processor time",
            said,
            holds,
        )


def _against_others(seconds: float) -> Iterator[Row]:
    loads = np.random.default_rng(2).integers(1, 10**6, (1024, 3))
    rows = [tuple(row) for row in loads.tolist()]
    assert plain_deal(rows, 64) == kernel_deal(loads, 64).tolist()
    runs = {"kernel": partial(kernel_deal, loads, 64), "python": partial(plain_deal, rows, 64)}
    with compiled("assignment.c") as built:
        if built is not None:
            order = np.argsort(-loads.max(axis=1), kind="stable")
            bins = np.empty(len(loads), np.int64)
            runs["c"] = bind(built[1].deal, *loads.shape[:1], 64, loads.shape[1], order, loads, bins)
            runs["c"]()
            assert bins.tolist() == kernel_deal(loads, 64).tolist()
        found = fastest(runs, seconds)  # type: ignore[arg-type]
    of = "1,024 samples, 3 loads, 64 bins, same result"
    for name in sorted(runs.keys() - {"kernel"}):
        yield Row(f"dealing, {name} over the kernel", found[name] / found["kernel"], "x", of)


def _against_the_optimum(instances: int) -> Iterator[Row]:
    """The pipeline under ``entrain`` over the shortest that CP-SAT finds, for up to 16 samples."""
    generator = np.random.default_rng(3)
    ranks = (1, 2, 3)
    assigners = [
        Assigner(
            load_run("vlm-s", ["training.global_batch=8"], cluster=f"h800:2x{2 * pp}", parallel=f"dp2-tp2-pp{pp}"),
            samples=drawn(2000, 1),
        )
        for pp in ranks
    ]
    ratios, proven = [], 0
    while len(ratios) < instances:
        samples = drawn(int(generator.integers(10, 17)), 1000 + len(ratios) + int(generator.integers(1 << 20)))
        if int(samples.lengths.sum()) > 6 * 8192:  # eight microbatches of 8,192 tokens cannot hold them for certain
            continue
        assigner = assigners[len(ratios) % len(ranks)]
        found = assigner(samples)
        _, exact = assigner.exact(samples, seconds=4.0)
        ratios.append(float(found.fitted_s.max()) / exact.time_s)
        proven += exact.is_optimal
    of = (
        f"{instances} instances of 10 to 16 samples, 2 replicas x 4 microbatches, 1 to 3 pipeline ranks, under fitted "
        f"costs; {proven} proven by CP-SAT"
    )
    value = float(np.median(ratios))
    yield Row("entrain over the optimum, median", value, "x", of, "<= 1.05", value <= 1.05)
    value = float(np.max(ratios))
    yield Row("entrain over the optimum, worst", value, "x", of, "<= 1.15", value <= 1.15)


def _methods(batches: int) -> Iterator[Row]:
    """Simulated iterations of every method, over ``order``'s; how far entrain is behind the best in the mean."""
    for name, merge in PAIRS[:2] if batches < BATCHES else PAIRS:
        job = load_run(name, ["training.global_batch=64"], cluster="h800:2x8", parallel="dp2-tp2-pp4")
        assigner = Assigner(job, "entrain", samples=drawn(2000, 1, merge))
        table = {
            method: np.array([assigner(drawn(256, 50 + n, merge), method=method).iteration_s for n in range(batches)])
            for method in METHODS
        }
        for method, times in table.items():
            value = float((times / table["order"]).mean())
            yield Row(f"{name}, {method} over the file's order", value, "x", f"{batches} batches of 256, simulated")
        held = [assigner(drawn(512, 50 + n, merge), method="even") for n in range(batches)]
        small = [own for own in held if max(own.balance_bound.values()) <= 1.0]
        for kind, goal in (("encoder", 1.02), ("language model", 1.05)):
            most = max((own.balance[own.costs.modules[kind != "encoder"]] for own in small), default=0.0)
            of = f"worst of {len(small)} batches of 512 without a sample above the mean"
            yield Row(f"{name}, even: max/mean, {kind}", most, "x", of, f"<= {goal}", most <= goal)
        best = np.min([*table.values()], axis=0)
        value = float((table["entrain"] / best).mean())
        yield Row(f"{name}, entrain over the best method", value, "x", "mean", "<= 1.005", value <= 1.005)


def _with_search(batches: int, rollouts: int) -> Iterator[Row]:
    """Assignment, ``semu.search``, and both: simulated iterations over that of the file's order under 1F1B."""
    for name, parallel in (("vlm-s", "dp4-tp2-pp4"), ("vlm-m", "dp4-tp2-pp4")):
        job = load_run(name, ["training.global_batch=32"], cluster="h800:4x8", parallel=parallel)
        assigner = Assigner(job, samples=drawn(2000, 1))
        table: dict[str, list[float]] = {}
        for number in range(batches):
            samples = drawn(192, 50 + number)
            made = {method: assigner(samples, method=method) for method in ("order", "entrain", "coupled")}
            plain, assigned = made["order"], made["entrain"]
            times = {"the file's order": plain.iteration_s, "assigned": assigned.iteration_s}
            given = {"searched": plain, "coupled and searched": made["coupled"], "assigned and searched": assigned}
            for word, own in given.items():  # what is deferred stays so
                times[word] = semu.search(job, assigned=own, rollouts=rollouts, seed=0).report.iteration_time_s
            for word, value in times.items():
                table.setdefault(word, []).append(value / times["the file's order"])
        ratios = {word: float(np.mean(values)) for word, values in table.items()}
        alone = min(ratios["assigned"], ratios["searched"])
        for word, value in ratios.items():
            is_both = word == "assigned and searched"
            goal = (f"< {alone:.4f}, either alone", value < alone) if is_both else (None, None)
            yield Row(f"{name}, {word}", value, "x", f"{batches} batches of 192, {rollouts} rollouts, simulated", *goal)


def _reading(count: int) -> Iterator[Row]:
    samples = drawn(count, 9)
    images = samples.items["vision"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.jsonl"
        with path.open("w") as file:
            for number, text in enumerate(samples.text_tokens.tolist()):
                own = range(int(images.ptr[number]), int(images.ptr[number + 1]))
                listed = [{"patches": int(images.lengths[n]), "tokens": int(images.tokens[n])} for n in own]
                file.write(json.dumps({"id": number, "text_tokens": text, "images": listed}) + "\n")
        found = fastest({"read": lambda: read_metadata(path).packable()}, 0.0)
        yield Row("reading JSONL", found["read"], "s", f"{count:,} samples")


if __name__ == "__main__":
    semu.memo.clear()
    print_rows(__doc__, measure)

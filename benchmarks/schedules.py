"""Speed of schedules as data: generating, validating and evaluating each of them at p=8, m=64, v=2 (DESIGN §6).

Cold: nothing of the pipeline is remembered; the compiled kernels are loaded. With ``--out DIR`` also the picture of all
schedules at p=4, m=8 on one time axis, and that of a vision-language model, as the README has them (``make readme``).

Where torch is installed, the same order goes through torch.distributed.pipelining's own simulation of schedules.
The command ``semu schedules`` runs as a process of its own, start of Python included, kernels compiled before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _rows import Row, print_rows
from _timing import Process, fastest, run_process

import semu
from semu.present.plots import ScheduleRow, draw_schedules
from semu.runfile import load_run
from semu.schedule import ALL_SCHEDULES, PipelineStudy, ScheduleFamily
from semu.schedule.compare import compare_schedules
from semu.schedule.graph import graph_of
from semu.schedule.schedule import Schedule

P, M, V = 8, 64, 2
MODEL = "vlm-l"
SHOWN = ("interleaved", "looped-bfs", "zb-v", "hanayo")
"""Beside the model's own 1F1B in the picture."""
REPEATS = 100
"""Evaluations in a turn, so that it takes about as long as one of torch's simulations."""


def slots(family: ScheduleFamily) -> int:
    """Two chunks per rank where the schedule takes them."""
    return next(v for v in (V, 1) if family.misfit(P, M, v) is None)


def all_of_it(family: ScheduleFamily, v: int) -> None:
    """From three numbers to a makespan, with nothing remembered."""
    graph_of.cache_clear()
    shape = family.shape(P, M, v)
    schedule = family(shape)
    schedule.validate(shape)
    PipelineStudy.of(shape).evaluate(schedule)


def measure_families(quick: bool) -> Iterator[Row]:
    """Every schedule, from numbers to figures, and the evaluation alone."""
    seconds = 0.5 if quick else 5.0
    chosen = {name: slots(family) for name, family in ALL_SCHEDULES.items()}
    whole = {name: partial(all_of_it, ALL_SCHEDULES[name], v) for name, v in chosen.items()}
    for run in whole.values():
        run()
    whole_s = fastest(whole, seconds)
    for name, time_s in whole_s.items():
        text = f"{name}, v={chosen[name]}: generate, validate, evaluate"
        yield Row(text, time_s * 1e3, "ms", f"p={P}, m={M}, cold", "<= 20", time_s <= 0.02)
    shapes = {name: ALL_SCHEDULES[name].shape(P, M, v) for name, v in chosen.items()}
    studies = {name: PipelineStudy.of(shape) for name, shape in shapes.items()}
    schedules = {name: ALL_SCHEDULES[name](shape) for name, shape in shapes.items()}
    alone_s = fastest({n: partial(studies[n].evaluate, schedules[n]) for n in chosen}, seconds)
    name = max(alone_s, key=lambda n: alone_s[n])
    size = sum(map(len, schedules[name].orders))
    yield Row(
        "evaluation alone, the slowest",
        alone_s[name] * 1e3,
        "ms",
        f"{name}, {size} stages",
        "<= 0.2",
        alone_s[name] <= 2e-4,
    )
    yield Row("evaluation alone, per stage", alone_s[name] / size * 1e9, "ns", name)


def torch_actions(torch: Any, name: str) -> dict[int, list[Any]]:
    """torch's own actions of one of our schedules."""
    family = ALL_SCHEDULES[name]
    schedule: Schedule = family(family.shape(P, M, slots(family)))
    return {rank: [torch._Action.from_str(str(stage)) for stage in order] for rank, order in enumerate(schedule.orders)}


def measure_torch(quick: bool) -> Iterator[Row]:
    """Against the simulation inside torch.distributed.pipelining, on the same orders."""
    try:
        import torch.distributed.pipelining.schedules as torch
    except ImportError:
        yield Row("against torch pipelining's simulation", None, "x faster", "torch is not installed", ">= 100")
        return
    for name in ("1f1b", "interleaved", "interleaved-zb", "zb-v"):
        family = ALL_SCHEDULES[name]
        shape = family.shape(P, M, slots(family))
        study, schedule, actions = PipelineStudy.of(shape), family(shape), torch_actions(torch, name)
        ranks = dict(enumerate(shape.chunk_rank))
        sent = torch._add_send_recv(actions, ranks.__getitem__, shape.num_chunks)
        theirs = partial(torch._simulate_comms_compute, sent, ranks.__getitem__, shape.num_chunks)

        def ours(study: PipelineStudy = study, schedule: Schedule = schedule) -> None:
            for _ in range(REPEATS):
                study.evaluate(schedule)

        times_s = fastest({"ours": ours, "torch": theirs}, 1.0 if quick else 5.0)
        ours_s, torch_s = times_s["ours"] / REPEATS, times_s["torch"]
        size = sum(map(len, schedule.orders))
        reference = f"{torch_s / size * 1e6:.1f} us a stage against {ours_s / size * 1e9:.0f} ns, {size} stages"
        yield Row(
            f"{name} against torch's simulation",
            torch_s / ours_s,
            "x faster",
            reference,
            ">= 100",
            torch_s >= 100 * ours_s,
        )


def command(*words: str) -> Process:
    """``semu`` in a process of its own, what it prints thrown away."""
    code = f"with contextlib.redirect_stdout(io.StringIO()): result = main({list(words)})"
    return run_process(f"import contextlib, io\nfrom semu.cli import main\n{code}\n")


def measure_command(quick: bool) -> Iterator[Row]:
    """Comparing all schedules on a vision-language model of 95 billion parameters."""
    runs = [
        (command("simulate", MODEL), command("schedules", MODEL, "--compare", "all")) for _ in range(3 if quick else 8)
    ]
    one, every = (min(found, key=lambda process: process.wall_s) for found in zip(*runs, strict=True))
    found = semu.compare_schedules(load_run(MODEL), "all")
    yield Row(
        f"semu schedules {MODEL} --compare all",
        every.wall_s,
        "s",
        f"{len(found.rows)} schedules run, {len(found.refused)} refused; {every.cpu_s:.2f} s of CPU; "
        f"semu simulate: {one.wall_s:.2f} s, {one.cpu_s:.2f} s of CPU",
        "<= 5",
        every.wall_s <= 5,
    )


def draw(folder: Path) -> None:
    """All schedules side by side, and some on a model."""
    held = 1 << 20
    compared, _ = compare_schedules(4, 8, held_bytes=held)
    rows = [
        ScheduleRow(c.evaluation, c.study.arrays, f"holds {int(c.evaluation.peak_bytes.max()) / held:g} microbatches")
        for c in compared
    ]
    folder.mkdir(parents=True, exist_ok=True)
    subtitle = "equal stages: forward, input gradient and weight gradient take 1 s each per rank and microbatch"
    draw_schedules(
        folder / "schedules.png", rows, title="Pipeline schedules, 4 ranks, 8 microbatches", subtitle=subtitle
    )
    semu.compare_schedules(load_run(MODEL), SHOWN).draw(folder / "schedules_vlm.png")


def measure(quick: bool) -> Iterator[Row]:
    yield from measure_families(quick)
    yield from measure_torch(quick)
    yield from measure_command(quick)


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--out", type=Path)
    known, sys.argv[1:] = own.parse_known_args()
    if known.out is not None:
        draw(known.out)
    print_rows(__doc__, measure)

"""Branch and bound against every configuration evaluated by itself; ranking, misfits, interrupts, results files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from searcher.grid.cases import built, dense, documents, experts, tried, vision
from simulation.rooms import capacity_for

import semu
import semu_models
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.parallel.config import Parallel
from semu.searcher.grid import hunt as hunting
from semu.searcher.grid.bounds import Floors
from semu.searcher.grid.content import content_hash
from semu.searcher.grid.evaluate_points import Outcome, evaluate_chunk
from semu.searcher.grid.grid_search import grid as grid_of
from semu.searcher.grid.hunt import CHUNK
from semu.searcher.grid.legal import legal_points
from semu.searcher.grid.space import Axis, Point, RankBy, Space
from semu.simulation.estimate import evaluate
from semu.simulation.memory.changes_that_fit import changed
from semu.simulation.results.estimated import Metrics

grid = partial(grid_of, framework="any")
"""Beside all configurations that there are, not those of one framework."""
SMALL = {"tp": None, "pp": (1, 2, 4), "micro_batch": (1, 2, 4), "recompute": ("none", "full")}


def tight(make: Callable[..., TrainingJob], share: float) -> TrainingJob:
    """The job on devices with the memory that a share of ``SMALL`` needs, the least first."""
    job = make()
    points = legal_points(job, Space.of(job, SMALL)).points
    needs = sorted(
        capacity_for(max(found.held_memory_bytes), built(job, point).parallel)
        for point, found in tried(job, [*points]).items()
    )
    limit = needs[int(share * (len(needs) - 1))]
    cluster = Cluster("h800", 2, 4, {"memory_bytes": limit})
    return TrainingJob(job.model, cluster, Parallel(dp=8), job.training, job.batch)


def slow_best(job: TrainingJob, vary: Any, top: int, order: RankBy) -> list[Point]:
    """The first of all configurations that fit, each evaluated by itself."""
    points = [*legal_points(job, Space.of(job, vary)).points]
    found = tried(job, points)
    fitting = [point for point in points if found[point].fits or order is RankBy.HEADROOM]

    def merit(point: Point) -> tuple[float, Point]:
        if order is RankBy.HEADROOM:
            return (max(found[point].peak_memory_bytes), point)
        tokens = 1
        if order is not RankBy.TIME:
            tokens = round(semu.simulate(built(job, point)).tokens)
        return (found[point].iteration_time_s / tokens, point)

    return sorted(fitting, key=merit)[:top]


@pytest.mark.parametrize(
    ("make", "share", "order"),
    [
        (dense, 0.5, RankBy.TIME),
        (dense, 1.0, RankBy.HEADROOM),
        pytest.param(experts, 0.7, RankBy.TIME, marks=pytest.mark.slow),
        pytest.param(vision, 0.6, RankBy.TIME, marks=pytest.mark.slow),
    ],
)
def test_the_best_are_those_of_all(make: Callable[..., TrainingJob], share: float, order: RankBy) -> None:
    job = tight(make, share)
    expected = slow_best(job, SMALL, 4, order)
    bounded = grid(job, vary=SMALL, top=4, rank_by=order)
    whole = grid(job, vary=SMALL, top=4, rank_by=order, exhaustive=True)
    assert [row.point for row in bounded.rows[:4]] == [row.point for row in whole.rows[:4]] == expected
    assert bounded.rows[:4] == whole.rows[:4]
    assert whole.num_legal == len(whole.rows) + whole.cut_by_memory
    assert whole.num_legal == len(legal_points(job, Space.of(job, SMALL)).points)
    assert bounded.num_legal == len(bounded.rows) + bounded.cut_by_memory + bounded.cut_by_bound
    assert whole.evaluated == len(whole) and whole.cut_by_bound == 0
    known = {row.point: row.figures for row in whole.rows}
    assert all(known[row.point] == row.figures for row in bounded.rows)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("make", "vary"),
    [
        (documents, {"cp": (1, 2, 4), "cp_balance": None, "attention_split": (0, 2, 4), "micro_batch": (1, 2)}),
        (experts, {"zero": None, "ep": None, "pp": (1, 2, 4), "schedule": ("1f1b", "gpipe"), "micro_batch": (1, 2)}),
        (vision, {"segments": None, "pp": (1, 2, 4), "vpp": (1, 2), "micro_batch": (1, 2)}),
        (vision, {"partition": ("parameters", "latency", "forward"), "pp": (1, 2, 4), "micro_batch": (1, 2)}),
    ],
    ids=["context", "sharded", "segments", "partition"],
)
def test_the_best_policies_and_segments_are_those_of_all(make: Callable[..., TrainingJob], vary: Any) -> None:
    job = make()
    bounded = grid(job, vary=vary, top=4)
    whole = grid(job, vary=vary, top=4, exhaustive=True)
    assert [row.point for row in bounded.rows[:4]] == slow_best(job, vary, 4, RankBy.TIME)
    assert bounded.rows[:4] == whole.rows[:4]
    assert bounded.cut_by_bound > 0 == whole.cut_by_bound
    assert len(whole) == whole.num_legal and not whole.refused
    known = {row.point: row.figures for row in whole.rows}
    assert all(known[row.point] == row.figures for row in bounded.rows)
    new = {axis: {getattr(point, axis) for point in known} for axis in vary}
    assert all(len(values) > 1 for values in new.values())


@pytest.mark.slow
@pytest.mark.parametrize(("make", "share"), [(dense, 0.5), (vision, 0.6)])
def test_every_row_is_judged_as_its_simulation_is(make: Callable[..., TrainingJob], share: float) -> None:
    """By what a device must hold, the best and all others; a row says where a bound was enough."""
    job = tight(make, share)
    found = grid(job, vary=SMALL, top=2, exhaustive=True)
    ways = set()
    for row in found:
        report = semu.simulate(built(job, row.point))
        room = report.room
        assert row.fits == report.fits == (max(report.held_memory_bytes) <= room.usable_bytes)
        assert row.judged_by == row.to_dict()["judged_by"]
        held = row.reserved_memory_bytes
        is_tight = room.is_tight(max(report.peak_memory_bytes))
        assert (held is None) == (row.judged_by != "reserved") == (not is_tight)
        if held is not None and not row.fits:
            assert held > room.usable_bytes and held in report.held_memory_bytes
        left = room.usable_bytes - max(report.held_memory_bytes)
        assert row.headroom_bytes == left if row.is_counted else row.headroom_bytes >= left
        said = f"{'' if row.is_counted else '<'}{row.headroom_bytes / 2**30:.2f}"
        assert said in repr(replace(found, rows=(row,))).splitlines()[1].split()
        ways.add((row.judged_by, row.fits))
    assert {True, False} == {fits for _, fits in ways} and "reserved" in {way for way, _ in ways}
    assert found.best is not None
    assert found.best.point == slow_best(job, SMALL, 1, RankBy.TIME)[0]


def test_a_frameworks_rule_is_the_same_in_python_and_on_the_command_line() -> None:
    """Megatron-LM's where the software is, else none: three layers are not cut into two stages."""
    for software, of in (("megatron", "megatron"), ("torch", "any")):
        job = dense(software=software)
        found = grid_of(job, vary=SMALL)
        assert found.rows == grid_of(job, vary=SMALL, framework=of).rows
    assert grid_of(dense(), vary=SMALL).num_legal < grid(dense(), vary=SMALL).num_legal


class Equal:
    """An engine for which every configuration takes the same time and almost no memory."""

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s

    def run(self, work: Any, tasks: Any) -> Iterator[tuple[int, list[Outcome]]]:
        for number, task in enumerate(tasks):
            yield number, [Outcome(point, Metrics(self.time_s, 0.5, 0.1, 1)) for point in task]


def test_a_configuration_whose_bound_equals_the_best_is_evaluated() -> None:
    """All take as long as the highest of all bounds: the configuration with that bound is as good as any other, and
    the first in the order of the axes. Chunks of four configurations are evaluated before it."""
    job, vary = dense(), {"tp": (1, 2, 4), "recompute": ("none", "selective", "full")}
    points = legal_points(job, Space.of(job, vary)).points
    floors = Floors(job, points)
    bound_s = {point: floors[point].time_s for point in points}
    last = max(points, key=lambda point: bound_s[point])
    assert sorted(bound_s.values())[-2] < bound_s[last]
    assert last == min(points)
    assert len(points) == 2 * CHUNK + 1
    found = grid(job, vary=vary, top=1, engine=Equal(bound_s[last]))
    assert [row.point for row in found] == sorted(points)
    assert found.best is not None
    assert found.best.point == last
    assert found.cut_by_bound == 0
    less = grid(job, vary=vary, top=1, engine=Equal(bound_s[last] * (1 - 1e-12)))
    assert [row.point for row in less] == sorted({*points} - {last})
    assert less.cut_by_bound == 1


@pytest.mark.slow
@pytest.mark.parametrize("order", [*RankBy])
@pytest.mark.parametrize("make", [dense, experts, vision])
def test_every_order(make: Callable[..., TrainingJob], order: RankBy) -> None:
    job = tight(make, 0.6)
    found = grid(job, vary=SMALL, top=5, rank_by=order, price=2.0)
    assert [row.point for row in found.rows[:5]] == slow_best(job, SMALL, 5, order)[:5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "device", "gpus"),
    [("gpt3_175b", "a100-80g", 128), ("llama3_8b", "h100", 32), ("mixtral_8x7b", "h100", 64), ("vlm_s", "h800", 32)],
)
def test_exhaustive_proves_the_optimum(model: str, device: str, gpus: int) -> None:
    batch = semu.workload.vlm_batch(seed=0) if model.startswith("vlm") else None
    training = Training(
        micro_batch=1, global_batch=max(64, gpus), seq_len=2048 if batch is None else None, recompute="full"
    )
    cluster = Cluster(device, gpus // 8, 8)
    job = TrainingJob(getattr(semu_models, model)(), cluster, Parallel(dp=gpus), training, batch)
    vary = {"tp": None, "pp": None, "micro_batch": (1, 2), "recompute": None, "vpp": (1, 2)}
    found, whole = grid(job, vary=vary), grid(job, vary=vary, exhaustive=True)
    assert found.best is not None
    assert found.rows[:10] == whole.rows[:10]


def test_a_chunk_is_what_evaluate_says() -> None:
    """Whatever was evaluated before, in whatever order."""
    job = vision()
    points = [*legal_points(job, Space.of(job, SMALL)).points]
    Random(5).shuffle(points)
    for outcome in evaluate_chunk(job, points[:12]):
        found = evaluate(built(job, outcome.point))
        assert outcome.figures is not None
        assert outcome.figures == (
            found.iteration_time_s,
            found.mfu,
            found.bubble_ratio,
            max(found.peak_memory_bytes),
        )


def test_what_does_not_fit_and_what_would() -> None:
    job = tight(dense, 0.5)
    found = grid(job, vary=SMALL, top=2, exhaustive=True)
    fits = [row.fits for row in found]
    assert fits == sorted(fits, reverse=True) and not all(fits) and all(fits[:2])
    misfit = found.rows[sum(fits)]
    assert misfit.change is not None and misfit.headroom_bytes < 0
    near = misfit.point._replace(**misfit.change)
    assert evaluate(built(job, near)).fits
    others = [row.point for row in found if evaluate(built(job, row.point)).fits]
    changed = [sum(a != b for a, b in zip(misfit.point[1:], other[1:], strict=True)) for other in others]
    assert len([axis for axis in misfit.change if axis != "dp"]) == min(changed)


def test_nothing_fits() -> None:
    job = tight(dense, 0.0)
    small = TrainingJob(job.model, Cluster("h800", 2, 4, {"memory_bytes": 2**20}), job.parallel, job.training)
    found = grid(small, vary=SMALL, top=3)
    assert found.best is None and len(found) >= 3
    peaks = {p: max(own.peak_memory_bytes) for p, own in tried(small, [row.point for row in found]).items()}
    assert found.smallest.point == slow_best(small, SMALL, 1, RankBy.HEADROOM)[0]
    assert [row.figures.peak_memory_bytes for row in found] == [peaks[row.point] for row in found]
    assert found.best_job.parallel.tp == found.smallest.point.tp
    assert found.nearest_fit == () and "no change that was tried" in repr(found)


@pytest.mark.parametrize("exhaustive", [False, True])
def test_nothing_fits_but_for_a_change_beyond_the_axes(exhaustive: bool) -> None:
    job = dense()
    vary: dict[str, Any] = {"tp": (2, 4), "micro_batch": (1,)}
    smallest = grid_of(job, vary=vary, rank_by="headroom").smallest
    own = built(job, smallest.point)
    limit = capacity_for(max(evaluate(own).held_memory_bytes) - 2**21, own.parallel)
    cluster = Cluster("h800", 2, 4, {"memory_bytes": limit})
    found = grid_of(TrainingJob(job.model, cluster, job.parallel, job.training), vary=vary, exhaustive=exhaustive)
    assert found.best is None and found.nearest_fit
    change = found.nearest_fit[0]
    own = built(found.job, found.smallest.point)
    own = changed(own, change.settings)
    assert evaluate(own).fits and max(evaluate(own).peak_memory_bytes) == change.peak_memory_bytes
    assert evaluate(own).iteration_time_s == change.iteration_time_s
    assert found.to_json()["nearest_fit"] == [each.to_json() for each in found.nearest_fit]
    assert f"with --set {change.label()}" in " ".join(repr(found).split())
    assert found.report.nearest_fit == found.nearest_fit


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fix": {"dp": 3}}, "no legal configuration.*number of GPUs"),
        ({"vary": {"tp": (8,)}, "fix": {"pp": 1}}, "no legal configuration.*four|no legal configuration.*spread"),
        ({"fix": {"micro_batch": 5}, "vary": ("tp",)}, "no legal configuration.*global batch"),
        ({"rank_by": "luck"}, "unknown order"),
        ({"rank_by": "cost"}, "without a price"),
        ({"price": -1.0}, "not a price"),
        ({"top": 0}, "not a valid number"),
        ({"workers": 0}, "not a valid number"),
        ({"gpus": 5}, "whole number of nodes"),
    ],
)
def test_bad_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        grid(dense(), **options)


def test_a_schedule_file_orders_one_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("0F0 0B0")
    with pytest.raises(ConfigError, match="one pipeline only"):
        grid(dense(schedule_file=str(file)))


# -- results files -------------------------------------------------------------------------------------------------
class Stops:
    """An engine that is interrupted behind a number of tasks."""

    def __init__(self, after: int) -> None:
        self.after = after

    def run(self, work: Callable[[Sequence[Point]], list[Outcome]], tasks: Any) -> Iterator[tuple[int, list[Outcome]]]:
        for number, task in enumerate(tasks):
            if number == self.after:
                raise KeyboardInterrupt
            yield number, work(task)


def test_an_interrupted_grid_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "grid.sqlite"
    whole = grid(dense(), vary=SMALL)
    first = grid(dense(), vary=SMALL, results=file, engine=Stops(2))
    assert first.ended_by == "interrupt" and 0 < first.evaluated < whole.evaluated
    assert len(first) == first.evaluated
    second = grid(dense(), vary=SMALL, results=file)
    assert second.reused == first.evaluated and second.evaluated == whole.evaluated - first.evaluated
    third = grid(dense(), vary=SMALL, results=file, exhaustive=True)
    assert third.evaluated == third.num_legal - whole.evaluated
    assert json.dumps(second.to_json()) == json.dumps(whole.to_json())
    assert second.to_csv() == whole.to_csv()
    assert grid(dense(), vary=SMALL, results=file).evaluated == 0


def test_an_axis_may_be_another_in_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "grid.sqlite"
    found = grid(dense(), vary=("tp", "pp"), results=file, exhaustive=True)
    again = grid(dense(micro_batch=2), vary=("tp",), fix={"micro_batch": 1}, results=file, exhaustive=True)
    assert again.evaluated == 0 and 0 < again.reused < found.evaluated


@pytest.mark.parametrize(
    "other",
    [
        partial(dense, 5),
        partial(dense, global_batch=32),
        partial(dense, attention="unfused"),
        experts,
        vision,
        lambda: TrainingJob(
            dense().model, Cluster("h800", 2, 4, {"memory_bytes": 1 << 36}), Parallel(dp=8), dense().training
        ),
    ],
)
def test_results_of_another_job_are_refused(tmp_path: Path, other: Callable[[], TrainingJob]) -> None:
    file = tmp_path / "grid.sqlite"
    grid(dense(), vary={"tp": (1, 2)}, results=file)
    with pytest.raises(ConfigError, match="results of another job: llm on h800:2x4, global batch 16"):
        grid(other(), vary={"tp": (1, 2)}, results=file)


def test_files_that_are_no_results(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, " * 100)
    with pytest.raises(ConfigError, match="cannot use the results file"):
        grid(dense(), vary=("tp",), results=file)
    with pytest.raises(ConfigError, match="cannot use the results file"):
        grid(dense(), vary=("tp",), results=tmp_path / "nowhere" / "grid.sqlite")


def test_a_result_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "grid.sqlite"
    grid(dense(), vary=("tp",), results=file, exhaustive=True)
    with sqlite3.connect(file) as store:
        store.execute("UPDATE results SET iteration_time_s = 77.0")
        assert store.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
    found = grid(dense(), vary=("tp",), results=file, exhaustive=True)
    assert {row.figures.iteration_time_s for row in found} == {77.0}


def test_hashes_are_of_the_content() -> None:
    one = content_hash(dense())
    assert one == content_hash(dense()) == content_hash(dense(micro_batch=2, recompute="full"))
    assert (
        len({one, content_hash(dense(5)), content_hash(vision()), content_hash(dense(optimizer_state_dtype="bf16"))})
        == 4
    )


# -- the table -----------------------------------------------------------------------------------------------------
def test_the_table(tmp_path: Path) -> None:
    found = grid(dense(), vary=("tp", "pp"), price=2.0, rank_by="cost", top=3)
    assert len(found) == len(found.to_dicts()) == len([*found]) and found[0] == found.rows[0] == found.best
    lines = found.to_csv().splitlines()
    assert lines[0].split(",")[:3] == ["dp", "tp", "pp"] and len(lines) == len(found) + 1
    row = found.to_dicts()[0]
    job = built(dense(), found[0].point)
    report = semu.simulate(job)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(report.tokens_per_s_per_gpu)
    seconds = 1e6 / report.tokens * report.iteration_time_s * 8
    assert row["usd_per_million_tokens"] == pytest.approx(2.0 * seconds / 3600)
    assert found.report.iteration_time_s == row["iteration_time_s"] == report.iteration_time_s
    text = repr(found)
    assert "USD/Mtoken" in text and f"{found.num_legal:,} legal configurations" in text
    assert found.varied == (Axis.DP, Axis.TP, Axis.PP)
    again = grid(dense(), Space.of(dense(), ("tp", "pp")), price=2.0, rank_by="cost", top=3)
    assert again.rows == found.rows


@pytest.mark.extras
@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_frames_of_others(name: str) -> None:
    found = grid(dense(), vary=("tp",))
    try:
        __import__(name)
    except ImportError:
        with pytest.raises(ConfigError, match=f"pip install {name}"):
            getattr(found, f"to_{name}")()
        return
    frame = getattr(found, f"to_{name}")()
    assert [*frame.columns] == [*found.to_dicts()[0]] and len(frame) == len(found)


@pytest.mark.slow
def test_pictures_are_the_same_again(tmp_path: Path) -> None:
    found = grid(dense(2), vary={"pp": (1, 2), "micro_batch": (1, 2)})
    names = {path.name for path in found.save(tmp_path / "a")}
    assert names >= {"grid.csv", "grid.json", "pareto.png", "heatmap.png", "result.json", "timeline.png"}
    found.save(tmp_path / "b", (Axis.PP, Axis.MICRO_BATCH))
    for name in ("grid.csv", "grid.json", "pareto.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "heatmap.png").read_bytes() != (tmp_path / "b" / "heatmap.png").read_bytes()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_who_evaluates_changes_nothing(tmp_path: Path) -> None:
    here = grid(dense(), vary=SMALL)
    others = [grid(dense(), vary=SMALL, workers=2), grid(dense(), vary=SMALL, engine="local", workers=1)]
    for found in others:
        assert json.dumps(found.to_json()) == json.dumps(here.to_json())


def test_progress_is_told_four_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a clock, and what is said at each; the best time is negative where larger is better."""
    told: list[str] = []
    hunt = hunting.Hunt(
        job=None, space=None, order=RankBy.TIME, top=1, price=None, engine=None, tell=told.append, begin=0
    )  # type: ignore[arg-type]
    clock = iter([100.0, 100.2, 100.25, 100.4, 100.5])
    monkeypatch.setattr(hunting.time, "monotonic", lambda: next(clock))
    said = []
    for best in ([], [], [], [-3.0], [-3.0, -2.5]):
        before = len(told)
        hunt._say(1234.5, best, RankBy.TIME, 9000)
        said.append(len(told) - before)
    assert said == [1, 0, 1, 0, 1]
    assert told == ["0 of at most 9,000 simulated, 1,234/s"] * 2 + [
        "0 of at most 9,000 simulated, 1,234/s, best 2.5000 s"
    ]

"""A trace beside a simulation, on a text model and a VLM: sums against a plain sweep over all operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.fitting.kernel_names import FAMILY_OF_KIND, Family
from semu.present.traces import write_trace as write_simulated
from semu.validation.traces.kineto import read_kineto
from semu.validation.traces.trace_comparison import compare_trace
from semu.validation.traces.trace_result import TraceComparison
from tests.validation.own_runs import KERNELS, OwnRun, kernel, launch, operators, own_runs, step, text_run, write_trace

RUNS = pytest.mark.parametrize("number", [0, 1], ids=["text", "vlm"])


def sweep(spans: list[tuple[Family, float, float]]) -> dict[str, float]:
    """Times [s] with computation, with communication, and with both, by walking over all starts and ends."""
    changes: list[tuple[float, int, str]] = []
    for family, start, end in spans:
        side = "network" if family.is_communication else "compute" if family.is_compute else ""
        if side and end > start:
            changes += [(start, 1, side), (end, -1, side)]
    running, last = Counter[str](), 0.0
    found = Counter[str]()
    for time, change, side in sorted(changes):
        for name in ("compute", "network"):
            found[name] += (time - last) * (running[name] > 0)  # type: ignore[assignment]
        found["both"] += (time - last) * (running["compute"] > 0 and running["network"] > 0)  # type: ignore[assignment]
        running[side] += change
        last = time
    return dict(found)


def check_simulated(result: TraceComparison, run: OwnRun, rank: int) -> None:
    spans = [(FAMILY_OF_KIND[kind], start, end) for kind, start, end in operators(run.report.timeline.ranks[rank])]
    counts = Counter(family for family, _, _ in spans)
    assert {row.family: row.simulated_count for row in result.rows if row.simulated_count} == dict(counts)
    for row in result.rows:
        own = [end - start for family, start, end in spans if family is row.family]
        assert row.busy.simulated == pytest.approx(sum(own), rel=1e-12)
    times = sweep(spans)
    simulated = result.simulated
    assert simulated.iteration_s == run.report.iteration_time_s
    assert simulated.compute_s == pytest.approx(times["compute"], rel=1e-9)
    assert simulated.communication_s == pytest.approx(times["network"], rel=1e-9)
    assert simulated.overlapped_s == pytest.approx(times["both"], rel=1e-9, abs=1e-12)
    assert simulated.idle_s + simulated.exposed_s + simulated.compute_s == pytest.approx(simulated.iteration_s)


@pytest.mark.sampled(2)
@RUNS
def test_a_trace_of_the_simulation_itself_agrees(number: int, tmp_path: Path) -> None:
    run = own_runs(tmp_path)[number]
    path = tmp_path / "trace.json"
    write_simulated(path, run.report.timeline, title="", metadata={})
    for rank in range(run.job.parallel.pp):
        result = compare_trace(read_kineto(path), run.job, run.report, rank=rank)
        check_simulated(result, run, rank)
        assert result.unmatched == ()
        for row in result.rows:
            assert row.measured_count == row.simulated_count
            assert row.busy.ratio == pytest.approx(1, abs=1e-3)  # boundaries are whole ticks of 1/1024 us
        for pair in result.totals.values():
            assert pair.measured == pytest.approx(pair.simulated, abs=1e-5)


def profiled(run: OwnRun, rank: int, slower: float) -> list[dict[str, Any]]:
    """What a profiler would write of a run that is slower by a factor: three steps, launched 1 ms ahead of the GPU."""
    events: list[dict[str, Any]] = []
    length_us = run.report.iteration_time_s * 1e6 * slower
    for number in (3, 4, 5):
        longer = 1 + 0.1 * (number - 4)  # steps of 0.9, 1 and 1.1 times the length
        begin = 1000 + (number - 3) * 2 * length_us
        events.append(step(number, begin - 1000, length_us * longer))
        for kind, start, end in operators(run.report.timeline.ranks[rank]):
            correlation = len(events)
            ts, dur = begin + start * 1e6 * slower * longer, (end - start) * 1e6 * slower * longer
            name = {"Collective name": "all_to_allv"} if kind.value == "all_to_all" else {}
            events += [
                launch(ts - 1000, correlation),
                kernel(KERNELS[kind], ts, dur, correlation=correlation, args=name),
            ]
    return events


@RUNS
def test_kernels_with_names_of_libraries(number: int, tmp_path: Path) -> None:
    """The same operators under CUDA names, 25 % slower: every ratio is 0.8, of the step of median length."""
    run = own_runs(tmp_path)[number]
    rank, gpus = run.job.parallel.pp - 1, run.job.cluster.num_gpus
    world = {"rank": gpus - 1, "world_size": gpus}
    trace = read_kineto(write_trace(tmp_path / "t.json", *profiled(run, rank, 1.25), distributedInfo=world))
    result = compare_trace(trace, run.job, run.report)
    assert (result.rank, result.iteration) == (rank, "ProfilerStep#4, of 3 steps the one of median length")
    check_simulated(result, run, rank)
    for row in result.rows:
        assert row.measured_count == row.simulated_count
        assert row.busy.ratio == pytest.approx(0.8, rel=1e-6)
    assert result.totals["iteration"].ratio == pytest.approx(0.8)
    assert result.measured.compute_s == pytest.approx(1.25 * result.simulated.compute_s, rel=1e-5)
    assert result.measured.exposed_s == pytest.approx(1.25 * result.simulated.exposed_s, rel=1e-5)
    assert result.warnings == ()
    large = {
        row.family
        for row in result.rows
        if (row.busy.measured or 0) > 0.05 * sum(r.busy.measured or 0 for r in result.rows)
    }
    beyond = result.beyond(19.0)
    assert beyond == [
        "iteration: simulated / measured 0.800",
        *(f"{family.value}, busy time: simulated / measured 0.800" for family in Family if family in large),
    ]
    assert result.beyond(20.1) == []
    slow = compare_trace(trace, run.job, run.report, step=5)
    assert slow.totals["iteration"].ratio == pytest.approx(0.8 / 1.1)


def small_trace(path: Path, *more: dict[str, Any], **header: Any) -> Path:
    return write_trace(path, kernel("nvjet_tst", 100, 50), kernel("strange", 200, 5), *more, **header)


def test_unmatched_kernels_are_listed(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    path = small_trace(
        tmp_path / "t.json",
        kernel("odd", 300, 30),
        kernel("strange", 400, 6),
        kernel("x_allreduce", 410, 1),
        kernel("odd", 500, 1),
    )
    result = compare_trace(read_kineto(path), run.job, run.report, rank=1)
    names = {row.name: (row.count, round(row.busy_s * 1e6, 6)) for row in result.unmatched}
    assert names == {"odd": (2, 31.0), "strange": (2, 11.0)}
    assert list(names) == ["odd", "strange"]
    assert "31.00 us      2  odd" in repr(result)
    assert result.measured.iteration_s == pytest.approx(401e-6)
    assert any("the whole trace is taken for one iteration" in warning for warning in result.warnings)
    assert any(warning.startswith("1 matrix products measured, ") for warning in result.warnings)


@pytest.mark.parametrize(
    ("world", "rank", "warning"),
    [
        ({"rank": 3, "world_size": 8}, 0, None),
        ({"rank": 4, "world_size": 8}, 1, None),
        ({"rank": 1, "world_size": 2}, 1, "number of GPUs: the trace has 2 ranks, the run 8 GPUs; its rank 1 is taken"),
        ({"rank": 9, "world_size": 16}, 0, "number of GPUs: the trace has 16 ranks, the run 8 GPUs; pipeline rank 0"),
        (None, 0, "the trace does not tell its rank: pipeline rank 0 is compared"),
    ],
)
def test_the_rank_of_a_trace(world: dict[str, int] | None, rank: int, warning: str | None, tmp_path: Path) -> None:
    run = text_run(tmp_path)
    header = {} if world is None else {"distributedInfo": world}
    result = compare_trace(read_kineto(small_trace(tmp_path / "t.json", **header)), run.job, run.report)
    assert result.rank == rank
    about = [one for one in result.warnings if "rank" in one]
    assert about == [] if warning is None else len(about) == 1 and about[0].startswith(warning)


def test_wrong_ranks_steps_and_processes(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    plain = read_kineto(small_trace(tmp_path / "a.json"))
    stepped = read_kineto(small_trace(tmp_path / "b.json", step(3, 0, 1000)))
    several = read_kineto(small_trace(tmp_path / "c.json", kernel("nvjet", 1, 1, pid=1)))
    cases: list[tuple[Any, dict[str, Any], str, object]] = [
        (plain, {"rank": 2}, "--rank", 1),
        (plain, {"rank": -1}, "--rank", 0),
        (plain, {"step": 3}, "--step, t", None),
        (stepped, {"step": 5}, "--step, t", 3),
        (several, {}, "t", None),
    ]
    for trace, options, where, nearest in cases:
        with pytest.raises(ConfigError) as error:
            compare_trace(trace, run.job, run.report, where="t", **options)
        assert (error.value.where, error.value.nearest) == (where, nearest)
        assert error.value.expected
    assert compare_trace(several, run.job, run.report, rank=1).measured.families[Family.MATMUL].count == 1


def test_work_longer_than_its_step_is_said(tmp_path: Path) -> None:
    run = text_run(tmp_path)
    path = write_trace(tmp_path / "t.json", step(1, 0, 100), launch(5, 1), kernel("nvjet", 50, 200, correlation=1))
    result = compare_trace(read_kineto(path), run.job, run.report, rank=0)
    assert result.measured.idle_s == pytest.approx(-100e-6)
    assert any(one.startswith("the GPU works 100.00 us longer than") for one in result.warnings)


def test_kernels_outside_all_steps_are_counted(tmp_path: Path) -> None:
    """Only kernels of the chosen step are compared; those of a warm-up before it are said, where there are any."""
    run = text_run(tmp_path)
    inside = (step(1, 100, 100), launch(105, 1), kernel("nvjet", 120, 20, correlation=1))
    early = [piece for k in (2, 3) for piece in (launch(10 * k, k), kernel("nvjet", 10 * k + 2, 5, correlation=k))]
    for events, warned in ((inside, []), ((*early, *inside), ["2 of 3 kernels lie outside all steps"])):
        path = write_trace(tmp_path / "t.json", *events)
        result = compare_trace(read_kineto(path), run.job, run.report, rank=0)
        assert [one for one in result.warnings if "outside" in one] == warned
        assert result.measured.families[Family.MATMUL].busy_s == pytest.approx(20e-6)

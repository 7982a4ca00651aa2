"""A job under many schedules: every figure is that of ``simulate`` for the same run, each on the cut it should have."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items
from simulation.schedules.test_split_schedules import RULES, SECONDS, equal_stages

import semu
from semu.errors import ConfigError, ScheduleError
from semu.job import TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.parallel.layout import PipelineLayout
from semu.runfile import load_run
from semu.schedule import ALL_SCHEDULES, is_executed, read_schedule
from semu.schedule.placement import Placement
from semu.schedule.registry import compared_schedules
from semu.schedule.stage_table import table_csv
from semu.simulation.schedules.comparison import ComparedSchedule

PLACES = {item: item.value for item in (Placement.V_SHAPE, Placement.BIDIRECTIONAL)}
EXECUTED = [name for name in ALL_SCHEDULES if is_executed(name)]


def tiny_vlm(**options: object) -> TrainingJob:
    """Two replicas with microbatches of their own."""
    return job_of(vlm(), vlm_items(8, seed=3), Parallel(dp=2, pp=2), **options)  # type: ignore[arg-type]


# -- the same figures as one by one ------------------------------------------------------------------------------
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("run", "changes"), [("lm-7b", ["training.global_batch=12"]), ("vlm-m", [])])
def test_every_schedule_is_what_simulate_finds(run: str, changes: list[str]) -> None:
    job = load_run(run, changes)
    found = semu.compare_schedules(job, "all")
    refused = {other.name for other in found.refused}
    ran = [name for name in EXECUTED if name not in refused]
    assert [row.name for row in found.rows] == ["1f1b", *(name for name in ran if name != "1f1b")]
    assert refused >= set(ALL_SCHEDULES) - set(EXECUTED)
    assert len(ran) >= 16
    for row in found.rows:
        place = PLACES.get(ALL_SCHEDULES[row.name].placement, "circular")
        parallel = replace(job.parallel, vpp=row.vpp, placement=place)
        alone = semu.simulate(replace(job, parallel=parallel, training=replace(job.training, schedule=row.name)))
        assert row.estimate.iteration_time_s == alone.iteration_time_s, row.name
        assert row.estimate.makespan_s == alone.makespan_s
        assert row.estimate.bubble_ratio == alone.bubble_ratio
        assert row.estimate.peak_memory_bytes == alone.peak_memory_bytes
        assert row.estimate.fits == alone.fits
        assert row.estimate.breakdown_s == alone.breakdown_s
        assert row.peak_rank == alone.peak_memory_bytes.index(max(alone.peak_memory_bytes))
    fitting = [row for row in found.rows if row.estimate.fits]
    assert found.best is not None
    assert found.best in fitting
    assert found.best.estimate.iteration_time_s == min(row.estimate.iteration_time_s for row in fitting)


def test_equal_stages_by_paper_and_pencil() -> None:
    """1F1B, p = 2, m = 2, a second for F and two for B (in units of ``SECONDS``): 9 seconds, a third of them idle."""
    job = equal_stages(2, 2, 1, "1f1b")
    found = semu.compare_schedules(job, ["gpipe"], latency_rules=RULES)
    table = found.own.stages
    rows = [[*row[1:6], *(float(str(x)) / SECONDS for x in row[6:8])] for row in table.rows()]
    assert rows == [
        [0, 0, 0, "F", 0, 0, 1],
        [0, 1, 0, "F", 1, 1, 2],
        [0, 2, 0, "B", 0, 4, 6],
        [0, 3, 0, "B", 1, 7, 9],
        [1, 0, 1, "F", 0, 1, 2],
        [1, 1, 1, "B", 0, 2, 4],
        [1, 2, 1, "F", 1, 4, 5],
        [1, 3, 1, "B", 1, 5, 7],
    ]
    assert found.own.estimate.makespan_s == 9 * SECONDS == found["gpipe"].estimate.makespan_s
    assert found.own.estimate.bubble_ratio == pytest.approx(1 / 3)
    assert found.own.estimate.iteration_time_s == found["gpipe"].estimate.iteration_time_s
    assert found.best is found.own  # the first of equals


# -- cuts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("vpp", "name", "wanted"),
    [
        (1, "1f1b", (1, "one-to-one")),
        (1, "interleaved", (2, "circular")),
        (1, "looped-bfs", (2, "circular")),
        (1, "zb-v", (2, "v-shape")),
        (1, "hanayo", (2, "v-shape")),
        (1, "greedy", (1, "one-to-one")),
        (4, "1f1b", (1, "one-to-one")),
        (4, "zb-auto", (1, "one-to-one")),
        (4, "interleaved", (4, "circular")),
        (4, "interleaved-zb", (4, "circular")),
        (4, "zb-v", (2, "v-shape")),
        (4, "hanayo", (4, "v-shape")),
        (4, "greedy", (4, "circular")),
    ],
)
def test_chunks_are_the_runs_or_the_fewest(vpp: int, name: str, wanted: tuple[int, str]) -> None:
    job = job_of(gpt(16), text_items(4), Parallel(pp=2, vpp=vpp), schedule="looped-bfs")
    found = semu.compare_schedules(job, name)
    assert (found.own.name, found.own.vpp, found.own.job) == ("looped-bfs", vpp, job)
    row = found.rows[-1]
    assert (row.name, row.vpp, row.placement) == (name, *wanted)
    assert row.estimate.iteration_time_s == semu.simulate(row.job).iteration_time_s
    assert found.chosen == (row,)


def test_the_runs_own_schedule_stays_as_it_is() -> None:
    """1F1B with virtual stages is interleaved; 1F1B as such is another row."""
    job = job_of(gpt(8), text_items(4), Parallel(pp=2, vpp=2))
    found = semu.compare_schedules(job, ["interleaved", "1f1b"])
    assert [(row.name, row.vpp) for row in found.rows] == [("1f1b", 2), ("interleaved", 2), ("1f1b", 1)]
    assert [found.label(row) for row in found.rows] == ["1f1b-vpp2", "interleaved", "1f1b-vpp1"]
    own, interleaved, plain = found.rows
    assert own.estimate.iteration_time_s == interleaved.estimate.iteration_time_s == semu.simulate(job).iteration_time_s
    assert plain.estimate.iteration_time_s != own.estimate.iteration_time_s
    assert found.chosen == (interleaved, plain)


def test_a_limit_of_activations_is_for_automatic_schedules_only() -> None:
    job = job_of(gpt(8), text_items(8), Parallel(pp=4), schedule="zb-auto", activation_limit="2p")
    found = semu.compare_schedules(job, ["zb-auto", "1f1b", "zb-auto-2p"])
    assert [(row.name, row.job.training.activation_limit) for row in found.rows] == [
        ("zb-auto", 2.0),
        ("1f1b", None),
        ("zb-auto-2p", 2.0),
    ]
    assert found.rows[2].estimate.makespan_s == found.own.estimate.makespan_s


def test_what_is_compared_where_nobody_says() -> None:
    job = job_of(gpt(8), text_items(8), Parallel(pp=2), schedule="gpipe")
    told: list[str] = []
    found = semu.compare_schedules(job, progress=told.append)
    assert [line for line in told if "schedule" in line] == [
        f"running the schedule {x}" for x in ("gpipe", *compared_schedules())
    ]
    assert [row.name for row in found.rows] == ["gpipe", *(name for name in compared_schedules() if name != "optimus")]
    assert [other.name for other in found.refused] == ["optimus"]
    assert "not compared: zb-h2, zb-auto-2p, interleaved-zb, v-half, v-min (--compare all)" in repr(found)
    assert found.chosen == found.rows
    assert set(compared_schedules()) <= set(EXECUTED)


# -- what cannot run ---------------------------------------------------------------------------------------------
def test_refused_schedules_name_their_rule() -> None:
    job = job_of(gpt(8), text_items(5), Parallel(pp=2))
    found = semu.compare_schedules(job, "all")
    rules = {row.name: row.rule for row in found.refused}
    assert rules["interleaved"] == (
        "interleaved 1F1B runs its microbatches in groups of as many as there are ranks "
        "(expected a multiple of 2 microbatches, got 5)"
    )
    assert {"1f1b", "gpipe", "zb-v", "hanayo", "greedy"} <= {row.name for row in found.rows}
    assert {*rules, *(row.name for row in found.rows)} == set(ALL_SCHEDULES)


def test_a_frozen_beginning() -> None:
    job = job_of(vlm(frozen=["vit"]), vlm_items(4), Parallel(pp=2))
    found = semu.compare_schedules(job, ["zb-h1", "zb-v"])
    assert [row.name for row in found.rows] == ["1f1b", "zb-h1"]
    (other,) = found.refused
    assert other.name == "zb-v"
    assert other.rule.startswith("needs a backward of every chunk")
    assert isinstance(other.error, ScheduleError)


def test_a_layout_that_is_told_keeps_its_stages() -> None:
    job = job_of(gpt(8), text_items(4), Parallel(pp=2, layout=PipelineLayout(layers=(3, 5))))
    found = semu.compare_schedules(job, ["zb-v", "gpipe"])
    assert [row.name for row in found.rows] == ["1f1b", "gpipe"]
    (other,) = found.refused
    assert (other.name, other.error.where) == ("zb-v", "parallel.layout.layers")
    assert found["gpipe"].estimate.makespan_s == semu.simulate(found["gpipe"].job).makespan_s


def test_unknown_names_and_the_runs_own_errors_are_raised() -> None:
    job = job_of(gpt(4), text_items(4), Parallel(pp=2))
    with pytest.raises(ConfigError, match="did you mean 'zb-v'"):
        semu.compare_schedules(job, ["zb-vv"])
    with pytest.raises(ConfigError, match=r"another placement"):
        semu.compare_schedules(job_of(gpt(8), text_items(4), Parallel(pp=2, vpp=2), schedule="zb-v"), "1f1b")


# -- stage tables ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("job", [tiny_vlm(), tiny_vlm(recompute="full"), job_of(gpt(8), text_items(6), Parallel(pp=2))])
def test_memory_of_stages_is_that_of_the_curve(job: TrainingJob) -> None:
    """The highest point of the report's memory curve within each stage, and of all stages the rank's peak.

    Where a stage ends as the next one allocates, the curve no longer shows what the first one had for no time at all.
    """
    found = semu.compare_schedules(job, "all")
    assert len(found.rows) > 8
    equal: list[bool] = []
    for row in found.rows:
        report = semu.simulate(row.job)
        table, ptr = row.stages, row.stages.schedule.columns.ptr
        for rank, curve in enumerate(item.memory for item in report.timeline.ranks):
            for at in range(ptr[rank], ptr[rank + 1]):
                inside = curve.highest_within(table.start_s[at], table.end_s[at])
                at_end = curve.total[curve.times_s == table.end_s[at]].max(initial=0)
                assert inside <= table.size_bytes[at] <= max(inside, at_end), (row.name, rank, at)
                equal.append(table.size_bytes[at] == inside)
            highest = table.size_bytes[ptr[rank] : ptr[rank + 1]].max()
            assert highest <= report.peak_memory_bytes[rank]
            if report.num_distinct_replicas == 1:
                assert highest == report.peak_memory_bytes[rank]
    assert sum(equal) > 0.99 * len(equal)


def from_file(job: TrainingJob, path: Path, row: ComparedSchedule) -> TrainingJob:
    """A job with a stage table as its schedule, under the settings that go with it."""
    settings = row.settings
    vpp, place, overlaps = (settings[key] for key in ("parallel.vpp", "parallel.placement", "overlap.pipeline"))
    return replace(
        job,
        parallel=replace(job.parallel, vpp=vpp, placement=place),
        training=replace(
            job.training, schedule_file=str(path), overlap=replace(job.training.overlap, pipeline=overlaps)
        ),
    )


@pytest.mark.parametrize("job", [tiny_vlm(), job_of(gpt(8), text_items(6), Parallel(pp=3), overlap=Overlap())])
def test_a_stage_table_runs_again_as_a_file(job: TrainingJob, tmp_path: Path) -> None:
    found = semu.compare_schedules(job, "all")
    assert len(found.rows) > 8
    for row in found.rows:
        path = tmp_path / f"{row.name}.csv"
        path.write_text(table_csv([(row.name, row.stages)]))
        assert read_schedule(path).orders == row.stages.schedule.orders
        again = semu.evaluate(from_file(job, path, row))
        assert again.iteration_time_s == row.estimate.iteration_time_s, row.name
        assert again.peak_memory_bytes == row.estimate.peak_memory_bytes


def test_files_of_a_comparison(tmp_path: Path) -> None:
    job = tiny_vlm()
    found = semu.compare_schedules(job, ["gpipe", "zb-h1"])
    files = {path.name: path for path in found.save(tmp_path)}
    assert list(files) == ["result.json", "schedules.png", "report.html", "1f1b.csv", "gpipe.csv", "zb-h1.csv"]
    assert json.loads(files["result.json"].read_text()) == found.to_json()
    assert files["schedules.png"].read_bytes().startswith(b"\x89PNG")
    path = files["gpipe.csv"]
    mine = replace(job, training=replace(job.training, schedule_file=str(path)))
    own = semu.compare_schedules(mine, ["gpipe"])
    assert [row.name for row in own.rows] == ["gpipe.csv", "gpipe"]
    written = own.save(tmp_path / "own")
    assert [file.name for file in written] == [
        "result.json",
        "schedules.png",
        "report.html",
        "own-gpipe.csv",
        "gpipe.csv",
    ]


def test_times_of_the_table_are_those_of_the_timeline() -> None:
    for row in semu.compare_schedules(tiny_vlm(), ["zb-v", "gpipe", "dualpipe-v"]).rows:
        report = semu.simulate(row.job)
        stages = {(s.rank, s.label): (s.start_s, s.end_s) for rank in report.timeline.ranks for s in rank.stages}
        lines = list(row.stages.rows())
        assert {(rank, f"{c}{k}{i}"): (a, b) for _, rank, _, c, k, i, a, b, _ in lines if b != a} == {
            key: span for key, span in stages.items() if span[0] != span[1]
        }
        assert max(float(str(line[7])) for line in lines) == report.makespan_s

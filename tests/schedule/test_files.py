"""Schedules in files, on a grid for people, and side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from semu.errors import ConfigError, ScheduleError
from semu.present.plots import ScheduleRow, draw_schedules
from semu.schedule import ALL_SCHEDULES, PipelineStudy, Schedule, draw_grid, read_schedule, write_schedule
from semu.schedule.compare import compare_schedules, comparison_table
from semu.schedule.files import from_csv, to_csv
from semu.schedule.registry import schedule_family
from semu.schedule.shape import PipelineShape


# -- files -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["csv", "txt"])
def test_round_trips(tmp_path: Path, suffix: str) -> None:
    for family in ALL_SCHEDULES.values():
        v = next(v for v in (1, 2) if family.misfit(2, 4, v) is None)
        schedule = family(family.shape(2, 4, v))
        write_schedule(tmp_path / f"plan.{suffix}", schedule)
        again = read_schedule(tmp_path / f"plan.{suffix}")
        assert (again.name, again.orders) == (f"plan.{suffix}", schedule.orders)


def test_csv_of_torch() -> None:
    """Empty cells are idle steps, pairs run one after the other, communication follows from the order."""
    text = "0F0,,0F1,0SEND_F1,0UNSHARD,(0F2;3B0)OVERLAP_F_B,3I1,3W1,0REDUCE_GRAD\n\n"
    schedule = from_csv(text)
    assert schedule.to_text().splitlines() == ["0F0 0F1 0F2 3B0 3I1 3W1", "-"]
    assert to_csv(schedule) == "0F0,0F1,0F2,3B0,3I1,3W1\n\n"


@pytest.mark.parametrize(("text", "got"), [("0F0,oops", "oops"), ("0F0,(0F1;x)OVERLAP_F_B", "x"), ("0F0,0X1", "0X1")])
def test_a_cell_that_is_no_stage_is_located(text: str, got: str) -> None:
    with pytest.raises(ScheduleError, match="not a stage") as caught:
        from_csv(text, "plan.csv")
    assert (caught.value.where, caught.value.got) == ("plan.csv: rank 0, position 1", got)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("none.csv", "bytes.csv", "."):
        with pytest.raises(ConfigError, match="cannot read the schedule"):
            read_schedule(tmp_path / name)


# -- grids -------------------------------------------------------------------------------------------------------
def test_a_grid_by_hand() -> None:
    """F 1 s, B 2 s, two characters a second; the second chunk of a rank is in small letters."""
    study = PipelineStudy.of(PipelineShape.chain(2, 2))
    found = study.evaluate(ALL_SCHEDULES["1f1b"](study.shape))
    assert draw_grid(found, study.arrays, unit_s=1.0).splitlines() == [
        "rank 0 |F0F1    B0--  B1--|",
        "rank 1 |  F0B0--F1B1--    |",
    ]
    assert draw_grid(found, study.arrays, unit_s=1.0, width=3).splitlines() == [
        "rank 0 |F0 F1       B0---    B1--- |",
        "rank 1 |   F0 B0--- F1 B1---       |",
    ]
    assert draw_grid(found, study.arrays, unit_s=1.0, columns=10).splitlines()[0] == "rank 0 |F0F1    B0.."
    looped = PipelineStudy.of(PipelineShape.chain(1, 1, 2))
    drawn = draw_grid(looped.evaluate(Schedule.from_text("0F0 1F0 1I0 1W0 0B0")), looped.arrays, unit_s=1.0)
    assert drawn == "rank 0 |F0f0i0w0B0--|"


def test_a_grid_fits_its_width() -> None:
    study = PipelineStudy.of(PipelineShape.chain(8, 64))
    drawn = draw_grid(study.evaluate(ALL_SCHEDULES["zb-h2"](study.shape)), study.arrays, columns=72)
    assert {len(line) for line in drawn.splitlines()} == {len("rank 0 |") + 72 + 1}


# -- side by side ------------------------------------------------------------------------------------------------
def test_chunks_per_rank_of_schedules_side_by_side() -> None:
    """As many as asked where a schedule leaves it open, else what it has."""
    compared, _ = compare_schedules(4, 8, names=["1f1b", "interleaved", "zb-v"], num_slots=3)
    assert [(row.family.name, row.num_slots) for row in compared] == [("1f1b", 1), ("interleaved", 3), ("zb-v", 2)]


def test_the_same_model_under_all_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    compared, refused = compare_schedules(4, 8, held_bytes=100)
    assert [row.family.name for row in compared] == list(ALL_SCHEDULES)
    assert not refused
    for row in compared:
        row.schedule.validate(row.study.shape)
        assert row.evaluation.busy_s.sum() == 4 * 8 * 3
    lines = comparison_table(compared, 100).splitlines()
    assert lines[2].split() == [
        "1f1b",
        "1",
        "33",
        "s",
        "27.27",
        "%",
        "27.27",
        "%",
        "4",
        "2006.09503",
        "§3,",
        "2104.04473",
        "§2.2",
    ]
    by_name = {row.family.name: row for row in compared}
    assert by_name["zb-v"].evaluation.makespan_s == 25.5
    assert (by_name["chimera"].weight_copies, by_name["hanayo"].weight_copies) == (2, 1)
    assert max(by_name["v-min"].evaluation.peak_bytes) == 200


def test_what_does_not_fit_is_named_and_unknown_names_are_refused() -> None:
    compared, refused = compare_schedules(3, 4, names=["1f1b", "chimera", "dualpipe-v", "interleaved"])
    assert [(row.family.name, row.num_slots) for row in compared] == [("1f1b", 1), ("interleaved", 1)]
    assert refused == {
        "chimera": "both directions interlock on an even number of ranks: expected even, got 3",
        "dualpipe-v": "at least as many microbatches as chunks: expected >= 6 microbatches, got 4",
    }
    with pytest.raises(ConfigError, match="did you mean 'zb-v'"):
        compare_schedules(2, 4, names=["zb-vv"])
    assert schedule_family("zb-h1") is ALL_SCHEDULES["zb-h1"]


def test_the_picture(tmp_path: Path) -> None:
    compared, _ = compare_schedules(2, 4, names=["1f1b", "zb-v", "chimera"])
    rows = [ScheduleRow(row.evaluation, row.study.arrays, "a note") for row in compared]
    for name in ("a.png", "b.png"):
        draw_schedules(tmp_path / name, rows, title="schedules", subtitle="three")
    written = (tmp_path / "a.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    assert written == (tmp_path / "b.png").read_bytes()
    draw_schedules(tmp_path / "c.png", rows[:2], title="schedules", subtitle="three")
    assert (tmp_path / "c.png").read_bytes() != written

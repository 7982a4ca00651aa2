"""Stage tables: what is written reads back; a bad file says where."""

from __future__ import annotations

import numpy as np
import pytest

from semu.errors import ScheduleError
from semu.schedule import ALL_SCHEDULES, PipelineStudy
from semu.schedule.files import from_csv
from semu.schedule.stage_table import StageTable, is_table, read_table, table_csv

HEAD = "rank,position,chunk,phase,microbatch\n"


def table_of(name: str) -> StageTable:
    family = ALL_SCHEDULES[name]
    v = next(v for v in (1, 2) if family.misfit(2, 4, v) is None)
    study = PipelineStudy.of(family.shape(2, 4, v), forward_s=0.1)
    schedule = family(study.shape)
    found = study.evaluate(schedule)
    sizes = np.arange(len(found.stages), dtype=np.int64)
    return StageTable(schedule, study.shape, found.start_s, found.end_s, found.bubble_ratio, lambda: sizes)


@pytest.mark.parametrize("name", ALL_SCHEDULES)
def test_round_trips(name: str) -> None:
    table = table_of(name)
    text = table_csv([(name, table)])
    assert is_table(text)
    assert from_csv(text, "plan.csv").orders == table.schedule.orders
    first = text.splitlines()[1].split(",")
    assert first[:3] == [name, "0", "0"]
    assert [float(line.split(",")[7]) for line in text.splitlines()[1:]] == table.end_s.tolist()
    found = table.evaluation("other")
    assert (found.name, found.makespan_s) == ("other", table.end_s.max())
    assert found.busy_s.sum() == pytest.approx((table.end_s - table.start_s).sum())


def test_columns_and_lines_in_any_order() -> None:
    """As a spreadsheet writes it: a byte-order mark, spaces, other columns, lines sorted by something else."""
    text = "\ufeffmicrobatch, phase, note, chunk, position, rank\n1,F,x,0,1,0\n0,F,y,0,0,0\n0,B,,1,1,2\n0,F,,1,0,2\n"
    assert read_table(text, "mine").to_text().splitlines() == ["0F0 0F1", "-", "1F0 1B0"]
    assert not is_table("0F0,0F1\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank,position,chunk,phase\n0,0,0,F\n", "without a column at mine: line 1: expected microbatch"),
        (HEAD + "0,0,0,F,0\n0,0,0,F,1\n", "two stages at position 0 of rank 0 at mine: line 3"),
        (HEAD + "0,0,0,F,0\n0,-1,0,F,1\n", "not a position at mine: line 3: expected an integer >= 0, got -1"),
        (HEAD + "a,0,0,F,0\n", "not a rank at mine: line 2"),
        (HEAD + "0,0,0,X,0\n", "not a stage at mine: line 2"),
        (HEAD + "0,0,0,F\n", "not a stage at mine: line 2"),
        ("schedule," + HEAD + "a,0,0,0,F,0\nb,0,0,0,F,0\n", "several schedules in one file"),
    ],
)
def test_bad_tables_say_where(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        read_table(text, "mine")
    told = f"{caught.value.message} at {caught.value.where}: expected {caught.value.expected}, got {caught.value.got}"
    assert message in told

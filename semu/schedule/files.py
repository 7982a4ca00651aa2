"""Schedules in files: the text form, and CSV, a row per rank and a cell per stage.

The CSV is what torch.distributed.pipelining writes: an empty cell is a step without a stage, ``(0F4;7B0)OVERLAP_F_B``
two stages beside each other, here one after the other. Its communication and sharding steps follow from the order and
are skipped. A stage table (``stage_table``), a line per stage under heads, is read as well.
"""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

from semu.errors import ConfigError, ScheduleError
from semu.files import write_text
from semu.schedule.schedule import Schedule
from semu.schedule.shape import StageKey
from semu.schedule.stage_table import is_table, read_table

_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B")
_FOLLOWS = re.compile(r"\d+(UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)\d*")


def to_csv(schedule: Schedule) -> str:
    """A row per rank, ``0F0,0F1,0B0,0B1``."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([str(stage) for stage in order] for order in schedule.orders)
    return buffer.getvalue()


def from_csv(text: str, name: str = "csv") -> Schedule:
    """Read the CSV form, or a stage table.

    Raises:
        ScheduleError: a cell that is not a stage (rank and position are named); as ``read_table``.
    """
    if is_table(text):
        return read_table(text, name)
    orders: list[list[StageKey]] = []
    for rank, row in enumerate(csv.reader(io.StringIO(text))):
        order: list[StageKey] = []
        for position, cell in enumerate(row):
            pair = _PAIR.fullmatch(cell.strip())
            for word in pair[1].split(";") if pair else [cell]:
                word = word.strip()
                if word and not _FOLLOWS.fullmatch(word):
                    order.append(StageKey.parse(word, f"{name}: rank {rank}, position {position}"))
        orders.append(order)
    return Schedule.build(name, orders)


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """A schedule from a file, ``.csv`` or the text form; its name is the file's.

    Raises:
        ConfigError: the file cannot be read. ScheduleError: a word that is not a stage.
    """
    name = Path(path).name
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        expected = "a schedule, as text or .csv"
        raise ConfigError(f"cannot read the schedule: {reason}", where=str(path), expected=expected) from error
    try:
        return from_csv(text, name) if Path(path).suffix == ".csv" else Schedule.from_text(text, name)
    except csv.Error as error:
        raise ScheduleError(f"not a CSV table: {error}", where=name, expected="a row for each rank") from error


def write_schedule(path: str | os.PathLike[str], schedule: Schedule) -> None:
    """Write ``.csv``, or the text form for any other suffix.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_text(path, to_csv(schedule) if Path(path).suffix == ".csv" else schedule.to_text() + "\n")

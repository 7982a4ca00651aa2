"""``NsysTable``: a report of ``nsys stats --format csv``, found among other lines; ``find_table``; cells as numbers."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum

from semu.checks import LARGEST_COUNT
from semu.errors import ConfigError
from semu.records import dataclass

EXPECTED = (
    "a report of Nsight Systems: nsys stats --report cuda_gpu_trace --format csv (columns Start, Duration, Device, "
    "Name) or --report cuda_gpu_kern_sum (columns Total Time, Instances, Name)"
)


class NsysReport(Enum):
    """Reports that are read, by their names in ``nsys stats``."""

    GPU_TRACE = "cuda_gpu_trace"
    KERNEL_SUM = "cuda_gpu_kern_sum"


_NEEDED: Mapping[NsysReport, tuple[str, ...]] = {
    NsysReport.GPU_TRACE: ("start", "duration", "device", "name"),
    NsysReport.KERNEL_SUM: ("total time", "instances", "name"),
}
_FOREIGN = "source"
"""A column of MPI's sums, which are like those of kernels otherwise."""
_PER_UNIT_NS = {
    **dict.fromkeys(("ns", "nsec"), 1),
    **dict.fromkeys(("us", "usec", "µs", "μs"), 10**3),
    **dict.fromkeys(("ms", "msec"), 10**6),
    **dict.fromkeys(("s", "sec"), 10**9),
}
_MOST_NS = 2**63
"""nsys keeps times as 64-bit integers [ns]."""
_HEADING = re.compile(r"(?P<name>.*?)\s*\((?P<unit>[^()]*)\)")
_NUMBER = re.compile(
    r"[0-9]{1,3}(?:,[0-9]{3}){1,6}(?:\.[0-9]{1,12})?|[0-9]{1,19}(?:\.[0-9]{0,12})?(?:[eE][+-]?[0-9]{1,2})?"
)
_UNIT = re.compile(r"[a-zµμ%/]{1,5}")
_NO_NUMBERS = ("nan", "inf", "infinity")
_NOTE = re.compile(r"(Generating|Processing|Exporting|Importing|Using|SKIPPED|NOTICE|WARNING|ERROR|FATAL)\b")


@dataclass(frozen=True)
class Column:
    """Where a column is: its position, its heading in the file, its unit in lower case (empty: none)."""

    position: int
    heading: str
    unit: str


@dataclass(frozen=True)
class NsysTable:
    """One report.

    Attributes:
        report: which. columns: by name in lower case, without unit. rows: cells of each.
        lines: number of each row's line in the file, from 1. place: the headings' line, ``file:line``.
        file: for messages.
    """

    report: NsysReport
    columns: Mapping[str, Column]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    place: str
    file: str

    def texts(self, name: str) -> list[str]:
        """Cells of a column.

        Raises:
            ConfigError: one is empty.
        """
        found = [row[self.columns[name].position].strip() for row in self.rows]
        if "" in found:
            raise self._error(found.index(""), name, "no text", "a text", "an empty cell")
        return found

    def times_ns(self, name: str) -> list[Decimal]:
        """A column of times [ns].

        Raises:
            ConfigError: a heading without a unit; a cell that is no number, or none from 0 to 2^63.
        """
        column = self.columns[name]
        if column.unit not in _PER_UNIT_NS:
            raise ConfigError(
                "times without a unit" if not column.unit else "no unit of time",
                where=f"{self.place} {column.heading}",
                expected=f'a heading as "{column.heading.partition("(")[0].strip()} (ns)": ns, us, ms or s',
                got=column.heading,
            )
        found = [value * _PER_UNIT_NS[column.unit] for value in self.numbers(name, "a time >= 0")]
        for number, value in enumerate(found):
            if value >= _MOST_NS:
                raise self._error(number, name, "a time out of range", "less than 2^63 ns", f"{value:.6g} ns")
        return found

    def counts(self, name: str) -> list[int]:
        """A column of counts.

        Raises:
            ConfigError: a cell that is no integer from 1 to 2^31 - 1.
        """
        expected = f"an integer from 1 to {LARGEST_COUNT}"
        found = self.numbers(name, expected)
        for number, value in enumerate(found):
            if value != int(value) or not 1 <= value <= LARGEST_COUNT:
                raise self._error(number, name, "not a count", expected, self.rows[number][self.columns[name].position])
        return [int(value) for value in found]

    def numbers(self, name: str, expected: str) -> list[Decimal]:
        """A column of numbers >= 0, with or without separators of thousands.

        Raises:
            ConfigError: a cell that is none; ``expected`` is what the message says.
        """
        position = self.columns[name].position
        found = []
        for number, row in enumerate(self.rows):
            text = row[position].strip()
            if _NUMBER.fullmatch(text) is None:
                raise self._error(number, name, "not a number", f"{expected}, as 1234567.8", text or "an empty cell")
            found.append(Decimal(text.replace(",", "")))
        return found

    def _error(self, number: int, name: str, message: str, expected: str, got: str) -> ConfigError:
        heading = self.columns[name].heading
        return ConfigError(message, where=f"{self.file}:{self.lines[number]} {heading}", expected=expected, got=got)


def find_table(text: str, place: str) -> NsysTable:
    """The one report of kernels in a file; other reports, nsys's messages and empty lines are passed over.

    Args:
        text: what the file holds. place: the file, for messages.
    Raises:
        ConfigError: no such report, or two; a column twice; a row of another length; quotes that do not close.
    """
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
    tables: list[NsysTable] = []
    others: list[list[str]] = []
    rows: list[list[str]] = []
    numbers: list[int] = []
    is_inside, is_after_gap = False, True
    for number, line in enumerate(lines, 1):
        if not line.strip() or _NOTE.match(line):
            is_after_gap = True
            continue
        headings = _headings(line) if is_after_gap or not is_inside else None
        is_after_gap = False
        if headings is None:
            if is_inside:
                rows.append(_row(line, len(tables[0].columns), f"{place}:{number}", is_last=number == last))
                numbers.append(number)
            continue
        report = _report(headings)
        is_inside = report is not None
        if report is None:
            others.append(headings)
            continue
        here = f"{place}:{number}"
        if tables:
            got = f"{tables[0].report.value} and, from this line on, {report.value}"
            raise ConfigError("two reports of kernels in one file", where=here, expected="one of them", got=got)
        tables.append(NsysTable(report, _columns(headings, here), rows, numbers, here, place))
    if not tables:
        raise _nothing(lines, others, place)
    if not rows:
        raise ConfigError(
            "no GPU kernels in the report",
            where=tables[0].place,
            expected="a row for every kernel below the headings",
            got="no rows",
        )
    return tables[0]


def _headings(line: str) -> list[str] | None:
    """The cells of a line of headings: begins with a word, holds no number, and a unit or all that a report needs."""
    if line.count(",") < 2:
        return None
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except csv.Error:
        return None
    if not cells[0][:1].isalpha() or cells[0].lower() in _NO_NUMBERS or any(map(_NUMBER.fullmatch, cells)):
        return None
    has_unit = any(_UNIT.fullmatch(_split(cell)[1]) for cell in cells)
    return cells if has_unit or _report(cells) is not None else None


def _split(heading: str) -> tuple[str, str]:
    """Name and unit of a heading, in lower case; no unit: empty."""
    match = _HEADING.fullmatch(heading)
    name, unit = (heading, "") if match is None else (match["name"], match["unit"])
    return " ".join(name.lower().split()), unit.strip().lower()


def _report(headings: Sequence[str]) -> NsysReport | None:
    names = {_split(heading)[0] for heading in headings}
    found = (report for report, needed in _NEEDED.items() if names.issuperset(needed))
    return None if _FOREIGN in names else next(found, None)


def _columns(headings: Sequence[str], where: str) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for position, heading in enumerate(headings):
        name, unit = _split(heading)
        if name in found:
            raise ConfigError("a column twice", where=where, expected=f"one column {name!r}", got="two")
        found[name] = Column(position, heading, unit)
    return found


def _row(line: str, width: int, where: str, *, is_last: bool) -> list[str]:
    try:
        cells = next(csv.reader([line], strict=True))
        fault = f"{len(cells)} columns"
    except csv.Error as error:
        cells, fault = [], str(error)
    if len(cells) != width:
        message = "a row that cannot be read" + (": is the file truncated?" if is_last else "")
        expected = f"{width} columns as in the headings, names with commas in quotes"
        raise ConfigError(message, where=where, expected=expected, got=f"{fault}: {line[:80]}")
    return cells


def _nothing(lines: Sequence[str], others: Sequence[Sequence[str]], place: str) -> ConfigError:
    """What to say of a file without a report of kernels."""
    skipped = next((line.strip() for line in lines if line.startswith("SKIPPED")), None)
    if any(name.startswith("nvtx") or "range" in name.split() or "rangeid" in name.split() for name in _names(others)):
        message, got = "a report of NVTX ranges, which tell no kernels of an iteration", ", ".join(others[0])
    elif others:
        message, got = "no report of kernels", f"columns {', '.join(others[0])}"
    elif skipped is not None:
        message, got = "no report of kernels", skipped
    else:
        first = next((line.strip() for line in lines if line.strip()), "")
        message, got = "neither a trace nor a report of kernels", f'{len(lines)} lines, the first is "{first[:60]}"'
        return ConfigError(
            message, where=f"{place}:1", expected=f"a trace of torch.profiler (JSON), or {EXPECTED}", got=got
        )
    return ConfigError(message, where=place, expected=EXPECTED, got=got)


def _names(headings: Sequence[Sequence[str]]) -> list[str]:
    return [_split(heading)[0] for one in headings for heading in one]

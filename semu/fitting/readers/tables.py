"""``read_table``: CSV tables of microbenchmarks (schemas: ``semu/fitting/README.md``) -> samples.

The header tells which table it is. Times are in one of ``time_us``, ``time_ms`` and ``time_s``; where a table repeats
them as a rate (``tflops``, ``gbps``, ``algbw_gbps``), both have to agree.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping

from semu.errors import ConfigError
from semu.fitting.readers import rows as kinds
from semu.fitting.readers.rows import LeftOut
from semu.fitting.samples import Refusal, Sample, places
from semu.records import dataclass

UNITS = {"time_us": 1e-6, "time_ms": 1e-3, "time_s": 1.0}
"""Column of times -> seconds of its unit."""
_RATES = {"tflops": 1e12, "gbps": 1e9, "algbw_gbps": 1e9}
_TOLERANCE = 0.1
"""Largest relative difference of a rate from work / time: short times are rounded."""
SHORTEST_S, LONGEST_S = 1e-12, 1e9
"""Legal times of a kernel [s]."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class _Schema:
    """A table: columns of its header; ``convert``: row -> section, shape, source, work [FLOP or bytes]."""

    name: str
    required: frozenset[str]
    convert: Callable[[Row], tuple[str, tuple[float, ...], str, float]]


SCHEMAS = (
    _Schema("gemm", frozenset(("device", "dtype", "m", "n", "k")), kinds.product),
    _Schema("attention", frozenset(("device", "pass", "batch", "heads", "seq_q", "head_dim")), kinds.attention),
    _Schema("collectives", frozenset(("device", "collective", "ranks", "bytes")), kinds.collective),
    _Schema("memory_ops", frozenset(("device", "op", "bytes", "shape")), kinds.memory),
)
"""A table has the first schema whose columns are all in the header."""
UNUSED = (
    (frozenset(("device", "scope", "step_us", "optimizer_us")), "whole steps: calibration/compare.py compares them"),
    (frozenset(("device", "mode", "ep", "topk")), "dispatch and combine of experts: no section describes them"),
    (frozenset(("phase", "kernel", "dur_us")), "kernels of a whole run, not by themselves"),
    (frozenset(("device", "bf16_dense_tflops", "hbm_gbps")), "peaks, not measurements"),
)
"""Tables that are not fitted: columns of the header, reason."""
TABLE_OF_FRACTIONS = frozenset(("table", "column", "bytes", "fraction_of_peak_busbw"))


def read_table(text: str, name: str, device: str | None = None) -> tuple[list[Sample], list[Refusal]]:
    """Read one table.

    Args:
        text: the file. name: of the file, for places. device: that a table without a column ``device`` is of; None:
            such a table is refused.
    Raises:
        ConfigError: another header, an unknown unit or several, a time or size that is no positive number, rates that
            do not agree with the times, a row with too few cells or too many.
    """
    reader = csv.DictReader(io.StringIO(text, newline=None))  # any line ends
    header = _header(reader, name)
    assumed = {"device": device} if device is not None and "device" not in header else {}
    header |= assumed.keys()
    if header >= TABLE_OF_FRACTIONS:
        return list(_fractions(reader, name)), []
    schema = next((schema for schema in SCHEMAS if header >= schema.required), None)
    unused = next((reason for required, reason in UNUSED if header >= required), None)
    if schema is None and unused is not None:
        return [], [Refusal(name, f"the whole table: {unused}")]
    if schema is None:
        raise ConfigError(
            "not a table of measurements",
            where=f"{name}:1",
            expected="; or ".join(f"{schema.name}: {', '.join(sorted(schema.required))}" for schema in SCHEMAS),
            got=", ".join(list(reader.fieldnames or ())[:12]) or "an empty file",
        )
    unit = _unit(header, name)
    samples: list[Sample] = []
    refusals: list[Refusal] = []
    bad: list[str] = []
    for where, cells in _numbered(reader, name):
        row = {**cells, **assumed}
        try:
            time_s = _time(row[unit], UNITS[unit])
        except ValueError:
            if not row[unit].strip():
                refusals.append(Refusal(where, "no time", row["device"]))
            else:
                bad.append(f"{where} ({row[unit]})")
            continue
        try:
            section, shape, source, work = schema.convert(row)
        except LeftOut as reason:
            refusals.append(Refusal(where, str(reason), row["device"]))
            continue
        except (KeyError, ValueError, TypeError) as error:
            raise _unreadable(where, schema.name, error) from error
        _check_rate(row, work, time_s, where)
        samples.append(Sample(section, shape, time_s, source, row["device"], where))
    if bad:
        raise ConfigError(
            f"{len(bad)} times that are not positive numbers",
            where=bad[0].partition(" (")[0],
            expected=f"{unit} > 0 in every row",
            got=places(bad),
        )
    return samples, refusals


def _header(reader: csv.DictReader[str], name: str) -> set[str]:
    try:
        names = [column.strip() for column in reader.fieldnames or ()]
    except csv.Error as error:
        raise ConfigError(f"not a CSV table: {error}", where=f"{name}:1", expected="a header line") from error
    twice = sorted({column for column in names if column and names.count(column) > 1})
    if twice:
        raise ConfigError("two columns of one name", where=f"{name}:1", expected="each name once", got=", ".join(twice))
    reader.fieldnames = names
    return set(names)


def _numbered(reader: csv.DictReader[str], name: str) -> Iterator[tuple[str, Row]]:
    """Rows with their places; each has as many cells as the header."""
    count = len(reader.fieldnames or ())
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            where = f"{name}:{reader.line_num + 1}"
            raise ConfigError(f"not a row of a CSV table: {error}", where=where, expected=f"{count} cells") from error
        if row is None:
            return
        where = f"{name}:{reader.line_num}"
        if None in row or None in row.values():
            got = "more" if None in row else "fewer"
            raise ConfigError("a row that cannot be read", where=where, expected=f"{count} cells", got=got)
        yield where, row


def _fractions(reader: csv.DictReader[str], name: str) -> Iterator[Sample]:
    for where, row in _numbered(reader, name):
        try:
            yield from kinds.fractions(where, row)
        except ValueError as error:
            raise _unreadable(where, "fractions", error) from error


def _unreadable(where: str, table: str, error: Exception) -> ConfigError:
    got = f"no column {error}" if isinstance(error, KeyError) else str(error)
    return ConfigError("a row that cannot be read", where=where, expected=f"a row of the {table} table", got=got)


def _unit(header: set[str], name: str) -> str:
    units = [unit for unit in UNITS if unit in header]
    if len(units) != 1:
        raise ConfigError(
            "times in several units" if units else "no column of times",
            where=f"{name}:1",
            expected="one of " + ", ".join(UNITS),
            got=", ".join(units) or "none of them",
        )
    return units[0]


def _time(text: str, unit_s: float) -> float:
    """The time of a cell [s]."""
    value = float(text) * unit_s
    if not SHORTEST_S <= value <= LONGEST_S:  # nor NaN
        raise ValueError(text)
    return value


def _check_rate(row: Row, work: float, time_s: float, where: str) -> None:
    """Refuse a row whose rate does not agree with its time: the time is then in another unit than the header says."""
    for column, unit in _RATES.items():
        text = (row.get(column) or "").strip()
        if not text or work <= 0:
            continue
        try:
            ratio = float(text) * unit * time_s / work
        except ValueError as error:
            raise ConfigError("not a rate", where=where, expected=f"{column}, or an empty cell", got=text) from error
        is_coarse = float(text) < 1 and 0.5 < ratio < 2  # a small rate with two digits
        if not (1 - _TOLERANCE) < ratio < (1 + _TOLERANCE) and not is_coarse:
            raise ConfigError(
                "time and rate do not agree: mixed units?",
                where=where,
                expected=f"{column} about {work / time_s / unit:.4g} for this time",
                got=text,
            )

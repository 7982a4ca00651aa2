"""The CSV tables of a measurement folder: schemas, complete rows only, and which rows are there already."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from semu.errors import ConfigError

Key = tuple[str, ...]
Value = str | int | float | None
REMARK = " | "
"""In ``note``, between what was measured and remarks on the measurement."""


@dataclass(frozen=True)
class Schema:
    """Columns of one CSV file (their meaning: ``SCHEMA.md``).

    Attributes:
        name: of the file, without ``.csv``. columns: in order. key: the columns that say what was measured; no two
            rows of a file agree in all of them. Of ``note``, the words before `` | `` belong to the key, those behind
            it are remarks on how the measurement went.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def _schema(name: str, key: str, results: str) -> Schema:
    """``source`` comes behind the results, then ``note``, which belongs to the key."""
    return Schema(name, (*key.split(), *results.split(), "source", "note"), (*key.split(), "note"))


GEMM = _schema("gemm", "device dtype m n k batch", "time_us time_us_min time_us_max n_src")
ATTENTION = _schema(
    "attention",
    "device dtype pass batch heads kv_heads seq_q seq_kv head_dim head_dim_v causal window",
    "time_us tflops",
)
MEMORY = _schema("memory_ops", "device op pass dtype shape bytes", "time_us gbps")
COLLECTIVES = _schema(
    "collectives",
    "device topology collective ranks ranks_per_node bytes",
    "time_us time_us_min algbw_gbps busbw_gbps",
)
STEPS = _schema(
    "model_steps",
    "device scope dtype layers hidden ffn heads kv_heads vocab seq_len micro_batch recompute optimizer",
    "parameters forward_us backward_us optimizer_us step_us step_us_min step_us_max static_bytes peak_allocated_bytes "
    "peak_reserved_bytes",
)
CONVOLUTIONS = _schema(
    "convolutions",
    "device dtype pass batch channels_in channels_out side kernel stride layout",
    "time_us tflops",
)
LAUNCHES = _schema("launches", "device what mode scope layers", "kernels time_us issue_us us_per_kernel")
MASK_TILES = _schema("mask_tiles", "device dtype pass mask heads tokens head_dim", "tiles partial time_us")
CLOCKS = _schema(
    "clocks",
    "device load phase",
    "time_us tflops gbps sm_mhz sm_mhz_min sm_mhz_max mem_mhz power_w temperature_c",
)
SCHEMAS = {
    schema.name: schema
    for schema in (GEMM, ATTENTION, MEMORY, COLLECTIVES, STEPS, CONVOLUTIONS, LAUNCHES, MASK_TILES, CLOCKS)
}


def cell(value: Value) -> str:
    """A value as the CSV has it: nothing for None, floats with five digits."""
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


class Table:
    """One CSV file that grows row by row and survives being interrupted.

    A row is one write of one whole line; a torn last line (a crash, a full disk) is cut off when the file is opened.

    Args:
        folder: of the measurement. schema: of the file. source: for the column ``source`` of new rows.
    Raises:
        ConfigError: the file has other columns, or a row with too few or too many.
    """

    def __init__(self, folder: Path, schema: Schema, source: str) -> None:
        self.schema = schema
        self.source = source
        self.path = folder / f"{schema.name}.csv"
        _cut_torn_line(self.path)
        self._keys = {self.key(row) for row in read_rows(self.path, schema)}

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, row: Mapping[str, Value]) -> Key:
        """What a row measures, as the file's text."""
        return tuple(cell(row[name]).partition(REMARK)[0] for name in self.schema.key)

    def has(self, row: Mapping[str, Value]) -> bool:
        """Whether it has been measured; only the key columns of ``row`` count."""
        return self.key(row) in self._keys

    def append(self, row: Mapping[str, Value]) -> None:
        """Write one row behind the others, at once.

        Raises:
            ConfigError: a column lacks or is unknown, or the row is there already.
        """
        whole = {"source": self.source, **row}
        if set(whole) != set(self.schema.columns):
            odd = sorted(set(whole) ^ set(self.schema.columns))
            raise ConfigError("not the file's columns", where=str(self.path), expected=self.schema.columns, got=odd)
        if self.has(whole):
            raise ConfigError("measured already", where=str(self.path), got=", ".join(self.key(whole)))
        text = _line([cell(whole[name]) for name in self.schema.columns])
        if not self.path.exists():
            text = _line(self.schema.columns) + text
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, text.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        self._keys.add(self.key(whole))


def read_rows(path: Path, schema: Schema) -> Iterator[dict[str, str]]:
    """Rows of a file of the given schema; none where there is no file.

    Raises:
        ConfigError: other columns, or a row with too few or too many.
    """
    if not path.exists():
        return
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = tuple(next(reader, ()))
        if header and header != schema.columns:
            raise ConfigError("other columns", where=f"{path}:1", expected=",".join(schema.columns), got=header)
        for number, values in enumerate(reader, start=2):
            if len(values) != len(schema.columns):
                raise ConfigError(
                    "not a row of this file", where=f"{path}:{number}", expected=len(schema.columns), got=len(values)
                )
            yield dict(zip(schema.columns, values, strict=True))


def with_remarks(note: str, *remarks: str) -> str:
    """A note with remarks behind it; empty ones are left out."""
    said = [remark for remark in remarks if remark]
    return note + REMARK + ";".join(said) if said else note


def _line(values: list[str] | tuple[str, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([value.replace("\n", " ") for value in values])
    return text.getvalue()


def _cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line's end; a file without any complete line is removed."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == 0:
        path.unlink()
    elif whole < len(content):
        os.truncate(path, whole)

"""``Case``: one thing to measure, free of torch; ``spread``: an order in which an interrupted run is of use, too."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calibration.table import Value


@dataclass(frozen=True)
class Case:
    """One row to measure.

    Attributes:
        table: name of the schema. row: the key columns of the measurement, without ``device``.
        set_bytes: bytes of operands and results of a call. options: further arguments of its builder.
    """

    table: str
    row: Mapping[str, Value]
    set_bytes: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def label(self) -> str:
        """For people."""
        return " ".join(str(value) for value in self.row.values() if value not in (None, ""))


def spread(cases: Iterable[Case]) -> list[Case]:
    """Each case once, in an order that mixes sizes and is the same everywhere: by a checksum of its label.

    Sizes that follow one another at random heat the device evenly, and the first half of a table covers its range.
    """
    distinct = {case.label(): case for case in cases}
    return [distinct[label] for label in sorted(distinct, key=lambda text: (zlib.crc32(text.encode()), text))]

"""``Sample``: one measurement; ``Samples``: all of one section as columns; ``Refusal``: a row that is left out.

A section is a table of a profile (``efficiency.matmul.fp8``, ``link.nvlink.all_reduce``). Sections of one family share
their shape columns and their formula (``semu.fitting.forms``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

HELD_OUT_RULE = "crc32(shape) % 3 == 0"
"""A shape is held out of the fit when the CRC-32 of its key's text is a multiple of three."""
MOST_NAMED = 5
"""Rows that a message names; reports hold all of them."""


class Family(Enum):
    """Sections of one formula; the value is the meaning of the shape columns.

    The first columns, up to the semicolon, are the shape's key, which decides whether the shape is held out.
    """

    PRODUCT = "m n k groups; in_bytes out_bytes quantised weight_gradient"
    ATTENTION = "batch heads kv_heads seq_q seq_kv head_dim head_dim_v; causal with_forward fills_cache"
    MEMORY = "bytes width;"
    LINK = "ranks nodes bytes; whole"

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the shape columns."""
        return tuple(self.value.replace(";", "").split())

    @property
    def num_key_columns(self) -> int:
        """How many of the columns make up the shape's key."""
        return len(self.value.partition(";")[0].split())


def family_of(section: str) -> Family:
    """The family of a section."""
    group, name = section.split(".")[:2]
    if group == "link":
        return Family.LINK
    if name in ("matmul", "grouped_matmul"):
        return Family.PRODUCT
    return Family.ATTENTION if name.startswith("attention_") else Family.MEMORY


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one kernel or collective by itself.

    Attributes:
        section: of the profile. shape: the family's columns. time_s: of one call [s], > 0.
        source: who measured, and the software where the kernel depends on it.
        device: as the file says. where: ``file:line``.
    """

    section: str
    shape: tuple[float, ...]
    time_s: float
    source: str
    device: str
    where: str

    @property
    def key(self) -> str:
        """The shape's key as text."""
        count = family_of(self.section).num_key_columns
        return ",".join(f"{value:.0f}" for value in self.shape[:count])


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that is left out: its place, the reason, and its device, where the row names one."""

    where: str
    reason: str
    device: str | None = None


def places(names: Sequence[str]) -> str:
    """The first few of some places, for a message."""
    return ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")


def is_held_out(key: str) -> bool:
    """Whether the rule holds a shape out."""
    return zlib.crc32(key.encode()) % 3 == 0


@dataclass(frozen=True)
class Samples:
    """The measurements of one section.

    Attributes:
        section: see ``Sample``. shape: float64[num_columns, n]. time_s: float64[n] [s]. sources: n texts.
        held_out: bool[n]. where: n places.
    """

    section: str
    shape: NDArray[np.float64]
    time_s: NDArray[np.float64]
    sources: NDArray[np.str_]
    held_out: NDArray[np.bool_]
    where: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def family(self) -> Family:
        """The section's family."""
        return family_of(self.section)

    def column(self, name: str) -> NDArray[np.float64]:
        """A shape column by its name: float64[n]."""
        column: NDArray[np.float64] = self.shape[self.family.columns.index(name)]
        return column

    def take(self, chosen: NDArray[np.bool_]) -> Samples:
        """Some of the rows."""
        where = tuple(place for place, is_chosen in zip(self.where, chosen, strict=True) if is_chosen)
        return Samples(
            self.section,
            self.shape[:, chosen],
            self.time_s[chosen],
            self.sources[chosen],
            self.held_out[chosen],
            where,
        )


def by_section(samples: Iterable[Sample]) -> dict[str, Samples]:
    """Measurements as columns: section -> samples, sections in alphabetical order."""
    rows: dict[str, list[Sample]] = {}
    for sample in samples:
        rows.setdefault(sample.section, []).append(sample)
    return {section: _columns(section, rows[section]) for section in sorted(rows)}


def _columns(section: str, rows: Sequence[Sample]) -> Samples:
    held_out = {key: is_held_out(key) for key in {row.key for row in rows}}
    return Samples(
        section,
        np.array([row.shape for row in rows], dtype=np.float64).T,
        np.array([row.time_s for row in rows]),
        np.array([row.source for row in rows]),
        np.array([held_out[row.key] for row in rows]),
        tuple(row.where for row in rows),
    )

"""What a script of a paper's table or figure returns: rows of theirs beside ours, and pictures; as JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """What a row says of a paper's number."""

    SETTLED = "settled"
    """Within the margin that the paper itself gives, or of the same order where it is an order."""
    DIFFERS = "differs"
    NOT_SAID = "not said"
    """The paper has no number here; ours stands alone."""
    INCONSISTENT = "inconsistent in the source"
    """Another number of the same paper contradicts it."""


@dataclass(frozen=True)
class PaperRow:
    """One number.

    Attributes:
        what: it is. theirs, ours: in ``unit``; None: there is none. margin: relative difference within which it counts
            as settled, with its reason in ``note``.
        sensitivity: how much ours moves when one open choice is changed: choice and other value -> ours [unit].
        note: where theirs is printed; where they differ by more than the margin, what could explain it.
        is_contradicted: another number of the source contradicts theirs, which the note tells.
    """

    what: str
    theirs: float | None
    ours: float | None
    unit: str
    margin: float = 0.05
    sensitivity: dict[str, float] = field(default_factory=dict)
    note: str = ""
    is_contradicted: bool = False

    @property
    def ratio(self) -> float | None:
        """Ours over theirs."""
        if self.theirs is None or self.ours is None or self.theirs == 0:
            return None
        return self.ours / self.theirs

    @property
    def verdict(self) -> Verdict:
        """Whether they agree."""
        if self.theirs is None:
            return Verdict.NOT_SAID
        if self.is_contradicted:
            return Verdict.INCONSISTENT
        ratio = self.ratio
        if ratio is None:
            return Verdict.SETTLED if self.theirs == self.ours else Verdict.DIFFERS
        return Verdict.SETTLED if abs(ratio - 1) <= self.margin else Verdict.DIFFERS

    def to_json(self) -> dict[str, Any]:
        """Its attributes, ratio and verdict."""
        return {**asdict(self), "ratio": self.ratio, "verdict": self.verdict.value}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PaperRow:
        """What ``to_json`` wrote."""
        return cls(**{key: value for key, value in document.items() if key not in ("ratio", "verdict")})


@dataclass(frozen=True)
class PaperResult:
    """A table or figure.

    Attributes:
        name: of the script. title, source: for people (``DIP Table 5``). rows: theirs beside ours.
        pictures: PNG files written. text: Markdown that follows the table: what was run, what explains differences.
        wall_s: how long it took [s].
    """

    name: str
    title: str
    source: str
    rows: tuple[PaperRow, ...]
    pictures: tuple[Path, ...] = ()
    text: str = ""
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Its attributes; pictures by file name, as they lie beside the document."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "rows": [row.to_json() for row in self.rows],
            "pictures": [path.name for path in self.pictures],
            "text": self.text,
            "wall_s": self.wall_s,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], folder: Path) -> PaperResult:
        """What ``to_json`` wrote into a folder."""
        return cls(
            name=document["name"],
            title=document["title"],
            source=document["source"],
            rows=tuple(PaperRow.from_json(row) for row in document["rows"]),
            pictures=tuple(folder / name for name in document["pictures"]),
            text=document["text"],
            wall_s=document["wall_s"],
        )

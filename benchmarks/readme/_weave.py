"""Where parts stand in README.md and docs/, and what pictures were drawn from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from semu.files import write_text

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "decisions"))
"""The pages whose code, parts and pictures tests and ``make readme`` look after."""
COMMANDS = DOCS / "guides" / "commands"
WALKED = (*sorted((DOCS / "tutorials").glob("[!i]*.md")), *sorted(COMMANDS.glob("*.md")))
"""Pages that run from top to bottom (``benchmarks.readme._walk``)."""
PICTURES_FOLDER = ROOT / "examples" / "pictures"
DIGESTS = PICTURES_FOLDER / "inputs.json"


def page_of(name: str, pages: Sequence[Path]) -> Path:
    """The page that has a part.

    Raises:
        ValueError: none has it, or several have.
    """
    found = [page for page in pages if f"<!-- begin {name}: make readme -->" in page.read_text(encoding="utf-8")]
    if len(found) != 1:
        raise ValueError(f"expected one page with <!-- begin {name}: make readme -->, there are {len(found)}")
    return found[0]


def _place(text: str, name: str) -> tuple[int, int]:
    """Where a part's text begins and ends.

    Raises:
        ValueError: a mark is missing, or stands there twice.
    """
    begin, end = f"<!-- begin {name}: make readme -->\n", f"<!-- end {name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"expected one {begin.strip()} and one {end.strip()}")
    return text.index(begin) + len(begin), text.index(end)


def part_of(text: str, name: str) -> str:
    """The text between a part's marks."""
    begin, end = _place(text, name)
    return text[begin:end]


def replace_part(text: str, name: str, part: str) -> str:
    """The whole text with another part."""
    begin, end = _place(text, name)
    return text[:begin] + part + text[end:]


def recorded_digests() -> dict[str, str]:
    """Picture -> digest of the figures that it was drawn from."""
    found: dict[str, str] = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.is_file() else {}
    return found


def write_digests(digests: dict[str, str]) -> None:
    """Record what pictures were drawn from."""
    write_text(DIGESTS, json.dumps(dict(sorted(digests.items())), indent=1) + "\n")

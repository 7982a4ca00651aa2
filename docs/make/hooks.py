"""Hooks of MkDocs: generated pages, files of the repository as pages, links between both, and a check of all links."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from docs.make import notebooks, reference  # noqa: E402

LOG = logging.getLogger("mkdocs.semu")
SITE: dict[str, str] = {
    "semu/README.md": "code/semu.md",
    **{f"semu/{room}/README.md": f"code/{room}.md" for room in ("hardware", "graph", "masks", "engine", "searcher")},
    **{
        f"semu/{room}/README.md": f"code/{room}.md"
        for room in ("plan", "executor", "baselines", "fitting", "resilience")
    },
    "calibration/README.md": "code/calibration.md",
    "calibration/SCHEMA.md": "code/measurements.md",
    "benchmarks/paper/README.md": "code/papers.md",
    "DECISIONS.md": "decisions.md",
    "CHANGELOG.md": "changes.md",
}
"""File of the repository -> page of the site; pictures are added to it."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_DECISION = re.compile(r"\b((?:DECISIONS|[Dd]ecision) )(\d+)\b")
_FENCE = re.compile(r"(?ms)^```.*?^```")
_CODE = re.compile(r"(?ms)^```.*?^```|`[^`\n]+`")


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages, pages and pictures of the repository."""
    for path, text in (reference.pages() | notebooks.pages()).items():
        files.append(File.generated(config, path, content=text))
    for folder in ("examples/pictures", "benchmarks/paper/pictures"):
        for picture in sorted((ROOT / folder).glob("*.png")):
            name = picture.relative_to(ROOT).as_posix()
            SITE[name] = f"pictures/{name}"
    for name, page in SITE.items():
        if page.endswith(".md"):
            files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
        else:
            files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def decisions() -> dict[str, str]:
    """Number of a decision -> its page, with the anchor; before they were split by topic all are on one."""
    pages = {path: f"decisions/{path.name}" for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))}
    return {
        number: f"{page}#{number}"
        for path, page in pages.items()
        for number in re.findall(r"(?m)^## (\d+)\. ", path.read_text(encoding="utf-8"))
    }


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links of a page at pages of the site; a file that the site lacks is named, not linked."""
    homes = {site: repository for repository, site in SITE.items()}
    here = homes.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def mend(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(here), unquote(path)))
        if found in SITE or (found.startswith("docs/") and files.get_file_from_path(found.removeprefix("docs/"))):
            site = SITE.get(found, found.removeprefix("docs/"))
            new = os.path.relpath(site, posixpath.dirname(page.file.src_uri) or ".")
            return f"{mark}[{label}]({new}{'#' + anchor if anchor else ''})"
        if not (ROOT / found).exists():
            LOG.warning("%s: no file %s", here, found)
        return f"{label}" if not mark else match[0]

    known = decisions()
    folder = posixpath.dirname(page.file.src_uri) or "."

    def name(match: re.Match[str]) -> str:
        if match[2] not in known or page.file.src_uri.startswith("decisions"):
            return match[0]
        return f"{match[1]}[{match[2]}]({os.path.relpath(known[match[2]], folder)})"

    linked = _outside(_FENCE, lambda text: _LINK.sub(mend, text), markdown)
    return _outside(_CODE, lambda text: _DECISION.sub(name, text), linked)


def _outside(skipped: re.Pattern[str], change: Callable[[str], str], text: str) -> str:
    """Change what lies outside of code."""
    parts, end = list[str](), 0
    for code in skipped.finditer(text):
        parts += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(text[end:])])


class _Page(HTMLParser):
    """Links, names and requests of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.requests: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element points at."""
        said = {key: value or "" for key, value in attrs}
        self.names |= {said[key] for key in ("id", "name") if key in said}
        target = said.get("src" if tag in ("img", "script") else "href")
        if target:
            self.links.append(target)
            if tag in ("img", "script", "link") and said.get("rel") not in ("canonical", "prev", "next"):
                self.requests.append(target)


def on_post_build(config: Any) -> None:
    """Check every link, anchor and request of the built site.

    Raises:
        SystemExit: one leads nowhere, or to another machine.
    """
    site = Path(config["site_dir"])
    read: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        read[path] = _Page()
        read[path].feed(path.read_text(encoding="utf-8"))
    faults = [
        fault for path, page in read.items() if path.name != "404.html" for fault in _faults(path, page, read, site)
    ]
    LOG.info("checked %d links on %d pages", sum(len(page.links) for page in read.values()), len(read))
    if faults:
        raise SystemExit("\n".join(faults))


def _faults(path: Path, page: _Page, read: dict[Path, _Page], site: Path) -> Iterator[str]:
    where = path.relative_to(site)
    for target in page.requests:
        if re.match(r"(https?:)?//", target):
            yield f"{where}: asks another machine for {target}"
    for target in page.links:
        if re.match(r"[a-z]+:|//", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path.resolve()
        if not file.exists():
            yield f"{where}: no {target}"
        elif anchor and file in read and unquote(anchor) not in read[file].names and anchor != "__skip":
            yield f"{where}: no anchor {target}"

"""``walk``: run a page from top to bottom, as its reader does, and write the outputs that it shows.

In a page of ``WALKED`` every block of code counts. ``title="NAME"`` behind the language writes the block to a file; a
block of ``sh`` is typed, one of ``python`` is run; a block of ``text`` behind either is what they print. Comments of
HTML say more: ``<!-- exits 3 -->`` before a block that fails on purpose, ``<!-- lines 1-6 9 -->`` before an output of
which only some lines are shown.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.readme._weave import ROOT

_BLOCK = re.compile(
    r"(?:<!-- (?P<say>exits|lines) (?P<value>[\d -]+?) -->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n"
    r"(?P<body>.*?)^```$",
    flags=re.DOTALL | re.MULTILINE,
)
LONGEST_S = 900


def name_of(page: Path) -> str:
    """A page's path in ``docs``."""
    return page.relative_to(ROOT / "docs").as_posix()


def is_walkable(text: str) -> bool:
    """Whether a page can be run here: plans are executed by torch."""
    return re.search(r"\nsemu (run|drill) ", text) is None or find_spec("torch") is not None


def walk(text: str, folder: Path) -> str:
    """Run a page.

    Args:
        text: of the page. folder: an empty folder, in which files are written and commands run.
    Returns:
        The page with the outputs of today.
    Raises:
        ValueError: a block is of no known kind, or a command ends with another code than the page says.
    """
    printed, made, end = "", list[str](), 0
    for block in _BLOCK.finditer(text):
        language, title, body = block["language"], block["title"], block["body"]
        code = int(block["value"]) if block["say"] == "exits" else 0
        shown = body
        if title is not None:
            path = folder / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
        elif language == "sh":
            printed = _run(["bash", "-ec", _typed(body)], folder, code, body)
        elif language == "python":
            printed = _run([sys.executable, "-c", body], folder, code, body)
        elif language == "text":
            shown = _chosen(printed, block["value"] if block["say"] == "lines" else None)
        else:
            raise ValueError(f"expected a title, sh, python or text, got a block of {language}:\n{body}")
        made += [text[end : block.start("body")], shown]
        end = block.end("body")
    return "".join([*made, text[end:]])


def _typed(body: str) -> str:
    return re.sub(r"(?m)(^|&& )semu ", lambda match: f"{match[1]}{sys.executable} -m semu ", body)


def _run(words: list[str], folder: Path, code: int, body: str) -> str:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode != code:
        raise ValueError(f"expected exit code {code}, got {done.returncode}:\n{body}\n{done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines()) + "\n"


def _chosen(printed: str, ranges: str | None) -> str:
    """Lines of an output, counted from 1; ``...`` where some are left out."""
    if ranges is None:
        return printed
    lines, shown, last = printed.splitlines(), list[str](), 0
    for part in ranges.split():
        first, _, until = part.partition("-")
        start, stop = int(first), min(int(until or first), len(lines))
        shown += ["..."] * (start > last + 1) + lines[start - 1 : stop]
        last = stop
    return "\n".join([*shown, *["..."] * (last < len(lines))]) + "\n"

"""Tutorials and guides to commands run from top to bottom and print what they show: ``make readme`` mends them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.readme._walk import is_walkable, name_of, walk
from benchmarks.readme._weave import COMMANDS, ROOT, WALKED
from semu.cli.options.every import COMMANDS as NAMES
from semu.cli.options.every import parse_arguments

FAST = ("guides/commands/list.md",)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] * (name_of(page) not in FAST)) for page in WALKED],
)
def test_pages_run_and_print_what_they_show(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if not is_walkable(text):
        pytest.importorskip("torch", reason="running plans needs torch (pip install '.[executor]')")
    assert walk(text, tmp_path) == text, f"{page.relative_to(ROOT)} is stale: make readme"


def test_every_command_has_a_guide() -> None:
    assert {page.stem for page in COMMANDS.glob("*.md")} - {"index"} == set(NAMES)


def test_mentioned_commands_have_the_options_that_pages_say() -> None:
    for page in WALKED:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for code in re.findall(r"`(semu [^`]+)`", text):
            words = code.split()[1:]
            if len(words) > 1 and "--help" not in words:
                parse_arguments(words)


def test_a_walk_writes_files_runs_blocks_and_shows_chosen_lines(tmp_path: Path) -> None:
    page = (
        '```toml title="a/run.toml"\nx = 1\n```\n```sh\ncat a/run.toml\nseq 5\n```\n'
        "<!-- lines 1 3-4 -->\n```text\nold\n```\n```python\nprint(7)\n```\n```text\n```\n"
    )
    made = walk(page, tmp_path)
    assert "<!-- lines 1 3-4 -->\n```text\nx = 1\n...\n2\n3\n...\n```\n" in made
    assert made.endswith("```text\n7\n```\n")
    assert walk(made, tmp_path) == made


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```sh\nexit 3\n```\n", "expected exit code 0, got 3"),
        ("<!-- exits 3 -->\n```sh\ntrue\n```\n", "expected exit code 3, got 0"),
        ("```toml\nx = 1\n```\n", "a block of toml"),
    ],
)
def test_a_walk_stops_where_the_page_is_wrong(page: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        walk(page, tmp_path)

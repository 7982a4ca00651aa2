"""Every example that ``semu X --help``, README.md and the guides print is a command line that semu reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from semu.cli.options.every import COMMANDS, parse_arguments

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").rglob("*.md"))]


def command_lines(text: str) -> Iterator[str]:
    """Command lines of a text that stand on lines of their own, with what a backslash continues."""
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        found = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )?(semu [^.].*)", line)
        if found is not None:
            yield found[1]


def from_pages() -> Iterator[tuple[str, str]]:
    """(where, command line) of blocks of code, and of commands within a sentence."""
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in command_lines(block)]
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        lines += [code for code in re.findall(r"`(semu [a-z-]+ [^`]*)`", prose) if "..." not in code]
        yield from ((str(page.relative_to(ROOT)), line) for line in lines)


def from_help() -> Iterator[tuple[str, str]]:
    for name, options in COMMANDS.items():
        for text in (options.description, options.epilog or ""):
            indented = "\n".join(line for line in text.splitlines() if line.startswith("  "))
            yield from ((f"semu {name} --help", line) for line in command_lines(indented))


EXAMPLES = [*from_help(), *from_pages()]


def words_of(line: str) -> list[str]:
    """Words of one command, without what a shell does with its output."""
    told = re.sub(r" N\b", " 3", line.strip().partition("  ")[0])  # after two blanks: what it does
    words = shlex.split(told, comments=True)
    ends = [at for at, word in enumerate(words) if word in ("|", ">", "&&", "2>", "||", ";", "<")]
    return words[1 : min(ends, default=len(words))]


def test_there_are_examples_of_every_command() -> None:
    named = {words[0] for _, line in EXAMPLES if (words := words_of(line))}
    assert named >= {*COMMANDS} - {"doctor", "completion"}
    assert len(EXAMPLES) > 100


@pytest.mark.parametrize(("where", "line"), [pytest.param(*example, id=example[1][:70]) for example in EXAMPLES])
def test_an_example_is_read(where: str, line: str) -> None:
    words = words_of(line)
    if "--help" in words:
        with pytest.raises(SystemExit):
            parse_arguments(words)
        return
    assert parse_arguments(words).command == words[0], where

"""Decisions lie by topic, DECISIONS.md lists all of them by number, and whoever names one finds it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPICS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
NAMED = re.compile(r"\b(?:DECISIONS|[Dd]ecisions?) (\d+(?:(?:, | to | and )\d+)*)")
FOLDERS = ("semu", "semu_models", "tests", "benchmarks", "calibration", "docs")


def titles() -> dict[int, tuple[str, str]]:
    """Number -> topic and title."""
    return {
        int(number): (topic.stem, title)
        for topic in TOPICS
        for number, title in re.findall(r"(?m)^## (\d+)\. (.+)$", topic.read_text(encoding="utf-8"))
    }


def test_every_decision_has_a_topic_an_anchor_and_a_line_in_the_index() -> None:
    listed = re.findall(
        r"(?m)^\| (\d+) \| \[(.+)\]\(docs/decisions/([\w-]+)\.md#(\d+)\) \|", (ROOT / "DECISIONS.md").read_text("utf-8")
    )
    numbers = [int(number) for number, *_ in listed]
    assert numbers == sorted(set(numbers))
    assert {int(number): (topic, title.replace("\\|", "|")) for number, title, topic, _ in listed} == titles()
    assert all(number == anchor for number, *_, anchor in listed)
    assert not re.search(r"(?m)^## \d+\. ", (ROOT / "DECISIONS.md").read_text("utf-8")), "an entry lies in the index"
    for topic in TOPICS:
        text = topic.read_text(encoding="utf-8")
        assert re.findall(r'<a id="(\d+)"></a>\n\n## (\d+)\.', text) == [
            (n, n) for n in re.findall(r"(?m)^## (\d+)\.", text)
        ]
        own = [int(number) for number in re.findall(r"(?m)^## (\d+)\.", text)]
        assert own == sorted(own)


def test_every_decision_that_is_named_is_there() -> None:
    known = titles()
    files = [path for folder in FOLDERS for kind in ("*.py", "*.md", "*.toml") for path in (ROOT / folder).rglob(kind)]
    lost = [
        (path.relative_to(ROOT).as_posix(), number)
        for path in files
        for numbers in NAMED.findall(path.read_text(encoding="utf-8"))
        for number in map(int, re.findall(r"\d+", numbers))
        if number not in known
    ]
    assert lost == []

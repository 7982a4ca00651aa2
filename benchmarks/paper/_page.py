"""``Page``: a report in parts, made of results or read from its text, so that single scripts can be published anew."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.paper._results import PaperResult, PaperRow, Verdict
from benchmarks.paper.choices import Choices, may_read
from semu.errors import ConfigError

_ROW = re.compile(r"\| \[[^]]*\]\(#(\w+)\) \| ")
_CHOICE = re.compile(r"\| `(\w+)` \| (.*?) \| ")
_SECTION = re.compile(r'^<a id="(\w+)"></a>\n', re.MULTILINE)
_CHOICES = "## Choices\n"
_VERDICT_CELL = 6


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        rows: script -> lines of the summary. sections: script -> what it has to say.
        choices: name -> line of the table of choices.
    """

    rows: Mapping[str, tuple[str, ...]]
    sections: Mapping[str, str]
    choices: Mapping[str, str]

    @classmethod
    def of(cls, results: Sequence[PaperResult], choices: Choices, pictures: str = "") -> Page:
        """Of results.

        Args:
            results: in their order. choices: that they were made with. pictures: where they lie: ``pictures/``.
        """
        return cls(
            {result.name: tuple(_summary(result, row) for row in result.rows) for result in results},
            {result.name: "\n".join(_section(result, pictures)) for result in results},
            {
                name: f"| `{name}` | {_cell(str(choice.value))} | {_cell(', '.join(map(str, choice.alternatives)))} | "
                f"{_cell(choice.reason)} |"
                for name, choice in choices
            },
        )

    @classmethod
    def read(cls, text: str) -> Page:
        """What ``text`` wrote."""
        body, _, end = text.partition(_CHOICES)
        marks = [*_SECTION.finditer(body)]
        starts = [mark.end() for mark in marks]
        ends = [*(mark.start() for mark in marks[1:]), len(body)]
        rows: dict[str, list[str]] = {}
        for line in body.splitlines():
            if (row := _ROW.match(line)) is not None:
                rows.setdefault(row[1], []).append(line)
        return cls(
            {name: tuple(lines) for name, lines in rows.items()},
            {mark[1]: body[a:b].strip("\n") for mark, a, b in zip(marks, starts, ends, strict=True)},
            {found[1]: line for line in end.splitlines() if (found := _CHOICE.match(line)) is not None},
        )

    def updated(self, other: Page, order: Sequence[str]) -> Page:
        """With the scripts of another page in the place of its own, in an order.

        Raises:
            ConfigError: what stays was made with other choices.
        """
        stay = [name for name in self.rows if name not in other.rows]
        for name, line in self.choices.items():
            is_read = any(may_read(script, name) for script in stay)
            if is_read and _value(other.choices.get(name, "")) != _value(line):
                raise ConfigError(
                    f"the published results were made with another value of the choice {name}",
                    where="--publish",
                    expected=_value(line),
                    got=_value(other.choices.get(name, "")) or "no such choice",
                    nearest="--all",
                )
        rows, sections = {**self.rows, **other.rows}, {**self.sections, **other.sections}
        return Page(
            {name: rows[name] for name in order if name in rows},
            {name: sections[name] for name in order if name in sections},
            other.choices,
        )

    def text(self, *, quick: bool = False, failed: Mapping[str, str] | None = None) -> str:
        """As Markdown; ``quick``: small sizes, said in the headline; ``failed``: script -> what went wrong."""
        return "\n".join(self._lines(quick, failed or {})) + "\n"

    def _lines(self, quick: bool, failed: Mapping[str, str]) -> Iterator[str]:
        yield "# The papers' results beside semu's"
        yield ""
        if quick:
            yield "**Quick run: small sizes, no results.**"
            yield ""
        yield (
            "Made by `python -m benchmarks.paper --all`. *Theirs* is what the papers print (DIP, ASPLOS '26; FlexPipe; "
            "Cornstarch; Entrain; Oobleck), mostly measured on GPUs; *ours* is simulated. *Settled*: within the "
            "margin, which is told with its reason where it is not 5 %. *Inconsistent in the source*: another number "
            "of the same paper contradicts it. Nothing is tuned per figure: what the papers leave open is chosen once, "
            "at the end of this page, where a choice says so that was made with results in view."
        )
        yield ""
        verdicts = [line.split(" | ")[_VERDICT_CELL] for lines in self.rows.values() for line in lines]
        counts = {verdict: verdicts.count(verdict.value) for verdict in Verdict}
        told = len(verdicts) - counts[Verdict.NOT_SAID]
        odd = counts[Verdict.INCONSISTENT]
        yield (
            f"{counts[Verdict.SETTLED]} of {told} numbers that the papers print are settled, "
            f"{counts[Verdict.DIFFERS]} differ" + (f", {odd} are inconsistent in the source." if odd else ".")
        )
        yield ""
        yield "## Summary"
        yield ""
        yield "| from | what | theirs | ours | unit | ratio | verdict | moves to, under another choice |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        for lines in self.rows.values():
            yield from lines
        yield ""
        for name, message in failed.items():
            yield f"**Not finished: {name}.** {message}"
            yield ""
        for name, section in self.sections.items():
            yield f'<a id="{name}"></a>'
            yield ""
            yield section
            yield ""
        yield _CHOICES
        yield "What the papers leave open, in `choices.py`, the same for all scripts."
        yield ""
        yield "| choice | value | alternatives | why |"
        yield "| --- | --- | --- | --- |"
        yield from self.choices.values()
        yield ""


def _summary(result: PaperResult, row: PaperRow) -> str:
    moved = "; ".join(f"{what}: {number(value)}" for what, value in row.sensitivity.items())
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    cells = [
        f"[{result.source}](#{result.name})",
        row.what,
        number(row.theirs),
        number(row.ours),
        row.unit,
        ratio,
        row.verdict.value,
        moved,
    ]
    return "| " + " | ".join(_cell(text) for text in cells) + " |"


def _section(result: PaperResult, folder: str) -> Iterator[str]:
    yield f"## {result.source}: {result.title}"
    yield ""
    if result.text:
        yield result.text.strip()
        yield ""
    noted = [row for row in result.rows if row.note]
    for row in noted:
        yield f"- **{row.what}** ({row.verdict.value}): {row.note}"
    if noted:
        yield ""
    for path in result.pictures:
        yield f"![{result.source}: {result.title}]({folder}{path.name})"
        yield ""
    yield f"`python -m benchmarks.paper {result.name}`, {result.wall_s:.0f} s."


def number(value: float | None) -> str:
    """Four digits that count, never an exponent; nothing for None."""
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _value(line: str) -> str:
    found = _CHOICE.match(line)
    return "" if found is None else found[2]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

"""The report: a summary of theirs, ours, ratio and verdict, every script's rows and pictures, and all choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.paper._results import PaperResult, PaperRow, Verdict
from benchmarks.paper.choices import Choices


def report_text(
    results: Sequence[PaperResult],
    choices: Choices,
    *,
    quick: bool = False,
    failed: Mapping[str, str] | None = None,
    pictures: str = "",
) -> str:
    """The whole report as Markdown.

    Args:
        results: in their order. choices: that they were made with. quick: small sizes; said in the headline.
        failed: script -> what went wrong. pictures: where they lie, seen from it: ``pictures/``.
    """
    return "\n".join(_lines(results, choices, quick, failed or {}, pictures)) + "\n"


def _lines(
    results: Sequence[PaperResult], choices: Choices, quick: bool, failed: Mapping[str, str], pictures: str
) -> Iterator[str]:
    yield "# The papers' results beside semu's"
    yield ""
    if quick:
        yield "**Quick run: small sizes, no results.**"
        yield ""
    yield (
        "Made by `python -m benchmarks.paper --all`. *Theirs* is what DIP (ASPLOS '26) prints, mostly measured on "
        "GPUs; *ours* is simulated. *Settled*: within the margin, which is told with its reason where it is not 5 %. "
        "Nothing is tuned per figure: what the papers leave open is chosen once, at the end of this page, "
        "where a choice says so that was made with results in view."
    )
    yield ""
    rows = [row for result in results for row in result.rows]
    told = [row for row in rows if row.verdict is not Verdict.NOT_SAID]
    settled = sum(row.verdict is Verdict.SETTLED for row in told)
    yield f"{settled} of {len(told)} numbers that the paper prints are settled, {len(told) - settled} differ."
    yield ""
    yield "## Summary"
    yield ""
    yield "| from | what | theirs | ours | unit | ratio | verdict | moves to, under another choice |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for result in results:
        for row in result.rows:
            yield _summary(result, row)
    yield ""
    for name, message in failed.items():
        yield f"**Not finished: {name}.** {message}"
        yield ""
    for result in results:
        yield from _section(result, pictures)
    yield from _choices(choices)


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
    yield f'<a id="{result.name}"></a>'
    yield ""
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
    yield ""


def _choices(choices: Choices) -> Iterator[str]:
    yield "## Choices"
    yield ""
    yield "What the papers leave open, in `choices.py`, the same for all scripts."
    yield ""
    yield "| choice | value | alternatives | why |"
    yield "| --- | --- | --- | --- |"
    for name, choice in choices:
        others = ", ".join(str(item) for item in choice.alternatives)
        yield f"| `{name}` | {_cell(str(choice.value))} | {_cell(others)} | {_cell(choice.reason)} |"
    yield ""


def number(value: float | None) -> str:
    """Four digits that count, never an exponent; nothing for None."""
    if value is None:
        return ""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

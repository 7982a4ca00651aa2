"""``Page``: sections in order, and the HTML file that they become."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from semu.files import write_text
from semu.present.page.arrays import Arrays, packed
from semu.records import dataclass

STYLES = ("vendor/uplot.css", "page.css")
SCRIPTS = (
    "vendor/uplot.js",
    "data.js",
    "lanes.js",
    "timeline.js",
    "memory.js",
    "tables.js",
    "charts.js",
    "matrix.js",
    "main.js",
)
"""Files of ``assets``, in order; all scripts share one scope."""
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999", "#332288", "#aa4499")
"""Colours of parts, in order."""
_MOST_ROWS = 500
"""Rows of a table; more are left out, which is said."""
_LONGEST = 200
"""Letters of a cell that are shown; the rest is in its tooltip."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: of the records. name: as the heading has it, with the unit. digits: after the point; None: as it is.
        scale: what numbers are divided by. is_bar: a bar behind the number shows its share of the largest.
    """

    key: str
    name: str
    digits: int | None = None
    scale: float = 1.0
    is_bar: bool = False


class Page:
    """One result, section by section.

    Args:
        title: headline and name of the window. lines: below it.
    """

    def __init__(self, title: str, lines: Sequence[str] = ()) -> None:
        self.title = title
        self.arrays = Arrays()
        self._lines = lines
        self._html: list[str] = []
        self._data: dict[str, Mapping[str, Any]] = {}

    def add_facts(self, heading: str, facts: Sequence[tuple[str, str]]) -> None:
        """Names and what they are; an entry without a name goes on with the one before."""
        joined: list[tuple[str, str]] = []
        for name, value in facts:
            if name or not joined:
                joined.append((name, text(value)))
            else:
                joined[-1] = joined[-1][0], f"{joined[-1][1]}<br>{text(value)}"
        rows = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in joined)
        self._section(heading, f"<dl class=facts>{rows}</dl>")

    def add_list(self, heading: str, lines: Sequence[str]) -> None:
        """Sentences; nothing where there are none."""
        if lines:
            self._section(heading, "<ul>" + "".join(f"<li>{text(line)}</li>" for line in lines) + "</ul>")

    def add_bars(self, heading: str, bars: Sequence[tuple[str, float, str]], note: str = "") -> None:
        """Bars from zero, to the left where less.

        Args:
            bars: name, length, what is written beside it. note: below the heading.
        """
        longest = max((abs(length) for _, length, _ in bars), default=0.0) or 1.0
        rows = []
        for name, length, said in bars:
            share = 100 * abs(length) / longest
            side = "less" if length < 0 else "more"
            bar = f"<span class='bar {side}' style='width:{share:.2f}%'></span>"
            rows.append(
                f"<tr><th scope=row>{text(name)}</th><td class=track>{bar}</td><td class=number>{text(said)}</td></tr>"
            )
        body = f"<table class=bars><tbody>{''.join(rows)}</tbody></table>"
        self._section(heading, (f"<p class=note>{text(note)}</p>" if note else "") + body)

    def add_stacks(self, heading: str, stacks: Mapping[str, Mapping[str, float]], note: str = "") -> None:
        """Bars of equal length, cut into parts.

        Args:
            stacks: name -> part -> share; shares sum to 1. Parts that nobody has are left out. note: below the heading.
        """
        every = dict.fromkeys(key for one in stacks.values() for key in one)
        parts = [part for part in every if any(one.get(part, 0.0) > 0 for one in stacks.values())]
        keys = "".join(
            f"<span><i style='background:{HUES[k % len(HUES)]}'></i>{text(part)}</span>" for k, part in enumerate(parts)
        )
        rows = []
        for name, one in stacks.items():
            cut = "".join(
                f"<span class=bar style='width:{100 * one.get(part, 0.0):.3f}%;background:{HUES[k % len(HUES)]}'"
                f" title='{text(part)} {one.get(part, 0.0):.2%}'></span>"
                for k, part in enumerate(parts)
            )
            rows.append(f"<tr><th scope=row>{text(name)}</th><td class='track stack'>{cut}</td></tr>")
        body = f"<div class=legend>{keys}</div><table class=bars><tbody>{''.join(rows)}</tbody></table>"
        self._section(heading, (f"<p class=note>{text(note)}</p>" if note else "") + body)

    def add_table(
        self, heading: str, rows: Sequence[Mapping[str, object]], columns: Sequence[Column], most: int = _MOST_ROWS
    ) -> None:
        """A table that is sorted by a click on a heading and filtered by words; rows beyond ``most`` are left out, and
        it says so."""
        shown = rows[:most]
        tops = {
            column.key: max((_number(row.get(column.key)) or 0.0 for row in shown), default=0.0) for column in columns
        }
        numbers = {
            column.key for column in columns if any(_number(row.get(column.key)) is not None for row in shown[:20])
        }
        head = "".join(
            f"<th scope=col{' class=number' if column.key in numbers else ''}>{text(column.name)}</th>"
            for column in columns
        )
        body = "".join(
            "<tr>" + "".join(_cell(row.get(column.key), column, tops[column.key]) for column in columns) + "</tr>"
            for row in shown
        )
        said = f"<p class=note>the first {len(shown)} of {len(rows):,}</p>" if len(rows) > len(shown) else ""
        table = f"<table class=data><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        self._section(heading, f"{said}<div class=scroll>{table}</div>")

    def add_chart(self, heading: str, kind: str, data: Mapping[str, Any], said: str, note: str = "") -> None:
        """Something that a script draws.

        Args:
            kind: which script, ``timeline``, ``scatter``, ``lines`` or ``matrix``. data: what it is given.
            said: the same in a sentence, for readers without the picture. note: below the heading.
        """
        name = f"chart{len(self._data)}"
        self._data[name] = {"kind": kind, **data}
        body = f"<div id={name} class=chart data-said='{text(said)}'></div><noscript><p>{text(said)}</p></noscript>"
        self._section(heading, (f"<p class=note>{text(note)}</p>" if note else "") + body)

    def _section(self, heading: str, body: str) -> None:
        number = len(self._html)
        self._html.append(f"<section aria-labelledby=h{number}><h2 id=h{number}>{text(heading)}</h2>{body}</section>")

    def to_html(self) -> str:
        """The file."""
        style = "".join(f"<style>{asset(name)}</style>" for name in STYLES)
        scripts = "".join(f"<script>{asset(name)}</script>" for name in SCRIPTS)
        data = json.dumps(self._data, allow_nan=False, separators=(",", ":"), sort_keys=True, default=_plain).encode()
        lines = "".join(f"<p>{text(line)}</p>" for line in self._lines)
        return (
            "<!doctype html><html lang=en><head><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width, initial-scale=1">'
            f'<meta http-equiv=Content-Security-Policy content="{_POLICY}">'
            f"<title>{text(self.title)} - semu</title>{style}</head><body>"
            f"<header><h1>{text(self.title)}</h1>{lines}</header><main>{''.join(self._html)}</main>"
            f"<script type=text/plain id=data>{packed(data)}</script>"
            f"<script type=text/plain id=arrays>{self.arrays.text()}</script>{scripts}</body></html>\n"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file.

        Raises:
            ConfigError: it cannot be written.
        """
        return write_text(path, self.to_html())


def text(value: object) -> str:
    """Text for HTML, within quotes too."""
    return escape(str(value), quote=True)


def asset(name: str) -> str:
    """A file of ``assets``; a script in it cannot end its element."""
    return files("semu.present.page").joinpath("assets", name).read_text("utf-8").replace("</script", "<\\/script")


def _cell(value: object, column: Column, top: float) -> str:
    number = _number(value)
    if number is None:
        said = "" if value is None else str(value)
        if len(said) > _LONGEST:
            return f"<td title='{text(said)}'>{text(said[:_LONGEST])}&hellip;</td>"
        return f"<td>{text(said)}</td>"
    scaled = number / column.scale
    said = f"{scaled:,.{column.digits}f}" if column.digits is not None else f"{scaled:,g}"
    bar = f"--share:{100 * max(number, 0.0) / top:.1f}%" if column.is_bar and top > 0 else ""
    look = f" class='number{' share' if bar else ''}'" + (f" style='{bar}'" if bar else "")
    return f"<td{look} data-v='{scaled!r}'>{said}</td>"


def _number(value: object) -> float | None:
    if isinstance(value, bool | str) or value is None:
        return None
    found = float(value) if isinstance(value, int | float | np.number) else math.nan
    return found if math.isfinite(found) else None


def _plain(value: object) -> object:
    """Numbers of numpy as JSON has them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")

"""What every benchmark prints: rows of name, value, unit, reference, goal, holds (DESIGN §6)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One thing measured, as DESIGN §6 wants it."""

    name: str
    value: float | None
    unit: str
    reference: str
    goal: str | None = None
    holds: bool | None = None


def print_rows(
    description: str | None,
    measure: Callable[[bool], Iterable[Row]],
    draw: Callable[[str, list[Row]], None] | None = None,
) -> None:
    """Run a benchmark from the command line.

    Args:
        description: its docstring. measure: whether it shall be quick -> its rows.
        draw: file, rows -> draws them, for ``--picture FILE``; None: there is no such option.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON list of rows; progress on stderr")
    parser.add_argument("--quick", action="store_true", help="small sizes, some seconds")
    if draw is not None:
        parser.add_argument("--picture", metavar="FILE", help="draw a PNG")
    options = parser.parse_args()
    rows: list[Row] = []
    where = sys.stderr if options.json else sys.stdout
    print(f"{'name':52} {'value':>10} {'unit':14} {'goal':12} {'holds':6} reference", file=where, flush=True)
    for row in measure(options.quick):  # some take an hour: each row is told when it is known
        rows.append(row)
        holds = "" if row.holds is None else "yes" if row.holds else "NO"
        value = "-" if row.value is None else f"{row.value:.4g}"
        told = f"{row.name:52} {value:>10} {row.unit:14} {row.goal or '':12} {holds:6} {row.reference}"
        print(told, file=where, flush=True)
    if draw is not None and options.picture:
        draw(options.picture, rows)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))

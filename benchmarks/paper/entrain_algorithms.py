"""Entrain eq. C.5, Figs. 4.8 and 4.10: draws of a validation, and one replica's microbatches paired, by hand."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np

from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.searcher.assignment.allocation import trials_needed
from semu.searcher.assignment.deferral import bottleneck_match

OVER, UNDER = (3, 4, 6), (1, 2, 5)
AFTER = {
    (3, 1): (6, 5),
    (3, 2): (6, 6),
    (3, 5): (6, 8),
    (4, 1): (6, 3),
    (4, 2): (6, 4),
    (4, 5): (6, 6),
    (6, 1): (6, 6),
    (6, 2): (7, 6),
    (6, 5): (9, 6),
}
"""Fig. 4.10b: (overloaded, underloaded) microbatch -> loads of the language model after deferral."""
PARTNERS = {6: 1, 3: 2, 4: 5}
"""The matching of Fig. 4.10c."""
UNITS, BALANCED = 36, 6
TEXT = """
Fig. 4.8 is drawn, not printed, so loads before deferral are not known; sums of a row's cells leave one free number (the
load a of microbatch 1; then 2, 5, 3, 4, 6 have a + 1, a + 3, 11 - a, 9 - a, 12 - a). Whatever a is, all six together
have 36 units, which is six each, as the text says.

One cell contradicts the paper's own rule. Microbatch 6 leaves 5 - a units to microbatch 2 (cell 7, 6), so it has
samples of that much; half of its difference to microbatch 5 is 4.5 - a, of which 5 - a is half a unit away, and would
give 7, 8. Printed is 9, 6, which leaves 3 - a, one and a half units away. The matching does not use the cell.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    del choices, quick, out
    cost = np.array([[max(AFTER[row, column]) for column in UNDER] for row in OVER])
    rows = [PaperRow("draws of a validation at alpha = p = 5 %", 59, trials_needed(0.05, 0.05), "draws", 0.0)]
    loads = {tuple(_loads(first).values()) for first in range(4)}
    totals = {sum(own) for own in loads}
    rows.append(PaperRow("Fig. 4.8: units of the language model", UNITS, _only(totals), "units", 0.0))
    alone = np.array([_loads(2)[number] for number in OVER])
    partner, bound = bottleneck_match(cost, alone)
    rows.append(PaperRow("Fig. 4.10: T*", BALANCED, bound, "units", 0.0, note="for a = 2; any a gives the same"))
    found = {over: UNDER[column] for over, column in zip(OVER, partner.tolist(), strict=True)}
    alike = sum(found[over] == under for over, under in PARTNERS.items())
    rows.append(PaperRow("Fig. 4.10: pairs as printed (6-1, 3-2, 4-5)", 3, alike, "pairs", 0.0))
    fitting = [
        own for own in permutations(range(3)) if all(cost[row, column] <= bound for row, column in enumerate(own))
    ]
    rows.append(PaperRow("Fig. 4.10: matchings within T*", 1, len(fitting), "matchings", 0.0))
    for (over, under), (left, right) in AFTER.items():
        own = _best_cell(over, under)
        rows.append(
            PaperRow(
                f"Fig. 4.10b: larger load after {over} defers to {under}",
                max(left, right),
                own,
                "units",
                0.0,
                is_contradicted=own != max(left, right),
                note="by the subset that is closest to half of the difference, of those that the other cells prove",
            )
        )
    return PaperResult(
        "entrain_algorithms",
        "Draws, and pairs of microbatches",
        "Entrain Figs. 4.8, 4.10",
        tuple(rows),
        text=TEXT.strip(),
    )


def _loads(first: int) -> dict[int, int]:
    """Loads before deferral, by that of microbatch 1."""
    return {1: first, 2: first + 1, 5: first + 3, 3: 11 - first, 4: 9 - first, 6: 12 - first}


def _best_cell(over: int, under: int) -> int:
    """The larger load of a cell, had the overloaded microbatch the subsets that its row shows, and nothing at all; the
    same for every load of microbatch 1."""
    found = set()
    for first in range(3):
        loads = _loads(first)
        moved = {loads[over] - AFTER[over, other][0] for other in UNDER} | {0}
        half = (loads[over] - loads[under]) / 2
        near = min(moved, key=lambda units: (abs(units - half), max(loads[over] - units, loads[under] + units)))
        found.add(max(loads[over] - near, loads[under] + near))
    return _only(found)


def _only(values: set[int]) -> int:
    """The one value that all have.

    Raises:
        ValueError: they differ.
    """
    (value,) = values
    return value

"""Grid search of parallel configurations: ``semu.grid``.

``space`` holds the axes and what each may be, ``legal`` finds the configurations that exist and says which rule cut the
others, ``bounds`` says how fast and how small a configuration can be at best, ``evaluate_points`` finds what it is
(``semu.evaluate``), ``search`` puts these together, ``store`` keeps results in a file, ``result`` is the table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semu.searcher.grid.grid_search import grid
    from semu.searcher.grid.result import GridResult
    from semu.searcher.grid.rows import Row
    from semu.searcher.grid.space import Axis, Point, RankBy, Space

_HOMES = {
    "Axis": "space",
    "GridResult": "result",
    "Point": "space",
    "RankBy": "space",
    "Row": "rows",
    "Space": "space",
    "grid": "grid_search",
}

__all__ = ["Axis", "GridResult", "Point", "RankBy", "Row", "Space", "grid"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""What the pictures share: an empty figure, colours by system, saving."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.files import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEIRS, OURS = "#56606A", "#0072B2"
COLORS = {
    "megatron": "#8C96A0",
    "megatron-1f1b": "#8C96A0",
    "fsdp": "#C9A227",
    "nnscaler": "#E69F00",
    "optimus": "#009E73",
    "no-opt": "#7FB2D9",
    "heuristic": "#7FB2D9",
    "dip": "#0072B2",
}
"""By system; DIP is the blue one."""
NAMES = {
    "megatron": "Megatron-LM",
    "megatron-1f1b": "Megatron-LM, 1F1B",
    "fsdp": "FSDP",
    "nnscaler": "nnScaler*",
    "optimus": "Optimus",
    "no-opt": "DIP (no-opt)",
    "heuristic": "DIP (heuristic)",
    "dip": "DIP",
}
"""By system, as the papers print them."""


def new_figure(width_in: float, height_in: float, columns: int = 1, **options: Any) -> tuple[Figure, list[Any]]:
    """A figure with a row of axes, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False, **options)[0]
    for own in axes:
        own.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG, complete or not at all; without a date or version in it."""
    return write_file(path, lambda file: figure.savefig(file, dpi=120, metadata={"Software": None}))

"""What pictures of predicted over measured share: equal logarithmic axes, a band around the diagonal, colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from semu.present.plots.style import PALETTE, mix

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.1
"""Half the width of the grey band: predictions within 10 %."""
BAND_COLOR = mix("#A9B4BC", 0.55)
GUTTER_IN = 1.1
"""Between two panels."""


def looks_of(names: Iterable[str], markers: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of every distinct name: all colours with the first marker, then with the next."""
    return {
        name: (PALETTE[i % len(PALETTE)], markers[i // len(PALETTE) % len(markers)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def set_square(axes: Axes, low: float, high: float) -> None:
    """Logarithmic axes, both from ``low`` to ``high``, with the band."""
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    below, above = ([end * factor for end in (low, high)] for factor in (1 - BAND, 1 + BAND))
    axes.fill_between((low, high), below, above, color=BAND_COLOR, linewidth=0)

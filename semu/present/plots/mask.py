"""``draw_mask``: tiles of a mask by the rank that computes them, and how many every rank has."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from semu.present.plots.canvas import LEFT_IN, RIGHT_IN, WIDTH_IN, make_sheet
from semu.present.plots.style import FONT_SIZE, INK, PALETTE, TEXT, area_key, frame, mix
from semu.records import dataclass

_SQUARE_IN = 4.9
_GAP_IN = 0.75
_HEAD_IN = 0.35
_LIGHTER = 0.55
_EMPTY = (1.0, 1.0, 1.0)


@dataclass(frozen=True, eq=False)
class MaskPanel:
    """One policy.

    Attributes:
        policy: its name. owner: int[num_rows], rank of every row of tiles. work: float64[cp], tiles of every rank.
    """

    policy: str
    owner: NDArray[np.integer]
    work: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MaskPicture:
    """A mask and up to two policies.

    Attributes:
        title, subtitle: headline. state: int8[num_rows, num_columns], 0 empty, 1 cut by the mask, 2 full.
        panels: policies. ranks: context ranks.
    """

    title: str
    subtitle: str
    state: NDArray[np.int8]
    panels: tuple[MaskPanel, ...]
    ranks: int


def draw_mask(path: str | os.PathLike[str], picture: MaskPicture) -> None:
    """Draw the policies beside one another as a PNG, under each the tiles of its ranks.

    Args:
        path: the file to make. picture: what to draw.
    Raises:
        OSError: the file cannot be written.
    """
    legend = {
        "full tile": area_key(PALETTE[0]),
        "tile that the mask cuts": area_key(mix(PALETTE[0], _LIGHTER)),
        "skipped": area_key("white", edgecolor="#9AA3AB", linewidth=0.8),
        "mean of the ranks": area_key(INK),
    }
    bars = 1.5
    sheet = make_sheet(_SQUARE_IN + _GAP_IN + bars + _HEAD_IN, picture.title, picture.subtitle, legend)
    height = sheet.height_in
    count = len(picture.panels)
    side = (WIDTH_IN - LEFT_IN - RIGHT_IN - 1.0 * (count - 1)) / count
    edge = min(side, _SQUARE_IN)
    for number, panel in enumerate(picture.panels):
        left = LEFT_IN + number * (side + 1.0) + (side - edge) / 2
        bottom = sheet.bottom_in + bars + _GAP_IN
        axes = sheet.figure.add_axes((left / WIDTH_IN, bottom / height, edge / WIDTH_IN, edge / height))
        axes.imshow(_colors(picture, panel), interpolation="nearest", aspect="equal", origin="upper")
        frame(axes, "tile of keys", "tile of queries", hidden=(), labelsize=FONT_SIZE - 2)
        over = panel.work.max() / panel.work.mean() if panel.work.any() else 1.0
        axes.set_title(f"{panel.policy}: busiest rank {over:.3f} x the mean", size=FONT_SIZE, **TEXT)
        axes = sheet.figure.add_axes((left / WIDTH_IN, sheet.bottom_in / height, edge / WIDTH_IN, bars / height))
        ranks = range(picture.ranks)
        axes.bar(ranks, panel.work, color=[_color(rank) for rank in ranks], width=0.8)
        axes.axhline(panel.work.mean(), color=INK, linewidth=1.0)
        axes.set_ylim(0, max(float(other.work.max()) for other in picture.panels) * 1.08)
        axes.set_xlim(-0.6, picture.ranks - 0.4)
        axes.set_xticks(ranks if picture.ranks <= 16 else range(0, picture.ranks, 8))
        frame(axes, "context rank", "tiles", labelsize=FONT_SIZE - 2)
    sheet.save(path)


def _color(rank: int) -> tuple[float, float, float]:
    """A colour of a rank: the palette, then lighter."""
    return mix(PALETTE[rank % len(PALETTE)], 0.25 * (rank // len(PALETTE) % 3))


def _colors(picture: MaskPicture, panel: MaskPanel) -> NDArray[np.float64]:
    image = np.empty((*picture.state.shape, 3))
    image[:] = _EMPTY
    palette = np.array([_color(rank) for rank in range(picture.ranks)])
    own = np.broadcast_to(palette[panel.owner][:, None], image.shape)
    full, cut = picture.state == 2, picture.state == 1
    image[full] = own[full]
    image[cut] = 1.0 - (1.0 - _LIGHTER) * (1.0 - own[cut])
    return image

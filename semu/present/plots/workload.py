"""``draw_workload``: how often draws of a batch of samples agree on GPUs for modules, by the size of the batch."""

from __future__ import annotations

import os

from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import FONT_SIZE, PALETTE, TEXT, area_key, frame
from semu.records import dataclass

_HEIGHT_IN = 3.2
_PASSED, _FAILED = PALETTE[2], PALETTE[1]


@dataclass(frozen=True)
class WorkloadPicture:
    """Trials of batch sizes.

    Attributes:
        title, subtitle: headline. modules: names. sizes: samples of a batch, ascending.
        shares: of the draws that agree with the reference. seen: allocations that were drawn, in words.
    """

    title: str
    subtitle: str
    modules: tuple[str, ...]
    sizes: tuple[int, ...]
    shares: tuple[float, ...]
    seen: tuple[tuple[str, ...], ...]


def draw_workload(path: str | os.PathLike[str], picture: WorkloadPicture) -> None:
    """Draw a bar for every size of a batch, with the allocations drawn above it, as a PNG.

    Args:
        path: the file to make. picture: what to draw.
    Raises:
        OSError: the file cannot be written.
    """
    legend = {"all draws agree": area_key(_PASSED), "some differ": area_key(_FAILED)}
    sheet = make_sheet(_HEIGHT_IN, picture.title, picture.subtitle, legend)
    [axes] = sheet.stacked_axes([_HEIGHT_IN], 0.0)
    places = range(len(picture.sizes))
    axes.bar(places, picture.shares, color=[_PASSED if share == 1 else _FAILED for share in picture.shares], width=0.7)
    for place, words in zip(places, picture.seen, strict=True):
        axes.text(place, 1.03, "\n".join(reversed(words)), ha="center", va="bottom", size=FONT_SIZE - 3, **TEXT)
    axes.set(ylim=(0, 1.45), xlim=(-0.6, len(picture.sizes) - 0.4), yticks=[0, 0.5, 1.0])
    axes.set_xticks(list(places), [f"{size:,}" for size in picture.sizes])
    frame(axes, "samples of a batch", f"draws that agree on {':'.join(picture.modules)}", labelsize=FONT_SIZE - 2)
    sheet.save(path)

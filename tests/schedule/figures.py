"""The figures in the generators' docstrings, drawn anew: name -> (microbatches, slots, gradient times [s])."""

from __future__ import annotations

import textwrap

from semu.schedule.grid import draw_grid
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.study import PipelineStudy

FIGURES: dict[str, tuple[str, int, int, float]] = {
    "gpipe": ("gpipe", 4, 1, 1.0),
    "1f1b": ("one_f_one_b", 6, 1, 1.0),
    "interleaved": ("interleaved", 4, 2, 1.0),
    "looped-bfs": ("looped_bfs", 4, 2, 1.0),
    "eager-1f1b": ("eager", 6, 1, 1.0),
    "zb-h1": ("zb_h1", 6, 1, 1.0),
    "zb-h2": ("zb_h2", 8, 1, 1.0),
    "zb-auto": ("zb_auto", 6, 1, 1.0),
    "interleaved-zb": ("interleaved_zb", 4, 2, 1.0),
    "zb-v": ("zb_v", 7, 2, 1.0),
    "v-half": ("v_half", 6, 2, 1.0),
    "v-min": ("v_min", 6, 2, 1.0),
    "dualpipe-v": ("dualpipe_v", 8, 2, 1.0),
    "chimera": ("chimera", 8, 2, 0.5),
    "hanayo": ("hanayo", 4, 2, 0.5),
    "greedy": ("greedy", 6, 1, 1.0),
    "optimus": ("optimus", 4, 2, 0.5),
}
"""Every stage takes a second forward, and so long for each gradient; p = 4."""


def figure(name: str) -> str:
    """As it stands in the docstring."""
    _, m, v, gradient_s = FIGURES[name]
    family = ALL_SCHEDULES[name]
    shape = family.shape(4, m, v)
    study = PipelineStudy.of(shape, input_s=gradient_s, weight_s=gradient_s)
    drawn = draw_grid(study.evaluate(family(shape)), study.arrays, unit_s=1.0, columns=100)
    return textwrap.indent(drawn, "    ")

"""Oobleck Table 2.3: how long a pipeline template is planned for."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.resilience.templates.planner import LayerTable, cut_pipeline

PRINTED = {
    (8, 1): (0.28, 0.71, 9.65, 68.50),
    (8, 4): (0.41, 1.15, 11.58, 74.56),
    (8, 8): (0.54, 1.50, 20.98, 109.76),
    (16, 1): (3.37, 7.45, 66.35, 540.36),
    (16, 4): (4.56, 10.41, 108.10, 649.67),
    (16, 8): (4.90, 11.78, 176.04, 1213.63),
    (24, 1): (11.35, 30.11, 262.47, 1477.54),
    (24, 4): (14.78, 45.80, 472.53, 2153.84),
    (24, 8): (15.59, 49.25, 520.08, 3297.92),
}
"""(nodes, GPUs a node) -> seconds for each number of layers."""
_SHORTER = "Settled where it is not longer."
LAYERS = (24, 32, 64, 96)
TEXT = """
Cells are planned here for transformer layers of equal time (the first and last one longer) whose memory does not bind,
the largest search there is, by dynamic programming that is exact in the source's model of a pipeline; `semu templates`
then times the best cuts by the engine. Theirs is a planner in C++ on other hardware: seconds are context, and a
shorter time settles nothing but that planning is no obstacle.
"""


def layers_of(count: int, per_node: int) -> LayerTable:
    """Layers that take the same time, less than half of it on twice the GPUs; the first and last one more."""
    degrees = np.array([d for d in (1, 2, 4, 8) if d <= per_node])
    base = np.ones(count)
    base[0], base[-1] = 1.1, 1.6
    time_s = np.stack([0.05 * base / d**0.9 for d in degrees])
    return LayerTable(degrees, time_s, np.zeros_like(time_s), np.zeros_like(time_s), 1.0)


def planned_s(nodes: int, per_node: int, layers: int) -> float:
    """Processor seconds of a cell, so that others at work on the machine count for nothing."""
    began = time.process_time()
    cut_pipeline(layers_of(layers, per_node), nodes, per_node, 4 * nodes * per_node)
    return time.process_time() - began


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    del choices, out
    cells = {key: printed for key, printed in PRINTED.items() if key[1] == 1 or not quick}
    cut_pipeline(layers_of(4, 1), 2, 1, 8)  # kernels are loaded
    rows, total, worst = [], 0.0, 0.0
    for (nodes, per_node), printed in cells.items():
        for layers, theirs in zip(LAYERS, printed, strict=True):
            found = planned_s(nodes, per_node, layers)
            total, worst = total + found, max(worst, found)
            what = f"{nodes} x {per_node} GPUs, {layers} layers"
            rows.append(PaperRow(what, theirs, found, "s", 1.0, note=_SHORTER))
    printed_s = sum(map(sum, cells.values()))
    rows += [
        PaperRow(f"all {4 * len(cells)} of them", printed_s, total, "s", 1.0, note=_SHORTER),
        PaperRow(
            "longest over 100 days of training", 0.1, 100 * worst / (100 * 86400.0), "%", 1.0, note="Below 0.1 %."
        ),
    ]
    return PaperResult("oobleck_planning", "Planning times", "Oobleck Table 2.3", tuple(rows), text=TEXT.strip())

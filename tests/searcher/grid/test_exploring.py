"""``semu grid --explore`` against the whole space: leaving layouts out loses nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import semu
from semu.searcher.grid.exploring import with_best_layouts
from semu.searcher.grid.grid_search import grid
from semu.searcher.grid.legal import Rule
from semu.searcher.grid.space import Axis, Space, layout_of, with_rules
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig


def job(global_batch: int = 16) -> semu.TrainingJob:
    model = decoder_model("gpt", GPT(GPTConfig(8, 1024, 16, vocab=8192, positions=1024)))
    parallel, training = semu.Parallel(dp=2, pp=4), semu.Training(global_batch=global_batch, seq_len=1024)
    return semu.TrainingJob(model, semu.Cluster("a800", 1, 8), parallel, training)


def space_of(own: semu.TrainingJob) -> Space:
    axes = {"dp": None, "tp": (1, 2, 4), "pp": (1, 2, 4), "vpp": (1, 2), "micro_batch": (1, 2, 4)}
    return Space.of(own, with_rules(own, axes), {})  # type: ignore[arg-type]


@pytest.mark.parametrize("global_batch", [16, 64])
def test_the_best_layouts_hold_the_best_configuration(global_batch: int) -> None:
    own = job(global_batch)
    space, said = space_of(own), list[str]()
    fewer = with_best_layouts(own, space, progress=said.append)
    assert fewer.layouts is not None
    whole, found = grid(own, space, top=1, exhaustive=True), grid(own, fewer, top=1)
    assert found.rows[0].figures.iteration_time_s == min(r.figures.iteration_time_s for r in whole.rows if r.fits)
    best = {layout_of(row.point): 0.0 for row in whole.rows}
    assert fewer.layouts < best.keys(), "some are left out"
    (cut,) = [cut for cut in found.cuts if cut.rule is Rule.LAYOUT]
    assert cut.count > 0
    left_out = len(best) - len(fewer.layouts)
    assert f"{len(fewer.layouts)} layouts; {left_out} would be slower even without bubbles, 0 do not fit" in said[-1]


def test_by_headroom_all_layouts_compete() -> None:
    own = job()
    space = space_of(own)
    plain = {**space.values, Axis.VPP: (1,), Axis.SCHEDULE: ("1f1b",), Axis.PLACEMENT: ("circular",)}
    every = {layout_of(row.point) for row in grid(own, replace(space, values=plain), exhaustive=True).rows}
    assert with_best_layouts(own, space, rank_by="headroom").layouts == every


def test_layouts_of_which_none_fits_are_shown() -> None:
    own = job()
    small = replace(own, cluster=semu.Cluster("a800", 1, 8, {"memory_bytes": 1 << 28}))
    found = with_best_layouts(small, space_of(small)).layouts
    assert found

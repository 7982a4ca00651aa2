"""Given times of passes: closed forms of schedules through jobs of real models, and what they do not go with."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items
from simulation.schedules.test_closed_forms import FREE_LINKS

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule import ALL_SCHEDULES
from semu.simulation import prepare
from semu.simulation.effects.pass_times import PassTimes, with_pass_times

S = 2**-10
HIDDEN: dict[str, Any] = {"override": FREE_LINKS, "overlap": overlap(pipeline=True)}


def timed(job: TrainingJob, f: float, i: float, w: float) -> float:
    return with_pass_times(prepare(job), PassTimes(f, i, w)).report().makespan_s


@pytest.mark.paper
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("1f1b", {}),
        ("gpipe", {}),
        ("interleaved", {"vpp": 2}),
        ("zb-h1", {}),
        ("zb-h2", {}),
        ("zb-auto-2p", {}),
        ("zb-v", {"vpp": 2, "placement": "v-shape"}),
        ("dualpipe-v", {"vpp": 2, "placement": "v-shape"}),
    ],
)
@pytest.mark.parametrize("kind", ["gpt", "vlm"])
def test_closed_forms_of_real_models(kind: str, name: str, sizes: dict[str, Any]) -> None:
    """Whatever is in a rank's layers, and whatever the microbatches are: the bubble is that of equal stages."""
    p, m, v = 4, 8, sizes.get("vpp", 1)
    layout = {"vit": [2, 2, 2, 1, 1], "llm": [1, 1, 1]} if v == 2 else {"vit": [4, 4], "llm": [1, 2]}
    model, items = (gpt(10), text_items(m)) if kind == "gpt" else (vlm(layers=8), vlm_items(m))
    parallel = Parallel(pp=p, **sizes, **({"layout": {"modules": layout}} if kind == "vlm" else {}))
    f = i = w = 4 * S
    job = job_of(model, items, parallel, schedule=name, **HIDDEN)
    closed = ALL_SCHEDULES[name].makespan(p, m, v, f / v, i / v, w / v)
    assert closed is not None
    assert timed(job, f, i, w) == closed


def test_everything_else_stays() -> None:
    """Memory, what runs, and the step behind the pipeline."""
    checkpoint = prepare(job_of(gpt(6), text_items(8), Parallel(pp=4), schedule="zb-h1"))
    report, other = checkpoint.report(), with_pass_times(checkpoint, PassTimes(S, S, S)).report()
    assert other.static_memory_bytes == report.static_memory_bytes
    assert other.breakdown_s["optimizer"] == report.breakdown_s["optimizer"]
    assert (other.model_flop, other.hardware_flop) == (report.model_flop, report.hardware_flop)
    for rank in other.timeline.ranks:
        lasts = {stage.end_s - stage.start_s for stage in rank.stages}
        assert lasts == {S}
    assert checkpoint.report().makespan_s == report.makespan_s  # the job itself did not change


def test_what_does_not_go_with_given_times() -> None:
    times = PassTimes(S, S, S)
    for job, where in (
        (job_of(gpt(), text_items(4), Parallel(pp=2, dp=2)), "parallel.dp"),
        (job_of(gpt(), text_items(4), Parallel(pp=2, placement="bidirectional"), schedule="chimera"), "parallel.dp"),
        (job_of(gpt(), text_items(4), Parallel(pp=2), launch=True), "training.launch"),
        (job_of(vlm(frozen=("vit",)), vlm_items(4), Parallel(pp=2)), "training"),
    ):
        with pytest.raises(ConfigError, match="given times of passes") as caught:
            with_pass_times(prepare(job), times)
        assert caught.value.where == where
    for bad in (0.0, -1.0, float("nan"), True):
        with pytest.raises(ConfigError, match="not a time") as caught:
            PassTimes(S, bad, S)
        assert caught.value.where == "input_s"

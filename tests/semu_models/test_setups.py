"""Shipped setups against the tables that they come from, and against the memory of their devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

import semu
import semu_models
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Recompute, Training, TrainingJob
from semu.parallel.config import Parallel
from semu.runfile.build import streams_read
from semu.workload import make_batch
from semu_models.setups import Setup

PRINTED = {
    # DIP Table 1: model, DP, TP, PP, GPUs
    "lm-7b": ("lm-7b", 1, 2, 4, 8),
    "vlm-7b": ("vlm-7b", 1, 2, 4, 8),
    # DIP Table 3
    "vlm-s": ("vlm-s", 1, 4, 4, 16),
    "vlm-m": ("vlm-m", 1, 8, 4, 32),
    "vlm-l": ("vlm-l", 1, 8, 8, 64),
    "t2v-s": ("t2v-s", 1, 4, 4, 16),
    "t2v-l": ("t2v-l", 1, 8, 8, 64),
    # DIP Table 6
    "vlm-xl-8k": ("vlm-xl", 128, 8, 8, 8192),
    "vlm-xl-16k": ("vlm-xl", 128, 8, 16, 16384),
    "t2v-xl-3k": ("t2v-xl", 96, 8, 4, 3072),
    "t2v-xl-6k": ("t2v-xl", 96, 8, 8, 6144),
    # 2104.04473 Table 2
    "gpt3-175b": ("gpt3-175b", 4, 8, 12, 384),
}
DECIDED = {
    # nothing is printed: one node of 8
    "qwen2-vl-7b": ("qwen2-vl-7b", 4, 2, 1, 8),
    "qwen2-audio-7b": ("qwen2-audio-7b", 4, 2, 1, 8),
}
ALL = PRINTED | DECIDED
OWN_BATCH = {"lm-7b": 73, "vlm-7b": 19, "gpt3-175b": 384}
LARGE = ("vlm-xl-8k", "vlm-xl-16k", "t2v-xl-6k")
"""Take more than two seconds: thousands of microbatches, no two alike."""


def make_job(setup: Setup) -> TrainingJob:
    model, cluster = semu_models.build(setup.model), Cluster.parse(setup.cluster)
    batch = make_batch(setup.batch, streams=streams_read(model), mergings=model.mergings)
    return TrainingJob(model, cluster, setup.parallel, setup.training, batch)


@pytest.mark.paper
def test_setups_are_those_of_the_papers() -> None:
    assert semu_models.SETUPS.keys() == ALL.keys()
    for name, setup in semu_models.SETUPS.items():
        p = setup.parallel
        assert setup.name == name
        assert (setup.model, p.dp, p.tp, p.pp, Cluster.parse(setup.cluster).num_gpus) == ALL[name]
        assert setup.source


def test_one_rule_gives_the_number_of_microbatches() -> None:
    for name, setup in semu_models.SETUPS.items():
        expected = OWN_BATCH.get(name, max(16, 4 * setup.parallel.pp))
        assert setup.num_microbatches == make_job(setup).num_microbatches == expected
        assert setup.training.micro_batch == 1
        assert setup.training.recompute is (Recompute.NONE if name == "lm-7b" else Recompute.FULL)
        assert setup.parallel.zero == 1


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in ALL])
def test_every_setup_fits_in_memory(name: str) -> None:
    job = make_job(semu_models.SETUPS[name])
    report = semu.simulate(job)
    assert report.fits
    assert max(report.peak_memory_bytes) < job.cluster.profile.memory_bytes.value
    # Weights in bf16, gradients in fp32, and Adam's 12 bytes over the replicas; what tensor parallelism does not split
    # (norms, patch projections, a DiT's condition) and tied tables, which two ranks hold, come on top.
    whole = job.model.num_parameters() * (2 + 4 + 12 / job.parallel.dp)
    assert 1 <= sum(report.static_memory_bytes) * job.parallel.tp / whole < (1.04 if "t2v" in name else 1.01)


def test_vlm_7b_needs_its_recompute_and_lm_7b_does_not() -> None:
    setup = semu_models.SETUPS["vlm-7b"]
    without = replace(setup, training=replace(setup.training, recompute=Recompute.NONE))
    assert not semu.simulate(make_job(without)).fits
    assert semu.simulate(make_job(semu_models.SETUPS["lm-7b"])).fits


@pytest.mark.paper
@pytest.mark.parametrize(("name", "pflop"), [("lm-7b", "12.82"), ("vlm-7b", "12.26")])
def test_the_work_that_a_source_names_is_what_the_simulation_counts(name: str, pflop: str) -> None:
    setup = semu_models.SETUPS[name]
    assert f"{setup.training.global_batch}" in setup.source
    assert f"({pflop} PFLOP" in setup.source
    assert f"{semu.simulate(make_job(setup)).model_flop / 1e15:.2f}" == pflop


def test_an_unknown_setup_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vlm-xl-8k'") as caught:
        semu_models.find_setup("vlm-xl-8")
    assert caught.value.nearest == "vlm-xl-8k"
    assert semu_models.find_setup("t2v-s") is semu_models.SETUPS["t2v-s"]


def test_a_setup_that_does_not_fit_together_is_refused() -> None:
    setup = semu_models.SETUPS["vlm-s"]
    with pytest.raises(ConfigError, match="unknown model"):
        replace(setup, model="vlm-q")
    with pytest.raises(ConfigError, match="does not have the ranks"):
        replace(setup, parallel=Parallel(tp=8, pp=4))
    with pytest.raises(ConfigError, match="does not have the ranks"):
        replace(setup, cluster="h800")
    with pytest.raises(ConfigError, match="does not divide into microbatches") as caught:
        replace(setup, parallel=Parallel(dp=4, tp=4), training=Training(global_batch=18))
    assert caught.value.nearest == 16


def test_a_setups_batch_cannot_be_changed_from_outside() -> None:
    options: dict[str, object] = {"kind": "vlm", "seed": 0}
    setup = replace(semu_models.SETUPS["vlm-s"], batch=options)
    options["seed"] = 1
    assert setup.batch["seed"] == 0
    with pytest.raises(TypeError):
        setup.batch["seed"] = 2  # type: ignore[index]

"""``semu.what_if``: every answer is the changed job's own simulation; closed forms of hardware that is slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

import semu
from semu.errors import ConfigError
from semu.hardware.data_sheets import data_sheet
from semu.job import Training, TrainingJob
from semu.parallel.config import Overlap, Parallel
from semu.searcher.what_if.changes import Change, Factor, parse_change
from semu.searcher.what_if.sensitivity import default_changes


def text_job(**training: object) -> TrainingJob:
    model = semu.nn.Sequential(semu.nn.Embedding(512, 256), semu.nn.Linear(256, 256), semu.nn.LMHead(256, 512))
    options = {"global_batch": 8, "seq_len": 128, **training}
    return TrainingJob(model, semu.Cluster("h800", 1, 4), Parallel(dp=2, tp=2), Training(**options))  # type: ignore[arg-type]


def vlm_job() -> TrainingJob:
    return TrainingJob(
        tiny_vlm(),
        semu.Cluster("h100", 1, 4),
        Parallel(tp=2, pp=2),
        Training(global_batch=4, recompute="full"),
        semu.workload.vlm_batch(seed=3),
    )


def tiny_vlm() -> semu.Model:
    from semu_models import vlm_7b

    return vlm_7b()


def changed(job: TrainingJob, **parts: object) -> TrainingJob:
    return TrainingJob(
        job.model,
        parts.get("cluster", job.cluster),  # type: ignore[arg-type]
        parts.get("parallel", job.parallel),  # type: ignore[arg-type]
        parts.get("training", job.training),  # type: ignore[arg-type]
        job.batch,
    )


@pytest.mark.parametrize("make", [text_job, pytest.param(vlm_job, marks=pytest.mark.slow)])
def test_every_answer_is_a_simulation_of_the_job_written_out(make) -> None:  # type: ignore[no-untyped-def]
    job = make()
    rate = job.cluster.profile.nvlink_bytes_per_s.value
    slower = semu.Cluster(job.cluster.device, 1, 4, {"nvlink_bytes_per_s": rate / 4})
    by_hand = [
        ("cluster.nvlink_bytes_per_s=x0.25", changed(job, cluster=slower)),
        (f"cluster.override.nvlink_bytes_per_s={rate / 4}", changed(job, cluster=slower)),
        ("training.recompute=none", changed(job, training=replace(job.training, recompute="none"))),
        (
            "training.global_batch=x2",
            changed(job, training=replace(job.training, global_batch=2 * job.training.global_batch)),
        ),
        ("overlap.grad_reduce=false", changed(job, training=replace(job.training, overlap=Overlap(grad_reduce=False)))),
        (
            "parallel.zero=1 training.grad_dtype=bf16",
            changed(job, parallel=replace(job.parallel, zero=1), training=replace(job.training, grad_dtype="bf16")),
        ),
    ]
    values = {"false": False, "1": 1}
    changes = [
        parse_change(text, lambda key, value: values.get(value, float(value) if "override" in key else value))
        for text, _ in by_hand
    ]
    found = semu.what_if(job, changes)
    assert found.base.iteration_time_s == semu.simulate(job).iteration_time_s
    for answer, (text, other) in zip(found.answers, by_hand, strict=True):
        expected = semu.simulate(other)
        assert answer.estimate is not None, (text, answer.reason)
        assert answer.estimate.iteration_time_s == expected.iteration_time_s, text
        assert answer.estimate.peak_memory_bytes == expected.peak_memory_bytes, text
        assert found.gain_of(answer) == 1 - expected.iteration_time_s / found.base.iteration_time_s
    assert found.answers[0].estimate.iteration_time_s == found.answers[1].estimate.iteration_time_s  # type: ignore[union-attr]


def test_all_rates_at_half_take_twice_as_long() -> None:
    """On the data sheet's numbers nothing but rates costs time."""
    job = text_job()
    bare = changed(job, cluster=semu.Cluster(data_sheet(job.cluster.profile), 1, 4))
    rates = ["flop_per_s.bf16", "flop_per_s.fp32", "mem_bytes_per_s", "nvlink_bytes_per_s", "nic_bytes_per_s"]
    all_at_once = Change(tuple((f"cluster.{name}", Factor(0.5)) for name in rates))
    one_by_one = [Change(((f"cluster.{name}", Factor(0.5)),)) for name in rates]
    found = semu.what_if(bare, [all_at_once, *one_by_one])
    times = [one.estimate.iteration_time_s for one in found.answers if one.estimate is not None]
    assert times[0] == pytest.approx(2 * found.base.iteration_time_s, rel=1e-6)
    assert all(found.base.iteration_time_s <= one <= times[0] for one in times[1:])
    assert max(times[1:]) > found.base.iteration_time_s


def test_defaults_ask_nothing_that_is_so_already_and_refusals_have_reasons() -> None:
    job = text_job()
    changes = default_changes(job, 4.0)
    assert len(changes) == len(set(changes))
    words = {str(one) for one in changes}
    assert {"cluster.nvlink_bytes_per_s=x0.25", "cluster.nvlink_bytes_per_s=x4", "training.recompute=full"} <= words
    assert "training.recompute=none" not in words
    assert not any("schedule" in one for one in words)  # no pipeline
    found = semu.what_if(job, [*changes, Change(((("parallel.tp"), 3),))])
    assert found.answers[-1].estimate is None
    assert "dp x cp x tp x pp" in found.answers[-1].reason or found.answers[-1].reason
    ranked = found.ranked()
    widest = [max(abs(found.gain_of(one) or 0.0) for one in own) for _, own in ranked]
    assert widest == sorted(widest, reverse=True)
    assert sum(len(own) for _, own in ranked) == sum(one.estimate is not None for one in found.answers)
    assert found.to_json() == semu.what_if(job, [*changes, Change((("parallel.tp", 3),))]).to_json()
    assert "cannot run: parallel.tp=3" in repr(found)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("training.foo=1", "training.foo"),
        ("model.name=x", "model.name"),
        ("cluster.nvlink=x2", "cluster.nvlink"),
        ("training.recompute", "--set"),
        ("", "--set"),
        ("training.micro_batch=1 training.micro_batch=2", "training.micro_batch"),
    ],
)
def test_changes_that_are_none(text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        semu.what_if(text_job(), [parse_change(text)])
    assert where in str(caught.value)


@pytest.mark.parametrize("text", ["training.recompute=x2", "training.global_batch=x0.3", "cluster.mem_bytes_per_s=-1"])
def test_values_that_do_not_fit_are_answered_with_the_reason(text: str) -> None:
    found = semu.what_if(text_job(), [parse_change(text, lambda _, value: float(value) if value == "-1" else value)])
    assert found.answers[0].estimate is None
    assert text.partition("=")[0].partition(".")[2] in found.answers[0].reason


@pytest.mark.parametrize("factor", [1.0, 0, float("inf"), "x", True])
def test_factors_that_are_none(factor: object) -> None:
    with pytest.raises(ConfigError, match="factor"):
        default_changes(text_job(), factor)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="factor"):
        Factor(-1.0)

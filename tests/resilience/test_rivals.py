"""Varuna's grids and Bamboo's redundant computation, against grids tried one by one and runs counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import semu
import semu_models
from semu.errors import ConfigError, SemuError
from semu.job import Recompute
from semu.resilience import long_run
from semu.resilience.accounts import Account
from semu.resilience.job_figures import JobFigures
from semu.resilience.long_run import situation_of
from semu.resilience.options import CheckpointOptions, Resilience
from semu.resilience.strategies.bamboo import Bamboo
from semu.resilience.strategies.varuna import Varuna

CHECKPOINT = CheckpointOptions(every_s=100.0, save_s=5.0, restart_s=60.0, load_s=7.0)


def job_of(dp: int = 2, pp: int = 3, **training: Any) -> semu.TrainingJob:
    return semu.TrainingJob(
        semu_models.build("gpt2-medium"),
        semu.Cluster("a40", nodes=dp * pp, gpus_per_node=1),
        semu.Parallel(dp=dp, pp=pp, zero=0),
        semu.Training(**{"global_batch": 48, "micro_batch": 2, "seq_len": 1024, "recompute": "full"} | training),
    )


def run(tmp_path: Path, strategy: str, lines: list[str], seconds: float, job: semu.TrainingJob) -> Any:
    path = tmp_path / f"{strategy}.csv"
    path.write_text("\n".join(("time_s,node,event,notice_s", *lines)) + "\n")
    found = semu.goodput(job, failures=path, strategies=strategy, days=seconds / 86400, checkpoint=CHECKPOINT)
    return found.strategies[0]


def time_of(job: semu.TrainingJob, dp: int, pp: int) -> float:
    batch = -(-job.training.global_batch // (2 * dp)) * 2 * dp
    other = replace(
        job,
        cluster=replace(job.cluster, nodes=dp * pp),
        parallel=semu.Parallel(dp=dp, pp=pp, zero=0),
        training=replace(job.training, global_batch=batch),
    )
    try:
        found = semu.evaluate(other)
    except SemuError:
        return math.inf
    return found.iteration_time_s if found.fits else math.inf


def test_varuna(tmp_path: Path) -> None:
    """After a failure: the fastest of all grids of five nodes, what was done since the last save is lost."""
    job = job_of()
    grids = {(dp, pp): time_of(job, dp, pp) for dp in range(1, 7) for pp in range(1, 7)}
    whole = min(time for (dp, pp), time in grids.items() if dp * pp <= 6)
    left = min(time for (dp, pp), time in grids.items() if dp * pp <= 5)
    row = run(tmp_path, "varuna", ["1000,4,fail,0"], 3000.0, job)
    (outcome,) = row.outcomes
    per_save = max(1, round(100.0 / whole))
    saves, rest = divmod(1000.0, per_save * whole + 5.0)
    assert outcome.gpu_us[Account.RECONFIGURE] == 60 * 10**6 * 5
    lost_s = min(rest, per_save * whole)
    nodes = {dp * pp for (dp, pp), time in grids.items() if time == whole}
    assert outcome.gpu_us[Account.LOST] / 1e6 == pytest.approx(lost_s * nodes.pop(), rel=1e-3)
    after = (3000.0 - 1067.0) * 1.0
    per_save_left = max(1, round(100.0 / left))
    cycles = after / (per_save_left * left + 5.0) * per_save_left
    assert outcome.iterations == pytest.approx(saves * per_save + cycles, abs=per_save_left + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["lm-7b", "qwen3-8b"])
def test_varuna_finds_the_fastest_of_all_grids(name: str) -> None:
    """Of 16 nodes, then of fewer, which are known in part from those before; few grids are simulated."""
    job = replace(job_of(), model=semu_models.build(name))
    job = replace(job, cluster=semu.Cluster("h100", nodes=16, gpus_per_node=1), parallel=semu.Parallel(pp=16, zero=0))
    job = replace(job, training=replace(job.training, global_batch=48))
    grids = {(dp, pp): time_of(job, dp, pp) for dp in range(1, 17) for pp in range(1, 17) if dp * pp <= 16}
    situation = situation_of(job, JobFigures.of(job, semu.simulate(job)), Resilience(), 3600.0)
    asked: list[int] = []

    def iteration_of(one: semu.TrainingJob) -> float | None:
        asked.append(one.cluster.nodes)
        return situation.iteration_of(one)

    varuna = Varuna(replace(situation, iteration_of=iteration_of))
    for alive in (16, 15, 13, 11, 16):
        best = min(time for (dp, pp), time in grids.items() if dp * pp <= alive)
        assert varuna.conduct(alive).iteration_s == pytest.approx(best, rel=1e-12)
    assert len(asked) < 2 * len(grids)  # of five times as many


def test_varuna_saves_for_a_node_that_gives_notice(tmp_path: Path) -> None:
    job = job_of()
    sudden, warned = (run(tmp_path, "varuna", [f"1000,4,fail,{notice}"], 2000.0, job) for notice in (0, 60))
    assert sudden.outcomes[0].gpu_us[Account.LOST] > 0 == warned.outcomes[0].gpu_us[Account.LOST]
    assert warned.goodput > sudden.goodput


def test_bamboo(tmp_path: Path) -> None:
    """A failure leaves one pipeline and loses an iteration; two neighbours' go back to the checkpoint."""
    job = job_of()
    kept = replace(job, training=replace(job.training, recompute=Recompute.NONE))
    report = semu.simulate(kept)
    forward = sum(one.layers * one.forward_s for one in report.layer_times)
    share = forward / sum(one.layers * (one.forward_s + one.backward_s) for one in report.layer_times)
    assert 0.2 < share < 0.45
    calm = run(tmp_path, "bamboo", [], 1000.0, job)
    assert calm.iteration_s != pytest.approx(report.iteration_time_s)  # the job recomputes, bamboo does not
    shares = calm.shares()
    assert shares[Account.REDUNDANT] / shares[Account.USEFUL] == pytest.approx(share, rel=1e-3)
    one = run(tmp_path, "bamboo", ["500,1,fail,0"], 1000.0, job).outcomes[0]
    iteration = report.iteration_time_s * (1 + share)
    assert one.gpu_us[Account.LOST] / 1e6 <= iteration * 6
    assert one.gpu_us[Account.IDLE] > 0 < one.gpu_us[Account.COPY]
    apart = run(tmp_path, "bamboo", ["500,1,fail,0", "501,4,fail,0"], 1000.0, job).outcomes[0]
    beside = run(tmp_path, "bamboo", ["500,1,fail,0", "501,2,fail,0"], 1000.0, job).outcomes[0]
    assert apart.gpu_us[Account.LOAD] == 0 < beside.gpu_us[Account.LOAD]
    assert beside.iterations < one.iterations
    for outcome in (one, apart, beside):
        assert sum(outcome.gpu_us.values()) == outcome.wall_us * 6


def test_bamboo_with_fewer_pipelines_takes_as_long_as_that_job() -> None:
    """Of three pipelines of two nodes: as many as the nodes hold, a batch that they share evenly, no recomputation."""
    job = job_of(dp=3, pp=2)
    bamboo = Bamboo(situation_of(job, JobFigures.of(job, semu.simulate(job)), Resilience(), 3600.0))
    shares = []
    for alive, pipelines in ((6, 3), (5, 2), (4, 2), (3, 1), (2, 1)):
        fewer = replace(
            job,
            cluster=replace(job.cluster, nodes=2 * pipelines),
            parallel=replace(job.parallel, dp=pipelines),
            training=replace(job.training, recompute=Recompute.NONE),
        )
        conduct = bamboo.conduct(alive)
        assert conduct.nodes == 2 * pipelines
        shares.append(conduct.iteration_s / semu.simulate(fewer).iteration_time_s)
        assert conduct.redundant_s == pytest.approx(conduct.iteration_s * (1 - 1 / shares[-1]))
    assert shares == pytest.approx([shares[0]] * 5) and 1.2 < shares[0] < 1.45
    assert bamboo.conduct(1).nodes == 0


def test_no_tokens_are_refused_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_run, "simulate", None)
    for tokens in (0, -1.0):
        with pytest.raises(ConfigError, match="tokens"):
            semu.goodput(job_of(), days=1.0, seeds=1, strategies=("checkpoint",), tokens=tokens)


def test_bamboo_runs_out_of_memory(tmp_path: Path) -> None:
    row = run(tmp_path, "bamboo", [], 1000.0, job_of(micro_batch=32, global_batch=192, seq_len=4096))
    assert row.refusal is not None and "GiB" in row.refusal
    single = run(tmp_path, "bamboo", [], 1000.0, job_of(dp=6, pp=1))
    assert "next stage" in single.refusal


def test_a_job_that_no_grid_can_have_is_refused_by_name_and_the_others_run() -> None:
    """Varuna's pipelines have one stage a rank, which a V does not."""
    job = job_of(dp=2, pp=2, schedule="zb-v", recompute="none")
    job = replace(job, parallel=semu.Parallel(dp=2, pp=2, vpp=2, zero=0, placement="v-shape"))
    found = semu.goodput(job, days=1.0, seeds=1, strategies=("checkpoint", "varuna"), checkpoint=CHECKPOINT)
    whole, varuna = found.strategies
    assert whole.refusal is None and whole.goodput > 0.5
    assert varuna.refusal is not None and varuna.refusal.startswith("parallel.vpp: a V-shaped placement")


def test_grids_that_the_job_cannot_have_are_left_out() -> None:
    """Optimizer states are sharded within pairs of replicas: two nodes are two replicas, never one of two stages."""
    job = job_of(dp=2, pp=2)
    job = replace(job, parallel=replace(job.parallel, zero=1, zero_group=2))
    varuna = Varuna(situation_of(job, JobFigures.of(job, semu.simulate(job)), Resilience(), 3600.0))
    assert varuna.refusal is None
    legal = {}
    for dp, pp in ((2, 1), (1, 2), (1, 3), (3, 1)):
        one = varuna._grid(dp, pp, -(-24 // dp))
        legal[dp, pp] = isinstance(one, semu.TrainingJob)
    assert legal == {(2, 1): True, (1, 2): False, (1, 3): False, (3, 1): False}
    conduct = varuna.conduct(2)
    assert conduct.nodes == 2
    assert conduct.iteration_s == varuna.situation.iteration_of(varuna._grid(2, 1, 12))  # type: ignore[arg-type]

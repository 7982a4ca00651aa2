"""Stages of several processes that hold shards of their layers, of different numbers among pipelines and within one."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from resilience.test_together import a_job

import semu
from semu.cli.command import main
from semu.errors import ConfigError, ExecutorError, PlanError
from semu.executor import Cut, FakeWorld, ModuleStages, ShardedCommunicator, run_plan, run_threads, split_model
from semu.executor.demo import run_demo
from semu.executor.demo.scaled import with_fewer_layers
from semu.plan.compile import compile_plan
from semu.plan.joined import join_plans
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault
from semu.plan.verification.reductions import shards_of_ranks
from semu.plan.verification.rules import verify

QWEN2, QWEN3 = "qwen2.5-0.5b", "qwen3-0.6b"


def a_pipeline(layers: list[int], microbatches: int, name: str = QWEN2) -> ExecutionPlan:
    """1F1B on a GPU a stage."""
    job = a_job(len(layers), name=name)
    layout = semu.PipelineLayout(layers=tuple(layers)) if len(layers) > 1 else None
    training = replace(job.training, global_batch=microbatches, schedule="1f1b")
    return compile_plan(replace(job, parallel=semu.Parallel(pp=len(layers), zero=0, layout=layout), training=training))


@pytest.mark.parametrize(
    ("name", "pipelines", "shards"),
    [
        (QWEN2, [([24], 2), ([24], 1)], [[2], [3]]),
        (QWEN2, [([8, 16], 2), ([24], 1)], [[1, 2], [2]]),
        (QWEN3, [([14, 14], 1), ([28], 3), ([28], 2)], [[2, 1], [1], [2]]),
        (QWEN2, [([8, 16], 3), ([16, 8], 3)], [[2, 1], [1, 2]]),
        (QWEN3, [([28], 1), ([28], 1)], [[2], [2]]),
    ],
)
def test_loss_and_gradients_are_those_of_the_batch_in_one_piece(
    name: str, pipelines: list[tuple[list[int], int]], shards: list[list[int]]
) -> None:
    """Threads; lcm(2, 3) = 6 parts of every parameter that is cut; messages from 1 to 2 processes and back."""
    plan = join_plans([a_pipeline(*one, name) for one in pipelines], shards=shards)
    verify(plan)
    assert shards_of_ranks(plan) == tuple(count for own in shards for count in own)
    found = run_demo(plan, backend="fake", iterations=1, fewer_layers=14, width=12, is_sharded=True)
    assert found.worst_gradient < 1e-12 and found.loss == pytest.approx(found.reference_loss, rel=1e-12)
    assert found.to_json()["shards"] == [count for own in shards for count in own]


def test_sums_of_shards() -> None:
    """Against whole tensors: three stages in 4, 1 and 6 shards, of which 12 are exchanged; fused and whole parameters;
    every process has the same bits."""
    whole = [torch.arange(rank, rank + 48 * 5, dtype=torch.float64).reshape(48, 5) for rank in range(3)]
    cuts = [Cut(0, blocks=2), None, Cut(0)]

    def work(inner: Any) -> Any:
        mine = ShardedCommunicator(inner, (4, 1, 6))
        count, own = mine.shards[mine.rank], whole[mine.rank]
        tensors = [
            own.clone() if cut is None else cut.part(own, mine.shard, count).flatten(0, 1).clone() for cut in cuts
        ]
        mine.sum_shards(tensors, cuts, (0, 1, 2), 60.0)
        return mine.rank, mine.shard, tensors

    total = whole[0] + whole[1] + whole[2]
    for rank, shard, tensors in run_threads(FakeWorld(11), work):
        for tensor, cut in zip(tensors, cuts, strict=True):
            wanted = total if cut is None else cut.part(total, shard, (4, 1, 6)[rank]).flatten(0, 1)
            assert torch.equal(tensor, wanted), (rank, shard, cut)


def test_a_plan_without_shards_runs_in_as_many_everywhere() -> None:
    """Two pipeline ranks x two replicas x two shards by hand: each shard has half of a linear layer's rows."""
    job = replace(a_job(4, name=QWEN2), parallel=semu.Parallel(pp=2, dp=2, zero=0))
    plan = compile_plan(replace(job, training=replace(job.training, global_batch=4)))

    def run(shards: int) -> list[Any]:
        def work(inner: Any) -> Any:
            mine = ShardedCommunicator(inner, (shards, shards)) if shards > 1 else inner
            layers = [Half(mine) for _ in range(24)]
            data = torch.arange(8.0, dtype=torch.float64)
            modules = {
                "llm": ModuleStages(
                    load=lambda m, first, last: (data + m + 2 * mine.replica).expand(last - first, 8) / 9,
                    loss=lambda output, m, first, last: (output**2).mean(),
                    layers=layers,
                )
            }
            part = split_model(plan, modules, mine.rank)
            loss = run_plan(plan, part, mine).loss()
            return loss, [parameter.grad for parameter in part.parameters()]

        found: list[Any] = run_threads(FakeWorld(2 * shards, 2), work)
        return found

    whole, halves = run(1), run(2)
    for rank in (0, 1):
        for replica in (0, 1):
            loss, gradients = whole[2 * rank + replica]
            for shard in (0, 1):
                own, parts = halves[2 * (2 * rank + shard) + replica]
                assert own == pytest.approx(loss, rel=1e-12)
                for part, gradient in zip(parts, gradients, strict=True):
                    torch.testing.assert_close(part, gradient[4 * shard : 4 * shard + 4], rtol=1e-12, atol=1e-15)


class Half(torch.nn.Module):
    """x + W2 x, of which a shard has some inputs of W2 (rows here): all parts are summed."""

    def __init__(self, mine: Any) -> None:
        super().__init__()
        self.group = mine.group if isinstance(mine, ShardedCommunicator) else None
        generator = torch.Generator().manual_seed(2)
        weight = torch.randn(8, 8, generator=generator, dtype=torch.float64) / 9
        place, count = (0, 1) if self.group is None else (self.group.place, len(self.group.ranks))
        self.first, self.last = 8 * place // count, 8 * (place + 1) // count
        self.weight = torch.nn.Parameter(weight[self.first : self.last].clone())

    def forward(self, x: Any) -> Any:
        own = self.group.enter(x) if self.group is not None else x
        y = own[..., self.first : self.last] @ self.weight
        return x + (self.group.sum(y) if self.group is not None else y)


def test_refusals() -> None:
    plan = join_plans([a_pipeline([24], 1), a_pipeline([24], 1)], shards=[[2], [1]])
    with pytest.raises(ConfigError, match="another number of ranks"):
        ShardedCommunicator(FakeWorld(4).communicator(0), (2, 1))
    modules = {"llm": ModuleStages(load=lambda *_: torch.zeros(1, 2), loss=lambda *_: 0, layers=[torch.nn.Identity()])}

    def work(inner: Any, shards: tuple[int, ...]) -> None:
        mine = inner if not shards else ShardedCommunicator(inner, shards)
        run_plan(plan, split_model(with_fewer_layers(plan, 24), modules, mine.rank), mine)

    for size, shards in ((2, ()), (3, (1, 2)), (2, (1, 1))):
        with pytest.raises(ExecutorError, match=r"other shards.*ShardedCommunicator\(communicator, \[2, 1\]\)"):
            run_threads(FakeWorld(size), partial(work, shards=shards))
    with pytest.raises(ExecutorError, match="cannot be cut into so many shards"):
        Cut(1, blocks=3).part(torch.zeros(2, 8), 0, 1)


def test_a_rank_has_one_number_of_shards() -> None:
    plan = join_plans([a_pipeline([12, 12], 1), a_pipeline([24], 1)], shards=[[2, 1], [2]])
    one = plan.reductions[4]
    wrong = [*plan.reductions[:4], replace(one, shards=(3, *one.shards[1:])), *plan.reductions[5:]]
    with pytest.raises(PlanError, match="otherwise than its other layers") as caught:
        verify(replace(plan, reductions=tuple(wrong)))
    assert caught.value.fault is Fault.REDUCTION


@pytest.mark.multiprocess
def test_processes_of_unequal_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five processes over gloo: stages of 1, 2 and of 2 GPUs."""
    file = tmp_path / "plan.json"
    join_plans([a_pipeline([8, 16], 2), a_pipeline([24], 1)], shards=[[1, 2], [2]]).write(file)
    words = ["run", str(file), "--demo", "--shards", "--fewer-layers", "8", "--iterations", "1", "--timeout", "180"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["shards"] == [1, 2, 2] and document["worst_gradient"] < 1e-12

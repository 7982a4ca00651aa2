"""Plans whose ranks run embedding and head together: gradients are those of the model in one piece."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch

import semu
from semu.errors import ExecutorError
from semu.executor import FakeWorld, RankGroup, run_threads, torch_communicator
from semu.executor.copies import meeting_ranks
from semu.executor.demo import run_demo
from semu.executor.torch_communicator import TorchCommunicator
from semu.plan.compile import compile_plan
from semu.plan.plan import ExecutionPlan
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

torch.set_num_threads(1)
GPT_MODEL = decoder_model("gpt", GPT(GPTConfig(8, 256, 8, vocab=4096, positions=256)))
LLAMA = decoder_model("llama", Llama(LlamaConfig(layers=8, hidden=256, ffn=512, heads=8, kv_heads=4, vocab=6144)))


def plan_of(model: Any = GPT_MODEL, schedule: str = "1f1b", **sizes: Any) -> ExecutionPlan:
    parallel = semu.Parallel(**{"dp": 1, "pp": 3, "vocabulary": "pipeline", **sizes})
    training = semu.Training(global_batch=8 * parallel.dp, seq_len=256, micro_batch=1, schedule=schedule)
    return compile_plan(semu.TrainingJob(model, semu.Cluster("a800", 1, parallel.num_gpus), parallel, training))


@pytest.mark.parametrize(
    ("model", "schedule", "sizes"),
    [
        (GPT_MODEL, "1f1b", {"pp": 4}),
        (LLAMA, "zb-h1", {"pp": 2, "dp": 2}),
        (LLAMA, "interleaved", {"pp": 2, "vpp": 2}),
        (GPT_MODEL, "zb-v", {"pp": 4, "vpp": 2, "placement": "v-shape"}),
    ],
)
def test_gradients_over_threads(model: Any, schedule: str, sizes: dict[str, Any]) -> None:
    report = run_demo(plan_of(model, schedule, **sizes), backend="fake", iterations=1, fewer_layers=2)
    assert report.worst_gradient < 1e-12
    assert report.gradients > 20


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("model", "schedule", "sizes"), [(GPT_MODEL, "1f1b", {"pp": 4}), (LLAMA, "zb-h1", {"dp": 2, "pp": 2})]
)
def test_gradients_over_gloo(model: Any, schedule: str, sizes: dict[str, Any]) -> None:
    report = run_demo(plan_of(model, schedule, **sizes), backend="gloo", iterations=1, fewer_layers=2, timeout_s=180.0)
    assert report.worst_gradient < 1e-12


def test_parts_that_are_not_summed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankGroup, "enter", lambda self, x: x)
    with pytest.raises(ExecutorError, match="not those of the model in one piece"):
        run_demo(plan_of(pp=2), backend="fake", iterations=1, fewer_layers=4)


def test_exchanges_among_some_ranks() -> None:
    def work(mine: Any) -> Any:
        if mine.rank == 1:
            return None
        x = torch.full((2,), float(mine.rank + 1))
        mine.sum_over_ranks((x,), (0, 2), 10.0)
        y = torch.full((2,), float(mine.rank))
        mine.broadcast((y,), 2, (0, 2), 10.0)
        return x.tolist(), y.tolist()

    assert run_threads(FakeWorld(3), work) == [([4.0, 4.0], [2.0, 2.0]), None, ([4.0, 4.0], [2.0, 2.0])]


def test_groups_are_made_by_all_processes_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank of two replicas makes the same groups in the same order, its own or not, overlapping ones too; a group
    that nobody made is refused, as its members alone may not agree on its name."""
    assert meeting_ranks(plan_of(pp=2)) == [(0, 1)]
    made: dict[int, list[list[int]]] = {}

    def _members(world_rank: int) -> TorchCommunicator:
        mine = object.__new__(TorchCommunicator)
        mine.num_replicas, mine.num_ranks, (mine.rank, mine.replica) = 2, 3, divmod(world_rank, 2)
        mine._gangs, mine._limit = {}, timedelta(seconds=1)
        monkeypatch.setattr(
            torch_communicator.dist, "new_group", lambda ranks, **_: made.setdefault(world_rank, []).append(ranks)
        )
        mine.connect([(0, 1), (2, 1), (1, 0)])
        mine.connect([(0, 1)])
        return mine

    every = [_members(number) for number in range(6)]
    assert all(made[number] == [[0, 2], [1, 3], [2, 4], [3, 5]] for number in range(6))
    with pytest.raises(ExecutorError, match="not connected as a group"):
        every[0].sum_over_ranks((torch.zeros(1),), (0, 2), 1.0)


def test_a_member_that_never_comes_is_told() -> None:
    def work(mine: Any) -> None:
        if mine.rank == 0:
            mine.broadcast((torch.zeros(1),), 0, (0, 1), 0.2)

    with pytest.raises(TimeoutError, match="1 of 2 ranks"):
        run_threads(FakeWorld(2), work)


@pytest.mark.parametrize(
    "sizes",
    [
        {"pp": 4, "vpp": 2, "placement": "v-bidirectional", "vocabulary": "ends"},
        {"pp": 2, "vpp": 2, "layout": {"ranks": [1, 0, 0, 1]}, "vocabulary": "pipeline"},
        {"pp": 4, "layout": {"ranks": [2, 0, 3, 1]}, "vocabulary": "ends"},
    ],
)
def test_gradients_in_other_places(sizes: dict[str, Any]) -> None:
    report = run_demo(plan_of(LLAMA, "greedy", **sizes), backend="fake", iterations=1, fewer_layers=1)
    assert report.worst_gradient < 1e-12


@pytest.mark.slow
def test_gradients_under_distmm() -> None:
    import semu_models
    from semu.baselines import distmm
    from semu.workload import pair_batch

    parallel, training = semu.Parallel(dp=1, pp=3), semu.Training(global_batch=16, micro_batch=2)
    model, cluster = semu_models.clip_vit_b_32(), semu.Cluster("a800", 1, 3)
    found = distmm(semu.TrainingJob(model, cluster, parallel, training, pair_batch(patches_per_image=49)))
    plan = compile_plan(found.job, found.schedule)
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=4)
    assert report.worst_gradient < 1e-12


SYNC = "instructions=[sync:{after=[vision:F,text:F] before=[vision:B,text:B] every=4}]"


def plan_of_towers(schedule: str, **sizes: Any) -> ExecutionPlan:
    import semu_models
    from semu.workload import pair_batch

    parallel = semu.Parallel(**{"dp": 1, "pp": 3, "segments": "apart", "loss": "towers", **sizes})
    training = semu.Training(global_batch=16 * parallel.dp, micro_batch=2, schedule=schedule)
    model, cluster = semu_models.clip_vit_b_32(), semu.Cluster("a800", 1, parallel.num_gpus)
    return compile_plan(semu.TrainingJob(model, cluster, parallel, training, pair_batch(patches_per_image=49)))


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [
        ("1f1b", {}),
        ("interleaved", {"pp": 4, "vpp": 2}),
        ("greedy", {"pp": 4, "vpp": 2, "placement": "v-shape"}),
        (f"priority in-flight=8 {SYNC}", {"dp": 2}),
        (f"separated inner={{priority in-flight=8 {SYNC}}}", {"pp": 2}),
    ],
)
def test_towers_gather_features(schedule: str, sizes: dict[str, Any]) -> None:
    """A new instruction of a rule, executed: losses of four microbatches when all their features have been gathered."""
    plan = plan_of_towers(schedule, **sizes)
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=4)
    assert report.worst_gradient < 1e-12
    assert report.loss == pytest.approx(report.reference_loss, rel=1e-12)
    assert report.gradients > 20


@pytest.mark.parametrize(
    ("schedule", "sizes"), [("1f1b", {}), (f"priority in-flight=8 {SYNC}", {"dp": 2}), ("zb-h1", {"pp": 2})]
)
def test_towers_send_features(schedule: str, sizes: dict[str, Any]) -> None:
    """The asynchronous form: features are messages, no rank meets another."""
    plan = plan_of_towers(schedule, loss="towers-async", **sizes)
    report = run_demo(plan, backend="fake", iterations=1, fewer_layers=4)
    assert report.worst_gradient < 1e-12
    assert report.loss == pytest.approx(report.reference_loss, rel=1e-12)
    assert report.gradients > 20


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("loss", ["towers", "towers-async"])
def test_towers_gather_features_over_gloo(loss: str) -> None:
    plan = plan_of_towers(f"priority in-flight=8 {SYNC}", loss=loss)
    report = run_demo(plan, backend="gloo", iterations=1, fewer_layers=4, timeout_s=180.0)
    assert report.worst_gradient < 1e-12


def test_features_that_are_not_gathered_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from semu.executor.fake_communicator import FakeCommunicator

    monkeypatch.setattr(FakeCommunicator, "broadcast", lambda self, tensors, *_: [one.zero_() for one in tensors])
    with pytest.raises(ExecutorError, match="not those of the model in one piece"):
        run_demo(plan_of_towers("1f1b"), backend="fake", iterations=1, fewer_layers=4)


@pytest.mark.parametrize("loss", ["towers", "towers-async"])
def test_towers_under_a_searched_order(loss: str) -> None:
    import semu_models
    from semu.workload import pair_batch

    parallel = semu.Parallel(dp=1, pp=3, segments="apart", loss=loss)
    training = semu.Training(global_batch=8, micro_batch=2)
    cluster, batch = semu.Cluster("a800", 1, 3), pair_batch(patches_per_image=49)
    found = semu.search(semu.TrainingJob(semu_models.clip_vit_b_32(), cluster, parallel, training, batch), rollouts=8)
    report = run_demo(compile_plan(found.job, found.plan), backend="fake", iterations=1, fewer_layers=4)
    assert report.worst_gradient < 1e-12
    assert report.gradients > 20

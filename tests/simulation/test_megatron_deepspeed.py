"""Megatron-DeepSpeed: transfers cut over tensor-parallel ranks, gradients that are summed twice, and what they hold."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items
from simulation.reference.expansion import expand
from simulation.reference.network import collective_seconds

import semu
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import OpKind
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu.simulation.memory.communicators import communicators_bytes
from semu.simulation.memory.reserved import device_room, step_requests
from semu_models.text.gpt import GPT, GPTConfig

SEQ, HIDDEN = 512, 1024
DEEPSPEED = "megatron-deepspeed"


def job(parallel: Parallel, software: str = DEEPSPEED, nodes: int = 1, **options: Any) -> TrainingJob:
    model = Model.from_module(GPT(GPTConfig(4, HIDDEN, heads=8, vocab=4096, positions=SEQ)), name="llm")
    options = {"software_date": "2022-02", "recompute": "none", **options}
    training = Training(1, 4 * parallel.dp, SEQ, software=software, **options)
    per_node = parallel.dp * parallel.tp * parallel.pp // nodes
    return TrainingJob(model, Cluster("a100-80g", nodes, per_node), parallel, training)


def send_of(run: TrainingJob) -> Any:
    return next(piece for piece in simulate(run).timeline.ranks[0].outer if piece.kind is OpKind.P2P)


@pytest.mark.parametrize("kind", ["text", "vlm"])
@pytest.mark.parametrize("sizes", [{"pp": 2, "tp": 2}, {"pp": 3, "tp": 4}, {"dp": 2, "pp": 2, "tp": 2}])
def test_as_the_reference(kind: str, sizes: dict[str, int]) -> None:
    model, items = {"text": (gpt, text_items), "vlm": (vlm, vlm_items)}[kind]
    parallel = Parallel(**sizes, sequence_parallel=False)
    made = job_of(model(), items(2 * parallel.dp), parallel, software=DEEPSPEED, gpus_per_node=2)
    assert_equal(simulate(made), expand(made))


@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_sends_its_share_and_gathers_the_others(tp: int) -> None:
    run = job(Parallel(pp=2, tp=tp, sequence_parallel=False), nodes=2)
    send, whole = send_of(run), 2 * SEQ * HIDDEN
    assert send.net_bytes == whole / tp
    groups = (run.cluster.place_group("pp", [0, tp]), run.cluster.place_group("tp", range(tp)))
    parts = ((OpKind.P2P, groups[0], whole // tp), (OpKind.ALL_GATHER, groups[1], whole - whole // tp))
    expected = sum(collective_seconds(run.profile, kind, group, size) for kind, group, size in parts)
    assert send.end_s - send.start_s == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("software", "date", "sequence_parallel", "is_split"),
    [
        (DEEPSPEED, "2022-02", False, True),
        (DEEPSPEED, None, False, True),
        ("megatron", "2021-04", False, True),
        ("megatron", "2023-06", False, True),
        ("megatron", "2023-07", False, False),
        ("megatron", None, False, False),
        ("megatron", "2022-05", True, False),  # each rank has its tokens only
        ("torch", "2021-04", False, False),
    ],
)
def test_which_software_does(software: str, date: str | None, sequence_parallel: bool, is_split: bool) -> None:
    parallel = Parallel(pp=2, tp=2, sequence_parallel=sequence_parallel)
    run = job(parallel, software, software_date=date)
    assert run.splits_transfers is is_split
    assert send_of(run).net_bytes == 2 * SEQ * HIDDEN // (2 if is_split or sequence_parallel else 1)


def test_nothing_is_split_among_one() -> None:
    assert not job(Parallel(pp=2, dp=2)).splits_transfers and not job(Parallel(tp=2, dp=2)).splits_transfers


def test_gradients_are_summed_in_both_types() -> None:
    """Static bytes of a parameter: bf16 weights and gradients, fp32 gradients, a share of 12; fp16 has one gradient."""
    reports = {
        (software, precision): simulate(
            job(Parallel(dp=2), software, precision=precision, grad_dtype="fp32" if precision == "bf16" else "fp16")
        )
        for software in (DEEPSPEED, "megatron")
        for precision in ("bf16", "fp16")
    }
    count = reports[DEEPSPEED, "bf16"].parameters
    each = {key: report.static_memory_bytes[0] / count for key, report in reports.items()}
    assert each[DEEPSPEED, "bf16"] == pytest.approx(2 + 2 + 4 + 6, rel=1e-3)
    assert each["megatron", "bf16"] == pytest.approx(2 + 4 + 6, rel=1e-3)
    assert each[DEEPSPEED, "fp16"] == each["megatron", "fp16"] == pytest.approx(2 + 2 + 6, rel=1e-3)


@pytest.mark.parametrize(("precision", "kept", "passes"), [("bf16", 4, 26), ("fp16", 2, 6)])
def test_what_summing_a_weights_gradient_moves(precision: str, kept: int, passes: int) -> None:
    """fp16: autograd reads both and writes one, 3 x 2 bytes. bf16: the same, then the copy (2 + 4), the sum (3 x 4),
    and the clearing (2)."""
    run = job(Parallel(), precision=precision, grad_dtype="fp32" if kept == 4 else "fp16")
    rank = simulate(run).timeline.ranks[0]
    sums = {
        path: size
        for number in range(len(rank.stages))
        for path, size in zip(rank.expand(number).table.paths, rank.expand(number).mem_bytes.tolist(), strict=True)
        if path.endswith("mlp.up.accumulate_weight_grad")
    }
    assert sums and set(sums.values()) == {passes * 4 * HIDDEN * HIDDEN}


def test_what_lies_outside_the_allocator() -> None:
    """The context before kernels were loaded lazily; communicators with the connections of rings and trees, and what
    DeepSpeed's engine has beside those of the axes: all ranks, either neighbour, a replica's ranks, and once more the
    tensor-parallel ones. One node: 24 channels with three connections of 12 MiB each."""
    mib, switched = 1 << 20, 24 * 3 * 12
    parallel = Parallel(dp=2, tp=2, pp=2)
    assert device_room(job(parallel)).other_bytes == (1343 + 7 * switched) * mib
    assert device_room(job(parallel, "megatron")).other_bytes == (1343 + 3 * switched) * mib
    assert device_room(job(parallel, "megatron", software_date="2022-10")).other_bytes == (512 + 3 * switched) * mib
    assert device_room(job(parallel, "megatron", software_date="2025-04")).other_bytes == (512 + 3 * 128) * mib
    assert device_room(job(Parallel())).other_bytes == 1343 * mib
    assert device_room(job(Parallel(dp=2, tp=2))).other_bytes == (1343 + 3 * switched) * mib  # no pipeline: all ranks'


@pytest.mark.parametrize(
    "device, sizes, node, mebibytes",
    [
        ("a100-80g", Parallel(dp=4, tp=8, pp=2), 8, 24 * 36 + 2 * 12 * 18.375),  # replicas and stages: a rank a node
        ("h100", Parallel(dp=16, tp=2), 8, 24 * 36 + 16 * 36),  # four replicas' ranks a node
        ("a40", Parallel(dp=2, tp=4, pp=2), 8, 4 * 36 + 4 * 36 + 12 * 18.375),  # NVLink joins pairs
    ],
)
def test_what_communicators_of_several_nodes_hold(device: str, sizes: Parallel, node: int, mebibytes: float) -> None:
    """A connection across nodes has 2 x (0.5 + 4.6875 + 4) MiB, in a node 12 MiB; three to a channel."""
    training = Training(global_batch=64, seq_len=128, software="megatron", software_date="2023-05")
    cluster = Cluster(device, nodes=8, gpus_per_node=node)
    assert communicators_bytes(training, sizes, cluster) == mebibytes * 2**20


def test_what_a_step_asks_for() -> None:
    """fp16: a bucket, the largest gradient in 4 and in 8 bytes, the shard's gradients in 2 and 4 bytes, a bucket; bf16,
    whose fp32 gradients are there: one bucket. No bucket is larger than all parameters."""
    half = semu.simulation.prepare(job(Parallel(dp=2, zero=1), precision="fp16", grad_dtype="fp16")).layout
    shard = half.stepped_elements(0)
    largest = 4 * HIDDEN * HIDDEN
    assert step_requests(half, 0) == [[4 * shard], [4 * largest], [8 * largest], [2 * shard, 4 * shard], [4 * shard]]
    both = semu.simulation.prepare(job(Parallel(dp=2, zero=1))).layout
    assert step_requests(both, 0) == [[4 * shard]]
    for other in (job(Parallel(dp=2, zero=1), "megatron"), job(Parallel(dp=2, zero=0)), job(Parallel())):
        assert step_requests(semu.simulation.prepare(other).layout, 0) == []
    with_step, without = simulate(job(Parallel(dp=2, zero=1))), simulate(job(Parallel(dp=2, zero=1), "megatron"))
    assert with_step.reserved_memory_bytes is not None and without.reserved_memory_bytes is not None
    assert with_step.reserved_memory_bytes[0] > without.reserved_memory_bytes[0] + 2 * shard

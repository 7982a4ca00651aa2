"""Split backwards with ZeRO-2, ZeRO-3, HSDP and offload, against the slow reference bit for bit, and by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulation.data_parallel.test_sharding import OVERLAPS
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.models.test_experts import moe
from simulation.models.test_lora import lora_gpt
from simulation.schedules.test_split import check

from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu.workload import Microbatch


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("pp", "tp", "zero", "hidden"),
    [
        (2, 1, 2, "none"),
        (2, 1, 2, "both"),
        (3, 2, 2, "reduce"),
        (2, 1, 3, "none"),
        (2, 1, 3, "reduce"),
        (3, 2, 3, "both"),
    ],
)
def test_text(pp: int, tp: int, zero: int, hidden: str) -> None:
    parallel = Parallel(dp=2, tp=tp, pp=pp, zero=zero, sequence_parallel=tp > 1)
    check(job_of(gpt(), text_items(2 * pp), parallel, overlap=OVERLAPS[hidden]))


KINDS: dict[str, Callable[[], TrainingJob]] = {
    "vision-language, recomputed": lambda: job_of(
        vlm(), vlm_items(6), Parallel(dp=2, pp=3, zero=3), overlap=OVERLAPS["both"], recompute="full"
    ),
    "vision-language, frozen": lambda: job_of(
        vlm(frozen=("llm",)), vlm_items(6), Parallel(dp=2, pp=3, zero=3), overlap=OVERLAPS["both"]
    ),
    "zero 2, frozen encoder": lambda: job_of(vlm(frozen=("vit",)), vlm_items(4), Parallel(dp=2, pp=2, zero=2)),
    "text-to-video": lambda: job_of(t2v(), t2v_items(6), Parallel(dp=2, pp=3, zero=3), overlap=OVERLAPS["both"]),
    "hsdp": lambda: job_of(
        gpt(), text_items(8), Parallel(dp=4, pp=2, zero=3, zero_group=2), overlap=OVERLAPS["both"], gpus_per_node=2
    ),
    "no pipeline": lambda: job_of(gpt(), text_items(4), Parallel(dp=2, zero=3), overlap=OVERLAPS["both"]),
    "no pipeline, kept": lambda: job_of(
        gpt(), text_items(4), Parallel(dp=2, zero=3, reshard_after_forward=False), overlap=OVERLAPS["both"]
    ),
    "gathered once": lambda: job_of(
        gpt(), text_items(6), Parallel(dp=2, pp=3, zero=3, reshard_after_forward=False), overlap=OVERLAPS["both"]
    ),
    "gathered once, waited for": lambda: job_of(
        vlm(), vlm_items(4), Parallel(dp=2, pp=2, zero=3, reshard_after_forward=False), overlap=OVERLAPS["none"]
    ),
    "experts": lambda: job_of(
        moe(shared=True), text_items(4), Parallel(dp=2, tp=2, pp=2, ep=2, zero=3), overlap=OVERLAPS["both"]
    ),
    "lora": lambda: job_of(lora_gpt(), text_items(4), Parallel(dp=2, pp=2, zero=3), overlap=OVERLAPS["both"]),
    "virtual stages": lambda: job_of(
        gpt(4), text_items(8), Parallel(dp=2, pp=2, vpp=2, zero=3), overlap=OVERLAPS["both"]
    ),
    "torch": lambda: job_of(
        gpt(), text_items(4), Parallel(dp=2, pp=2, zero=3), overlap=OVERLAPS["both"], software="torch"
    ),
    "context": lambda: job_of(gpt(), text_items(4), Parallel(dp=2, cp=2, pp=2, zero=3), overlap=overlap(tensor=True)),
    "activations on the host": lambda: job_of(gpt(), text_items(3), Parallel(pp=3), offload="activations"),
    "activations on the host, sends hidden": lambda: job_of(
        gpt(6), text_items(3), Parallel(pp=3), offload="activations", overlap=overlap(pipeline=True, tensor=True)
    ),
    "weights on the host": lambda: job_of(gpt(), text_items(3), Parallel(pp=3), offload="weights"),
    "weights on the host, zero 3": lambda: job_of(
        gpt(6), text_items(6), Parallel(dp=2, pp=2, zero=3), offload="weights", overlap=OVERLAPS["both"]
    ),
    "both on the host": lambda: job_of(
        vlm(), vlm_items(3), Parallel(pp=2), offload=("weights", "activations"), recompute="full"
    ),
}


LONG = ("experts", "text-to-video", "vision-language, recomputed", "torch", "context")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in KINDS]
)
@pytest.mark.sampled(2)
def test_kinds_of_jobs(name: str) -> None:
    check(KINDS[name]())


@pytest.mark.parametrize(("model", "items"), [(gpt(), text_items(8)), (vlm(), vlm_items(8))], ids=["gpt", "vlm"])
def test_parameters_are_gathered_for_input_gradients_and_gradients_reduced_behind_weight_gradients(
    model: Model, items: list[Microbatch]
) -> None:
    """A weight gradient multiplies the input and the output's gradient: it reads no parameter. Of a block that only has
    weight gradients (embeddings of tokens) the parameters come with these."""
    for schedule in ("zb-h1", "zb-auto"):
        report = simulate(job_of(model, items, Parallel(dp=2, pp=2, zero=3), schedule=schedule))
        for rank in report.timeline.ranks:
            seen: dict[Phase, set[OpKind]] = {}
            for number, stage in enumerate(rank.stages):
                kinds = set(rank.expand(number).table.kinds) & {OpKind.ALL_GATHER, OpKind.REDUCE_SCATTER}
                if rank.rank or stage.chunk:
                    seen.setdefault(stage.phase, set()).update(kinds)
            if rank.rank:
                assert seen[Phase.INPUT_GRADIENT] == seen[Phase.FORWARD] == {OpKind.ALL_GATHER}
                assert seen[Phase.WEIGHT_GRADIENT] == {OpKind.REDUCE_SCATTER}


def test_collectives_move_what_they_move_with_whole_backwards() -> None:
    for zero in (2, 3):
        moved = []
        for schedule in ("1f1b", "zb-h1"):
            report = simulate(job_of(gpt(), text_items(8), Parallel(dp=2, pp=2, zero=zero), schedule=schedule))
            total: dict[OpKind, int] = {}
            for rank in report.timeline.ranks:
                for number in range(len(rank.stages)):
                    stage = rank.expand(number)
                    for kind, size in zip(stage.table.kinds, stage.net_bytes.tolist(), strict=True):
                        total[kind] = total.get(kind, 0) + size
            moved.append({kind: size for kind, size in total.items() if size})
        assert moved[0] == moved[1]
        assert moved[0][OpKind.REDUCE_SCATTER] > 0

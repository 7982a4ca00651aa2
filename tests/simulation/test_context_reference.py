"""Context parallelism through ``semu.simulate`` against the slow reference: times bit for bit, memory byte for byte."""

from __future__ import annotations

from random import Random

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

from semu.parallel.config import Parallel
from semu.simulation import simulate

KINDS = ("ring", "all_gather", "all_to_all")
MODELS = {"text": (gpt, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tensor", [False, True], ids=["wait", "overlap_tp"])
@pytest.mark.parametrize(("cp", "tp", "pp"), [(2, 1, 1), (2, 2, 2), (4, 1, 2)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODELS)
def test_times_and_memory(name: str, kind: str, cp: int, tp: int, pp: int, tensor: bool) -> None:
    model, items = MODELS[name]
    job = job_of(model(), items(3), Parallel(cp=cp, tp=tp, pp=pp, cp_kind=kind), overlap=overlap(tensor=tensor))
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tensor", [False, True], ids=["wait", "overlap_tp"])
@pytest.mark.parametrize(("cp", "inner", "tp", "pp"), [(4, 2, 1, 1), (4, 2, 2, 2), (8, 2, 1, 1), (8, 4, 1, 2)])
@pytest.mark.parametrize("gpus_per_node", [0, 4])
@pytest.mark.parametrize("name", MODELS)
def test_rings_between_groups(
    name: str, gpus_per_node: int, cp: int, inner: int, tp: int, pp: int, tensor: bool
) -> None:
    model, items = MODELS[name]
    if name == "t2v":  # its captions are short
        cp, inner = 4, 2
    job = job_of(
        model(),
        items(3, seed=1) if name == "text" else items(3),
        Parallel(cp=cp, tp=tp, pp=pp, cp_inner=inner),
        overlap=overlap(tensor=tensor),
        gpus_per_node=gpus_per_node,
    )
    assert_tails_equal(job)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hidden", [False, True], ids=["wait", "overlap"])
def test_gradients_and_shards_over_data_and_context(kind: str, zero: int, hidden: bool) -> None:
    job = job_of(
        gpt(),
        text_items(4),
        Parallel(dp=2, cp=2, tp=2, zero=zero, cp_kind=kind),
        overlap=overlap(gradients=hidden),
        gpus_per_node=4,
        gradient_clipping=True,
    )
    assert_tails_equal(job)


@pytest.mark.parametrize("zero", [1, 3])
def test_sharding_groups_hold_all_context_ranks(zero: int) -> None:
    assert_tails_equal(job_of(gpt(), text_items(4), Parallel(dp=4, cp=2, zero=zero, zero_group=2)))


def test_a_replica_of_one_rank_reduces_over_the_context_group() -> None:
    job = job_of(gpt(), text_items(2), Parallel(cp=4))
    assert_tails_equal(job)
    assert any(piece.stream == "dp" for rank in simulate(job).timeline.ranks for piece in rank.outer)


@pytest.mark.parametrize("recompute", ["full", ["core_attn"], ["layernorm"]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_recomputation(kind: str, recompute: str | list[str]) -> None:
    job = job_of(gpt(), text_items(3), Parallel(cp=2, tp=2, cp_kind=kind), recompute=recompute)
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(8))
def test_random_jobs(seed: int) -> None:
    random = Random(seed)
    model, items = random.choice(list(MODELS.values()))
    dp, cp, tp, pp = random.choice([(1, 2, 2, 2), (2, 2, 1, 2), (1, 4, 1, 3), (2, 4, 1, 1), (1, 3, 1, 2), (1, 2, 1, 4)])
    kinds = KINDS if cp != 3 else KINDS[:2]
    job = job_of(
        model(layers=random.randint(2, 4)),
        items(dp * random.randint(1, 4), seed=seed),
        Parallel(dp=dp, cp=cp, tp=tp, pp=pp, sequence_parallel=random.random() < 0.7, cp_kind=random.choice(kinds)),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5),
        schedule=random.choice(["1f1b", "gpipe"]),
        recompute=random.choice(["none", "full"]),
        gpus_per_node=random.choice([0, dp * cp * tp * pp // 2]) if dp * cp * tp * pp % 2 == 0 else 0,
    )
    assert_equal(simulate(job), expand(job))

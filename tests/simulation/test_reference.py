"""``semu.simulate`` against the slow reference: times bit for bit, memory byte for byte."""

from __future__ import annotations

from random import Random

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import (
    WIDTH,
    Along,
    Distance,
    Fork,
    attention_encoder,
    carry_along,
    chain,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)
from simulation.reference.expansion import expand

from semu.job import TrainingJob
from semu.nn import Linear
from semu.parallel.config import Parallel
from semu.simulation import simulate


def check(job: TrainingJob) -> None:
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(24)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("pipeline", [False, True], ids=["wait", "overlap_pp"])
@pytest.mark.parametrize(("tp", "tensor"), [(1, False), (2, False), (2, True)], ids=["tp1", "tp2", "tp2_overlap"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_text(pp: int, tp: int, tensor: bool, pipeline: bool, schedule: str, recompute: str) -> None:
    job = job_of(
        gpt(),
        text_items(3),
        Parallel(pp=pp, tp=tp),
        overlap=overlap(tensor=tensor, pipeline=pipeline),
        schedule=schedule,
        recompute=recompute,
    )
    check(job)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("frozen", [(), ("vit",), ("llm",), ("vit.layers", "llm")], ids=lambda names: "+".join(names))
@pytest.mark.parametrize(("pp", "tp"), [(1, 1), (2, 2), (4, 1), (5, 2)])
def test_vision_language(pp: int, tp: int, frozen: tuple[str, ...]) -> None:
    for recompute, schedule in (("none", "1f1b"), ("full", "gpipe")):
        job = job_of(
            vlm(frozen=frozen),
            vlm_items(3),
            Parallel(pp=pp, tp=tp),
            overlap=overlap(tensor=tp > 1 and recompute == "none", pipeline=recompute == "full"),
            schedule=schedule,
            recompute=recompute,
        )
        check(job)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("frozen", [(), ("llm",), ("dit",)], ids=lambda names: "+".join(names))
@pytest.mark.parametrize(("pp", "tp"), [(1, 2), (2, 1), (4, 2)])
def test_text_to_video(pp: int, tp: int, frozen: tuple[str, ...]) -> None:
    for recompute in ("none", "full"):
        job = job_of(
            t2v(frozen=frozen),
            t2v_items(3),
            Parallel(pp=pp, tp=tp),
            overlap=overlap(tensor=tp > 1, pipeline=recompute == "full"),
            recompute=recompute,
        )
        check(job)


@pytest.mark.parametrize("pp", [1, 2, 3])
def test_a_microbatch_without_images_costs_the_encoder_no_time(pp: int) -> None:
    job = job_of(vlm(), vlm_items(3, empty=(1,)), Parallel(pp=pp))
    check(job)
    empty = [
        stage
        for rank in simulate(job).timeline.ranks
        for stage in rank.stages
        if stage.module == "vit" and stage.microbatch == 1
    ]
    assert empty
    assert all(stage.start_s == stage.end_s for stage in empty)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("pp", "tp", "schedule"), [(1, 1, "1f1b"), (2, 2, "gpipe"), (3, 1, "1f1b")])
@pytest.mark.parametrize("kind", ["text", "vlm", "t2v"])
def test_replicas_with_different_data(kind: str, pp: int, tp: int, schedule: str) -> None:
    model, items = {"text": (gpt, text_items), "vlm": (vlm, vlm_items), "t2v": (t2v, t2v_items)}[kind]
    job = job_of(model(), items(6, seed=3), Parallel(dp=2, pp=pp, tp=tp), schedule=schedule)
    expected = expand(job)
    assert expected.replicas[0].makespan_s != expected.replicas[1].makespan_s
    report = simulate(job)
    assert report.num_distinct_replicas == 2
    assert_equal(report, expected)


@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_tensor_that_two_chunks_of_a_rank_keep_is_stored_once(pp: int, recompute: str) -> None:
    check(job_of(attention_encoder(), text_items(3), Parallel(pp=pp), recompute=recompute))


@pytest.mark.parametrize("pp", [1, 5, 7])
def test_a_tensor_carried_along_is_kept_where_it_is_needed(pp: int) -> None:
    check(job_of(carry_along(), text_items(3), Parallel(pp=pp)))


def test_recomputation_of_a_block_with_an_output_that_gets_no_gradient() -> None:
    """The second tensor of the fork is handed on to the end and ends there unread."""
    check(job_of(chain(Linear(WIDTH, WIDTH), Fork(), Along(), Distance()), text_items(3), recompute="full"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_random_jobs(seed: int) -> None:
    random = Random(seed)
    model, items = random.choice([(gpt, text_items), (vlm, vlm_items), (t2v, t2v_items)])
    dp, tp, pp = random.choice([(1, 1, 4), (1, 2, 3), (2, 1, 3), (3, 2, 1), (2, 2, 2), (4, 1, 2), (1, 4, 2)])
    job = job_of(
        model(layers=random.randint(2, 4)),
        items(dp * random.randint(1, 5), seed=seed),
        Parallel(dp=dp, tp=tp, pp=pp, sequence_parallel=random.random() < 0.7),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.5),
        schedule=random.choice(["1f1b", "gpipe"]),
        recompute=random.choice(["none", "full"]),
    )
    check(job)

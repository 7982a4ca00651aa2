"""Tessel's repetend, warm-up and cool-down, against a checker that knows nothing of the constraint program."""

from __future__ import annotations

import itertools

import pytest
from schedule.gang_shapes import reference_times, with_gangs

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.schedule.graph import graph_of
from semu.schedule.phases import CODE_OF_PHASE
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy
from semu.searcher.tessel.baselines import any_baseline, search_tessel
from semu.searcher.tessel.blocks import Blocks
from semu.searcher.tessel.repetend import find_repetend
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig

pytest.importorskip("ortools", reason="ortools is the search extra")


def study(p: int, m: int, *, gangs: bool = True) -> PipelineStudy:
    chain = PipelineShape.chain(p, m)
    return PipelineStudy.of(with_gangs(chain) if gangs else chain, forward_s=1.0, backward_s=2.0, held_bytes=10)


def check(blocks: Blocks, period: int, start: tuple[int, ...], limit: int | None) -> None:
    """Five microbatches of a repetend, block by block."""
    runs = [
        (start[k] + m * period, start[k] + m * period + b.ticks, b)
        for m in range(5)
        for k, b in enumerate(blocks.blocks)
    ]
    for rank in range(blocks.num_ranks):
        mine = sorted((begin, end) for begin, end, block in runs if rank in block.ranks)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(mine)), "two blocks at once"
    for k, block in enumerate(blocks.blocks):
        for other, late in block.before:
            assert start[k] >= start[other] + blocks.blocks[other].ticks + late
    for rank, kept in enumerate(blocks.held) if limit is not None else ():
        moments = sorted({begin for begin, _, block in runs if rank in block.ranks})
        for now in moments:
            held = sum(
                size
                for forward, backward, size in kept
                for m in range(5)
                if start[forward] + m * period <= now < start[backward] + m * period + blocks.blocks[backward].ticks
            )
            assert limit is None or held <= limit


@pytest.mark.sampled(4)
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_without_a_limit_no_rank_waits(p: int) -> None:
    blocks = Blocks.of(study(p, 4))
    found = find_repetend(blocks, time_s=2.0)
    assert found.period == blocks.least_period
    assert found.is_shortest
    check(blocks, found.period, found.start, None)


@pytest.mark.parametrize(("limit", "slower"), [(10, True), (20, True), (40, False)])
def test_a_limit_of_memory(limit: int, slower: bool) -> None:
    """Two ranks, 10 bytes a chunk: with 10 bytes a rank one microbatch is in flight, and the ranks take turns."""
    own = study(2, 4, gangs=False)
    blocks = Blocks.of(own)
    found = find_repetend(blocks, (limit, limit), time_s=60.0)
    assert (found.period > blocks.least_period) == (slower and limit == 10)
    check(blocks, found.period, found.start, limit)
    if limit == 10:
        assert found.period == pytest.approx(2 * blocks.least_period, rel=0.02), "F, F, B, B one after another"


def test_nothing_fits() -> None:
    with pytest.raises(ConfigError, match="no repetend that fits in memory"):
        find_repetend(Blocks.of(study(2, 4)), (5, 5), time_s=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, 3])
def test_schedules_are_legal_and_the_searched_phases_no_longer(p: int) -> None:
    own = study(p, 8)

    def seconds(stage: StageKey) -> float:
        pair = int(graph_of(own.shape).first[stage.chunk]) + stage.microbatch
        return float(own.costs.latency_s[4 * pair + CODE_OF_PHASE[stage.phase]])

    fast, full = (search_tessel(own, is_fast=is_fast, time_s=2.0) for is_fast in (True, False))
    times = [
        max(end for _, end in reference_times(found.schedule, own.shape, seconds).values()) for found in (fast, full)
    ]
    assert times[1] <= times[0]
    assert times[0] == own.evaluate(fast.schedule).makespan_s
    assert times[1] >= own.shape.num_microbatches * full.least_period_s - 1e-9


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "gpt2", "--cluster", "a800:1x2", "--parallel", "pp2", "--set", "training.global_batch=8"]
    assert main([*arguments, "--baseline", "tessel-fest"]) == 2
    assert "tessel-fast" in capsys.readouterr().err


@pytest.mark.slow
def test_a_job_is_faster_than_under_t_1f1b() -> None:
    model = decoder_model("gpt", GPT(GPTConfig(8, 512, 8, vocab=65536, positions=512)))
    training = semu.Training(global_batch=16, seq_len=512, micro_batch=1)
    job = semu.TrainingJob(model, semu.Cluster("a800", 1, 4), semu.Parallel(dp=1, pp=4), training)
    plain, fast = (any_baseline(name)(job) for name in ("t-1f1b", "tessel-fast"))
    report = fast.simulate()
    assert report.iteration_time_s < plain.simulate().iteration_time_s
    assert report.iteration_time_s == fast.evaluate().iteration_time_s
    assert fast.schedule == fast.order
    assert "period" in fast.notes[0]

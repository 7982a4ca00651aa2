"""``parallel.loss = "towers"``: the last ranks of all towers gather features and run the loss together, or, under
``"towers-async"``, send one another features and go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan.legal_plans import listed, with_actions
from schedule.gang_shapes import reference_times

import semu
import semu_models
from semu.baselines import distmm
from semu.cli import main
from semu.errors import ConfigError, PlanError
from semu.graph.operator import Phase
from semu.plan.action import KINDS, ActionKind
from semu.plan.compile import compile_plan
from semu.plan.verification.fault import Fault
from semu.plan.verification.rules import verify
from semu.schedule.shape import StageKey
from semu.simulation import prepare
from semu.workload import pair_batch

RUN = """
[model]
name = "clip-vit-b-32"
[cluster]
device = "h100"
nodes = 1
gpus_per_node = 4
[parallel]
pp = 4
segments = "apart"
loss = "towers"
[training]
micro_batch = 4
global_batch = 32
[batch]
kind = "pairs"
patches_per_image = 49
"""


def job(schedule: str = "1f1b", model: Any = None, **sizes: Any) -> semu.TrainingJob:
    parallel = semu.Parallel(**{"dp": 2, "pp": 4, "segments": "apart", "loss": "towers", **sizes})
    overlap = semu.Overlap(param_gather=False, pipeline=True)
    training = semu.Training(global_batch=32 * parallel.dp, micro_batch=4, schedule=schedule, overlap=overlap)
    cluster = semu.Cluster("h100", -(-parallel.num_gpus // 8), min(parallel.num_gpus, 8))
    return semu.TrainingJob(
        model or semu_models.clip_vit_b_32(), cluster, parallel, training, pair_batch(patches_per_image=49)
    )


CASES = [
    pytest.param("1f1b", {}, id="1f1b"),
    pytest.param("gpipe", {"dp": 1, "pp": 3}, id="gpipe, towers of two and one ranks"),
    pytest.param("priority in-flight=2*p", {"dp": 1, "tp": 2}, id="a rule, tensor parallel"),
    pytest.param("interleaved", {"dp": 1, "vpp": 2}, id="virtual stages of towers"),
    pytest.param(
        "priority in-flight=p*v", {"dp": 1, "vpp": 3, "pp": 3, "shares": {"vision": 2, "text": 1}}, id="three"
    ),
    pytest.param("greedy", {"dp": 2, "vpp": 2, "placement": "v-shape"}, id="a V of each tower"),
    pytest.param("eager-1f1b", {"dp": 4, "pp": 2, "zero": 0}, id="a rank for each tower"),
]


@pytest.mark.parametrize(("schedule", "sizes"), CASES)
def test_stages_run_as_the_slow_reference(schedule: str, sizes: dict[str, Any]) -> None:
    checkpoint = prepare(job(schedule, **sizes))
    order = checkpoint.schedule()
    run = checkpoint.timed(order).run
    problem, latency = run.problem, run.plain[0]
    shape = problem.shape
    assert [len(members) for members in shape.gangs] == [2]
    seconds = dict(zip(problem.stages, latency[: problem.num_stages].tolist(), strict=True))
    delays = {
        (move.stage.chunk, move.consumer.chunk, move.stage.phase is Phase.FORWARD): lasts
        for move, lasts in zip(problem.transfers, latency[problem.num_stages :].tolist(), strict=True)
    }
    assert not {chunk for ends in delays for chunk in ends[:2]} & {*shape.gangs[0]}, "features are gathered, not sent"
    expected = reference_times(
        order,
        shape,
        lambda stage: seconds[stage],
        lambda source, reader, is_forward, _: delays.get((source, reader, is_forward), 0.0),
    )
    found = dict(zip(problem.stages, zip(run.start[0].tolist(), run.end[0].tolist(), strict=False), strict=False))
    for stage, times in expected.items():
        assert found[stage] == pytest.approx(times, abs=1e-12), stage
    start = dict(zip(problem.stages, run.start[0].tolist(), strict=False))
    for m in range(shape.num_microbatches):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert len({start[StageKey(chunk, phase, m)] for chunk in shape.gangs[0]}) == 1


@pytest.mark.parametrize(("schedule", "sizes"), CASES)
def test_features_that_are_sent_arrive_as_the_slow_reference_has_it(schedule: str, sizes: dict[str, Any]) -> None:
    checkpoint = prepare(job(schedule, loss="towers-async", **sizes))
    order = checkpoint.schedule()
    run = checkpoint.timed(order).run
    problem, latency = run.problem, run.plain[0]
    shape, (one, other) = problem.shape, problem.shape.gangs[0]
    seconds = dict(zip(problem.stages, latency[: problem.num_stages].tolist(), strict=True))
    delays = {
        (move.stage.chunk, move.consumer.chunk, move.stage.phase is Phase.FORWARD): lasts
        for move, lasts in zip(problem.transfers, latency[problem.num_stages :].tolist(), strict=True)
    }
    vision, text = shape.sources[one]
    assert delays[vision, other, True] > 0.0 and delays[text, one, True] > 0.0, "each sends the other its features"
    assert not [ends for ends in delays if ends[0] in (one, other)], "no gradient goes to another tower"
    expected = reference_times(
        order,
        shape,
        lambda stage: seconds[stage],
        lambda source, reader, is_forward, _: delays[source, reader, is_forward],
        meets=False,
    )
    found = dict(zip(problem.stages, zip(run.start[0].tolist(), run.end[0].tolist(), strict=False), strict=False))
    for stage, times in expected.items():
        assert found[stage] == pytest.approx(times, abs=1e-12), stage
    start = dict(zip(problem.stages, run.start[0].tolist(), strict=False))
    meetings = [{start[StageKey(chunk, Phase.FORWARD, m)] for chunk in (one, other)} for m in range(8)]
    assert any(len(times) == 2 for times in meetings), "nobody waits for the other rank"


def test_features_are_messages_that_ranks_wait_for_before_the_loss() -> None:
    """Started when the tower's last forward has run, waited for right before the loss; nothing is exchanged."""
    plan = compile_plan(job(loss="towers-async"))
    verify(plan)
    heads = [number for number, chunk in enumerate(plan.chunks) if chunk.module == "head"]
    messages, pairs = plan.messages, plan.pairs
    to_heads = [n for n in range(len(messages)) if pairs.chunk[messages.target[n] // 2] in heads]
    assert len(to_heads) == 2 * 8, "of 8 microbatches, one each way"
    assert not [n for n in range(len(messages)) if pairs.chunk[messages.source[n] // 2] in heads]
    sizes = {plan.chunks[pairs.chunk[messages.source[n] // 2]].module: messages.num_bytes[0, n] for n in to_heads}
    assert sizes == {"vision": 4 * 768 * 2, "text": 4 * 512 * 2}
    kinds = [[KINDS[code] for code in own.kind] for own in plan.actions]
    assert not [kind for own in kinds for kind in own if kind.is_exchange]
    at = [own.target.tolist() for own in plan.actions]
    worked = 0
    for n in to_heads:
        rank = int(messages.target_rank[n])
        places = [place for place, target in enumerate(at[rank]) if target == n and not kinds[rank][place].is_stage]
        launch, wait = places
        assert (kinds[rank][launch], kinds[rank][wait]) == (ActionKind.IRECV, ActionKind.WAIT_IRECV)
        worked += any(kind.is_stage for kind in kinds[rank][launch:wait])
    assert worked, "ranks compute while features come"


def drop_wait(actions: list[list[Any]], number: int) -> None:
    for own in actions:
        own[:] = [act for act in own if act[:2] != (ActionKind.WAIT_IRECV, number)]


def drop_send(actions: list[list[Any]], number: int) -> None:
    for own in actions:
        own[:] = [act for act in own if act[:2] != (ActionKind.ISEND, number)]


def wait_late(actions: list[list[Any]], number: int) -> None:
    for own in actions:
        mine = [act for act in own if act[:2] == (ActionKind.WAIT_IRECV, number)]
        own[:] = [act for act in own if act not in mine] + mine


@pytest.mark.parametrize(
    ("change", "fault"),
    [(drop_wait, Fault.WAIT_MISSING), (drop_send, Fault.LAUNCH_MISSING), (wait_late, Fault.USED_EARLY)],
)
def test_a_plan_that_does_not_wait_for_features_is_refused(change: Any, fault: Fault) -> None:
    plan = compile_plan(job(loss="towers-async"))
    heads = [number for number, chunk in enumerate(plan.chunks) if chunk.module == "head"]
    number = next(n for n, t in enumerate(plan.messages.target) if plan.pairs.chunk[t // 2] in heads)
    actions = listed(plan)
    change(actions, number)
    with pytest.raises(PlanError) as caught:
        verify(with_actions(replace(plan, estimates=None), actions))
    assert caught.value.fault is fault


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loss", ["towers", "towers-async"])
@pytest.mark.parametrize(("schedule", "sizes"), CASES)
def test_memory_comes_back_and_plans_are_legal(schedule: str, sizes: dict[str, Any], loss: str) -> None:
    own = job(schedule, loss=loss, **sizes)
    report = semu.simulate(own)
    for row, rank in zip(report.ranks, report.timeline.ranks, strict=True):
        assert rank.memory.peak_bytes == row.peak_bytes
        assert rank.memory.total[-1] == row.static_bytes, "all is freed"
    verify(compile_plan(own))
    assert report.parameters == own.model.num_parameters()


def test_a_rank_sends_its_own_features_and_none_come_back() -> None:
    """Features of 4 images (768 wide) and 4 captions (512) in bf16: half of both together leaves either rank."""
    found = prepare(job())
    library = found.layout.library
    head = found.layout.chunks[-1]
    moved = [op for row in head.forward.rows.tolist() if (op := library.operators[row]).stream.name == "towers"]
    assert [op.path.rpartition(".")[2] for op in moved] == ["gather"]
    assert str(moved[0].net_bytes) == "512*text=1.shard + 768*vision=1.shard", "of 2 bytes each, half of both"
    back = [library.operators[row].stream.name for row in head.backward.rows.tolist()]
    assert "towers" not in back
    for member, tower in zip(found.layout.chunks[-2:], ("vision", "text"), strict=True):
        sources = [source for source in member.arrivals if source >= 0]
        assert [found.layout.chunks[source].module for source in sources] == [tower]


def test_it_is_as_fast_as_a_head_where_towers_are_alike_and_exchanges_cost_little() -> None:
    """With the head on a rank of its own, that rank has nothing else to do."""
    towers, head = semu.simulate(job()), semu.simulate(job(loss="head", segments="mixed"))
    flop = [report.model_tflop_per_s_per_gpu * report.iteration_time_s for report in (towers, head)]
    assert flop[0] == pytest.approx(flop[1], rel=1e-12), "the loss counts once"
    assert towers.breakdown_s["exposed_communication"]["towers"] > 0
    assert "towers" not in head.breakdown_s["exposed_communication"]


def test_synchronisation_of_unlike_towers_is_waiting() -> None:
    """With groups of one, 1F1B in lockstep: the text tower of the same depth, two thirds as wide, waits."""
    found = distmm(job(pp=2), every=1)
    run = prepare(found.job).timed(found.schedule).run
    ends = dict(zip(run.problem.stages, run.end[0].tolist(), strict=False))
    start = dict(zip(run.problem.stages, run.start[0].tolist(), strict=False))
    vision, text, *heads = range(4)
    for m in range(8):
        meets = start[StageKey(heads[0], Phase.FORWARD, m)]
        assert meets == max(ends[StageKey(chunk, Phase.FORWARD, m)] for chunk in (vision, text))


@pytest.mark.parametrize(
    ("sizes", "where", "words"),
    [
        ({"pp": 1, "loss": "tower"}, "parallel.loss", ("towers",)),
        ({"placement": "bidirectional", "segments": "mixed"}, "parallel.placement", ("circular",)),
        ({"segments": "separated", "vpp": 2}, "parallel.segments", ("apart",)),
        ({"zero": 3}, "parallel.zero", ("0 or 1",)),
        ({"model": semu_models.gpt2(), "segments": "mixed"}, "parallel.loss", ("dual encoder",)),
    ],
)
def test_refusals(sizes: dict[str, Any], where: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(job(**sizes))
    assert caught.value.where == where
    for word in words:
        assert word in str(caught.value)


def test_towers_that_end_on_one_rank_are_refused() -> None:
    from semu.parallel.towers import deal_towers

    parallel = semu.Parallel(pp=2, loss="towers", partition="layers")
    with pytest.raises(ConfigError, match="end on the same"):
        deal_towers(parallel, ["image", "text", "head"], [6, 1, 1], [1.0] * 8)


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clip.toml"
    path.write_text(RUN, encoding="utf-8")
    assert main(["simulate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["breakdown_s"]["exposed_communication"]["towers"] > 0
    assert main(["search", str(path), "--rollouts", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_time_s"] > 0

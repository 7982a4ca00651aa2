"""Recorded iterations, calibrated stage times, and the simulated iteration beside the measured one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

from executor.plan_kit import make_plan, modular_shape
from executor.proof import run_fake
from executor.small_models import SmallModel

from semu.cli import main
from semu.engine.timeline import IterationTimeline
from semu.errors import ConfigError
from semu.executor import Recording, timeline_of
from semu.executor.demo import run_demo
from semu.executor.demo.model import DemoModel
from semu.executor.demo.replay import Calibrated, agreement, calibrate, simulate_order, starts_of
from semu.executor.demo.scaled import with_fewer_layers
from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import PipelineShape
from semu.schedule.study import PipelineStudy

ITEMS = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}
MODEL = SmallModel("vlm", ITEMS, {"vit": 2, "llm": 2})


def vlm_plan() -> ExecutionPlan:
    shape = modular_shape(2, {"vit": (1, (3, 2, 1)), "llm": (1, (1, 1, 1))}, MODEL.sources)
    return make_plan(shape, ALL_SCHEDULES["greedy"](shape), [1] * 4, ITEMS, MODEL.sources)


def chain_plan(name: str, p: int, m: int) -> tuple[PipelineShape, ExecutionPlan]:
    family = ALL_SCHEDULES[name]
    shape = family.shape(p, m, 1)
    items = {shape.chunk_module[0]: [[1] * m]}
    sources = {shape.chunk_module[0]: ()}
    return shape, make_plan(shape, family(shape), [1] * p, items, sources)


def test_a_recording_has_every_action_in_order() -> None:
    plan = vlm_plan()
    recordings = [rank["recording"] for rank in run_fake(plan, MODEL, is_recording=True)]
    timeline = timeline_of(plan, recordings)
    assert isinstance(timeline, IterationTimeline)
    for rank, own in enumerate(recordings):
        stages = [int(own_kind) for own_kind in plan.actions[rank].kind if KINDS[own_kind].is_stage]
        assert len(timeline.ranks[rank].stages) == len(stages)
        moments = [t for span in zip(own.start_s, own.end_s, strict=True) for t in span]
        assert moments == sorted(moments)
        waits = [
            f"wait {'for' if kind is ActionKind.WAIT_IRECV else 'until sent'} message {target}"
            for a in own.actions
            if a >= 0
            for kind, target in [(KINDS[plan.actions[rank].kind[a]], plan.actions[rank].target[a])]
            if kind in (ActionKind.WAIT_IRECV, ActionKind.WAIT_ISEND)
        ]
        outer = timeline.ranks[rank].outer
        assert [piece.name for piece in outer] == waits and len({wait[:10] for wait in waits}) == 2
        assert {piece.net_bytes for piece in outer} == {0}  # nobody measured them
    begin = {stage.label: stage for rank in timeline.ranks for stage in rank.stages}
    assert begin["1F0"].start_s >= begin["0F0"].end_s  # a message lies between them
    assert begin["2F0"].start_s >= begin["1F2"].end_s  # part 2 of microbatch 0
    assert begin["0B0"].start_s >= begin["1B0"].end_s
    assert 0 < timeline.makespan_s <= timeline.iteration_time_s
    assert 0 < timeline.bubble_ratio < 1
    with pytest.raises(ConfigError, match="not a recording of every rank"):
        timeline_of(plan, recordings[:1])


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_the_replay_is_the_study_of_the_same_order(name: str) -> None:
    """With equal stage times and no transfers, the plan's order takes as long as the schedule does by itself."""
    shape, plan = chain_plan(name, 4, 6)
    shape_of = ALL_SCHEDULES[name].shape(4, 6, 1)
    study = PipelineStudy.of(shape_of).evaluate(ALL_SCHEDULES[name](shape_of))
    seconds = [1.0, 2.0, 1.0, 1.0] * len(plan.pairs)
    import numpy as np

    replay = simulate_order(plan, {plan.chunks[0].module: ()}, Calibrated(np.array(seconds), 0.0))
    assert replay.makespan_s == study.makespan_s
    assert shape.num_ranks == len(replay.recordings)


def test_calibration_takes_medians_of_equal_stages() -> None:
    _, plan = chain_plan("gpipe", 1, 3)
    kinds = [KINDS[kind] for kind in plan.actions[0].kind]
    assert all(kind.is_stage for kind in kinds) and len(kinds) == 6
    lengths = [1.0, 2.0, 9.0, 4.0, 5.0, 6.0]  # three forwards, three backwards
    starts = [sum(lengths[:i]) for i in range(6)]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    times = calibrate(plan, [[Recording(0, 0, tuple(range(6)), tuple(starts), tuple(ends))]])
    assert times.stage_s[0] == 2.0 and times.stage_s[1] == 5.0 and times.transfer_s == 0.0


def test_agreement_counts_pairs_of_different_ranks() -> None:
    simulated = {(0, 0): 0.0, (0, 1): 1.0, (1, 0): 0.5, (1, 1): 2.0}
    assert agreement(simulated, simulated) == 1.0
    assert agreement(simulated, {(0, 0): 0.6, (0, 1): 1.0, (1, 0): 0.5, (1, 1): 2.0}) == 0.75
    plan = vlm_plan()
    assert len(starts_of(plan, [Recording(0, 0, (), (), ()), Recording(1, 0, (), (), ())])) == 0


def test_fewer_layers() -> None:
    plan = vlm_plan()
    words = tuple(("full", "none", "offload", "none", "none") for _ in range(1))
    from dataclasses import replace

    chunks = tuple(replace(c, num_layers=5, first_layer=5 * (n % 2), variants=words) for n, c in enumerate(plan.chunks))
    small = with_fewer_layers(replace(plan, chunks=chunks), 2)
    assert [(c.first_layer, c.num_layers) for c in small.chunks] == [(0, 3), (3, 3), (0, 3), (3, 3)]
    assert small.chunks[0].variants == (("full", "offload", "none"),)
    assert DemoModel(small).sources == {"vit": (), "llm": ("vit",)}


@pytest.mark.slow
def test_a_demo_over_threads_writes_its_picture(tmp_path: Path) -> None:
    report = run_demo(vlm_plan(), backend="fake", iterations=2, width=8, timeout_s=180)
    assert abs(report.loss - report.reference_loss) < 1e-12 and report.worst_gradient < 1e-12
    assert report.gradients > 50 and len(report.measured_s) == 2
    assert report.simulated_s > 0 and 0.0 < report.agreement <= 1.0
    assert "makespan simulated" in repr(report)
    names = [file.name for file in report.save(tmp_path / "out")]
    assert names == ["result.json", "timeline.png"]
    assert json.loads((tmp_path / "out" / "result.json").read_text())["gradients"] == report.gradients


@pytest.mark.parametrize(
    ("words", "where"),
    [({"backend": "mpi"}, "--backend"), ({"iterations": 0}, "--iterations"), ({"timeout_s": 0}, "--timeout")],
)
def test_bad_options(words: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_demo(vlm_plan(), **words)  # type: ignore[arg-type]
    assert caught.value.where == where


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_compiled_vlm_s_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "plan.json")
    assert main(["plan", "vlm-s", "--set", "training.global_batch=4", "-o", file]) == 0
    capsys.readouterr()
    out = tmp_path / "out"
    words = ["--iterations", "1", "--json", "--out", str(out), "--fewer-layers", "16", "--timeout", "180"]
    assert main(["run", file, "--demo", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["backend"] == "gloo" and document["num_ranks"] == 4
    assert document["worst_gradient"] < 1e-10 and document["order_agreement"] > 0.0
    assert sorted(path.name for path in out.iterdir()) == ["result.json", "timeline.png"]
    assert main(["run", file]) == 2
    assert "--demo" in capsys.readouterr().err
    assert "torch" in sys.modules

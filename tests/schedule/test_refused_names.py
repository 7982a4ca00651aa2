"""Which schedules a job runs by name, and what is said to the others."""

from __future__ import annotations

import json

import pytest

import semu
from semu.cli import main
from semu.errors import ConfigError, ScheduleError
from semu.runfile import load_run
from semu.schedule import ALL_SCHEDULES, SCHEDULES, is_executed

NEW = sorted(set(ALL_SCHEDULES) - set(SCHEDULES))


def test_names_of_jobs_are_names_of_schedules() -> None:
    assert set(SCHEDULES) < set(ALL_SCHEDULES)
    for name, generate in SCHEDULES.items():
        shape = ALL_SCHEDULES[name].shape(4, 8)
        assert ALL_SCHEDULES[name](shape).orders == generate(shape).orders


def test_a_run_file_that_asks_for_two_copies_of_the_model() -> None:
    assert all(map(is_executed, NEW))
    with pytest.raises(ConfigError, match="unknown schedule 'chimaera', did you mean 'chimera'") as caught:
        load_run("vlm-s", ["training.schedule=chimaera"])
    assert (caught.value.where, caught.value.got) == ("--set training.schedule", "chimaera")
    assert caught.value.expected == "one of " + ", ".join(sorted(ALL_SCHEDULES))
    with pytest.raises(ConfigError, match="the schedule 'chimera' needs the model twice") as caught:
        semu.simulate(load_run("vlm-s", ["training.schedule=chimera", "parallel.placement=circular"]))
    assert (caught.value.where, caught.value.nearest) == ("parallel.placement", "bidirectional")


def test_a_checkpoint_asked_for_one() -> None:
    state = semu.prepare(load_run("vlm-s"))
    with pytest.raises(ScheduleError, match="zb-v: two model chunks per rank"):
        state.schedule("zb-v")
    with pytest.raises(ConfigError, match="the schedule 'chimera' needs the model twice") as caught:
        state.schedule("chimera")
    assert caught.value.where == "schedule"
    with pytest.raises(ConfigError, match="did you mean '1f1b'"):
        state.schedule("1f1")


SPLIT = "parallel.layout.modules={vit=[32,31],llm=[16,16]}"
BOTH = ("training.schedule=chimera", "parallel.placement=bidirectional")
V = ("training.schedule=zb-v", "parallel.placement=v-shape", "parallel.vpp=2", "training.recompute=none")


@pytest.mark.parametrize(
    ("changes", "code", "where", "words"),
    [
        (("model.frozen=['vit']", SPLIT, *BOTH), 4, "chimera", "chimera needs a backward of every chunk"),
        (("model.frozen=['vit']", *V), 4, "zb-v", "zb-v needs a backward of every chunk"),
        (
            (*V[:2], "parallel.vpp=1"),
            2,
            "parallel.vpp",
            "a V-shaped placement has several groups of layers on each rank",
        ),
        ((V[0], "parallel.vpp=2", "parallel.placement=circular"), 2, "parallel.placement", "another placement"),
        (
            ("training.schedule=zb-auto", "training.activation_limit=0.1p"),
            3,
            "training.activation_limit",
            "rank 0 has no room for a microbatch",
        ),
    ],
)
def test_the_command_names_what_does_not_go_with_a_schedule(
    changes: tuple[str, ...], code: int, where: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [word for change in changes for word in ("--set", change)]
    assert main(["simulate", "vlm-s", "--json", *sets]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert words in error["message"]
    assert error["where"].split()[-1] == where
    assert error["expected"]


def test_a_schedule_that_does_not_fit_exits_3_and_names_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """GPipe holds the activations of all microbatches, 1F1B of p."""
    assert main(["simulate", "lm-7b", "--json"]) == 0
    capsys.readouterr()
    assert main(["simulate", "lm-7b", "--json", "--set", "training.schedule=gpipe"]) == 3
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    peaks = report["peak_memory_bytes"]
    assert report["fits"] is False
    assert f"does not fit: rank {peaks.index(max(peaks))} needs" in captured.err

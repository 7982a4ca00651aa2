"""Which schedules a job runs by name, and what is said to the others."""

from __future__ import annotations

import pytest

import semu
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
        semu.simulate(load_run("vlm-s", ["training.schedule=chimera"]))
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

"""Schedules that are studied on plain numbers but not executed for a job are refused by name, everywhere."""

from __future__ import annotations

import pytest

import semu
from semu.errors import ConfigError
from semu.runfile import load_run
from semu.schedule import ALL_SCHEDULES, SCHEDULES

NEW = sorted(set(ALL_SCHEDULES) - set(SCHEDULES))


def test_names_of_jobs_are_names_of_schedules() -> None:
    assert set(SCHEDULES) < set(ALL_SCHEDULES)
    for name, generate in SCHEDULES.items():
        shape = ALL_SCHEDULES[name].shape(4, 8)
        assert ALL_SCHEDULES[name](shape).orders == generate(shape).orders


@pytest.mark.parametrize("name", NEW)
def test_a_run_file_that_asks_for_one(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the schedule '{name}' is not executed yet") as caught:
        load_run("vlm-s", [f"training.schedule={name}"])
    assert (caught.value.where, caught.value.got) == ("--set training.schedule", name)
    assert caught.value.expected == "one of 1f1b, gpipe, interleaved"
    assert caught.value.nearest in SCHEDULES


def test_a_checkpoint_asked_for_one() -> None:
    state = semu.prepare(load_run("vlm-s"))
    with pytest.raises(ConfigError, match="the schedule 'zb-v' is not executed yet") as caught:
        state.schedule("zb-v")
    assert caught.value.where == "schedule"
    with pytest.raises(ConfigError, match="did you mean '1f1b'"):
        state.schedule("1f1")

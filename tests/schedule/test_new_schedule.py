"""A new schedule is one file and its line in the registry: everything that runs or lists schedules finds it there."""

from __future__ import annotations

import json

import pytest
from simulation.jobs import gpt, job_of, text_items

import semu
from semu.cli import main
from semu.parallel.config import Parallel
from semu.schedule import ALL_SCHEDULES
from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.registry import REGISTRY
from semu.schedule.rules.alternate import Alternate

TWO_MORE = Alternate("p - r + 1")
"""Two forwards more than 1F1B before the first backward."""
TOY = ScheduleFamily("toy", TWO_MORE, "this file", doc=__doc__, rules=(one_slot,), compared=2, is_tried=True)


def test_a_line_in_the_registry_is_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(REGISTRY, "toy", TOY)
    parallel = Parallel(pp=2)
    job, plain = (job_of(gpt(), text_items(8), parallel, schedule=name) for name in ("toy", "1f1b"))
    found = semu.simulate(job)
    assert found.fits
    assert found.peak_memory_bytes[0] > semu.simulate(plain).peak_memory_bytes[0]
    compared = semu.compare_schedules(plain)
    assert compared.rows[-1].name == "toy"
    assert compared["toy"].estimate.iteration_time_s == found.iteration_time_s
    best = semu.grid(plain, vary={"schedule": None}, exhaustive=True, framework="any")
    times = {row.point.schedule: row.figures.iteration_time_s for row in best.rows}
    assert times["toy"] == found.iteration_time_s
    assert set(times) <= set(ALL_SCHEDULES)
    asked = semu.what_if(plain)
    (answer,) = (one for one in asked.answers if "toy" in str(one.change))
    assert answer.estimate is not None
    assert answer.estimate.iteration_time_s == found.iteration_time_s
    assert main(["list", "schedules", "--json"]) == 0
    row = next(one for one in json.loads(capsys.readouterr().out)["schedules"] if one["name"] == "toy")
    assert row["description"].startswith("A new schedule is one file")
    assert row["is_executed"]

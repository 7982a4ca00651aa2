"""What would help most is what a run with that change gives, and the interval over seeds is that of the runs."""

from __future__ import annotations

import pytest

import semu
from semu.resilience.options import CheckpointOptions
from semu.resilience.report import GoodputReport

RUNS = [
    ("lm-7b", {"cluster": "h800:4x8", "parallel": "dp4-tp2-pp4"}, 2000.0),
    ("vlm-s", {"cluster": "h800:2x8", "parallel": "dp4-tp1-pp4"}, 900.0),
]
SAID = {"save_s": 20.0, "restart_s": 120.0, "load_s": 60.0}
CHANGES = {
    "restarts in half the time": {"restart_s": 60.0},
    "saves in half the time": {"save_s": 10.0},
    "loads in half the time": {"load_s": 30.0},
}


@pytest.mark.parametrize(("name", "where", "mtbf_s"), RUNS)
def test_what_helps_is_what_the_change_gives(name: str, where: dict[str, str], mtbf_s: float) -> None:
    job = semu.load_run(name, **where)

    def goodput(mtbf_s: float = mtbf_s, **changed: float) -> GoodputReport:
        checkpoint = CheckpointOptions(every_s="best", **{**SAID, **changed})
        return semu.goodput(job, failures=mtbf_s, strategies="checkpoint", checkpoint=checkpoint, days=4, seeds=3)

    found = goodput()
    wanted = {change: goodput(**said).best.goodput for change, said in CHANGES.items()}
    wanted["half as many failures"] = goodput(2 * mtbf_s).best.goodput
    best = found.best
    assert {one.change: one.goodput for one in found.helps} == {
        change: value for change, value in wanted.items() if value > best.goodput + 5e-4
    }
    assert len(found.helps) > 1
    assert [one.goodput for one in found.helps] == sorted((one.goodput for one in found.helps), reverse=True)
    low, high = best.interval
    assert low <= best.goodput <= high and low < high

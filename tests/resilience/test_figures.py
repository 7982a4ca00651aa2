"""Figures of long runs by hand: dollars, speeds of templates, the limits of options."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semu.errors import ConfigError, MemoryLimitError
from semu.resilience.accounts import Account
from semu.resilience.machine import Outcome
from semu.resilience.options import CheckpointOptions, FailureOptions, PriceOptions, Resilience
from semu.resilience.report import StrategyResult
from semu.resilience.templates import making


@pytest.mark.parametrize(
    ("make", "name", "least", "most"),
    [
        (Resilience, "days", 1e-9, 36500.0),
        (Resilience, "seeds", 1, 100_000),
        (Resilience, "faults", 0, None),
        (Resilience, "spares", 0, None),
        (Resilience, "reconfigure_s", 0.0, None),
        (FailureOptions, "shape", 0.1, 10.0),
        (FailureOptions, "rack_nodes", 0, None),
        (FailureOptions, "rack_share", 0.0, 1.0),
        (FailureOptions, "notice_s", 0.0, None),
        (CheckpointOptions, "every_s", 1e-9, None),
        (PriceOptions, "gpu_hour_usd", 0.0, None),
    ],
)
def test_limits_of_options_are_taken_and_what_is_beyond_is_not(make: Any, name: str, least: Any, most: Any) -> None:
    for value in (least, most):
        if value is not None:
            assert getattr(make(**{name: value}), name) == value
    step = 1 if isinstance(least, int) else 1e-6
    for value in (least - step, None if most is None else most + step):
        if value is not None:
            with pytest.raises(ConfigError, match=name):
                make(**{name: value})


def test_figures_of_a_strategy_by_hand() -> None:
    """Two runs of ten hours on six GPUs, of which the job needs four: 9,000 and 6,000 iterations of two seconds."""
    spent = dict.fromkeys(Account, 0) | {Account.USEFUL: 3, Account.WAITING: 1}
    outcomes = tuple(
        Outcome(36_000_000_000, 6, spent, count, 3, 2, 1, 40, 0, np.zeros((0, 4), dtype=np.int64))
        for count in (9_000, 6_000)
    )
    one = StrategyResult("restart", "Restart", 3, 2, 2.0, 4, 1000, outcomes)
    assert one.goodputs() == pytest.approx([0.5, 1 / 3])
    assert one.goodput == pytest.approx(5 / 12)
    assert one.gpu_goodput == pytest.approx(5 / 12 * 4 / 6)
    assert one.interval == pytest.approx((1 / 3 + 0.05 / 6, 1 / 3 + 0.95 / 6))
    assert one.tokens_per_s == pytest.approx(7_500 * 1000 / 36_000)
    hours = 1e9 / (7_500 * 1000 / 10)
    assert one.budget(1e9, 2.5) == pytest.approx({"days": hours / 24, "usd": hours * 6 * 2.5})
    assert one.budget(1e9, None) == pytest.approx({"days": hours / 24})
    assert (one.mean("failures"), one.mean("saves")) == (3.0, 40.0)
    assert one.reason is None
    still = replace(one, outcomes=tuple(replace(each, iterations=0) for each in outcomes))
    assert still.budget(1e9, 2.5) == {"days": None, "usd": None}
    assert "waiting" in (still.reason or "")
    assert replace(one, outcomes=()).gpus == 4


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8, 64])
def test_the_speed_of_a_template_is_the_line_through_what_the_engine_says(
    microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def timed(job: Any, modules: Any, nodes: int, stages: Any, count: int) -> Any:
        asked.append(count)
        return SimpleNamespace(alone_s=lambda: 3.0 + 2.0 * count)

    monkeypatch.setattr(making, "time_pipeline", timed)
    stages: Any = ("a", "b", "c")
    speed = making._time(None, np.zeros(3), 2, stages, microbatches)
    assert speed is not None and speed.nodes == 2
    assert [speed.time_s(count) for count in (1, 5, 100)] == pytest.approx([5.0, 13.0, 203.0])
    few, many = asked
    assert 2 <= few < many and many > max(microbatches, len(stages))
    assert few <= max(2, min(microbatches, len(stages)))
    monkeypatch.setattr(making, "time_pipeline", lambda *_: SimpleNamespace(alone_s=lambda: None))
    assert making._time(None, np.zeros(3), 2, stages, microbatches) is None

    def full(*_: Any) -> None:
        raise MemoryLimitError("too full", where="rank 0")

    monkeypatch.setattr(making, "time_pipeline", full)
    assert making._time(None, np.zeros(3), 2, stages, microbatches) is None

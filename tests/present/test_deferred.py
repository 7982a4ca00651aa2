"""``Deferred``: a mapping that is made when it is read, and equal to what it makes."""

from __future__ import annotations

import pickle

import semu
import semu_models
from semu.present.estimate import Deferred


def test_it_is_made_once_when_it_is_read() -> None:
    calls: list[int] = []

    def make() -> dict[str, object]:
        calls.append(0)
        return {"one": 1.0, "two": {"three": 3}}

    mapping = Deferred(make)
    assert calls == []
    assert mapping == {"one": 1.0, "two": {"three": 3}} and {**mapping} == mapping
    assert (len(mapping), list(mapping), repr(mapping)) == (2, ["one", "two"], repr(make()))
    assert pickle.loads(pickle.dumps(mapping)) == mapping
    assert len(calls) == 2


def test_the_breakdown_of_an_estimate_is_that_of_the_report() -> None:
    for model in (semu_models.lm_7b(), semu_models.vlm_s()):
        training = semu.Training(global_batch=16, seq_len=4096)
        batch = semu.workload.vlm_batch(seed=1) if model.name.startswith("vlm") else None
        job = semu.TrainingJob(model, semu.Cluster("h800", 2, 8), semu.Parallel(dp=2, tp=2, pp=4), training, batch)
        found = semu.evaluate(job)
        assert found.breakdown_s == semu.simulate(job).breakdown_s
        assert abs(sum(_seconds(found.breakdown_s)) - found.iteration_time_s) < 1e-9


def _seconds(mapping: object) -> list[float]:
    return [
        second
        for value in dict(mapping).values()  # type: ignore[call-overload]
        for second in (value.values() if isinstance(value, dict) else [value])
    ]

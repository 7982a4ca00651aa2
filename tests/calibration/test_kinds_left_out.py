"""Kinds of runs left out: what they told is forgotten, what others told is not."""

from __future__ import annotations

import math

import pytest
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items

from calibration.kinds_left_out import Prediction, Seen, family_of, left_out, spreads_of
from semu.runfile import load_run


def seen(group: str, device: str, ratio: float, *, forgotten: float = 1.0, causes: tuple[str, ...] = ()) -> Seen:
    """A run that takes ``ratio`` s where 1 s is predicted, and ``forgotten`` s by another device's factors."""
    kinds = {"framework": "torch", "device": device, "family": "text"}
    others = {"device": Prediction(forgotten, {"matmul": 0.1, "structure.experts": 9.0})}
    return Seen(group, kinds, causes, ratio, Prediction(1.0, {"matmul": 0.03, "structure.experts": 9.0}), others)


def test_a_device_left_out_is_predicted_by_other_factors() -> None:
    runs = [seen("a", "h100", 1.0, forgotten=0.8), seen("b", "a100-80g", 1.3, forgotten=1.29)]
    found = {(one.axis, one.kind): one for one in left_out(runs)}
    h100, a100 = found["device", "h100"], found["device", "a100-80g"]
    assert h100.inside == 0 and h100.error == pytest.approx(20.0)
    assert h100.lacks == pytest.approx(math.sqrt(math.log(0.8) ** 2 - 0.01))
    assert a100.inside == 1 and a100.lacks == 0.0
    assert found["framework", "torch"].inside == 1  # as shipped: no other factors are given for it here


def test_spreads_of_causes_come_from_the_other_kinds() -> None:
    runs = [seen("a", "h100", 1.0), *(seen("b", "h800", ratio, causes=("experts",)) for ratio in (0.7, 1.4))]
    assert set(spreads_of(runs)) == {"experts"} and spreads_of(runs[:1]) == {}
    assert {one.kind: one.inside for one in left_out(runs) if one.axis == "device"} == {"h100": 1, "h800": 0}
    known = [*runs, *(seen("c", "b200", ratio, causes=("experts",)) for ratio in (0.6, 1.6))]
    assert {one.kind: one.inside for one in left_out(known) if one.axis == "device"}["h800"] == 2


def test_families_are_what_models_are_made_of() -> None:
    assert family_of(job_of(gpt(4), text_items(4))) == "text"
    assert family_of(job_of(vlm(), vlm_items(4))) not in ("text", "experts")
    assert family_of(load_run("mixtral-8x7b", cluster="h100:1x8", parallel="dp8-ep8")) == "experts"
    assert family_of(load_run("llama3-8b", cluster="h100:1x8", overrides=["model.lora.rank=8"])) == "adapters"

"""Rules of frameworks: each lets one configuration through and refuses another; the page has the same table."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import semu
import semu_models
from semu.nn.model import Model
from semu.searcher.grid.framework import RULES, Framework, framework_rule

PAGE = Path(__file__).parents[3] / "docs" / "grid.md"


def job_of(model: Model, **training: Any) -> semu.TrainingJob:
    options = {"global_batch": 64, "seq_len": 2048, **training}
    return semu.TrainingJob(model, semu.Cluster("h100", 1, 8), semu.Parallel(dp=8), semu.Training(**options))


# tp, pp, vpp, microbatches; llama3-8b: 32 layers, 32 heads, 8 key-value heads; gpt2-xl: 48 layers, 25 heads
CASES: list[tuple[int, Model, dict[str, Any], tuple[int, int, int, int], str | None]] = [
    (0, semu_models.llama3_8b(), {}, (1, 4, 2, 8), None),
    (0, semu_models.llama3_8b(), {}, (1, 3, 1, 9), "32 layers of llm do not divide into pp x vpp = 3 x 1 stages"),
    (0, semu_models.build("gpt2-xl"), {}, (1, 3, 1, 9), None),
    (1, semu_models.llama3_8b(), {}, (1, 4, 2, 12), None),
    (1, semu_models.llama3_8b(), {}, (1, 4, 1, 10), None),
    (1, semu_models.llama3_8b(), {}, (1, 4, 2, 10), "10 microbatches are no multiple of pp = 4"),
    (2, semu_models.llama3_8b(), {"recompute": "full"}, (1, 1, 1, 8), None),
    (2, semu_models.llama3_8b(), {"recompute": "full", "recompute_every": 2}, (1, 1, 1, 8), "recompute_every"),
    (3, semu_models.llama3_8b(), {}, (8, 1, 1, 8), None),
    (3, semu_models.llama3_8b(), {}, (16, 1, 1, 8), "tp = 16 does not divide 8 heads"),
    (3, semu_models.build("gpt2-xl"), {}, (2, 1, 1, 8), "tp = 2 does not divide 25 heads"),
    (4, semu_models.llama3_8b(), {}, (1, 8, 4, 8), None),
    (4, semu_models.llama3_8b(), {}, (1, 8, 5, 8), "40 stages, and 32 layers"),
    (5, semu_models.llama3_8b(), {"recompute": "full", "recompute_every": 2}, (1, 1, 1, 8), None),
    (5, semu_models.llama3_8b(), {"recompute": "full", "recompute_layers": 4}, (1, 1, 1, 8), "recompute_layers"),
]


@pytest.mark.parametrize(("number", "model", "training", "sizes", "said"), CASES)
def test_a_rule(
    number: int, model: Model, training: dict[str, Any], sizes: tuple[int, int, int, int], said: str | None
) -> None:
    job, rule = job_of(model, **training), RULES[number]
    found = rule.misfit(job)(*sizes)
    assert (found is None) == (said is None)
    assert said is None or (found is not None and said in found)
    if said is not None:  # alone or among the others of its framework, and not of another one
        assert framework_rule(rule.framework, job)(*sizes) is not None
    assert framework_rule(Framework.ANY, job)(*sizes) is None


def test_every_rule_is_tried_and_stands_on_the_page() -> None:
    assert {number for number, *_ in CASES} == {*range(len(RULES))}
    assert {number for number, *_, said in CASES if said is not None} == {*range(len(RULES))}
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(("| megatron", "| torchtitan"))] == [
        f"| {rule.framework} | {rule.asks} | {rule.source} |" for rule in RULES
    ]
    settings = {item.name for item in fields(semu.Training)}
    assert {"recompute_every", "recompute_layers"} <= settings

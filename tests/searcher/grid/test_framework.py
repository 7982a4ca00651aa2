"""Rules of frameworks: each lets one configuration through and refuses another; the page has the same table."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from searcher.grid.cases import framework_rule

import semu
import semu_models
from semu.nn.model import Model
from semu.searcher.grid.framework import RULES, TORCH_SCHEDULES, Framework
from semu.searcher.grid.space import Axis, Point, own_value

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "grid.md"


def job_of(model: Model, parallel: dict[str, Any] | None = None, **training: Any) -> semu.TrainingJob:
    options = {"global_batch": 64, "seq_len": 2048, **training}
    return semu.TrainingJob(
        model, semu.Cluster("h100", 1, 8), semu.Parallel(dp=8, **parallel or {}), semu.Training(**options)
    )


def point_of(job: semu.TrainingJob, **values: Any) -> Point:
    return Point(**{axis.value: own_value(axis, job) for axis in Axis} | values)


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
    (7, semu_models.llama3_8b(), {}, (8, 1, 1, 8), None),
    (7, semu_models.llama3_8b(), {}, (16, 1, 1, 8), "tp = 16 does not divide 8 heads"),
    (7, semu_models.build("gpt2-xl"), {}, (2, 1, 1, 8), "tp = 2 does not divide 25 heads"),
    (8, semu_models.llama3_8b(), {}, (1, 8, 4, 8), None),
    (8, semu_models.llama3_8b(), {}, (1, 8, 5, 8), "40 stages, and 32 layers"),
    (9, semu_models.llama3_8b(), {"recompute": "full", "recompute_every": 2}, (1, 1, 1, 8), None),
    (9, semu_models.llama3_8b(), {"recompute": "full", "recompute_layers": 4}, (1, 1, 1, 8), "recompute_layers"),
]


LLAMA, MIXTRAL = semu_models.llama3_8b(), semu_models.build("mixtral-8x7b")
VLM, OMNI = semu_models.build("vlm-7b"), semu_models.build("qwen2.5-omni-7b")
# what the job has, what the point has of the axes
AXES: list[tuple[int, Model, dict[str, Any], dict[str, Any], str | None]] = [
    (3, LLAMA, {}, {"pp": 4, "zero": 1}, None),
    (3, LLAMA, {}, {"pp": 1, "zero": 3}, None),
    (3, LLAMA, {}, {"pp": 4, "zero": 2}, "pp = 4 with ZeRO-2"),
    (3, MIXTRAL, {}, {"pp": 2, "zero": 3}, "pp = 2 with ZeRO-3"),
    (4, LLAMA, {}, {"pp": 4, "vpp": 2, "schedule": "1f1b"}, None),
    (4, MIXTRAL, {}, {"pp": 4, "vpp": 2, "schedule": "interleaved"}, None),
    (4, LLAMA, {}, {"pp": 4, "schedule": "gpipe"}, "no gpipe"),
    (4, MIXTRAL, {}, {"pp": 4, "vpp": 2, "schedule": "zb-v", "placement": "v-shape"}, "no zb-v"),
    (4, LLAMA, {}, {"pp": 4, "vpp": 2, "placement": "v-shape"}, "in turn, not v-shape"),
    (5, LLAMA, {}, {"tp": 16}, None),
    (5, LLAMA, {}, {"tp": 3}, "tp = 3 does not divide 8 heads"),
    (5, semu_models.build("gpt2-xl"), {}, {"tp": 2}, "tp = 2 does not divide 25 heads"),
    (6, MIXTRAL, {}, {"tp": 2}, None),
    (6, MIXTRAL, {"sequence_parallel": False}, {"tp": 2}, "tp = 2 without sequence parallelism"),
    (6, LLAMA, {"sequence_parallel": False}, {"tp": 2}, None),
    (10, LLAMA, {}, {"pp": 4, "zero": 3}, None),
    (10, LLAMA, {}, {"zero": 0}, None),
    (10, LLAMA, {}, {"dp": 1, "tp": 8, "zero": 1}, None),
    (10, LLAMA, {}, {"zero": 1}, "no ZeRO-1"),
    (10, MIXTRAL, {}, {"tp": 2, "zero": 0}, "only without tp"),
    (11, LLAMA, {}, {"pp": 4, "schedule": "gpipe"}, None),
    (11, MIXTRAL, {}, {"pp": 4, "vpp": 2, "schedule": "interleaved-zb"}, None),
    (11, LLAMA, {}, {"pp": 4, "vpp": 2, "schedule": "zb-v", "placement": "v-shape"}, None),
    (11, LLAMA, {}, {"pp": 4, "schedule": "zb-h1"}, "no schedule zb-h1"),
    (11, MIXTRAL, {}, {"pp": 4, "schedule": "interleaved-zb"}, "interleaved-zb with one stage per rank"),
    (11, LLAMA, {}, {"pp": 4, "vpp": 2, "placement": "v-shape"}, "Interleaved1F1B is circular, not v-shape"),
    (12, MIXTRAL, {}, {"ep": 8, "tp": 2}, None),
    (12, MIXTRAL, {"tp": 4, "etp": 1}, {"ep": 8, "tp": 4, "cp": 2}, None),
    (12, MIXTRAL, {"tp": 4, "etp": 1}, {"ep": 2, "tp": 4}, "ep = 2 is no multiple of the 4 ranks"),
    (12, MIXTRAL, {"tp": 4, "etp": 2}, {"ep": 2, "tp": 4}, "etp = 2 is neither 1 nor tp = 4"),
    (13, LLAMA, {"cp_kind": "ring"}, {"cp": 4}, None),
    (13, LLAMA, {"cp_kind": "all_to_all"}, {"cp": 4}, "no all-to-all"),
    (13, LLAMA, {"cp_inner": 2}, {"cp": 4}, "no all-to-all"),
    (13, MIXTRAL, {"cp_kind": "all_to_all"}, {"cp": 1}, None),
    (13, LLAMA, {}, {"cp": 4, "cp_kind": "needed"}, "exchange all keys"),
    (14, LLAMA, {}, {"cp": 2, "cp_balance": "document-zigzag"}, None),
    (14, LLAMA, {}, {"cp": 1, "cp_balance": "lpt"}, None),
    (14, LLAMA, {}, {"cp": 2, "cp_balance": "lpt"}, "context ranks by lpt"),
    (14, LLAMA, {}, {"cp": 2, "cp_balance": "contiguous"}, "context ranks by contiguous"),
    (15, LLAMA, {}, {"attention_split": 0}, None),
    (15, LLAMA, {}, {"attention_split": 4}, "Megatron-LM does not split"),
    (16, VLM, {}, {"pp": 4, "segments": "apart"}, None),
    (16, OMNI, {}, {"pp": 4, "segments": "mixed"}, None),
    (16, VLM, {}, {"pp": 4, "vpp": 2, "segments": "separated"}, "2 modules as segments = separated"),
    (16, OMNI, {}, {"pp": 4, "segments": "apart"}, "3 modules as segments = apart"),
    (17, LLAMA, {}, {"cp": 2, "cp_balance": "snake"}, None),
    (17, LLAMA, {}, {"cp": 2, "cp_balance": "document-zigzag"}, "context ranks by document-zigzag"),
    (18, LLAMA, {}, {"attention_split": 0}, None),
    (18, LLAMA, {}, {"attention_split": 2}, "torchtitan does not split"),
    (19, VLM, {}, {"pp": 4, "vpp": 2, "segments": "separated"}, None),
    (19, OMNI, {}, {"pp": 4, "segments": "apart"}, "segments = apart of 3 modules"),
    (20, LLAMA, {}, {"cp": 4, "cp_kind": "auto"}, "exchange all keys"),
    (20, LLAMA, {}, {"cp": 4, "cp_kind": "all_to_all"}, None),
]


def check(number: int, job: semu.TrainingJob, point: Point, microbatches: int, said: str | None) -> None:
    """A rule alone, among the others of its framework, and not of another one."""
    rule = RULES[number]
    found = rule.misfit(job)(point, microbatches)
    assert (found is None) == (said is None)
    if said is not None:
        assert found is not None and said in found
        assert framework_rule(rule.framework, job)(point, microbatches) is not None
    assert framework_rule(Framework.ANY, job)(point, microbatches) is None


@pytest.mark.parametrize(("number", "model", "training", "sizes", "said"), CASES)
def test_a_rule(
    number: int, model: Model, training: dict[str, Any], sizes: tuple[int, int, int, int], said: str | None
) -> None:
    job, (tp, pp, vpp, microbatches) = job_of(model, **training), sizes
    check(number, job, point_of(job, tp=tp, pp=pp, vpp=vpp), microbatches, said)


@pytest.mark.parametrize(("number", "model", "parallel", "values", "said"), AXES)
def test_a_rule_of_other_axes(
    number: int, model: Model, parallel: dict[str, Any], values: dict[str, Any], said: str | None
) -> None:
    tp = parallel.get("tp", 1)
    job = job_of(model)
    job = replace(job, cluster=semu.Cluster("h100", tp, 8), parallel=semu.Parallel(**{"dp": 8, **parallel}))
    check(number, job, point_of(job, **values), 8, said)


def test_the_schedules_of_torch_are_torchs() -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    for one, several in TORCH_SCHEDULES.values():
        assert one is None or issubclass(schedules.get_schedule_class(one), schedules.PipelineScheduleSingle)
        assert issubclass(schedules.get_schedule_class(several), schedules.PipelineScheduleMulti)


def test_every_rule_is_tried_and_stands_on_the_page() -> None:
    tried = [(case[0], case[-1] is None) for case in (*CASES, *AXES)]
    assert {*tried} == {(number, fits) for number in range(len(RULES)) for fits in (True, False)}
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(("| megatron", "| torchtitan"))] == [
        f"| {rule.framework} | {rule.asks} | {rule.source} |" for rule in RULES
    ]
    settings = {item.name for item in fields(semu.Training)}
    assert {"recompute_every", "recompute_layers"} <= settings

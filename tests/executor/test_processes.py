"""The proof over torch.distributed: processes and gloo, as a user runs it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

from executor.plan_kit import make_plan, modular_shape, random_schedule
from executor.proof import compare
from executor.small_models import SmallModel
from executor.workers import prove

from semu.executor.processes import launch
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.stage_plan import STRATEGIES
from semu.schedule.study import PipelineStudy

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
LONG_S = 180.0
"""Until all processes have started, on a busy machine."""


def test_two_processes_unequal_images_recomputation_offload_and_split_backwards() -> None:
    items = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}
    parts: dict[str, Sequence[int]] = {"vit": (3, 2, 1), "llm": (1, 1, 1)}
    model = SmallModel("vlm", items, {"vit": 4, "llm": 4})
    shape = modular_shape(2, {name: (1, parts[name]) for name in parts}, model.sources)
    variants = [[[word] * 2 for word in STRATEGIES]] * shape.num_chunks
    plan = make_plan(shape, random_schedule(shape, 3, split=True), [2] * 4, items, model.sources, variants)
    compare(plan, model, launch(prove, 2, (plan, model), timeout_s=LONG_S), parts)


def test_batches_matched_by_order_as_nccl_does() -> None:
    model = SmallModel("lm", {"lm": [[1] * 4]}, {"lm": 3})
    shape = modular_shape(3, {"lm": (1, (1,) * 4)}, model.sources)
    plan = make_plan(shape, ALL_SCHEDULES["zb-h1"](shape), [1] * 3, model.items, model.sources)
    compare(plan, model, launch(prove, 3, (plan, model, True), timeout_s=LONG_S))


def test_three_processes_captions_and_clips_cut_differently() -> None:
    items = {"llm": [[3, 4]], "dit": [[3, 4]]}
    parts: dict[str, Sequence[int]] = {"llm": (2, 3), "dit": (3, 2)}
    model = SmallModel("t2v", items, {"llm": 3, "dit": 3}, frozen=("llm",))
    shape = modular_shape(3, {name: (1, parts[name]) for name in parts}, model.sources, ("llm",))
    plan = make_plan(shape, random_schedule(shape, 4, split=False), [1] * 6, items, model.sources)
    compare(plan, model, launch(prove, 3, (plan, model), timeout_s=LONG_S), parts)


def test_two_ranks_of_two_replicas() -> None:
    items = {"vit": [[5, 0], [1, 4]], "llm": [[1, 1], [1, 1]]}
    parts: dict[str, Sequence[int]] = {"vit": (3, 2), "llm": (1, 1)}
    model = SmallModel("vlm", items, {"vit": 4, "llm": 4})
    shape = modular_shape(2, {"vit": (2, parts["vit"]), "llm": (2, parts["llm"])}, model.sources, is_v=True)
    plan = make_plan(shape, ALL_SCHEDULES["greedy"](shape), [1] * 8, items, model.sources)
    compare(plan, model, launch(prove, 4, (plan, model), timeout_s=LONG_S), parts)


def test_an_explored_rule_with_separated_gradients() -> None:
    items = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}
    parts: dict[str, Sequence[int]] = {"vit": (3, 2, 1), "llm": (1, 1, 1)}
    model = SmallModel("vlm", items, {"vit": 4, "llm": 4})
    shape = modular_shape(2, {"vit": (2, parts["vit"]), "llm": (2, parts["llm"])}, model.sources, is_v=True)
    text = "separated inner={priority prefer=alternate forward=depth in-flight=2*p*v} activations=2*p"
    schedule = ALL_SCHEDULES[text].on(PipelineStudy.of(shape))
    assert schedule.splits_backward
    plan = make_plan(shape, schedule, [1] * 8, items, model.sources)
    compare(plan, model, launch(prove, 2, (plan, model), timeout_s=LONG_S), parts)

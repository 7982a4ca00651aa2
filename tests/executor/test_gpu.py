"""The proof on a GPU: several ranks' stages on one device over threads, with CUDA events for the timeline."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from executor.plan_kit import make_plan, modular_shape, random_schedule
from executor.small_models import SmallModel, unpipelined

from semu.executor import FakeWorld, Runner, run_threads, split_model, timeline_of
from semu.executor.demo.model import gradients_of
from semu.schedule.stage_plan import STRATEGIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("word", STRATEGIES)
@pytest.mark.parametrize("is_eager", [False, True])
def test_gradients_on_a_gpu(word: str, is_eager: bool) -> None:
    items = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}
    parts = {"vit": (3, 2, 1), "llm": (1, 1, 1)}
    model = SmallModel("vlm", items, {"vit": 2, "llm": 2})
    shape = modular_shape(2, {name: (1, parts[name]) for name in parts}, model.sources)
    plan = make_plan(
        shape, random_schedule(shape, 1, split=True), [1] * 4, items, model.sources, [[[word]]] * shape.num_chunks
    )

    def work(mine: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            part = split_model(plan, model.modules(0), mine.rank, device="cuda")
            torch.cuda.current_stream().synchronize()
            result = Runner(part, mine, is_recording=True, timeout_s=60).run(plan)
            gradients = {name: one.cpu() for name, one in gradients_of(plan, part.chunks).items()}
        return result.loss(), gradients, result.recording

    found = run_threads(FakeWorld(2, is_eager=is_eager, device="cuda"), work)
    reference = unpipelined(model, 1, parts)
    assert abs(sum(loss for loss, _, _ in found) - reference["loss"]) < 1e-9 * abs(reference["loss"])
    for _, gradients, _ in found:
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, reference["gradients"][name], rtol=1e-9, atol=1e-11)
    assert timeline_of(plan, [recording for _, _, recording in found]).makespan_s > 0

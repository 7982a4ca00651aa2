"""Memory of the steps as torch allocates it, on tensors without values, against the simulation: needs torch, no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is the executor extra")
trackers = pytest.importorskip("torch.distributed._tools.mem_tracker", reason="this torch has no memory tracker")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from calibration.compare import simulated  # noqa: E402
from calibration.step import torch_model  # noqa: E402
from calibration.steps import LAYER_1B, LAYER_8B, MODEL_500M, StepCase  # noqa: E402


class FusedNorm(torch.autograd.Function):
    """What torch's fused RMS norm on CUDA saves: its input and a number per row; no values are computed here."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight, torch.empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


@contextmanager
def bf16_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def torch_bytes(case: StepCase) -> tuple[int, int]:
    """Allocated between steps, and at most, without the given inputs [bytes]."""
    with FakeTensorMode():
        with bf16_by_default():
            model = torch_model.Decoder(case)
        optimizer = torch.optim.Adam(model.parameters(), foreach=True)
        shape = (case.micro_batch, case.seq_len)
        if case.vocab:
            data, gradient = [torch.randint(case.vocab, shape), torch.randint(case.vocab, shape)], None
        else:
            data = [torch.randn(*shape, case.hidden, dtype=torch.bfloat16)]
            gradient = torch.randn_like(data[0])
        given = [tensor for tensor in (*data, gradient) if tensor is not None]
        given_bytes = sum(tensor.untyped_storage().nbytes() for tensor in given)
        tracker = trackers.MemTracker()
        tracker.track_external(model, optimizer, *given)
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                result = model(*data)
                result.backward(gradient)
                del result
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        (now,) = tracker.get_tracker_snapshot("current").values()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        return now["Total"] - given_bytes, peak["Total"] - given_bytes


@pytest.mark.parametrize(
    "case",
    [MODEL_500M, replace(MODEL_500M, recompute="full"), LAYER_1B, LAYER_8B],
    ids=["model", "model recomputed", "layer of 1B", "layer of 8B"],
)
def test_simulated_memory_is_what_torch_allocates(case: StepCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_model.RMSNorm, "forward", lambda norm, x: FusedNorm.apply(x, norm.weight))
    static, peak = torch_bytes(case)
    found = simulated(case, "h100")
    assert found["static"] == pytest.approx(static, rel=0.005)  # tables of sines and cosines
    assert found["peak allocated"] == pytest.approx(peak, rel=0.012)

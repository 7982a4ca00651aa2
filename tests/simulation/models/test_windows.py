"""Windowed attention through ``semu.simulate``: against the slow reference, and FLOP by hand."""

from __future__ import annotations

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import Distance, job_of, text_items, vlm_items

from semu.job import TrainingJob
from semu.nn import (
    InputSpec,
    Linear,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    SelfAttention,
    Sequential,
    Tensor,
    TransformerLayer,
    Window,
)
from semu.nn import functional as F
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.simulation import simulate
from semu.workload import Microbatch
from semu_models.text.decoder import Decoder, decoder_model

HIDDEN, HEADS, FFN, VOCAB = 64, 4, 96, 128


def layer(window: Window | None, *, causal: bool = True, sinks: bool = False) -> TransformerLayer:
    attention = SelfAttention(HIDDEN, HEADS, causal=causal, bias=False, window=window, sinks=sinks)
    return TransformerLayer(HIDDEN, FFN, HEADS, bias=False, attention=attention)


def decoder(*windows: Window | None, sinks: bool = False) -> Model:
    return decoder_model("windows", Decoder(len(windows), HIDDEN, VOCAB, lambda i: layer(windows[i], sinks=sinks)))


class Patches(Module):
    """Patches [tokens, 48] -> [tokens, hidden], in shards under sequence parallelism."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = Linear(48, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        return F.shard_tokens(self.projection(x))


def encoder(*windows: Window | None) -> Model:
    """Patches -> layers that see both ways -> squared error."""
    blocks = {"embedding": Patches(), **{f"layers.{i}": layer(w, causal=False) for i, w in enumerate(windows)}}
    body = Sequential({**blocks, "head": Distance(HIDDEN)})
    return Model("encoder", [ModalityModule("vit", ModalityRole.BACKBONE, body, (InputSpec("vision", 48),))])


TEXT = (Window.sliding(64), None, Window.chunked(50), Window.sliding(100))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("attention", ["fused", "unfused"])
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize(("tp", "pp", "dp"), [(1, 1, 1), (2, 2, 1), (2, 1, 2), (1, 3, 2)])
def test_text(tp: int, pp: int, dp: int, recompute: str, attention: str) -> None:
    parallel = Parallel(dp=dp, tp=tp, pp=pp)
    model = decoder(*TEXT, sinks=True)
    assert_tails_equal(job_of(model, text_items(3 * dp), parallel, recompute=recompute, attention=attention))


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2)])
def test_vision(tp: int, pp: int) -> None:
    model = encoder(Window.chunked(5), None, Window.sliding(3))
    assert_tails_equal(job_of(model, vlm_items(4, empty=[1]), Parallel(tp=tp, pp=pp)))


@pytest.mark.parametrize("own", [ModuleParallel(tp=1), ModuleParallel(tp=2)])
def test_items_spread_over_groups_of_ranks(own: ModuleParallel) -> None:
    model = encoder(Window.chunked(5), None)
    assert_tails_equal(job_of(model, vlm_items(4), Parallel(tp=4, modules={"vit": own})))


def test_windows_beside_a_module_with_context_parallelism() -> None:
    model = encoder(Window.chunked(5), None)
    assert_tails_equal(job_of(model, vlm_items(2), Parallel(tp=2, cp=2, modules={"vit": ModuleParallel(cp=1)})))


def model_flop(job: TrainingJob) -> float:
    """Of one iteration, all GPUs."""
    report = simulate(job)
    return report.model_tflop_per_s_per_gpu * 1e12 * report.iteration_time_s * job.parallel.num_gpus


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_model_flop_by_hand(attention: str) -> None:
    lengths = [40, 300, 1000]
    items = [Microbatch({"text": lengths}, 1)] * 2
    windows = (Window.sliding(128), Window.chunked(256), None)
    found = model_flop(job_of(decoder(*windows), items, Parallel(tp=2, pp=3), attention=attention))
    inside = [
        40**2 + (2 * 300 - 128) * 128 + (2 * 1000 - 128) * 128,
        40**2 + 256**2 + 44**2 + 3 * 256**2 + 232**2,
        40**2 + 300**2 + 1000**2,
    ]
    weights = 3 * (4 * HIDDEN**2 + 2 * HIDDEN * FFN) + HIDDEN * VOCAB
    tokens = sum(lengths)
    expected = 2 * 3 * (2 * tokens * weights + sum(2 * 2 * pairs * HIDDEN // 2 for pairs in inside))
    assert found == pytest.approx(expected, rel=1e-9)


def test_equal_sums_with_different_windows_are_two_shapes() -> None:
    """Lengths with one sum and one sum of squares, of which a window leaves different parts."""
    first, second = (100, 500, 600), (200, 300, 700)
    assert sum(first) == sum(second) and sum(n * n for n in first) == sum(n * n for n in second)
    mixed = [Microbatch({"text": lengths}, 1) for lengths in (first, second)]
    both = job_of(decoder(Window.sliding(150), None), mixed)
    assert_tails_equal(both)
    own = [simulate(job_of(decoder(Window.sliding(150), None), [item])).makespan_s for item in mixed]
    assert own[0] != own[1]
    assert simulate(both).makespan_s == sum(own)


def test_a_window_longer_than_all_sequences_changes_nothing() -> None:
    items = text_items(3)
    windowed, plain = (simulate(job_of(decoder(w, w), items, Parallel(pp=2))) for w in (Window.sliding(400), None))
    assert windowed.iteration_time_s == plain.iteration_time_s
    assert windowed.peak_memory_bytes == plain.peak_memory_bytes
    assert windowed.mfu == plain.mfu

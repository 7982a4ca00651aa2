"""What PyTorch holds beside Megatron-LM: gathered inputs of column-split linears, and the buckets of DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import semu
from semu.job import Training, TrainingJob
from semu.parallel.config import Parallel
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

LAYERS, HIDDEN, SEQ, TP = 4, 256, 512, 4
MODELS: dict[str, Callable[[], Any]] = {
    "gpt": lambda: GPT(GPTConfig(layers=LAYERS, hidden=HIDDEN, heads=8, vocab=1024, positions=SEQ)),
    "llama": lambda: Llama(LlamaConfig(layers=LAYERS, hidden=HIDDEN, ffn=512, heads=8, kv_heads=4, vocab=1024)),
}


def run(name: str, parallel: dict[str, Any], **options: Any) -> semu.Report:
    training = {"micro_batch": 2, "global_batch": 16, "seq_len": SEQ, "software": "torch", **options}
    gpus = parallel.get("dp", 1) * parallel.get("tp", 1)
    cluster = semu.Cluster("h100", nodes=1, gpus_per_node=gpus)
    return semu.simulate(TrainingJob(MODELS[name](), cluster, Parallel(**parallel), Training(**training)))


def kept(report: semu.Report) -> int:
    """What the first rank holds at its fullest beside what it always holds [bytes]."""
    return report.peak_memory_bytes[0] - report.static_memory_bytes[0]


@pytest.mark.parametrize("name", MODELS)
def test_kept_inputs_are_two_whole_ones_a_layer(name: str) -> None:
    """Inputs of the attention's and of the MLP's first products, 2 bytes an element, whole instead of 1 / tp: at the
    peak, in the head, all layers' are there; the head's own is read again at once."""
    split = {"dp": 2, "tp": TP, "sequence_parallel": True}
    again, whole = (run(name, split, gathered_inputs=word) for word in ("again", "kept"))
    each = 2 * 2 * SEQ * HIDDEN
    assert kept(whole) - kept(again) == pytest.approx(2 * LAYERS * each, abs=2 * each)
    assert kept(run(name, split)) == kept(whole)
    assert kept(run(name, split, software="megatron")) == kept(
        run(name, split, software="megatron", gathered_inputs="again")
    )


@pytest.mark.parametrize("name", MODELS)
def test_kept_inputs_save_a_gather(name: str) -> None:
    split = {"dp": 2, "tp": TP, "sequence_parallel": True}
    again, whole = (run(name, split, gathered_inputs=word) for word in ("again", "kept"))
    assert whole.iteration_time_s < again.iteration_time_s


@pytest.mark.parametrize("options", [{"dp": 2, "tp": TP, "sequence_parallel": False}, {"dp": 8}])
def test_nothing_is_gathered_without_sequence_parallelism(options: dict[str, Any]) -> None:
    again, whole = (run("llama", options, gathered_inputs=word) for word in ("again", "kept"))
    assert (again.peak_memory_bytes, again.iteration_time_s) == (whole.peak_memory_bytes, whole.iteration_time_s)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("parallel", "copies"), [({"dp": 8}, 1), ({"dp": 8, "zero": 1}, 1), ({"dp": 8, "zero": 2}, 0)])
def test_gradients_lie_in_buckets_once_more(name: str, parallel: dict[str, Any], copies: int) -> None:
    """PyTorch, ``gradient_as_bucket_view``: without it the buckets take as much as all gradients of the parameters,
    which are fp32 under autocast."""
    count = MODELS[name]().num_parameters(trainable_only=True)
    for options, size in (({}, 2), ({"autocast": "fp32_norms"}, 4)):
        held, view = run(name, parallel, **options), run(name, parallel, gradient_as_bucket_view=True, **options)
        assert held.static_memory_bytes[0] - view.static_memory_bytes[0] == copies * size * count
        assert held.iteration_time_s == view.iteration_time_s


def test_one_replica_has_no_buckets() -> None:
    one = {"dp": 1, "tp": TP}
    assert run("llama", one).static_memory_bytes == run("llama", one, gradient_as_bucket_view=True).static_memory_bytes

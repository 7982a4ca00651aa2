"""Encoders and multimodal models through ``semu.simulate``: against the slow reference, and FLOP by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import job_of, overlap
from simulation.multimodal_jobs import KINDS, items_of, model_of

from semu.errors import ConfigError
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu.simulation import simulate

SIZES = [(2, 2, 1, True), (1, 1, 1, False), (2, 1, 2, False), (1, 3, 1, False), (4, 2, 1, True)]
"""Tensor- and pipeline-parallel ranks, replicas, sequence parallelism."""
TOWERS = ("vit", "clip", "siglip", "whisper")
"""No text without items."""


def some(*first: str) -> list[object]:
    """Every family; those that are not named only where slow tests are asked for."""
    return [kind if kind in first else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(kind, size, marks=[] if not number or kind in ("qwen2.5-vl", "omni") else pytest.mark.slow)
        for kind in KINDS
        for number, size in enumerate(SIZES)
    ],
)
def test_tensor_and_pipeline_parallelism(kind: str, size: tuple[int, int, int, bool]) -> None:
    tp, pp, dp, sequence_parallel = size
    parallel = Parallel(dp=dp, tp=tp, pp=pp, sequence_parallel=sequence_parallel)
    items = items_of(kind, 3 * dp, empty=[] if kind in TOWERS else [1])
    assert_tails_equal(job_of(model_of(kind), items, parallel))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", some("siglip", "internvl", "qwen2-audio", "whisper"))
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputation(kind: str, recompute: str) -> None:
    job = job_of(
        model_of(kind),
        items_of(kind, 3, seed=2),
        Parallel(tp=2, pp=2),
        recompute=recompute,
        overlap=overlap(tensor=True, pipeline=True),
        schedule="gpipe",
    )
    assert_tails_equal(job)


@pytest.mark.parametrize("kind", ["qwen2.5-vl", "omni", "whisper"])
def test_attention_in_kernels_of_its_own(kind: str) -> None:
    assert_tails_equal(job_of(model_of(kind), items_of(kind, 2), Parallel(tp=2), attention="unfused"))


STRATEGIES: dict[str, tuple[Parallel, dict[str, object]]] = {
    "fsdp": (Parallel(dp=2, tp=2, zero=3), {}),
    "zero 2": (Parallel(dp=2, zero=2), {}),
    "virtual stages": (Parallel(tp=2, pp=2, vpp=2), {}),
    "offload": (Parallel(tp=2), {"offload": ["activations", "optimizer"]}),
    "groups": (Parallel(tp=2), {"recompute": "full", "recompute_layers": 2, "recompute_method": "uniform"}),
    "fp8": (Parallel(pp=2), {"precision": "fp8"}),
    "some products kept": (Parallel(), {"recompute": "full", "recompute_policy": "every_second_matmul"}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", some("llava", "omni"))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(kind: str, strategy: str) -> None:
    parallel, options = STRATEGIES[strategy]
    assert_tails_equal(job_of(model_of(kind), items_of(kind, 4 * parallel.dp, seed=7), parallel, **options))


FROZEN = {
    "llava": [
        ["encoder"],
        ["vision.embedding", "vision.layers"],
        ["llm"],
        ["vision.embedding", "vision.layers", "llm"],
    ],
    "qwen2.5-vl": [["encoder"], ["vision.layers"], ["llm"]],
    "internvl": [["encoder"], ["llm"]],
    "qwen2-audio": [["encoder"], ["llm"]],
    "omni": [["encoder"], ["audio"], ["vision.embedding", "audio.layers"], ["llm"]],
    "whisper": [["audio"], ["decoder.layers", "decoder.head"], ["decoder.layers.0"]],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "frozen"), [(kind, paths) for kind, lists in FROZEN.items() for paths in lists])
def test_frozen_parts(kind: str, frozen: list[str]) -> None:
    model = model_of(kind).freeze(frozen)
    assert_tails_equal(
        job_of(model, items_of(kind, 3, seed=4, empty=[] if kind == "whisper" else [0]), Parallel(pp=2, tp=2))
    )


def test_a_frozen_embedding_that_sound_passes_by() -> None:
    """Its stage would have nothing to do in the backward pass but to hand the gradient of the sound on."""
    model = model_of("whisper").freeze(["decoder"])
    assert_tails_equal(job_of(model, items_of("whisper", 3), Parallel(tp=2)))
    with pytest.raises(ConfigError, match="only hands gradients on") as caught:
        simulate(job_of(model, items_of("whisper", 3), Parallel(pp=2)))
    assert caught.value.where == "parallel.pp"


def test_a_role_stands_for_all_its_modules() -> None:
    model = model_of("omni").freeze(["encoder"])
    trained = {path.split(".")[0] for path, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"llm"}


OWN = {
    "llava": {"vision": ModuleParallel(tp=1)},
    "qwen2-vl": {"vision": ModuleParallel(tp=2)},
    "qwen2.5-vl": {"vision": ModuleParallel(tp=1)},
    "internvl": {"vision": ModuleParallel(tp=1)},
    "qwen2-audio": {"audio": ModuleParallel(tp=1)},
    "omni": {"vision": ModuleParallel(tp=1), "audio": ModuleParallel(tp=2)},
    "whisper": {"audio": ModuleParallel(tp=1)},
}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize(
    ("tp", "pp", "sp"),
    [(4, 2, True), pytest.param(4, 1, True, marks=pytest.mark.slow), pytest.param(2, 2, False, marks=pytest.mark.slow)],
)
def test_a_parallelism_per_module(kind: str, tp: int, pp: int, sp: bool) -> None:
    own = {name: replace(sizes, tp=min(sizes.tp or 1, tp)) for name, sizes in OWN[kind].items()}
    parallel = Parallel(tp=tp, pp=pp, sequence_parallel=sp, modules=own)
    assert_tails_equal(job_of(model_of(kind), items_of(kind, 3, seed=1), parallel))


@pytest.mark.parametrize("kind", ["vit", "siglip", "llava", "qwen2-vl", "internvl", "qwen2-audio", "whisper"])
@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_context_parallelism(kind: str, tp: int) -> None:
    """Where no attention has a window."""
    assert_tails_equal(job_of(model_of(kind), items_of(kind, 2), Parallel(tp=tp, cp=2)))

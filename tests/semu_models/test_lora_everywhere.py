"""Adapters on every linear layer of every named model: counted, traced, and every one of them gets its gradient."""

from __future__ import annotations

import pytest

import semu_models
from semu.nn import LoRA, add_lora
from tests.semu_models.chain import distinct, trace_model

SOME = ("bert-base", "clip-vit-b-32", "flux-12b", "llama3-8b", "mixtral-8x7b", "movie-gen-30b", "vlm-s", "t2v-s")


def check(name: str, tp: int) -> None:
    model = semu_models.build(name)
    before = model.num_parameters()
    add_lora(model, LoRA(4))
    trained = model.num_parameters(trainable_only=True)
    assert 0 < trained == model.num_parameters() - before
    for link in distinct(trace_model(model, tp=tp)):
        link.block.graph.lint()
        written = {tensor for operator in link.backward for tensor in operator.outputs}
        for use in link.block.parameters:
            assert (use.gradient is not None) is ("lora_" in use.path)
            assert use.gradient is None or use.gradient in written


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", SOME)
def test_some_models(name: str, tp: int) -> None:
    if not (tp > 1 and semu_models.MODELS[name].family is semu_models.Family.MIXTRAL):  # its experts are split by tp
        check(name, tp)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(semu_models.MODELS) - set(SOME)))
def test_all_models(name: str) -> None:
    check(name, 1)

"""Models with two streams or two towers, and BERT: every block traces under the shardings that its sizes allow."""

from __future__ import annotations

import pytest

import semu_models
from semu.graph.operator import Phase
from semu.nn import ModalityRole
from tests.semu_models.chain import distinct, trace_model

TWINS = {
    "movie-gen-30b": 4,
    "step-video-30b": 8,
    "sd3-8b": 2,
    "flux-12b": 8,
    "hunyuan-video-13b": 4,
    "bert-base": 2,
    "bert-large": 2,
    "clip-vit-b-32": 4,
    "clip-vit-l-14": 4,
    "siglip-so400m-dual": 8,
}
"""Name -> a tensor-parallel size that divides its heads, inner widths and token table."""


@pytest.mark.parametrize("name", TWINS)
def test_named(name: str) -> None:
    function = getattr(semu_models, name.replace("-", "_"))
    assert semu_models.MODELS[name].builder is function
    roles = [module.role for module in function().modules]
    if semu_models.MODELS[name].family is semu_models.Family.CLIP:
        assert roles == [ModalityRole.ENCODER, ModalityRole.ENCODER, ModalityRole.BACKBONE]
    else:
        assert roles == [ModalityRole.BACKBONE]


@pytest.mark.parametrize(("name", "tp"), [*((name, 1) for name in TWINS), *TWINS.items()])
def test_blocks_trace_and_lint(name: str, tp: int) -> None:
    model = semu_models.build(name)
    for sequence_parallel, full_recompute in ((True, True), (False, False)):
        links = trace_model(model, tp=tp, sequence_parallel=sequence_parallel, full_recompute=full_recompute)
        for link in distinct(links):
            link.block.graph.lint()
            written = {tensor for operator in link.backward for tensor in operator.outputs}
            assert all(use.gradient in written for use in link.block.parameters)
            assert all(operator.phase is Phase.FORWARD for operator in link.forward)
            assert all(operator.phase.is_backward for operator in link.backward)
        uses = [use for link in links for use in link.block.parameters]
        tied = 0 if "bert" not in name else model.modules[0].body[0].tokens.weight.numel  # type: ignore[index]
        assert sum(use.parameter.numel for use in uses) - tied == model.num_parameters()
        assert any(use.is_sharded for use in uses) is (tp > 1)
        assert links[-1].block.output_specs[0].shape == ()

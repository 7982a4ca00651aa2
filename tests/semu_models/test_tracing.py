"""Every block of every model traces forward and backward under every sharding that its heads allow."""

from __future__ import annotations

from itertools import pairwise

import pytest

import semu_models
from semu.errors import GraphError
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn import Sequences
from semu.nn.trace.block import CarrySpec, trace_block
from semu.nn.trace.options import TraceOptions
from semu_models.vision.vit import ViT, ViTConfig
from tests.semu_models.chain import Link, distinct, total, trace_model
from tests.semu_models.names import DECODERS, PAPER

SMALL_DIT = ("dit-5b", "t2v-s")
"""28 heads: cannot be split eight ways (DIP trains it with tp = 4)."""
FEW_KEYS = ("qwen3-30b-a3b", "qwen3-235b-a22b", "qwen2-57b-a14b")
"""4 key/value heads."""
NAMES = (*PAPER, *DECODERS)
CASES = [
    (name, tp)
    for name in NAMES
    for tp in ((1, 2, 4, 8) if name in PAPER else (1, 4))
    if not (name in (*SMALL_DIT, *FEW_KEYS) and tp == 8)
]
TINY_VIT = ViTConfig(layers=1, hidden=32, ffn=64, heads=2, image_size=56, patch_size=14, merge=2)


def check_gradients(links: list[Link]) -> None:
    """Every parameter of every block gets its gradient, and every gradient that a block wants upstream is made."""
    for link in distinct(links):
        written = {tensor for operator in link.backward for tensor in operator.outputs}
        assert all(use.gradient in written for use in link.block.parameters)
        assert all(operator.phase is Phase.FORWARD for operator in link.forward)
        assert all(operator.phase.is_backward for operator in link.backward)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "tp"), CASES)
def test_blocks_trace_and_lint(name: str, tp: int) -> None:
    model = semu_models.build(name)
    for sequence_parallel in (True, False):
        for full_recompute in (True, False):
            links = trace_model(model, tp=tp, sequence_parallel=sequence_parallel, full_recompute=full_recompute)
            for link in distinct(links):
                link.block.graph.lint()
            check_gradients(links)
            held = {id(use.parameter): use for link in links for use in link.block.parameters}
            assert any(use.is_sharded for use in held.values()) is (tp > 1)
            again = any(op.phase is Phase.RECOMPUTE for link in distinct(links) for op in link.backward)
            assert again is full_recompute
            assert links[-1].block.output_specs[0].shape == ()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "tp"), CASES)
def test_all_parameters_are_there_and_split_evenly(name: str, tp: int) -> None:
    model = semu_models.build(name)
    whole = {path: parameter.numel for path, parameter in model.named_parameters()}
    counted = 0
    for link in trace_model(model, tp=tp):
        for use in link.block.parameters:
            assert use.numel * (tp if use.is_sharded else 1) == use.parameter.numel
            counted += use.parameter.numel if f"{link.path}.{use.path}" in whole else 0
    assert counted == model.num_parameters()


@pytest.mark.parametrize("name", ["vlm-l", "vlm-xl"])
def test_hardly_anything_is_held_by_all_ranks_alike(name: str) -> None:
    """Of what one of eight ranks holds; an adapter that is not split would make it 6 to 7 %."""
    uses = [use for link in trace_model(semu_models.build(name), tp=8) for use in link.block.parameters]
    replicated = sum(use.numel for use in uses if not use.is_sharded)
    assert 0 < replicated < 0.01 * sum(use.numel for use in uses)


@pytest.mark.parametrize("name", ["vlm-m", "t2v-l", "vit-22b", "dit-30b"])
def test_tokens_are_sharded_between_blocks_and_conditions_are_not(name: str) -> None:
    for link in trace_model(semu_models.build(name), tp=4)[:-1]:
        for spec in link.block.output_specs:
            if spec.shape == () or link.path.endswith("head"):
                continue
            assert spec.shards == ((4, 1) if spec.sequences is not None else (1, 1))
    for link in trace_model(semu_models.build(name), tp=4, sequence_parallel=False)[:-1]:
        assert all(set(spec.shards) <= {1} for spec in link.block.output_specs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_block_sends_back_is_what_the_block_before_waits_for(name: str) -> None:
    links = trace_model(semu_models.build(name), tp=2)
    for before, after in pairwise(links):
        if before.path.split(".")[0] != after.path.split(".")[0]:
            continue  # another modality module
        sent = [gradient is not None for gradient in after.block.input_gradients]
        awaited = [gradient is not None for gradient in before.block.output_gradients]
        if after.path == "dit.head":  # caption and timestep end here unread
            assert (sent, awaited) == ([True, False, False], [True, True, True])
        else:
            assert sent == awaited


@pytest.mark.parametrize("name", SMALL_DIT)
def test_heads_that_do_not_divide_are_refused(name: str) -> None:
    with pytest.raises(GraphError, match="28 heads cannot be split") as caught:
        trace_model(semu_models.build(name), tp=8)
    assert caught.value.nearest == 7


@pytest.mark.parametrize(("name", "tp", "what"), [("gpt2", 2, "50257"), ("gemma3-1b", 8, "4 heads")])
def test_what_ranks_cannot_share_is_refused(name: str, tp: int, what: str) -> None:
    """A vocabulary that is not padded, fewer query heads than ranks."""
    with pytest.raises(GraphError, match=what) as caught:
        trace_model(semu_models.build(name), tp=tp)
    assert caught.value.nearest == {2: 1, 8: 4}[tp]


def test_only_language_models_are_causal() -> None:
    for link in distinct(trace_model(semu_models.vlm_s())):
        for operator in link.forward:
            if operator.kind is OpKind.ATTENTION_FORWARD:
                assert (operator.causal_flop == operator.flop) is link.path.startswith("llm")


def test_cross_attention_pairs_each_clip_with_its_caption() -> None:
    layer = next(link for link in trace_model(semu_models.t2v_s()) if link.path == "dit.layers.0")
    own, cross = (op.flop for op in layer.forward if op.kind is OpKind.ATTENTION_FORWARD)
    columns = {"video.pairs": 100**2 + 50**2, "video*text.pairs": 100 * 7 + 50 * 9}
    assert total([own], columns) == 4 * 3584 * (100**2 + 50**2)
    assert total([cross], columns) == 4 * 3584 * (100 * 7 + 50 * 9)


def test_tied_embeddings_are_one_parameter_with_two_places() -> None:
    links = trace_model(semu_models.gpt3_175b())
    tables = [use.parameter for link in (links[0], links[-1]) for use in link.block.parameters if use.numel > 1e8]
    assert len(tables) == 2
    assert tables[0] is tables[1]


@pytest.mark.parametrize("packed", [Sequences.uniform(3, 16, stream="vision"), None], ids=("three images", "one image"))
def test_patches_merge_where_the_packing_is_known(packed: Sequences | None) -> None:
    adapter = list(ViT(TINY_VIT, 24))[-1]
    tokens = 48 if packed is not None else 16
    spec = CarrySpec((tokens, 32), (1, 1), DType.BF16, False, packed)
    (merged,) = trace_block(adapter, [spec], TraceOptions()).output_specs
    count = tokens // 16
    assert merged.shape == (4 * count, 24)
    assert merged.sequences == Sequences("vision_tokens", 4 * count, 16 * count, count, 4)


def test_patches_that_do_not_merge_are_refused() -> None:
    adapter = list(ViT(TINY_VIT, 24))[-1]
    spec = CarrySpec((18, 32), (1, 1), DType.BF16, False, Sequences.uniform(1, 18, stream="vision"))
    with pytest.raises(GraphError, match="an image cannot be split 4 ways"):
        trace_block(adapter, [spec], TraceOptions())

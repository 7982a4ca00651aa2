"""Frozen parts cost what Cornstarch's equations 3.1 to 3.3 say, by autograd alone.

With f = frozen and p = something trainable lies upstream, a layer's backward is B_w (weight gradients) unless f, plus
B_d (input gradients) where p. Counted here in FLOP of matrix products, where B_w = B_d = the forward's.
"""

from __future__ import annotations

import pytest

import semu_models
from semu.errors import ConfigError
from semu.graph.operator import OpKind, Phase
from semu.nn import Model
from tests.semu_models.chain import Link, total, trace_model

COLUMNS = {
    f"{stream}.{what}": size
    for stream in ("text", "vision", "vision_tokens", "video")
    for what, size in (("shard", 64), ("pairs", 4096), ("sequences", 1))
} | {"video*text.pairs": 4096}


def products(link: Link, phase: Phase) -> int:
    operators = link.block.graph.operators
    return total([op.flop for op in operators if op.kind is OpKind.MATMUL and op.phase is phase], COLUMNS)


def backward_share(link: Link) -> tuple[float, float]:
    """B_d and B_w over the forward."""
    forward = products(link, Phase.FORWARD)
    return products(link, Phase.INPUT_GRADIENT) / forward, products(link, Phase.WEIGHT_GRADIENT) / forward


def by_path(model: Model, *, full_recompute: bool = False) -> dict[str, Link]:
    return {link.path: link for link in trace_model(model, full_recompute=full_recompute)}


def writes_gradients(link: Link) -> bool:
    return any(use.gradient is not None for use in link.block.parameters)


def test_trainable_layers_cost_twice_their_forward() -> None:
    links = by_path(semu_models.vlm_s())
    for path in ("vit.layers.0", "vit.layers.62", "vit.adapter", "llm.layers.0", "llm.layers.31", "llm.head"):
        assert backward_share(links[path]) == (1, 1)
    assert backward_share(links["vit.embedding"]) == (0, 1)


@pytest.mark.parametrize("full_recompute", [True, False])
def test_a_frozen_encoder_has_no_backward(full_recompute: bool) -> None:
    links = by_path(semu_models.vlm_s().freeze(["encoder"]), full_recompute=full_recompute)
    for path, link in links.items():
        if path.startswith("vit."):
            assert link.backward == []
            assert not writes_gradients(link)
    assert links["llm.embedding"].block.input_gradients == (None, None)
    assert backward_share(links["llm.layers.0"]) == (1, 1)


@pytest.mark.parametrize("full_recompute", [True, False])
def test_a_frozen_backbone_behind_a_trainable_encoder_passes_input_gradients_on(full_recompute: bool) -> None:
    links = by_path(semu_models.vlm_m().freeze(["llm"]), full_recompute=full_recompute)
    for path, link in links.items():
        if path.startswith("llm."):
            assert {op.phase for op in link.backward} <= {Phase.INPUT_GRADIENT, Phase.RECOMPUTE}
            assert not writes_gradients(link)
            if path != "llm.embedding":
                assert backward_share(link) == (1, 0)
    ids, images = links["llm.embedding"].block.input_gradients
    assert ids is None
    assert images is not None
    assert backward_share(links["vit.layers.5"]) == (1, 1)


def test_only_the_adapter_trains() -> None:
    model = semu_models.vlm_s()
    encoder = [path for path, _ in model.modules[0].blocks() if path != "vit.adapter"]
    links = by_path(model.freeze(["vit.embedding", "vit.layers", "llm"]))
    assert all(links[path].backward == [] for path in encoder)
    assert backward_share(links["vit.adapter"]) == (1, 1)  # its norm trains upstream of its projection
    assert links["vit.adapter"].block.input_gradients == (None,)
    assert backward_share(links["llm.layers.0"]) == (1, 0)
    assert backward_share(links["llm.head"]) == (1, 0)


@pytest.mark.parametrize("also", [[], ["vit.adapter.mlp.up"]], ids=("both projections", "the second projection"))
def test_only_projections_of_the_adapter_train(also: list[str]) -> None:
    """The first projection maps 16 x 1792 features to 4096, the second 4096 to 4096."""
    second = 4096 / (16 * 1792 + 4096)
    links = by_path(semu_models.vlm_s().freeze(["vit.embedding", "vit.layers", "vit.adapter.norm", "llm", *also]))
    assert backward_share(links["vit.adapter"]) == ((0, second) if also else (second, 1))


def test_a_dotted_prefix_freezes_what_lies_below_it() -> None:
    model = semu_models.vlm_s().freeze(["vit.layers", "llm.layers.3"])
    frozen = {path for path, parameter in model.named_parameters() if not parameter.requires_grad}
    below = ("vit.layers.", "llm.layers.3.")
    assert frozen == {path for path, _ in model.named_parameters() if path.startswith(below)}
    links = by_path(model)
    for path, share in (("vit.layers.0", (1, 0)), ("llm.layers.3", (1, 0)), ("llm.layers.31", (1, 1))):
        assert backward_share(links[path]) == share
    assert backward_share(links["vit.embedding"]) == (0, 1)


def test_a_prefix_ends_at_a_dot() -> None:
    with pytest.raises(ConfigError, match="module path"):
        semu_models.vlm_s().freeze(["vit.layer"])


@pytest.mark.parametrize("frozen", [[], ["llm.embedding.text"], ["vit"], ["vit", "llm.embedding"]], ids="+".join)
def test_gradients_of_text_and_images_part_where_they_met(frozen: list[str]) -> None:
    """Image tokens take their rows of the gradient, text gets a masked copy of it; who is frozen gets neither."""
    links = by_path(semu_models.vlm_s().freeze(frozen))
    copies = [op for op in links["llm.embedding"].backward if op.kind is OpKind.COPY]
    tokens, images = 64, 64
    expected = [images] if "vit" not in frozen else []
    expected += [tokens] if not any(path.startswith("llm.embedding") for path in frozen) else []
    assert [total([op.mem_bytes], COLUMNS) for op in copies] == [2 * rows * 4096 * 2 for rows in expected]


def test_everything_frozen_costs_no_backward_at_all() -> None:
    links = by_path(semu_models.vlm_s().freeze(["vit", "llm"]), full_recompute=True)
    assert all(link.backward == [] for link in links.values())


def test_a_frozen_text_encoder_gets_no_gradient_from_the_video_decoder() -> None:
    trained, frozen = by_path(semu_models.t2v_s()), by_path(semu_models.t2v_s().freeze(["encoder"]))
    assert trained["dit.embedding"].block.input_gradients[2] is not None
    assert frozen["dit.embedding"].block.input_gradients == (None, None, None)
    assert all(frozen[path].backward == [] for path in frozen if path.startswith("llm."))
    # the DiT's own projection of the captions still trains, so its layers cost the same
    assert backward_share(frozen["dit.layers.4"]) == backward_share(trained["dit.layers.4"]) == (1, 1)


def test_a_frozen_decoder_sends_gradients_to_a_trainable_text_encoder() -> None:
    links = by_path(semu_models.t2v_s().freeze(["decoder"]))
    assert links["dit.embedding"].block.input_gradients[0] is None
    assert links["dit.embedding"].block.input_gradients[2] is not None
    assert not any(writes_gradients(link) for path, link in links.items() if path.startswith("dit."))
    assert backward_share(links["llm.layers.31"]) == (1, 1)

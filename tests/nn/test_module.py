"""Describing models: registration as in PyTorch, parameters counted once, fingerprints, ``Model``."""

from __future__ import annotations

import pytest
from nn.tracing_kit import run, spec

from semu.errors import ConfigError, GraphError
from semu.hardware.kinds import DType
from semu.nn import (
    MLP,
    Dropout,
    Embedding,
    InputSpec,
    LayerNorm,
    Linear,
    LMHead,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    ModuleList,
    Parameter,
    RMSNorm,
    SelfAttention,
    Sequential,
    Tensor,
    TransformerLayer,
)


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Linear(4, 6)
        self.scale = Parameter(6)
        self.rest = Sequential(Linear(6, 6, bias=False), LayerNorm(6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.rest(self.first(x))
        return out


# -- the tree ----------------------------------------------------------------------------------------------------
def test_attributes_register_under_their_names() -> None:
    net = Net()
    assert [name for name, _ in net.named_children()] == ["first", "rest"]
    assert [name for name, _ in net.named_modules()] == ["", "first", "rest", "rest.0", "rest.1"]
    assert list(net.modules()) == [module for _, module in net.named_modules()]
    assert net.parameters() == [parameter for _, parameter in net.named_parameters()]
    assert [(name, p.shape) for name, p in net.named_parameters("net")] == [
        ("net.scale", (6,)),
        ("net.first.weight", (6, 4)),
        ("net.first.bias", (6,)),
        ("net.rest.0.weight", (6, 6)),
        ("net.rest.1.weight", (6,)),
        ("net.rest.1.bias", (6,)),
    ]
    assert [name for name, _ in net.own_parameters()] == ["scale"]
    assert net.num_parameters() == 6 + 24 + 6 + 36 + 12


def test_what_is_deleted_or_replaced_is_gone() -> None:
    net = Net()
    del net.first
    net.scale = 3  # type: ignore[assignment]
    assert [name for name, _ in net.named_modules()] == ["", "rest", "rest.0", "rest.1"]
    assert [name for name, _ in net.named_parameters()] == ["rest.0.weight", "rest.1.weight", "rest.1.bias"]
    net.rest = LayerNorm(6)  # type: ignore[assignment]
    net.first = Linear(4, 6)
    assert [name for name, _ in net.named_modules()] == ["", "rest", "first"]


def test_reassigning_an_attribute_replaces_or_removes_it() -> None:
    net = Net()
    net.first = Linear(4, 8)
    assert dict(net.named_parameters())["first.weight"].shape == (8, 4)
    net.rest = None
    assert [name for name, _ in net.named_children()] == ["first"]
    net.scale = LayerNorm(3)
    assert [name for name, _ in net.own_parameters()] == []
    assert [name for name, _ in net.named_children()] == ["first", "scale"]


def test_a_shared_parameter_counts_once() -> None:
    embedding = Embedding(10, 4)
    tied, alone = LMHead(4, 10, tied=embedding), LMHead(4, 10)
    assert Sequential(embedding, tied).num_parameters() == 40 + 8
    assert Sequential(Embedding(10, 4), alone).num_parameters() == 40 + 8 + 40


def test_freezing_and_counting_what_trains() -> None:
    net = Net()
    assert net.rest.requires_grad_(False) is net.rest
    assert net.num_parameters(trainable_only=True) == 6 + 24 + 6
    assert net.num_parameters() == 84
    net.requires_grad_()
    assert net.num_parameters(trainable_only=True) == 84


@pytest.mark.parametrize("dim", [0, -3, 1.5, True])
def test_parameters_have_positive_integer_dimensions(dim: object) -> None:
    with pytest.raises(ConfigError, match="not a parameter dimension; expected an integer >= 1"):
        Parameter(4, dim)  # type: ignore[arg-type]


def test_a_parameter_may_be_a_single_number() -> None:
    assert Parameter(1).numel == 1
    assert Parameter().numel == 1


def test_a_module_without_forward() -> None:
    with pytest.raises(GraphError, match="Module does not define forward"):
        run(Module(), spec(4, 4))


def test_a_module_is_called_with_tensors() -> None:
    with pytest.raises(GraphError, match=r"Linear was called without a tensor.*got int, str"):
        Linear(4, 4)(3, "x")
    with pytest.raises(GraphError, match="got no argument"):
        Linear(4, 4)()


def test_keyword_arguments_are_found_too() -> None:
    class Named(Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x=x)
            return out

    assert len(run(Named(), spec(8, 4, grad=False)).graph.operators) == 2


def test_calls_become_nested_subgraphs_with_the_paths_of_the_tree() -> None:
    graph = run(Net(), spec(8, 4, grad=False)).graph
    assert [group.path for group in graph.subgraphs] == ["first", "rest", "rest.0", "rest.1"]
    assert [op.path for op in graph.operators[:3]] == ["first", "rest.0", "rest.1.layer_norm"]


def test_text_form() -> None:
    frozen = Linear(2, 3, bias=False).requires_grad_(False)
    assert repr(frozen) == "Linear(\n  weight: Parameter(3, 2) frozen\n)"
    assert repr(Sequential(Dropout(0.1))) == "Sequential(\n  0: Dropout()\n)"


# -- lists -------------------------------------------------------------------------------------------------------
def test_module_list() -> None:
    layers = ModuleList([Linear(4, 4) for _ in range(3)])
    assert len(layers) == 3
    assert [layer for layer in layers] == [layers[i] for i in range(3)]  # noqa: C416
    assert [name for name, _ in layers.named_children()] == ["0", "1", "2"]


def test_sequential_hands_tuples_on_as_arguments() -> None:
    class Split(Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.split((2, 2))

    class Join(Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a + b

    block = run(Sequential(Split(), Join()), spec(8, 4))
    assert block.output_specs[0].shape == (8, 2)
    assert len(run(Sequential(Split()), spec(8, 4)).outputs) == 2


def test_sequential_members_may_have_names() -> None:
    model = Sequential({"embedding": Embedding(10, 4), "layers.0": Linear(4, 4), "layers.1": Linear(4, 4)})
    assert [name for name, _ in model.named_children()] == ["embedding", "layers.0", "layers.1"]
    assert "layers.1.weight" in dict(model.named_parameters())
    assert len(model) == 3


# -- sizes of the building blocks --------------------------------------------------------------------------------
def test_parameters_of_the_building_blocks() -> None:
    h, f, vocab = 12, 40, 100
    assert Linear(h, f).num_parameters() == h * f + f
    assert Linear(h, f, bias=False).num_parameters() == h * f
    assert LayerNorm(h).num_parameters() == 2 * h
    assert LayerNorm(h, affine=False).num_parameters() == 0
    assert RMSNorm(h).num_parameters() == h
    assert Embedding(vocab, h).num_parameters() == vocab * h
    assert Embedding(vocab, h, 7).num_parameters() == vocab * h + 7 * h
    assert SelfAttention(h, 4).num_parameters() == 4 * h * h + 4 * h
    assert SelfAttention(h, 4, 2, bias=False).num_parameters() == h * (h + 2 * 6) + h * h
    assert SelfAttention(h, 4, head_dim=5, bias=False).num_parameters() == h * 3 * 20 + 20 * h
    assert SelfAttention(h, 4, bias=False, qkv_bias=True).num_parameters() == 4 * h * h + 3 * h
    assert MLP(h, f).num_parameters() == 2 * h * f + f + h
    assert MLP(h, f, gated=True, bias=False).num_parameters() == 3 * h * f
    assert TransformerLayer(h, 4 * h, 4).num_parameters() == 12 * h * h + 13 * h


@pytest.mark.parametrize(
    ("hidden", "heads", "kv_heads", "got", "nearest"), [(12, 5, None, 5, 4), (12, 6, 4, 4, 3), (12, 0, None, 0, 1)]
)
def test_heads_must_divide(hidden: int, heads: int, kv_heads: int | None, got: int, nearest: int) -> None:
    with pytest.raises(ConfigError, match="does not divide into") as caught:
        SelfAttention(hidden, heads, kv_heads)
    assert (caught.value.got, caught.value.nearest) == (got, nearest)


# -- fingerprints ------------------------------------------------------------------------------------------------
def test_equal_structures_have_equal_fingerprints() -> None:
    def make() -> Module:
        return Sequential(Embedding(10, 8), TransformerLayer(8, 32, 4, 2, rotary=True), LMHead(8, 10))

    assert make().fingerprint() == make().fingerprint()
    assert hash(make().fingerprint()) == hash(make().fingerprint())


VARIANTS = {
    "as it is": lambda: TransformerLayer(8, 32, 4),
    "width": lambda: TransformerLayer(16, 32, 4),
    "heads": lambda: TransformerLayer(8, 32, 2),
    "kv heads": lambda: TransformerLayer(8, 32, 4, 2),
    "mask": lambda: TransformerLayer(8, 32, 4, causal=False),
    "rotary": lambda: TransformerLayer(8, 32, 4, rotary=True),
    "norm": lambda: TransformerLayer(8, 32, 4, rms_norm=True),
    "bias": lambda: TransformerLayer(8, 32, 4, bias=False),
    "dropout": lambda: TransformerLayer(8, 32, 4, dropout=0.1),
    "frozen": lambda: TransformerLayer(8, 32, 4).requires_grad_(False),
    "wrapped": lambda: Sequential(TransformerLayer(8, 32, 4)),
}


def test_whatever_decides_the_work_is_in_the_fingerprint() -> None:
    assert len({make().fingerprint() for make in VARIANTS.values()}) == len(VARIANTS)


def test_one_frozen_parameter_changes_the_fingerprint() -> None:
    plain, partly = MLP(8, 32), MLP(8, 32)
    assert plain.fingerprint() == partly.fingerprint()
    partly.down.weight.requires_grad = False
    assert plain.fingerprint() != partly.fingerprint()


def test_sharing_is_part_of_the_structure() -> None:
    table = Embedding(10, 8)
    tied = Sequential(table, LMHead(8, 10, tied=table)).fingerprint()
    other = Embedding(10, 8)
    untied = Sequential(table, LMHead(8, 10, tied=other)).fingerprint()
    assert tied != untied


def test_unusual_attributes_are_compared_by_identity() -> None:
    class Odd(Module):
        def __init__(self, table: dict[str, int]) -> None:
            super().__init__()
            self.table = table

    shared = {"a": 1}
    assert Odd(shared).fingerprint() == Odd(shared).fingerprint()
    assert Odd(shared).fingerprint() != Odd({"a": 1}).fingerprint()


# -- models ------------------------------------------------------------------------------------------------------
def two_modules() -> Model:
    vision = Sequential({"layers.0": Linear(4, 4), "layers.1": Linear(4, 4)})
    text = Sequential(Embedding(10, 4), LMHead(4, 10))
    return Model(
        "vlm",
        [
            ModalityModule("vit", ModalityRole.ENCODER, vision, (InputSpec("vision", 4),)),
            ModalityModule("llm", ModalityRole.BACKBONE, text, sources=("vit",)),
        ],
    )


def test_a_model_names_everything_from_its_modules_down() -> None:
    model = two_modules()
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "vit.layers.0.weight"
    assert names[-1] == "llm.1.projection.weight"
    assert model.num_parameters() == 2 * 20 + 40 + 8 + 40
    assert [path for path, _ in model.modules[0].blocks()] == ["vit.layers.0", "vit.layers.1"]
    assert repr(model).startswith("Model(vlm: vit (encoder, ")


def test_any_module_is_a_model_of_one_block() -> None:
    model = Model.from_module(Linear(4, 4))
    assert [path for path, _ in model.modules[0].blocks()] == ["linear"]
    assert model.modules[0].inputs == (InputSpec("text"),)
    assert Model.from_module(Linear(4, 4), name="head").name == "head"


def test_a_parameter_shared_by_two_modules_counts_once() -> None:
    table = Embedding(10, 4)
    parts = [
        ModalityModule("a", ModalityRole.ENCODER, table),
        ModalityModule("b", ModalityRole.BACKBONE, LMHead(4, 10, tied=table)),
    ]
    assert Model("shared", parts).num_parameters() == 40 + 8


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        (["vit"], 88),
        (["encoder"], 88),
        (["vit.layers.1"], 108),
        (["llm.1.norm", "vit.layers.0"], 100),
        (["encoder", "backbone"], 0),
        ([], 128),
    ],
    ids=str,
)
def test_freezing_by_path_or_role(asked: list[str], left: int) -> None:
    model = two_modules()
    assert model.freeze(asked) is model
    assert model.num_parameters(trainable_only=True) == left


def test_freezing_a_path_leaves_alone_what_only_begins_like_it() -> None:
    body = Sequential({"layer": Linear(4, 4), "layer2": Linear(4, 4)})
    model = Model.from_module(body, name="m")
    assert model.freeze(["m.layer"]).num_parameters(trainable_only=True) == 20


def test_freezing_what_is_not_there() -> None:
    with pytest.raises(ConfigError, match="unknown module path 'vitt', did you mean 'vit'") as caught:
        two_modules().freeze(["vitt"], where="run.toml:4 model.frozen")
    assert caught.value.where == "run.toml:4 model.frozen"
    assert caught.value.nearest == "vit"


def test_models_that_cannot_be() -> None:
    vision = ModalityModule("vit", ModalityRole.ENCODER, Linear(4, 4))
    with pytest.raises(ConfigError, match="a model needs a module"):
        Model("empty", [])
    with pytest.raises(ConfigError, match="two modality modules of one name"):
        Model("twice", [vision, vision])
    with pytest.raises(ConfigError, match="unknown source module 'vitt', did you mean 'vit'"):
        Model("lost", [vision, ModalityModule("llm", ModalityRole.BACKBONE, Linear(4, 4), sources=("vitt",))])
    with pytest.raises(ConfigError, match="unknown source module 'llm'"):
        Model("self", [vision, ModalityModule("llm", ModalityRole.BACKBONE, Linear(4, 4), sources=("llm",))])


def test_ids_are_integers_and_features_are_in_the_models_type() -> None:
    assert InputSpec("text").dtype(DType.FP16) is DType.INT64
    assert InputSpec("vision", 588).dtype(DType.FP16) is DType.FP16

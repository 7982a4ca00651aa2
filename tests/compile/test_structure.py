"""Structures: equal for modules that trace alike, different where anything differs, absent where code is hidden."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from semu.compile.structure import StructureReader
from semu.hardware.kinds import DType
from semu.nn import MLP, Dropout, Embedding, Linear, LMHead, Module, Parameter, Sequential, TransformerLayer
from semu.nn.layers.recompute import Recompute
from semu.nn.layers.transformer import CrossAttention, SelfAttention
from semu_models.registry import MODELS
from semu_models.text.llama import LlamaConfig


def key_of(module: Module) -> object:
    structure = StructureReader().read(module)
    assert structure is not None
    return structure.key


def changed(module: Module, change: Callable[[Module], object]) -> Module:
    change(module)
    return module


def tied(table: Embedding, other: Embedding) -> Module:
    return Sequential(table, LMHead(8, 10, tied=other))


def partly_frozen() -> Module:
    module = TransformerLayer(8, 32, 4)
    module.mlp.down.weight.requires_grad = False
    return module


def twice(first: Module, second: Module) -> Module:
    return Sequential(first, second)


TABLE = Embedding(10, 8)
SHARED = Linear(8, 8)

LANGUAGE = LlamaConfig(layers=1, hidden=8, ffn=16, heads=2, kv_heads=1, vocab=10)
LARGER = LlamaConfig(layers=1, hidden=8, ffn=16, heads=2, kv_heads=1, vocab=11)

VARIANTS: dict[str, Callable[[], Module]] = {
    "as it is": lambda: TransformerLayer(8, 32, 4),
    "width": lambda: TransformerLayer(16, 32, 4),
    "inner width": lambda: TransformerLayer(8, 64, 4),
    "heads": lambda: TransformerLayer(8, 32, 2),
    "kv heads": lambda: TransformerLayer(8, 32, 4, 2),
    "head width": lambda: TransformerLayer(8, 32, 4, head_dim=4),
    "mask": lambda: TransformerLayer(8, 32, 4, causal=False),
    "rotary": lambda: TransformerLayer(8, 32, 4, rotary=True),
    "gated": lambda: TransformerLayer(8, 32, 4, gated=True),
    "twice the width, not gated": lambda: TransformerLayer(8, 64, 4, gated=True),
    "norm": lambda: TransformerLayer(8, 32, 4, rms_norm=True),
    "bias": lambda: TransformerLayer(8, 32, 4, bias=False),
    "qkv bias": lambda: TransformerLayer(8, 32, 4, bias=False, qkv_bias=True),
    "dropout": lambda: TransformerLayer(8, 32, 4, dropout=0.1),
    "frozen": lambda: TransformerLayer(8, 32, 4).requires_grad_(False),
    "partly frozen": partly_frozen,
    "wrapped": lambda: Sequential(TransformerLayer(8, 32, 4)),
    "recomputed": lambda: Recompute(TransformerLayer(8, 32, 4)),
    "one norm less": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "mlp_norm", Dropout(0.0))),
    "another attribute": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", 1)),
    "the same as true": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", True)),
    "the same as a float": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", 1.0)),
    "the same as text": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", "1")),
    "zero": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", 0.0)),
    "minus zero": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", -0.0)),
    "a tuple": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", (1, 2))),
    "a tuple of others": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", (1, 3))),
    "a list": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", [1, 2])),
    "a type": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", DType.BF16)),
    "another type": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", DType.FP16)),
    "a configuration": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", LANGUAGE)),
    "another configuration": lambda: changed(TransformerLayer(8, 32, 4), lambda m: setattr(m, "extra", LARGER)),
    "self-attention": lambda: SelfAttention(8, 4),
    "cross-attention": lambda: CrossAttention(8, 4),
    "other context": lambda: CrossAttention(8, 4, 16),
    "two layers": lambda: twice(Linear(8, 8), Linear(8, 8)),
    "one layer twice": lambda: twice(SHARED, SHARED),
    "names": lambda: Sequential({"a": Linear(8, 8), "b": Linear(8, 8)}),
    "other names": lambda: Sequential({"a": Linear(8, 8), "c": Linear(8, 8)}),
    "tied": lambda: tied(TABLE, TABLE),
    "untied": lambda: tied(TABLE, Embedding(10, 8)),
    "wide": lambda: Linear(4, 16, bias=False),
    "high": lambda: Linear(16, 4, bias=False),
    "positions": lambda: Embedding(10, 8, positions=4),
}


def test_whatever_differs_is_in_the_structure() -> None:
    keys = {name: key_of(make()) for name, make in VARIANTS.items()}
    assert len(set(keys.values())) == len(keys), [n for n in keys if list(keys.values()).count(keys[n]) > 1]


def test_equal_modules_have_equal_structures_and_hashes() -> None:
    for name, make in VARIANTS.items():
        assert key_of(make()) == key_of(make()), name
        assert hash(key_of(make())) == hash(key_of(make())), name


@pytest.mark.parametrize("change", ["frozen", "attribute", "submodule", "parameter"])
def test_a_module_that_is_changed_has_another_structure(change: str) -> None:
    module = MLP(8, 32)
    before = key_of(module)
    if change == "frozen":
        module.up.weight.requires_grad = False
    elif change == "attribute":
        module.gated = True
    elif change == "submodule":
        module.down = Linear(32, 8, bias=False)
    else:
        module.up.weight = Parameter(64, 8)
    assert key_of(module) != before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_shipped_blocks_are_all_readable(name: str) -> None:
    reader = StructureReader()
    for modality in MODELS[name].builder().modules:
        for path, block in modality.blocks():
            structure = reader.read(block)
            assert structure is not None, path
            assert list(structure.parameters) == [parameter for _, parameter in block.named_parameters()], path


def test_a_read_does_not_see_the_one_before() -> None:
    reader, module = StructureReader(), tied(TABLE, TABLE)
    assert reader.read(module) == reader.read(module)
    other = reader.read(tied(TABLE, TABLE))
    assert other is not None
    assert other.key == key_of(module)


# -- what cannot be read -----------------------------------------------------------------------------------------------
class Own(Module):
    """A user's module: its code may read anything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(8, 8)


class OwnLinear(Linear):
    """Inherits everything."""


@dataclass(frozen=True)
class OwnOptions:
    """A user's options: their properties are code too."""

    width: int = 8


class OwnParameter(Parameter):
    """A parameter of another class."""


HIDDEN: dict[str, Callable[[], Module]] = {
    "a class of one's own": Own,
    "a subclass": lambda: OwnLinear(8, 8),
    "inside": lambda: Sequential(Linear(8, 8), Own()),
    "options of one's own": lambda: changed(Linear(8, 8), lambda m: setattr(m, "options", OwnOptions())),
    "an object": lambda: changed(Linear(8, 8), lambda m: setattr(m, "options", SimpleNamespace(width=8))),
    "a function": lambda: changed(Linear(8, 8), lambda m: setattr(m, "forward", lambda x: x)),
    "a mapping": lambda: changed(Linear(8, 8), lambda m: setattr(m, "options", {"width": 8})),
    "a module in a tuple": lambda: changed(Linear(8, 8), lambda m: setattr(m, "parts", (Linear(8, 8),))),
    "a parameter in a list": lambda: changed(Linear(8, 8), lambda m: setattr(m, "parts", [Parameter(8)])),
    "a parameter of one's own": lambda: changed(Linear(8, 8), lambda m: setattr(m, "weight", OwnParameter(8, 8))),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_may_hide_something_has_no_structure(name: str) -> None:
    assert StructureReader().read(HIDDEN[name]()) is None


def test_a_patched_class_is_another_or_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(Linear(8, 8))
    with monkeypatch.context() as patch:
        patch.setattr(Linear, "forward", MLP.forward)
        assert key_of(Linear(8, 8)) != before
    with monkeypatch.context() as patch:
        patch.setattr(Linear, "forward", lambda self, x: x)
        assert StructureReader().read(Linear(8, 8)) is None
    with monkeypatch.context() as patch:
        patch.setattr(Linear, "scale", 2, raising=False)
        assert key_of(Linear(8, 8)) != before
    assert key_of(Linear(8, 8)) == before


def test_copying_a_module_hides_nothing() -> None:
    """``copy`` and ``pickle`` leave a note (``__slotnames__``) in a class."""
    module = Linear(8, 8)
    before = StructureReader().read(module)
    copy.deepcopy(module)
    after = StructureReader().read(module)
    assert before is not None
    assert after is not None
    assert before.key == after.key

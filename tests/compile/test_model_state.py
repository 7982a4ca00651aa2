"""``ModelState``: one walk finds what a walk for each question does; styles follow structures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

import semu_models
from semu.compile.model_memo import ModelState
from semu.compile.structure import StructureReader
from semu.nn import Linear, Model, Module, Sequential
from semu.nn.layers.moe import MixtureOfExperts
from semu.parallel import Parallel
from semu.parallel.tensor import megatron_plan

MODELS = ("lm-7b", "vlm-s", "t2v-s", "mixtral-8x7b", "clip-vit-l-14", "deepseek-v3", "whisper-large-v3", "sd-1.5")


class Own(Module):
    """A module of somebody else's, whose structure is hidden."""

    def __init__(self, value: object, **attributes: object) -> None:
        super().__init__()
        self.linear = Linear(8, 8)
        self.value = value
        for name, attribute in attributes.items():
            setattr(self, name, attribute)


@dataclass(frozen=True)
class Frozen:
    """A value."""

    inside: object


@dataclass
class Open:
    """A value that changes in place."""

    inside: object


def may_change(value: object) -> bool:
    """Whether anything in a value can be changed without an assignment to a module or parameter."""
    if isinstance(value, tuple | frozenset):
        return any(map(may_change, value))
    if type(value) is Frozen or (type(value).__module__.startswith("semu") and hasattr(value, "__dataclass_fields__")):
        return type(value) is Open or any(map(may_change, vars(value).values()))
    return not isinstance(value, int | float | str | bytes | Enum | Module | type(None)) and not hasattr(value, "numel")


def attributes(model: Model) -> Iterator[tuple[Module, str, object]]:
    for module in model.modules:
        for _, part in module.body.named_modules():
            for name, value in vars(part).items():
                if not name.startswith("_"):
                    yield part, name, value


def plain(**values: Any) -> Linear:
    linear = Linear(8, 8)
    for name, value in values.items():
        setattr(linear, name, value)
    return linear


BODIES = {
    "a list": lambda: plain(extra=[1]),
    "a list in a tuple": lambda: plain(extra=((1, [2]),)),
    "a tuple": lambda: plain(extra=(1, 2.0, "x")),
    "somebody else's": lambda: Own(1),
    "a mapping of somebody else's": lambda: Own({}),
    "a frozen value of somebody else's": lambda: Own(Frozen(1)),
    "an open one in it": lambda: Own(Frozen(Open(1))),
    "a set that cannot change": lambda: Own(frozenset({1})),
    "a list around all blocks": lambda: Sequential(Linear(8, 8), Linear(8, 8)),
    "it reads replicas": lambda: plain(reads_replicas=True),
    "somebody else's reads replicas": lambda: Own(1, reads_replicas=True),
    "the same module twice": lambda: Sequential(*[Linear(8, 8)] * 2),
}


def model_of(name: str) -> Model:
    if name in MODELS:
        return semu_models.build(name)
    body = BODIES[name]()
    if name == "a list around all blocks":
        body.extra = []
    return Model.from_module(body)


@pytest.mark.parametrize("name", [*MODELS, *BODIES])
def test_it_is_what_a_walk_for_each_question_finds(name: str) -> None:
    model = model_of(name)
    state, every = ModelState.of(model), [*attributes(model)]
    assert state.is_fixed == (not any(may_change(value) for _, _, value in every))
    assert state.reads_replicas == model.reads_replicas
    assert state.has_experts == any(isinstance(part, MixtureOfExperts) for part, _, _ in every)
    assert state.holds(model)
    classes = {type(part) for part, _, _ in every} | {type(module.body) for module in model.modules}
    assert {base for kind in classes for base in kind.__mro__ if issubclass(base, Module)} == {
        base for base, _ in state.classes
    }
    blocks = [body for module in model.modules for _, body in module.blocks()]
    assert [state.structures[body] for body in blocks] == [StructureReader().read(body) for body in blocks]


def test_some_of_the_models_change_in_place_and_some_do_not() -> None:
    found = {name: ModelState.of(model_of(name)).is_fixed for name in BODIES}
    changing = {"a list", "a list in a tuple", "a mapping of somebody else's", "an open one in it"}
    assert {name for name, is_fixed in found.items() if not is_fixed} == changing | {"a list around all blocks"}


@pytest.mark.parametrize("name", MODELS)
def test_styles_below_a_block_follow_from_its_structure(name: str) -> None:
    """``ModelTracer`` has the block's own style in its key, and none of those below it."""
    model = semu_models.build(name)
    plan, seen = megatron_plan(model, Parallel(tp=2)), dict[object, list[object]]()
    blocks = [item for module in model.modules for item in module.blocks()]
    for path, body in blocks:
        structure = StructureReader().read(body)
        assert structure is not None
        styles = [plan.styles.get(where) for where, _ in body.named_modules(path)]
        assert seen.setdefault((structure.key, plan.styles.get(path)), list(styles)) == styles
    assert len(seen) < len(blocks)
    assert any(any(styles) for styles in seen.values())

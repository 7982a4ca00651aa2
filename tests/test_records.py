"""``semu.records.dataclass`` beside the standard library's: every class here is made by both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from functools import partial
from typing import Any

import pytest

import semu
from semu import records

Maker = Callable[..., Any]


def everything(dataclass: Maker) -> dict[str, type[Any]]:
    """Classes of every kind that semu has."""

    @dataclass(frozen=True)
    class Point:
        """A point."""

        x: int
        y: float = 0.5
        tags: list[str] = field(default_factory=list, repr=False, compare=False)

        @property
        def both(self) -> float:
            return self.x + self.y

    @dataclass(frozen=True)
    class Checked(Point):
        """With a check and another default."""

        y: float = 2.0
        z: tuple[int, ...] = ()
        seen: int = field(default=7, init=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("negative")
            object.__setattr__(self, "z", (*self.z, self.x))

    @dataclass
    class Open:
        a: int = 1
        b: dict[str, int] = field(default_factory=dict)

    @dataclass(frozen=True, eq=False)
    class Same:
        a: object

    @dataclass(frozen=True, slots=True)
    class Slotted:
        a: int
        b: int = 3
        c: list[int] = field(default_factory=list, init=False, compare=False)

    @dataclass(frozen=True, kw_only=True)
    class Named:
        a: int = 1
        b: int

    @dataclass(frozen=True, order=True)
    class Ordered:
        a: int
        b: int = 0

    @dataclass(frozen=True, repr=False)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 11

    @dataclass(frozen=True)
    class Compared:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Compared)

    @dataclass(frozen=True)
    class Empty:
        """Nothing."""

    kinds = (Point, Checked, Open, Same, Slotted, Named, Ordered, Own, Compared, Empty)
    return {kind.__name__: kind for kind in kinds}


STANDARD, OWN = everything(dataclasses.dataclass), everything(records.dataclass)
ARGUMENTS: dict[str, tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = {
    "Point": (((1,), {}), ((1, 0.5), {}), ((2,), {"tags": ["a"]}), ((), {}), ((1, 2, [], 4), {}), ((1,), {"w": 1})),
    "Checked": (((1,), {}), ((1, 2.0, [], (4,)), {}), ((-1,), {}), ((1,), {"seen": 2})),
    "Open": (((), {}), ((1,), {"b": {}}), ((2, {"a": 1}), {})),
    "Same": (((None,), {}), ((None,), {})),
    "Slotted": (((1,), {}), ((1, 3), {}), ((1, 4), {}), ((1, 2, 3), {})),
    "Named": (((), {"b": 2}), ((), {"a": 1, "b": 2}), ((1,), {}), ((), {})),
    "Ordered": (((1,), {}), ((1, 2), {}), ((0, 5), {})),
    "Own": (((1,), {}), ((2,), {})),
    "Compared": (((1,), {}), ((2,), {})),
    "Empty": (((), {}), ((), {}), ((1,), {})),
}


def outcome(act: Callable[[], object]) -> object:
    """What comes back, or the error with its words."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error)


def make(kind: Any, *words: object, **options: object) -> object:
    return kind(*words, **options)


@pytest.mark.parametrize("name", STANDARD)
def test_a_class_behaves_as_the_standard_librarys(name: str) -> None:
    standard, own = STANDARD[name], OWN[name]
    assert own.__doc__ is not None and own.__match_args__ == standard.__match_args__
    assert [(part.name, part.type, part.default) for part in fields(own)] == [
        (part.name, part.type, part.default) for part in fields(standard)
    ]
    assert str(inspect.signature(own)) == str(inspect.signature(standard))
    found: dict[type[Any], list[Any]] = {standard: [], own: []}
    for words, options in ARGUMENTS[name]:
        for kind in (standard, own):
            found[kind].append(outcome(partial(make, kind, *words, **options)))
    pairs = [*zip(found[standard], found[own], strict=True)]
    for theirs, ours in pairs:
        if isinstance(theirs, tuple):
            assert ours == theirs, "another error"
            continue
        assert repr(ours) == repr(theirs) or "object at" in repr(theirs)
        if name not in ("Same", "Compared"):
            assert outcome(lambda ours=ours: hash(ours)) == outcome(lambda theirs=theirs: hash(theirs))  # type: ignore[misc]
        for change in (
            lambda one: setattr(one, "a", 3),
            lambda one: setattr(one, "x", 3),
            lambda one: setattr(one, "other", 3),
            lambda one: delattr(one, "a"),
            lambda one: delattr(one, "x"),
            lambda one: vars(one),
            lambda one: replace(one, a=5) == one,
            lambda one: replace(one, x=5) == one,
            lambda one: dataclasses.asdict(one),
            lambda one: copy.copy(one) == one,
            lambda one: one == 1,
            lambda one: one < one,
        ):
            assert outcome(lambda ours=ours, change=change: change(ours)) == outcome(  # type: ignore[misc]
                lambda theirs=theirs, change=change: change(theirs)  # type: ignore[misc]
            )
    made = [(theirs, ours) for theirs, ours in pairs if not isinstance(theirs, tuple)]
    for theirs, ours in made:
        assert [ours == other for _, other in made] == [theirs == other for other, _ in made]


def test_a_parent_of_either_kind_is_frozen_for_its_children() -> None:
    point = OWN["Point"]

    @dataclasses.dataclass(frozen=True)
    class Child(point):  # type: ignore[misc, valid-type]
        z: int = 3

    assert Child(1).z == 3 and Child(1) == Child(1) and hash(Child(1, 2.0)) == hash(Child(1, 2.0))
    with pytest.raises(FrozenInstanceError):
        Child(1).x = 2
    for dataclass in (dataclasses.dataclass, records.dataclass):
        with pytest.raises(TypeError, match="non-frozen"):

            @dataclass
            class Loose(point):  # type: ignore[misc, valid-type]
                z: int = 3

    class Plain(point):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(4)
            self.more = 5

    assert Plain().x == 4 and Plain().more == 5
    with pytest.raises(FrozenInstanceError):
        Plain().x = 2


def test_a_class_that_shows_itself_ends() -> None:
    one = OWN["Open"]()
    one.a = one
    assert repr(one).endswith("Open(a=..., b={})")


def test_what_semu_makes_is_pickled() -> None:
    parallel = semu.Parallel(dp=2, tp=2)
    assert pickle.loads(pickle.dumps(parallel)) == parallel

"""``memo``: everything that semu remembers from one call to the next, in one store of named, bounded tables.

A function of semu is a function of its arguments; where its result is asked for again and again, it is looked up here.
A table is declared once, at the top of the file whose results it holds, with what a key consists of:

- ``Table``: for the whole process, by value.
- ``ScopedTable``: for one object (a model as it is now, the chunks of a cut, a placed layout, the costs of a batch, a
  lowered schedule), forgotten with it. The object is held weakly. Whatever has no object of its own is stood for by a
  ``Scope``.
- ``remembered``: a function whose arguments are the key.

``Same`` puts objects into a key that would take long to compare by value.

Keys hold values, or objects that are compared by identity and that the key itself keeps alive; never an ``id(...)``,
which is given to another object when the first one is gone. Threads share all tables. Copies in other processes begin
empty. ``clear`` forgets everything: results stay what they are, the next ones take as long as the first.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from operator import is_
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast
from weakref import WeakSet, ref

import numpy as np

V = TypeVar("V")
P = ParamSpec("P")

_NONE: Any = object()
LARGE_BYTES = 1 << 26
"""Bytes of arrays that large tables hold together before all of them are emptied: an order or the costs of a batch of
hundreds of microbatches take some MB, and a loop may ask for thousands of batches, each once."""
OWNERS = 1024
"""Number of objects that a ``ScopedTable`` remembers values of at a time."""
_LOOKED_AT = 8


class Scope:
    """Stands for something that has no object of its own, as long as anyone holds this."""

    __slots__ = ("__weakref__",)


class Same:
    """Objects as part of a key: equal to others where each is the same object. It keeps them alive."""

    __slots__ = ("_hash", "_objects")

    def __init__(self, objects: Iterable[object]) -> None:
        self._objects = tuple(objects)
        self._hash = hash(tuple(map(id, self._objects)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Same)
            and len(self._objects) == len(other._objects)
            and all(map(is_, self._objects, other._objects))
        )


class Statistics(NamedTuple):
    """How full a table is.

    Attributes:
        name: of the table. bound: the most values that the table holds, in a ``ScopedTable`` the most per object.
        owners: number of objects that the table holds values of; 1 where values belong to the process.
        values: number of values held now. made: number of values made since ``clear``.
    """

    name: str
    bound: int
    owners: int
    values: int
    made: int


class Values(Generic[V]):
    """The values that were asked for last, by key.

    Args:
        bound: most values. One that is asked for stays at least until ``bound / 2`` other keys have been: in a table
            more than half full, the value that was not asked for longest goes first.
        is_large: values grow with the batch: all such tables forget everything after ``LARGE_BYTES`` of new values.
    """

    def __init__(self, bound: int, *, is_large: bool = False) -> None:
        self.bound, self.made, self.is_large = bound, 0, is_large
        self._room = max(1, bound // 2)  # while no more are there, nobody has to note which was asked for last
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key; ``make`` makes it where there is none. Of two threads that make one at once, one wins."""
        value: V = self._values.get(key, _NONE)
        if value is _NONE:
            return self._keep(key, make())
        if len(self._values) > self._room:
            self._note(key)
        return value

    def peek(self, key: Hashable) -> V | None:
        """The value of a key; None: there is none."""
        value = self._values.get(key)
        if value is not None:
            self._note(key)
        return value

    def _note(self, key: Hashable) -> None:
        """The value of a key has been asked for."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)

    def put(self, key: Hashable, value: V) -> V:
        """Remember another value of a key."""
        with self._lock:
            self._values.pop(key, None)
        return self._keep(key, value)

    def _keep(self, key: Hashable, made: V) -> V:
        with self._lock:
            self.made += 1
            value = self._values.setdefault(key, made)
            while len(self._values) > self.bound:
                self._values.popitem(last=False)
        if self.is_large:
            _count(made)
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self.made = 0


class Table(Values[V]):
    """``Values`` for the whole process.

    Args:
        name: what the values are, and by what they are remembered. bound, is_large: as ``Values``.
    """

    def __init__(self, name: str, bound: int, *, is_large: bool = False) -> None:
        super().__init__(bound, is_large=is_large)
        self.name = name
        _TABLES.add(self)

    def statistics(self) -> Statistics:
        """How full the table is."""
        return Statistics(self.name, self.bound, 1, len(self), self.made)


class ScopedTable(Generic[V]):
    """``Values`` of each of several objects, as long as the object lives.

    A value must not hold its object: it would keep it alive until ``owners`` younger ones have come.

    Args:
        name: what the values are, and by what they are remembered beside the object. bound: as ``Values``, of each
            object. owners: most objects; the values of the one that came first go first. is_large: as ``Values``.
    """

    def __init__(self, name: str, bound: int, owners: int = OWNERS, *, is_large: bool = False) -> None:
        self.name, self.bound, self.owners, self.is_large = name, bound, owners, is_large
        self._of: dict[ref[Any], Values[V]] = {}
        self._lock = threading.Lock()
        _TABLES.add(self)

    def __len__(self) -> int:
        return sum(map(len, [*self._of.values()]))

    def of(self, owner: object) -> Values[V]:
        """The values of an object."""
        values = self._of.get(ref(owner))
        if values is None:
            with self._lock:
                values = self._of.setdefault(ref(owner, self._forget), Values(self.bound, is_large=self.is_large))
                while len(self._of) > self.owners:
                    self._forget(next(iter(self._of)))
        return values

    def _forget(self, owner: ref[Any]) -> None:
        self._of.pop(owner, None)

    def get(self, owner: object, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key of an object, as ``Values.get``."""
        values = self._of.get(ref(owner))
        if values is None:
            return self.of(owner).get(key, make)
        value: V = values._values.get(key, _NONE)  # as ``Values.get``, a call less
        if value is _NONE or len(values._values) > values._room:
            return values.get(key, make)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._of.clear()

    def statistics(self) -> Statistics:
        """How full the table is; ``made`` counts for the objects that live."""
        every = [*self._of.values()]
        return Statistics(self.name, self.bound, len(every), sum(map(len, every)), sum(own.made for own in every))


def remembered(bound: int, *, is_large: bool = False) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Decorates a function whose last results are remembered by its arguments. ``bound``: most results; ``is_large``:
    as ``Values``, without being counted."""

    def _decorate(function: Callable[P, V]) -> Callable[P, V]:
        table = functools.lru_cache(maxsize=bound)(function)
        _FUNCTIONS.add(table)
        if is_large:
            _LARGE_FUNCTIONS.add(table)
        return cast("Callable[P, V]", table)

    return _decorate


_TABLES: WeakSet[Table[Any] | ScopedTable[Any]] = WeakSet()
_FUNCTIONS: WeakSet[functools._lru_cache_wrapper[Any]] = WeakSet()
_LARGE_FUNCTIONS: WeakSet[functools._lru_cache_wrapper[Any]] = WeakSet()
_new_bytes = 0
_room_bytes = 0
_count_lock = threading.Lock()


@contextmanager
def room(size: int) -> Iterator[None]:
    """Large tables may hold more bytes than ``LARGE_BYTES`` for a while, in all threads; they are emptied when the next
    large value is made after that."""
    global _room_bytes
    before, _room_bytes = _room_bytes, max(size, _room_bytes)
    try:
        yield
    finally:
        _room_bytes = before


def _count(value: object) -> None:
    """Count the arrays of a new large value; after ``LARGE_BYTES`` of them, forget what large tables hold."""
    global _new_bytes
    size = _bytes_of(value, set())
    with _count_lock:
        _new_bytes += size
        if _new_bytes < max(LARGE_BYTES, _room_bytes):
            return
        _new_bytes = 0
    for table in [*_TABLES]:
        if table.is_large:
            table.clear()
    for function in [*_LARGE_FUNCTIONS]:
        function.cache_clear()


def _bytes_of(value: object, seen: set[int], depth: int = 4) -> int:
    """Bytes of the arrays that a value holds, itself or in containers and attributes of a few levels; of a container
    the first ``_LOOKED_AT`` values stand for the others."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if depth == 0 or value.__class__ in _PLAIN or isinstance(value, _EMPTY) or id(value) in seen:
        return 0
    seen.add(id(value))
    parts: Iterable[object]
    share = 1.0
    if isinstance(value, tuple | list):
        parts, share = value[:_LOOKED_AT], max(1.0, len(value) / _LOOKED_AT)
    elif isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 - asking a class of its own takes long
        parts, share = itertools.islice(value.values(), _LOOKED_AT), max(1.0, len(value) / _LOOKED_AT)
    else:
        slots = getattr(value.__class__, "__slots__", ())
        parts = [
            *getattr(value, "__dict__", _NOTHING).values(),
            *[getattr(value, name, None) for name in slots if name[0] != "_"],
        ]
    total = 0
    for part in parts:
        if part.__class__ not in _PLAIN:
            total += _bytes_of(part, seen, depth - 1)
    return int(share * total)


_EMPTY = (str, type, Enum)
_PLAIN = frozenset({int, float, str, bool, type(None)})
_NOTHING: Mapping[str, object] = MappingProxyType({})


def clear() -> None:
    """Forget everything that semu remembers in this process."""
    global _new_bytes
    _new_bytes = 0
    for table in [*_TABLES]:
        table.clear()
    for function in [*_FUNCTIONS]:
        function.cache_clear()


def statistics() -> list[Statistics]:
    """How full every table is, by name."""
    found = [table.statistics() for table in [*_TABLES]]
    for function in [*_FUNCTIONS]:
        info, name = function.cache_info(), f"{function.__module__}.{function.__qualname__}"
        found.append(Statistics(name, info.maxsize or 0, 1, info.currsize, info.misses))
    return sorted(found)

"""``StructureReader``: all that decides what tracing a module writes down, as one hashable value.

Modules of equal structure trace alike, whatever they are called and whoever made them, in this call of ``simulate`` and
in the next. That can be promised only where nothing is hidden: for classes of ``semu`` and ``semu_models`` whose
attributes are plain data, submodules and parameters. Any other module has no structure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, MappingProxyType
from typing import Any

from semu import memo
from semu.nn.module import Module, Parameter
from semu.records import dataclass

_PACKAGES = frozenset({"semu", "semu_models"})
_ATOMS = frozenset({int, bool, str, bytes, type(None)})
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_DESCRIPTION = frozenset(
    {"__module__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__weakref__", "__slotnames__"}
)

_CLASS_NUMBERS = memo.Table[int]("numbers of classes, by the class and its present methods", 4096)
_KEY_NUMBERS = memo.Table[int]("numbers of structures, by all that modules' traces depend on", 4096)
_counter = itertools.count()


@dataclass(frozen=True)
class Structure:
    """What tracing a module depends on.

    Attributes:
        key: a number, equal for modules that trace alike.
        parameters: the module's own, in the order of ``named_parameters``.
    """

    key: int
    parameters: tuple[Parameter, ...]


class _HiddenError(Exception):
    """Something that cannot be read as a value."""


class StructureReader:
    """Reads structures of modules as they are now. A reader looks at a class once, so use a new one for every call.

    Attributes:
        classes: of the modules that it has met; None: one that hides something, else its number.
        is_fixed: nothing that it has read changes in place without noting that it does. reads_replicas: some module
            that it has read does.
    """

    def __init__(self) -> None:
        self.classes: dict[type[Module], int | None] = {}
        self.is_fixed, self.reads_replicas = True, False
        self._modules: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._parameters: list[Parameter] = []

    def read(self, module: Module) -> Structure | None:
        """The structure of a module; None where something in it is hidden."""
        self._modules, self._numbers, self._parameters = {}, {}, []
        key: list[object] = []
        try:
            self._module(module, key)
        except _HiddenError:
            return None
        number = _KEY_NUMBERS.get(tuple(key), lambda: next(_counter))
        return Structure(number, tuple(self._parameters))

    def _module(self, module: Module, key: list[object]) -> None:
        """Append class, parameters, submodules and other attributes; for a module met before, its number."""
        numbers, modules = self._numbers, self._modules
        if id(module) in modules:
            key.append(~modules[id(module)])
            return
        modules[id(module)] = len(modules)
        self.reads_replicas = self.reads_replicas or module.reads_replicas
        state = module.__dict__
        own, children = state.get("_parameters", _NOTHING), state.get("_modules", _NOTHING)
        key += (self._class(type(module)), len(own), len(children), tuple(state))
        for name, parameter in own.items():
            if id(parameter) in numbers:
                key += (name, numbers[id(parameter)])
            elif type(parameter) is Parameter:
                numbers[id(parameter)] = len(numbers)
                self._parameters.append(parameter)
                key += (name, parameter.shape, parameter.numel, parameter.requires_grad)
            else:
                raise _HiddenError
        for name, child in children.items():
            key.append(name)
            self._module(child, key)
        for name, value in state.items():
            kind = value.__class__
            if kind in _ATOMS:
                key += (kind, value)
            elif (name in own and own[name] is value) or (name in children and children[name] is value):
                key.append(None)
            elif value is not own and value is not children:
                key.append(self._place_or_value(value))

    def _place_or_value(self, value: object) -> object:
        """The number of a parameter or module that has been met elsewhere; else plain data."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if id(value) in self._modules:
            return ~self._modules[id(value)]
        return self._value(value)

    def _value(self, value: object) -> object:
        """Plain data of any depth; neither modules nor parameters, which would have no path."""
        kind = type(value)
        if kind in _ATOMS:
            return kind, value
        if isinstance(value, float) and kind is float:
            return kind, value.hex()  # 0.0 and -0.0 are equal, and not the same
        if isinstance(value, tuple | list) and kind in (tuple, list):
            self.is_fixed &= kind is tuple
            return kind, tuple([self._value(item) for item in value])
        if _is_known(kind):
            if isinstance(value, Enum):
                return kind, value.name
            if (
                is_dataclass(value)
                and hasattr(value, "__dict__")
                and vars(value).keys() == {field.name for field in fields(value)}
            ):
                self.is_fixed &= kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
                return kind, tuple([(name, self._value(item)) for name, item in vars(value).items()])
        raise _HiddenError

    def _class(self, kind: type[Module]) -> int:
        """Number of a class of modules with its present methods, which somebody may have replaced."""
        if kind not in self.classes:
            self.classes[kind] = self._number(kind)
        number = self.classes[kind]
        if number is None:
            raise _HiddenError
        return number

    @staticmethod
    def _number(kind: type) -> int | None:
        """Number of a class and its methods, the same in every reader; None: not a known class."""
        parts: list[object] = []
        for base in kind.__mro__[:-1]:
            if not _is_known(base):
                return None
            for name, value in vars(base).items():
                if name in _DESCRIPTION:
                    continue
                code = value.fget if isinstance(value, property) else value
                if isinstance(code, FunctionType) and _is_known(code):
                    parts += (name, code)
                elif type(value) in _ATOMS:
                    parts += (name, type(value), value)
                else:
                    return None
        return _CLASS_NUMBERS.get((kind, tuple(parts)), lambda: next(_counter))


def _is_known(thing: type | FunctionType) -> bool:
    """Whether a class or function is of a package whose code hides nothing."""
    return thing.__module__.partition(".")[0] in _PACKAGES

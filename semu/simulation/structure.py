"""``StructureReader``: all that decides what tracing a module writes down, as one hashable value.

Modules of equal structure trace alike, whatever they are called and whoever made them, in this call of ``simulate`` and
in the next. That can be promised only where nothing is hidden: for classes of ``semu`` and ``semu_models`` whose
attributes are plain data, submodules and parameters. Any other module has no structure.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from types import FunctionType

from semu.nn.module import Module, Parameter

_PACKAGES = frozenset({"semu", "semu_models"})
_ATOMS = frozenset({int, bool, str, bytes, type(None)})
_DESCRIPTION = frozenset({"__module__", "__qualname__", "__doc__", "__annotations__", "__dict__", "__weakref__"})

_class_numbers: dict[object, int] = {}
_counter = itertools.count()


@dataclass(frozen=True)
class Structure:
    """What tracing a module depends on.

    Attributes:
        key: equal for modules that trace alike. parameters: the module's own, in the order of ``named_parameters``.
    """

    key: object
    parameters: tuple[Parameter, ...]


class _HiddenError(Exception):
    """Something that cannot be read as a value."""


class StructureReader:
    """Reads structures of modules as they are now. A reader looks at a class once, so use a new one for every call."""

    def __init__(self) -> None:
        self._classes: dict[type, int | None] = {}
        self._modules: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._parameters: list[Parameter] = []

    def read(self, module: Module) -> Structure | None:
        """The structure of a module; None where something in it is hidden."""
        self._modules, self._numbers, self._parameters = {}, {}, []
        try:
            return Structure(self._module(module), tuple(self._parameters))
        except _HiddenError:
            return None

    def _module(self, module: Module) -> object:
        """Class, parameters, submodules and plain attributes; a module that was met before is its number."""
        known = self._modules.get(id(module))
        if known is not None:
            return known
        self._modules[id(module)] = len(self._modules)
        own = [(name, self._parameter(parameter)) for name, parameter in module.own_parameters()]
        children = [(name, self._module(child)) for name, child in module.named_children()]
        values: list[object] = []
        for name, value in module.__dict__.items():
            kind = type(value)
            if kind in _ATOMS:
                values += (name, kind, value)
            elif name not in ("_parameters", "_modules"):
                values += (name, self._value(value))
        return self._class(type(module)), *own, *children, *values

    def _parameter(self, parameter: Parameter) -> object:
        """Shape and whether it trains; one that was met before is its number."""
        known = self._numbers.get(id(parameter))
        if known is not None:
            return known
        if type(parameter) is not Parameter:
            raise _HiddenError
        self._numbers[id(parameter)] = len(self._parameters)
        self._parameters.append(parameter)
        return parameter.shape, parameter.numel, parameter.requires_grad

    def _value(self, value: object) -> object:
        """An attribute that is no submodule's or parameter's first name, or plain data of any depth."""
        kind = type(value)
        if kind in _ATOMS:
            return kind, value
        if isinstance(value, Module):
            return "module", self._met(self._modules, value)
        if isinstance(value, Parameter):
            return "parameter", self._met(self._numbers, value)
        if isinstance(value, float) and kind is float:
            return kind, value.hex()  # 0.0 and -0.0 are equal, and not the same
        if isinstance(value, tuple | list) and kind in (tuple, list):
            return kind, tuple([self._value(item) for item in value])
        if isinstance(value, Enum):
            return self._class(kind), value.name
        if is_dataclass(value) and vars(value).keys() == {field.name for field in fields(value)}:
            return self._class(kind), tuple([(name, self._value(item)) for name, item in vars(value).items()])
        raise _HiddenError

    @staticmethod
    def _met(known: dict[int, int], value: object) -> int:
        """Number of a registered module or parameter; an unregistered one has no path."""
        if id(value) not in known:
            raise _HiddenError
        return known[id(value)]

    def _class(self, kind: type) -> int:
        """Number of a class with its present code, which may have been patched."""
        if kind not in self._classes:
            self._classes[kind] = None
            try:
                parts = tuple([self._code(base) for base in kind.__mro__ if base.__module__ != "builtins"])
                self._classes[kind] = _class_numbers.setdefault((kind, parts), next(_counter))
            except TypeError:  # an attribute without a hash
                pass
        number = self._classes[kind]
        if number is None:
            raise _HiddenError
        return number

    def _code(self, base: type) -> object:
        """Attributes of a class; its functions must be those of a known package."""
        ...

"""``Module`` and ``Parameter``: a model is described as in PyTorch, with shapes and no data.

Subclass ``Module``, create parameters and submodules in ``__init__``, compute in ``forward``. Assigning a submodule
or a parameter to an attribute registers it under that name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from semu.checks import check_integer
from semu.errors import ConfigError, GraphError
from semu.nn.changes import CHANGES

if TYPE_CHECKING:
    from semu.nn.trace.tracing import Trace  # circle: a module that is called runs inside the trace of its arguments


class Parameter:
    """A trainable array: a shape, no values.

    Args:
        shape: global shape, positive integers.
        requires_grad: false: frozen.
    Attributes:
        shape, requires_grad: as above. numel: number of elements. name: its attribute in the first module that has it.
    Raises:
        ConfigError: a dimension that is not a positive integer.
    """

    shape: tuple[int, ...]
    numel: int
    requires_grad: bool
    name: str

    def __init__(self, *shape: int, requires_grad: bool = True) -> None:
        for dim in shape:
            if dim.__class__ is not int or dim < 1:
                check_integer(dim, None, "a parameter dimension")
        self.__dict__.update(shape=shape, numel=math.prod(shape), requires_grad=requires_grad, name="parameter")
        CHANGES.note()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        CHANGES.note()

    def __repr__(self) -> str:
        return f"Parameter{self.shape}" + ("" if self.requires_grad else " frozen")


class Module:
    """Base of all layers and models.

    Attributes:
        recompute_kind: name of the class in lists of ``training.recompute``; empty: it has none.
        fp8_region: under fp8, the linears below run in fp8 (True), in the plain precision (False), or as the module
            around this one says (None). True for transformer layers: Megatron-LM enters ``fp8_autocast`` around its
            transformer block only. Read from a pipeline block (a member of a modality module's ``Sequential``) down.
        is_per_token: it runs once per token; false: once per sample or per pair of samples.
        is_held_only: its parameters occupy memory and are never used.
        reads_replicas: its forward exchanges with the other data-parallel replicas (a contrastive loss).
    """

    recompute_kind = ""
    fp8_region: bool | None = None
    is_per_token = True
    is_held_only = False
    reads_replicas = False

    def __init__(self) -> None:
        self._children()
        self._held()

    def _children(self) -> dict[str, Module]:
        children: dict[str, Module] = self.__dict__.setdefault("_modules", {})
        return children

    def _held(self) -> dict[str, Parameter]:
        held: dict[str, Parameter] = self.__dict__.setdefault("_parameters", {})
        return held

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            self._children().pop(name, None)
            self._held().pop(name, None)
        if isinstance(value, Module):
            self._children()[name] = value
        elif isinstance(value, Parameter):
            if value.__dict__["name"] == "parameter":
                value.__dict__["name"] = name
            self._held()[name] = value
        object.__setattr__(self, name, value)
        CHANGES.note()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._children().pop(name, None)
        self._held().pop(name, None)
        CHANGES.note()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; to be overridden."""
        raise GraphError(f"{type(self).__name__} does not define forward", expected="a method forward(self, ...)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` as a subgraph under the module's path; at least one argument must be a tensor."""
        trace = next((arg.trace for arg in (*args, *kwargs.values()) if hasattr(arg, "trace")), None)
        if trace is None:
            raise GraphError(
                f"{type(self).__name__} was called without a tensor",
                expected="a symbolic tensor; semu.trace(module, ...) makes them",
                got=", ".join(type(arg).__name__ for arg in args) or "no argument",
            )
        if trace.recomputes(self):
            return self._checkpoint(trace, args, kwargs)
        with trace.scope(self):
            return self.forward(*args, **kwargs)

    def _checkpoint(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``forward``, keep its inputs only."""
        from semu.nn.trace.autograd import recompute  # circle: a module that is called may be recomputed

        if kwargs or not all(hasattr(arg, "trace") for arg in args):
            raise GraphError(
                f"{type(self).__name__} cannot be recomputed: recompute keeps tensors only",
                where=trace.where,
                expected="positional tensors",
                got=", ".join([*(type(arg).__name__ for arg in args), *kwargs]),
            )

        def _run(*inputs: Any) -> Any:
            with trace.scope(self):
                return self.forward(*inputs)

        return recompute(trace, _run, args)

    # -- the tree ------------------------------------------------------------------------------------------------
    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct submodules by attribute name."""
        yield from self._children().items()

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and everything below it, by dotted path."""
        waiting = [(prefix, self)]
        while waiting:
            path, module = waiting.pop()
            yield path, module
            below = module.__dict__.get("_modules")
            if below:
                start = f"{path}." if path else ""
                waiting += [(start + name, child) for name, child in reversed(below.items())]

    def modules(self) -> Iterator[Module]:
        """This module and everything below it, in the order of ``named_modules``."""
        waiting = [self]
        while waiting:
            module = waiting.pop()
            yield module
            waiting += reversed(module.__dict__.get("_modules", {}).values())

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every distinct parameter by dotted path; a shared one appears once."""
        seen: set[int] = set()
        for path, module in self.named_modules(prefix):
            for name, parameter in module._held().items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{path}.{name}" if path else name, parameter

    def parameters(self) -> list[Parameter]:
        """Every distinct parameter, in the order of ``named_parameters``."""
        return list(
            {
                id(item): item for module in self.modules() for item in module.__dict__.get("_parameters", {}).values()
            }.values()
        )

    def own_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Parameters held by this module itself, by attribute name."""
        yield from self._held().items()

    def num_parameters(self, *, trainable_only: bool = False) -> int:
        """Elements of all distinct parameters."""
        return sum(p.numel for p in self.parameters() if p.requires_grad or not trainable_only)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Freeze (False) or train (True) every parameter below; returns the module."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def fingerprint(self) -> object:
        """A hashable description of everything that decides what ``forward`` does; equal structures are equal.

        Attributes that are not plain data (numbers, strings, enums, tuples and frozen dataclasses of them) are
        compared by identity, so an unusual module is never confused with another.
        """
        shared: dict[int, int] = {}
        return self._fingerprint(shared)

    def _fingerprint(self, shared: dict[int, int]) -> object:
        values: list[object] = []
        for name, value in self.__dict__.items():
            if name in ("_modules", "_parameters"):
                continue
            if isinstance(value, Module):
                values.append((name, value._fingerprint(shared)))
            elif isinstance(value, Parameter):
                number = shared.setdefault(id(value), len(shared))
                values.append((name, number, value.shape, value.requires_grad))
            else:
                try:
                    hash(value)
                    values.append((name, value))
                except TypeError:
                    values.append((name, id(value)))
        children = tuple(
            (name, child._fingerprint(shared))
            for name, child in self.named_children()
            if self.__dict__.get(name) is not child
        )
        return (type(self), tuple(values), children)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__}("]
        for name, child in self.named_children():
            lines.append(f"  {name}: " + repr(child).replace("\n", "\n  "))
        for name, parameter in self.own_parameters():
            lines.append(f"  {name}: {parameter!r}")
        return "\n".join([*lines, ")"]) if len(lines) > 1 else f"{type(self).__name__}()"


class ModuleList(Module):
    """A list of submodules, named by position."""

    def __init__(self, modules: Iterator[Module] | list[Module] | tuple[Module, ...]) -> None:
        super().__init__()
        self._items = 0
        for module in modules:
            self._append(module)

    def _append(self, module: Module) -> None:
        self._children()[str(self._items)] = module
        CHANGES.note()
        object.__setattr__(self, "_items", self._items + 1)

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._children().values()))

    def __len__(self) -> int:
        return len(self._children())

    def __getitem__(self, index: int) -> Module:
        return list(self._children().values())[index]


class Sequential(ModuleList):
    """Modules run one after another; a tuple that one returns becomes the next one's arguments.

    A model given as a ``Sequential`` can be cut between its members into pipeline chunks.

    Args:
        modules: the members in order, or one mapping of names to members (``{"embedding": ..., "layers.0": ...}``).
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__([])
        for module in modules:
            if isinstance(module, Module):
                self._append(module)
            else:
                for name, member in module.items():
                    if name in self._children():
                        raise ConfigError("two members of one name", where=type(self).__name__, got=name)
                    self._children()[name] = member
                    CHANGES.note()

    def forward(self, *args: Any) -> Any:
        """Run the members in order."""
        carry: tuple[Any, ...] = args
        for module in self:
            result = module(*carry)
            carry = result if isinstance(result, tuple) else (result,)
        return carry if len(carry) != 1 else carry[0]

"""``Follower``: what a function of a Python file returns, by reading it; nothing is run.

Constructors with keywords, names, attributes that are assigned to, lists that are appended to, and calls of functions
of the same file, or of another ``config_registry`` of the same installation, are followed. What is assigned below an
``if`` or a ``try``, and everything else, is unknown.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from pathlib import Path, PurePath
from typing import Any

from semu.errors import ConfigError
from semu.imports.documents import LARGEST
from semu.records import dataclass

_DEEPEST = 16
_REGISTRY = "config_registry"
_TO_GRAPH = "to_graph_trainer_config"
EFFECT = "()"
"""End of a field of a ``Call`` that stands for a function which was given it and cannot be followed."""
Names = dict[str, Any]


class Unknown:
    """A value that only running the file would tell."""

    def __copy__(self) -> Unknown:
        return self

    def __deepcopy__(self, memo: object) -> Unknown:
        return self


UNKNOWN = Unknown()


@dataclass
class Call:
    """A constructor. name: of what is called. line: where. fields: its keywords. first: its first argument.

    Attributes:
        whose: last folder of the package that what is called comes from.
    """

    name: str
    line: int
    fields: dict[str, Any] = field(default_factory=dict)
    first: Any = None
    whose: str | None = None


class Follower:
    """Follows functions of a file.

    Args:
        text: the file. source: its path, for messages and to find other registries.
        others: those that were read already.
    Attributes:
        functions: of the file, by name.
    Raises:
        ConfigError: text that is no Python.
    """

    def __init__(self, text: str, source: str, others: dict[str, Follower] | None = None) -> None:
        try:
            with warnings.catch_warnings():  # Python has its own doubts about damaged numbers
                warnings.simplefilter("ignore", SyntaxWarning)
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f"{source}:{getattr(error, 'lineno', None) or 0}"
            raise ConfigError(
                "not Python", where=where, expected="a registry of torchtitan", got=str(error)[:80]
            ) from error
        self.functions = {item.name: item for item in tree.body if isinstance(item, ast.FunctionDef)}
        self._classes = {item.name: item for item in tree.body if isinstance(item, ast.ClassDef)}
        self._imports = {name: place for item in tree.body for name, place in _imported(item)}
        self._source = source
        self._others = {} if others is None else others

    def result(self, name: str, given: ast.Call | None = None, names: Names | None = None, depth: int = 0) -> Any:
        """What a function returns.

        Args:
            name: of the function. given: the call, None: without arguments. names: known where it is called.
        """
        function = self.functions[name]
        if depth > _DEEPEST:
            return UNKNOWN
        bound = self._bound(function.args, given, {} if names is None else names, depth)
        return self._run(function.body, bound, depth)

    def base(self, name: str) -> str:
        """The class that a class of the file is derived from, else its own name."""
        found = self._classes.get(name)
        return ast.unparse(found.bases[0]) if found is not None and found.bases else name

    def _bound(self, wanted: ast.arguments, given: ast.Call | None, names: Names, depth: int) -> Names:
        places = [*wanted.posonlyargs, *wanted.args]
        bound: Names = {item.arg: UNKNOWN for item in (*places, *wanted.kwonlyargs)}
        own = places[len(places) - len(wanted.defaults) :]
        pairs = [*zip(own, wanted.defaults, strict=True), *zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True)]
        bound |= {item.arg: self._value(node, {}, depth) for item, node in pairs if node is not None}
        if given is not None:
            bound |= {item.arg: self._value(node, names, depth) for item, node in zip(places, given.args, strict=False)}
            bound |= {item.arg: self._value(item.value, names, depth) for item in given.keywords if item.arg in bound}
        return bound

    def _run(self, body: Sequence[ast.stmt], names: Names, depth: int) -> Any:
        """What a body returns; UNKNOWN also where it returns nothing."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return UNKNOWN if statement.value is None else self._value(statement.value, names, depth)
            self._do(statement, names, depth)
        return UNKNOWN

    def _do(self, statement: ast.stmt, names: Names, depth: int) -> None:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            self._assign(statement.targets[0], self._value(statement.value, names, depth), names, depth)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, self._value(statement.value, names, depth), names, depth)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            self._effect(statement.value, names, depth)
        elif isinstance(statement, ast.For) and isinstance(statement.target, ast.Name):
            items = self._value(statement.iter, names, depth)
            for item in items if isinstance(items, list) else [UNKNOWN]:
                names[statement.target.id] = item
                for inner in statement.body:
                    self._do(inner, names, depth)
        elif not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            for below in ast.walk(statement):
                if isinstance(below, ast.Assign | ast.AugAssign | ast.AnnAssign):
                    for target in below.targets if isinstance(below, ast.Assign) else [below.target]:
                        self._assign(target, UNKNOWN, names, depth)

    def _assign(self, target: ast.expr, value: Any, names: Names, depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._value(target.value, names, depth)
            if isinstance(owner, Call):
                owner.fields[target.attr] = value
            elif isinstance(target.value, ast.Attribute) and owner is UNKNOWN:  # a table that only has defaults
                table = Call("Config", target.lineno, {target.attr: value})
                self._assign(target.value, table, names, depth)

    def _effect(self, node: ast.Call, names: Names, depth: int) -> None:
        """A call whose result is not used: an ``append``, or a function that changes what it is given."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "append" and len(node.args) == 1:
            held = self._value(node.func.value, names, depth)
            value = self._value(node.args[0], names, depth)
            self._assign(node.func.value, [*(held if isinstance(held, list) else []), value], names, depth)
            return
        name = ast.unparse(node.func)
        if name in self.functions:
            self.result(name, node, names, depth + 1)
            return
        for argument in (*node.args, *(item.value for item in node.keywords)):
            value = self._value(argument, names, depth)
            if isinstance(value, Call):
                value.fields[f"{name}{EFFECT}"] = UNKNOWN

    def _value(self, node: ast.expr, names: Names, depth: int) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, names, depth) for item in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, names, depth)
            return -value if isinstance(value, int | float) else UNKNOWN
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, names, depth)
            return owner.fields.get(node.attr, UNKNOWN) if isinstance(owner, Call) else UNKNOWN
        if isinstance(node, ast.Call):
            return self._called(node, names, depth)
        return UNKNOWN

    def _called(self, node: ast.Call, names: Names, depth: int) -> Any:
        name = ast.unparse(node.func)
        if name in self.functions:
            return self.result(name, node, names, depth + 1)
        module, own = self._imports.get(name, ("", name))
        if module.endswith(_REGISTRY) and (other := self._other(module)) is not None and own in other.functions:
            return other.result(own, node, names, depth + 1) if depth < _DEEPEST else UNKNOWN
        values = {item.arg: self._value(item.value, names, depth) for item in node.keywords if item.arg is not None}
        first = self._value(node.args[0], names, depth) if node.args else None
        if own in (_TO_GRAPH, "replace") and isinstance(first, Call):
            return _as_graph(first) if own == _TO_GRAPH else _replaced(first, values)
        return Call(name, node.lineno, values, first, self._whose(module))

    def _whose(self, module: str) -> str | None:
        if module.strip("."):
            return module.rpartition(".")[2]
        return PurePath(self._source).parent.name if module else None

    def _other(self, module: str) -> Follower | None:
        """Another registry of the same installation; None: it is not there."""
        parts = module.split(".")
        places = PurePath(os.path.abspath(self._source)).parts
        if parts[0] not in places:
            return None
        root = len(places) - 1 - places[::-1].index(parts[0])
        path = os.path.join(*places[:root], *parts) + ".py"
        if path not in self._others:
            try:
                if os.path.getsize(path) > LARGEST:
                    return None
                text = Path(path).read_text("utf-8", "replace")
            except (OSError, ValueError):
                return None
            self._others[path] = Follower(text, path, self._others)
        return self._others[path]


def _imported(item: ast.stmt) -> Iterator[tuple[str, tuple[str, str]]]:
    """(name in the file, (module, name there)); a module of the same package begins with a point."""
    if isinstance(item, ast.ImportFrom):
        module = "." * item.level + (item.module or "")
        for alias in item.names:
            yield alias.asname or alias.name, (module, alias.name)


def _replaced(call: Call, values: Mapping[str, Any]) -> Call:
    copy = deepcopy(call)
    copy.fields |= values
    return copy


def _as_graph(trainer: Call) -> Call:
    """A configuration of ``GraphTrainer``: compilation is its own, recomputation selective where there is any."""
    copy = deepcopy(trainer)
    copy.name = "GraphTrainer.Config"
    copy.fields.pop("compile", None)
    if copy.fields.get("activation_checkpoint", UNKNOWN) is not None:
        copy.fields["activation_checkpoint"] = Call("SelectiveAC.Config", trainer.line)
    return copy

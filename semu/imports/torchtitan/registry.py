"""``read_registry``: a function of torchtitan's Python registry (0.3), read as text, becomes keys of TOML files.

    def llama3_8b() -> Trainer.Config:
        return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(local_batch_size=1), ...)

Nothing is run: constructors with keywords, names, attributes that are assigned to, and calls of other functions of the
same file are followed; everything else is unknown, and a key whose value is unknown is a gap.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from semu.errors import ConfigError, unknown_name
from semu.imports.arguments import Argument, Given
from semu.imports.flags import FlagTable

_MODES = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
_CONVERTERS = {
    "Float8LinearConverter": "float8",
    "Float8GroupedExpertsConverter": "grouped_mm.float8",
    "MXFP8LinearConverter": "mx",
    "MXFP8GroupedExpertsConverter": "grouped_mm.mx",
    "NVFP4LinearConverter": "nvfp4",
}
_TABLES = ("training", "parallelism", "compile", "comm", "debug")
_DEEPEST = 16


class _Unknown:
    """A value that only running the file would tell."""


_UNKNOWN = _Unknown()


@dataclass
class _Call:
    """A constructor. name: of what is called. fields: its keywords. first: its first argument. line: where."""

    name: str
    line: int
    fields: dict[str, Any] = field(default_factory=dict)
    first: Any = None


def read_registry(text: str, source: str, name: str | None, flags: FlagTable, models: Mapping[str, Any]) -> Given:
    """Keys of one function.

    Args:
        text: the file. source: its name, for messages; the folder of a model tells whose registry it is.
        name: of the function; None: the only one. flags: torchtitan's keys. models: names of its models.
    Raises:
        ConfigError: text that is no Python, no function of that name, several and none is named.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"{source}:{getattr(error, 'lineno', None) or 0}"
        raise ConfigError(
            "not Python", where=where, expected="a registry of torchtitan", got=str(error)[:80]
        ) from error
    functions = {item.name: item for item in tree.body if isinstance(item, ast.FunctionDef)}
    reader = _Reader(functions)
    found = {key: function for key, function in functions.items() if _makes_trainer(function)}
    if name is None and len(found) != 1:
        raise ConfigError(
            f"{len(found)} configurations in the file",
            where=source,
            expected="--define config=NAME, one of " + ", ".join(found),
            got="no name",
            nearest=f"--define config={next(iter(found))}" if found else None,
        )
    if name is not None and name not in found:
        raise unknown_name("configuration", name, found, where="--define config")
    chosen = name if name is not None else next(iter(found))
    trainer = reader.call(chosen, 0)
    if not isinstance(trainer, _Call):
        raise ConfigError(
            "not a configuration", where=f"{source}:{found[chosen].lineno}", expected="Trainer.Config(...)"
        )
    folder = re.search(r"(?:^|/)models/(\w+)/[^/]*$", source)
    named = [model for model in models if chosen.startswith(f"{model}_")]
    whose = folder[1] if folder is not None else max(named, key=len, default=None)
    return Given(source, "registry of torchtitan", flags, tuple(_arguments(trainer, whose, flags)))


def _makes_trainer(function: ast.FunctionDef) -> bool:
    return function.returns is not None and ast.unparse(function.returns).strip("'\"").endswith("Trainer.Config")


class _Reader:
    """Follows functions of a file."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self._functions = functions

    def call(self, name: str, depth: int) -> Any:
        """What a function returns."""
        names: dict[str, Any] = {}
        if depth > _DEEPEST:
            return _UNKNOWN
        for statement in self._functions[name].body:
            if isinstance(statement, ast.Return):
                return _UNKNOWN if statement.value is None else self._value(statement.value, names, depth)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], self._value(statement.value, names, depth), names, depth)
        return _UNKNOWN

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any], depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self._value(target.value, names, depth)
            if isinstance(owner, _Call):
                owner.fields[target.attr] = value
            elif isinstance(target.value, ast.Attribute) and owner is _UNKNOWN:  # a table that only has defaults
                table = _Call("Config", target.lineno, {target.attr: value})
                self._assign(target.value, table, names, depth)

    def _value(self, node: ast.expr, names: dict[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, names, depth) for item in node.elts]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self._value(node.operand, names, depth)
            return -value if isinstance(value, int | float) else _UNKNOWN
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value, names, depth)
            return owner.fields.get(node.attr, _UNKNOWN) if isinstance(owner, _Call) else _UNKNOWN
        if isinstance(node, ast.Call):
            return self._called(node, names, depth)
        return _UNKNOWN

    def _called(self, node: ast.Call, names: dict[str, Any], depth: int) -> Any:
        name = ast.unparse(node.func)
        if name in self._functions and not node.args and not node.keywords:
            return self.call(name, depth + 1)
        values = {item.arg: self._value(item.value, names, depth) for item in node.keywords if item.arg is not None}
        first = self._value(node.args[0], names, depth) if node.args else None
        return _Call(name, node.lineno, values, first)


def _arguments(trainer: _Call, model: str | None, flags: FlagTable) -> Iterator[Argument]:
    """The keys that a TOML file would have."""

    def _one(key: str, value: Any, line: int) -> Argument:
        if isinstance(value, list):
            words = tuple(_word(item) for item in value) or ("[]",)
            gap = "" if _UNKNOWN not in value else f"{key} (line {line}: only running the file would tell)"
            return Argument(flags.spelt(key), key, words, line, gap)
        gap = f"{key} (line {line}: only running the file would tell)" if value is _UNKNOWN else ""
        return Argument(flags.spelt(key), key, (_word(value),), line, gap)

    spec = trainer.fields.get("model_spec")
    if model is not None:
        yield _one("model.name", model, trainer.line)
    if isinstance(spec, _Call):
        yield _one("model.flavor", spec.first if spec.first is not None else spec.fields.get("flavor"), spec.line)
        converters = spec.fields.get("converters", [])
        words = [_converter(item) for item in converters] if isinstance(converters, list) else _UNKNOWN
        if words:
            yield _one("model.converters", words, spec.line)
    again = trainer.fields.get("activation_checkpoint", _Call("SelectiveAC.Config", trainer.line))
    mode = "none" if again is None else _MODES.get(again.name.partition(".")[0]) if isinstance(again, _Call) else None
    yield _one("activation_checkpoint.mode", _UNKNOWN if mode is None else mode, trainer.line)
    if mode == "selective":
        yield _one("activation_checkpoint.selective_ac_option", "op", trainer.line)
    loss = trainer.fields.get("loss")
    if isinstance(loss, _Call) and loss.name.startswith("Chunked"):
        yield _one("loss.chunked", True, loss.line)
    for table in _TABLES:
        call = trainer.fields.get(table)
        if isinstance(call, _Call):
            for key, value in call.fields.items():
                yield _one(f"{table}.{key}", value, call.line)


def _converter(value: Any) -> str:
    name = value.name.partition(".")[0] if isinstance(value, _Call) else "unknown"
    return _CONVERTERS.get(name, name)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "?" if isinstance(value, _Unknown | _Call) else str(value)

"""Defaults of another program's dataclasses, read from its source, which need not be importable."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def package_folder(name: str) -> Path | None:
    """Folder of an installed package, which is not imported; None: there is none."""
    found = find_spec(name)
    return None if found is None or found.origin is None else Path(found.origin).parent


def class_defaults(path: Path, name: str) -> dict[str, Any]:
    """Field -> default of a class: a literal, or the last name of an expression (``torch.bfloat16``: bfloat16).

    What ``__post_init__`` puts in the place of None counts; fields without a default are left out.
    """
    tree = ast.parse(path.read_text("utf-8"))
    owner = next(item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == name)
    found: dict[str, Any] = {}
    for item in owner.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value is not None:
            found[item.target.id] = _literal(item.value)
        elif isinstance(item, ast.FunctionDef) and item.name == "__post_init__":
            found |= dict(_replaced(item))
    return found


def _replaced(function: ast.FunctionDef) -> list[tuple[str, Any]]:
    tests = [item for item in function.body if isinstance(item, ast.If) and "is None" in ast.unparse(item.test)]
    return [
        (target.attr, _literal(item.value))
        for test in tests
        for item in test.body
        if isinstance(item, ast.Assign) and isinstance(target := item.targets[0], ast.Attribute)
    ]


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        inner = next((item.value for item in getattr(node, "keywords", []) if item.arg == "default_factory"), node)
        if isinstance(inner, ast.Lambda):
            return _literal(inner.body)
        inner = inner.func if isinstance(inner, ast.Call) else inner
        return ast.unparse(inner).rpartition(".")[2]


def told(value: Any) -> Any:
    """A default as ``flags.toml`` writes it: switches of documents are the words true and false, lists tuples."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return tuple(value) if isinstance(value, list) else value

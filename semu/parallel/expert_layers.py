"""Which layers have experts, as Megatron-LM's ``--moe-layer-freq`` writes it: ``layer_pattern``."""

from __future__ import annotations

import ast

from semu.errors import ConfigError


def layer_pattern(text: str, where: str) -> int | list[int]:
    """A number, or the list that an expression like ``([0]*3+[1]*58)`` makes.

    Args:
        text: as of ``--moe-layer-freq``. where: its place, for messages.
    Raises:
        ConfigError: another expression.
    """
    try:
        value = _pattern(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        value = 0
    if isinstance(value, int) and value < 1:
        raise ConfigError(
            "not a pattern of layers", where=where, expected="an integer >= 1, or lists like ([0]*3+[1]*58)", got=text
        )
    return value


_MOST_LAYERS = 1 << 16


def _pattern(node: ast.AST) -> int | list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [item for item in map(_pattern, node.elts) if isinstance(item, int)]
        if len(items) == len(node.elts):
            return items
    if isinstance(node, ast.BinOp):
        left, right = _pattern(node.left), _pattern(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult):
            pair = (left, right) if isinstance(left, list) else (right, left)
            if isinstance(pair[0], list) and isinstance(pair[1], int) and len(pair[0]) * pair[1] <= _MOST_LAYERS:
                return pair[0] * pair[1]
    raise ValueError("not a pattern")

"""``mutants_of``: small faults of meaning in a file of Python, each as the file's text with that fault."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "any": "all", "all": "any", "sum": "max"}
ATTRIBUTES = {"minimum": "maximum", "maximum": "minimum", "ceil": "floor", "floor": "ceil", "cumsum": "cumprod"}


@dataclass(frozen=True)
class Mutant:
    """A fault. Attributes: line, column: where. what: old and new text. begin, end: bytes replaced. new: by what."""

    line: int
    column: int
    what: str
    begin: int
    end: int
    new: str

    def text(self, source: str) -> str:
        """The file with this fault."""
        data = source.encode()
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()


class _Finder:
    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self.starts = [0]
        for line in self.data.split(b"\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.found: list[Mutant] = []

    def place(self, node: ast.AST) -> tuple[int, int]:
        begin = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return begin, self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def replace(self, node: ast.AST, new: str) -> None:
        begin, end = self.place(node)
        old = self.data[begin:end].decode()
        if new != old:
            self.found.append(
                Mutant(node.lineno, node.col_offset, f"{_short(old)} -> {_short(new)}", begin, end, new)  # type: ignore[attr-defined]
            )

    def visit(self, node: ast.AST, inside: bool) -> None:
        """Faults of a node and what is below it; only what stands in a function does something."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body[1:] if ast.get_docstring(node) is not None else node.body:
                self.visit(child, True)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value, inside)
            return
        if isinstance(node, ast.Raise):  # the words of messages are no fault of meaning
            return
        if inside:
            self.mutate(node)
        for child in ast.iter_child_nodes(node):
            self.visit(child, inside)

    def mutate(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
            changed = ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
            self.replace(node, f"({ast.unparse(changed)})")
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            if not any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in _sides(node)):
                changed_sum = ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
                self.replace(node, f"({ast.unparse(changed_sum)})")
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            self.replace(node, f"({ast.unparse(ast.BoolOp(other, node.values))})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            self.replace(node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            self.replace(node, repr(node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 1.0))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            self.replace(node, repr(not node.value))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                self.replace(node.func, CALLS[node.func.id])
            elif isinstance(node.func, ast.Attribute) and node.func.attr in ATTRIBUTES:
                changed_call = ast.Attribute(node.func.value, ATTRIBUTES[node.func.attr], ast.Load())
                self.replace(node.func, ast.unparse(changed_call))
        elif isinstance(node, ast.If) and not node.orelse:
            self.replace(node.test, "False")
        elif isinstance(node, ast.IfExp):
            self.replace(node.test, "False")
            self.replace(node.test, "True")
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            target = ast.unparse(node.target)
            changed_aug = ast.BinOp(ast.parse(target, mode="eval").body, ARITHMETIC[type(node.op)](), node.value)
            self.replace(node, f"{target} = {ast.unparse(changed_aug)}")
        elif isinstance(node, ast.Continue | ast.Break):
            self.replace(node, "pass")


def _sides(node: ast.BinOp) -> Iterator[ast.AST]:
    for side in (node.left, node.right):
        if isinstance(side, ast.JoinedStr):
            yield ast.Constant("")
        elif isinstance(side, ast.BinOp):
            yield from _sides(side)
        else:
            yield side


def _short(text: str, longest: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def mutants_of(source: str) -> list[Mutant]:
    """All faults of a file, in the order of its text; each is a file that Python can read."""
    finder = _Finder(source)
    finder.visit(ast.parse(source), False)
    return sorted(finder.found, key=lambda one: (one.begin, one.end, one.new))

"""``Shell``: the variables of a script and what words become with them; a value from outside stays a named gap.

A gap is one character of a private range inside a text, so that texts with gaps can be joined, split and read again.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence

from semu.errors import ConfigError
from semu.imports.megatron.shell_text import Piece, PieceKind, Word, tokenize
from semu.records import dataclass

_GAPS = 0xE000
_LAST_GAP = 0xF8FF
_PRIVATE = re.compile(f"[{chr(_GAPS)}-{chr(_LAST_GAP)}]")


@dataclass(frozen=True)
class Field:
    """A word after its expansion. text: gaps are single private characters. line: where the word stands."""

    text: str
    line: int


_UNSET, _NO_PARAMETER = "not set in the script", "no parameters are known"


@dataclass(frozen=True)
class Gap:
    """Something that only running the script would tell. what: as written. line: where. why: the reason."""

    what: str
    line: int
    why: str

    @property
    def is_unset(self) -> bool:
        """Whether it is a variable that nobody sets, which is empty unless the caller's environment has it."""
        return self.why in (_UNSET, _NO_PARAMETER)

    def __str__(self) -> str:
        return f"{self.what} (line {self.line}: {self.why})"


def gap_in(text: str) -> int | None:
    """Number of the first gap of a text, None where it has none."""
    match = _PRIVATE.search(text)
    return None if match is None else ord(match[0]) - _GAPS


class Shell:
    """Variables, arrays and gaps.

    Args:
        name: of the script, for messages. defined: variables that the user gives; ``"1"`` is the first parameter.
    Raises:
        ConfigError: private characters in a text.
    """

    def __init__(self, name: str, defined: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.gaps: list[Gap] = []
        self._numbers: dict[Gap, int] = {}
        self.notes: list[str] = []
        self.variables: dict[str, list[Field]] = {}  # a list is nobody else's: adding to an array adds to it
        for key, value in (defined or {}).items():
            check_text(value, f"--define {key}")
            self.variables[key] = [Field(value, 0)]
        self.fixed = frozenset(self.variables)

    def gap(self, what: str, line: int, why: str) -> str:
        """The character of a gap."""
        found = Gap(what, line, why)
        number = self._numbers.setdefault(found, len(self.gaps))
        if number == len(self.gaps):
            self.gaps.append(found)
        return chr(min(_GAPS + number, _LAST_GAP))

    def gap_of(self, text: str) -> Gap | None:
        """The first gap of a text."""
        number = gap_in(text)
        return None if number is None else self.gaps[number]

    def note_empty(self, gap: Gap) -> None:
        """Say once that a variable which nobody sets is taken as empty."""
        note = f"{gap.what} (line {gap.line}) is set nowhere and taken as empty"
        if note not in self.notes:
            self.notes.append(note)

    def gap_alone(self, text: str) -> bool:
        """Whether a text is one gap and nothing else."""
        return _PRIVATE.fullmatch(text) is not None

    def shown(self, text: str) -> str:
        """A text with its gaps as they are written in the script."""
        return _PRIVATE.sub(lambda match: self.gaps[ord(match[0]) - _GAPS].what, text)

    def assign(self, name: str, fields: Sequence[Field], *, adds: bool, is_array: bool) -> None:
        """``NAME=...``, ``NAME+=...``; what the user defined stays."""
        if name in self.fixed:
            return
        if not adds:
            self.variables[name] = list(fields)
            return
        before = self.variables.setdefault(name, [])
        if is_array:
            before.extend(fields)
        else:
            head = before[0] if before else Field("", fields[0].line)
            before[:1] = [Field(head.text + fields[0].text, head.line)]

    def expand(self, word: Word) -> list[Field]:
        """The words that a word becomes: variables, arithmetic, splitting at blanks, quotes removed."""
        out = _Fields(word.line)
        self._add(word.pieces, out)
        out.end()
        return out.found

    def text(self, word: Word) -> str:
        """A word as the value of an assignment: expanded, not split."""
        return "".join(self._text(piece) for piece in word.pieces)

    def _text(self, piece: Piece) -> str:
        if piece.kind is PieceKind.TEXT:
            return piece.text
        return " ".join(field.text for field in self._values(piece))

    def _add(self, pieces: Sequence[Piece], out: _Fields) -> None:
        for piece in pieces:
            if piece.kind is PieceKind.TEXT:
                out.join(piece.text, is_quoted=piece.is_quoted)
                continue
            if piece.operand and not piece.is_quoted and self._takes_operand(piece):
                self._assign_default(piece)
                self._add(piece.operand, out)
                continue
            values = self._values(piece)
            if piece.is_quoted and piece.subscript != "@":
                out.join(" ".join(value.text for value in values), is_quoted=True)
                continue
            for number, value in enumerate(values):
                if number:
                    out.end()
                if piece.is_quoted:
                    out.join(value.text, is_quoted=True, line=value.line)
                else:
                    out.split(value.text, value.line)

    def _values(self, piece: Piece) -> Sequence[Field]:
        if piece.kind is PieceKind.ARITHMETIC:
            return (Field(self.arithmetic(piece.text, piece.line), piece.line),)
        if piece.kind is PieceKind.COMMAND:
            return (Field(self.gap(piece.text, piece.line, "nothing is run"), piece.line),)
        if piece.operand and self._takes_operand(piece):
            self._assign_default(piece)
            return (self._operand(piece),)
        known = self.variables.get(piece.text)
        if piece.text == "@":
            return known or ()
        if piece.operator.endswith("+") or (known is None and piece.operator in ("-", ":-", "=", ":=")):
            return (Field("", piece.line),)
        what = f"${{{piece.text}}}" if piece.operator or piece.subscript else f"${piece.text}"
        if piece.operator not in ("", "-", ":-", "=", ":="):
            why = f"the operator {piece.operator!r} is not read"
            return (Field(self.gap(f"${{{piece.text}{piece.operator}}}", piece.line, why), piece.line),)
        if known is None:
            why = _NO_PARAMETER if piece.text.isdigit() else _UNSET
            return (Field(self.gap(what, piece.line, why), piece.line),)
        if piece.is_length:
            size = len(known) if piece.subscript in ("@", "*") else len(known[0].text) if known else 0
            return (Field(str(size), piece.line),)
        if piece.subscript in ("@", "*"):
            return known
        if piece.subscript:
            index = self.arithmetic(piece.subscript, piece.line)
            if gap_in(index) is not None:
                return (Field(index, piece.line),)
            number = int(index)
            return (known[number],) if -len(known) <= number < len(known) else (Field("", piece.line),)
        return known[:1] or (Field("", piece.line),)

    def _takes_operand(self, piece: Piece) -> bool:
        """Whether ``${NAME:-word}`` is its word."""
        known = self.variables.get(piece.text)
        is_set = known is not None and (not piece.operator.startswith(":") or "".join(f.text for f in known) != "")
        return is_set if piece.operator.endswith("+") else not is_set

    def _assign_default(self, piece: Piece) -> None:
        if piece.operator.endswith("="):
            self.assign(piece.text, [self._operand(piece)], adds=False, is_array=False)

    def _operand(self, piece: Piece) -> Field:
        return Field("".join(self._text(part) for part in piece.operand), piece.line)

    def arithmetic(self, expression: str, line: int) -> str:
        """Value of ``$((...))``, a gap where it has one or is too much."""
        word = tokenize('"' + expression.replace('"', "") + '"', self.name, line)[0]
        assert isinstance(word, Word)
        text = self.text(word)
        if (match := _PRIVATE.search(text)) is not None:
            return match[0]
        try:
            return str(self._number(ast.parse(text.strip() or "0", mode="eval").body, line))
        except _GapFoundError as found:
            return str(found)
        except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError):
            return self.gap(f"$(({self.shown(expression)}))", line, "not arithmetic of simple kinds")

    def _number(self, node: ast.AST, line: int, depth: int = 0) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return _bounded(node.value)
        if isinstance(node, ast.Name) and depth < 32:
            known = self.variables.get(node.id)
            text = known[0].text if known else "" if known is not None else self.gap(f"${node.id}", line, _UNSET)
            if (match := _PRIVATE.search(text)) is not None:
                raise _GapFoundError(match[0])
            return self._number(ast.parse(text.strip() or "0", mode="eval").body, line, depth + 1)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
            if isinstance(node.operand, ast.BinOp):  # -2**2: the sign binds closer in a shell
                raise ValueError("not simple")
            return _bounded(_UNARY[type(node.op)](self._number(node.operand, line, depth)))
        kind: type
        if isinstance(node, ast.BinOp):
            right, kind = node.right, type(node.op)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            right, kind = node.comparators[0], type(node.ops[0])
        else:
            raise ValueError("not simple")
        numbers = self._number(node.left, line, depth), self._number(right, line, depth)
        return _bounded(int(_BINARY[kind](*numbers)))


class _GapFoundError(Exception):
    """A number that a gap stands in the way of; its text is the gap."""


class _Fields:
    """Words while they are put together."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.found: list[Field] = []
        self.current: str | None = None
        self.begin = line

    def join(self, text: str, *, is_quoted: bool, line: int | None = None) -> None:
        """Add to the word at hand, which begins with it where there is none."""
        if self.current is None and (text or is_quoted):
            self.current, self.begin = "", self.line if line is None else line
        if self.current is not None:
            self.current += text

    def split(self, text: str, line: int) -> None:
        """Add a text that blanks split."""
        for number, part in enumerate(re.split(r"[ \t\n]+", text)):
            if number:
                self.end()
            self.join(part, is_quoted=False, line=line)

    def end(self) -> None:
        """The word at hand is complete."""
        if self.current is not None:
            self.found.append(Field(self.current, self.begin))
        self.current = None


def check_text(text: str, name: str) -> None:
    """Refuse a text with characters that stand for gaps."""
    match = _PRIVATE.search(text)
    if match is not None:
        line = text.count("\n", 0, match.start()) + 1
        raise ConfigError(
            "a private character", where=f"{name}:{line}", expected="plain text", got=f"U+{ord(match[0]):04X}"
        )


def _bounded(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("too large")
    return value


def _quotient(left: int, right: int) -> int:
    """C's division, towards zero."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _power(left: int, right: int) -> int:
    if not 0 <= right < 64:
        raise ValueError("not a power")
    return int(left**right)


_UNARY: Mapping[type, Callable[[int], int]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_BINARY: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    ast.Pow: _power,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

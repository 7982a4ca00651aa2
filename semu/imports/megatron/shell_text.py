"""Reading the text of a shell script: ``tokenize`` makes words and operators of it, nothing is expanded yet.

Covers what scripts that start training consist of: quotes, comments, continued lines, ``$NAME``, ``${NAME:-word}``,
``$((...))``, ``$(...)``, arrays, here-documents. Places are line numbers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum

from semu.errors import ConfigError
from semu.records import dataclass


class PieceKind(Enum):
    """What a part of a word is."""

    TEXT = "text"
    VARIABLE = "variable"
    ARITHMETIC = "arithmetic"
    COMMAND = "command"


@dataclass(frozen=True)
class Piece:
    """Part of a word.

    Attributes:
        kind: what it is. text: the text, the variable's name, the expression or the command.
        is_quoted: it makes no new words. line: where it stands.
        subscript: of an array, ``@``, ``*``, a number; empty: none.
        operator, operand: of ``${NAME:-word}``; another operator that is not known keeps its text in ``operator``.
        is_length: ``${#NAME}``.
    """

    kind: PieceKind
    text: str
    is_quoted: bool
    line: int
    subscript: str = ""
    operator: str = ""
    operand: tuple[Piece, ...] = ()
    is_length: bool = False


@dataclass(frozen=True)
class Word:
    """A word before its expansion; ``elements`` are those of an array that it assigns, None: none."""

    pieces: tuple[Piece, ...]
    line: int
    elements: tuple[Word, ...] | None = None

    @property
    def plain(self) -> str | None:
        """Its text where nothing of it is quoted or expanded."""
        if self.elements is None and all(p.kind is PieceKind.TEXT and not p.is_quoted for p in self.pieces):
            return "".join(piece.text for piece in self.pieces)
        return None


@dataclass(frozen=True)
class Operator:
    """``;``, ``&&``, ``||``, ``|``, ``&``, ``(``, ``)``, ``;;``, a line's end, or ``((``: an arithmetic command."""

    text: str
    line: int
    expression: str = ""


_OPERATORS = ("&&", "||", ";;", ";", "|", "&", "(", ")")
_REDIRECTION = re.compile(r"\d*(?:&>>?|>>|>\||>&|<<<|<&|<>|[<>])")
_HEREDOC = re.compile(r"<<-?(?!<)\s*(['\"]?)(\w+)\1")
_ASSIGNED_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(")
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_BRACED_NAME = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]")
_USE = re.compile(r"(:?[-=+])")
_ENDS = set(" \t\n;|&()<>")


def tokenize(text: str, name: str, first_line: int = 1) -> list[Word | Operator]:
    """Words and operators of a script, redirections and comments left out.

    Args:
        text: the script. name: of the file, for messages. first_line: number of its first line.
    Raises:
        ConfigError: a quote, a parenthesis or a brace that is not closed, with the line on which it was opened.
    """
    return list(_Reader(text.replace("\r\n", "\n"), name, first_line).tokens())


_RUN = re.compile(r"[A-Za-z0-9_./,:+@%-]+")
"""Characters that stand for themselves wherever they are in a word, and end nothing; not =, where a value begins."""


class _Reader:
    def __init__(self, text: str, name: str, first_line: int) -> None:
        self.text, self.name, self.first = text, name, first_line
        self.at = 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]
        self.heredocs: list[str] = []

    def line(self) -> int:
        """Line of the next character, from that of the text's first on."""
        return self.first + bisect_right(self.breaks, self.at - 1)

    def peek(self, count: int = 1) -> str:
        """The next characters, fewer at the end of the text."""
        return self.text[self.at : self.at + count]

    def tokens(self) -> Iterator[Word | Operator]:
        """Words and operators of the text, in order."""
        is_start = True  # of a command: where ((...)) is arithmetic
        while self.at < len(self.text):
            char, line = self.peek(), self.line()
            if char in " \t" or self.peek(2) == "\\\n":
                self.at += 1 if char in " \t" else 2
            elif char == "#":
                self.at = self._line_end()
            elif char == "\n":
                self.at += 1
                yield Operator("\n", line)
                self._skip_heredocs()
                is_start = True
            elif self.peek(2) == "((" and is_start:
                self.at += 2
                yield Operator("((", line, self._until_arithmetic_end(line))
                is_start = False
            elif (match := _HEREDOC.match(self.text, self.at)) is not None:
                self.heredocs.append(match[2])
                self.at = match.end()
            elif (match := _REDIRECTION.match(self.text, self.at)) is not None:
                self.at = match.end()
                while self.peek() in (" ", "\t"):
                    self.at += 1
                if self.peek() not in _ENDS and self.at < len(self.text):
                    self.word()
            elif (operator := next((o for o in _OPERATORS if self.text.startswith(o, self.at)), None)) is not None:
                self.at += len(operator)
                yield Operator(operator, line)
                is_start = True
            else:
                word = self.word()
                yield word
                is_start = word.plain in ("if", "elif", "then", "else", "while", "until", "do", "!", "{")

    def word(self) -> Word:
        """The word that begins at the next character."""
        line, begin = self.line(), self.at
        match = _ASSIGNED_ARRAY.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            head = Piece(PieceKind.TEXT, match[0][:-1], False, line)
            return Word((head,), line, tuple(self._elements(line)))
        pieces: list[Piece] = []
        while self.at < len(self.text) and self.peek() not in _ENDS:
            pieces += self._piece(is_quoted=False)
        if self.at == begin:  # nothing that can stand in a word
            raise self._error("a character that no command has here", line, "a command", self.peek())
        return Word(tuple(pieces), line)

    def _elements(self, line: int) -> Iterator[Word]:
        while True:
            if self.at >= len(self.text):
                raise self._error("an array that is not closed", line, "a ')' behind it", "the end of the text")
            if self.peek(2) == "\\\n":
                self.at += 2
            elif self.peek().isspace():
                self.at += 1
            elif self.peek() == "#":
                self.at = self._line_end()
            elif self.peek() == ")":
                self.at += 1
                return
            elif self.peek() in _ENDS:
                raise self._error("not an element of an array", self.line(), "words in quotes", self.peek())
            else:
                yield self.word()

    def _piece(self, *, is_quoted: bool) -> Iterator[Piece]:
        """The next part of a word; of a quoted text without its quotes."""
        char, line = self.peek(), self.line()
        if char == "\\":
            self.at += 2
            if self.text[self.at - 1 : self.at] != "\n":
                yield Piece(PieceKind.TEXT, self.text[self.at - 1 : self.at], True, line)
        elif char == "'" and not is_quoted:
            yield Piece(PieceKind.TEXT, self._quoted()[1:-1], True, line)
        elif char == '"':
            yield from self._double(line)
        elif char == "$":
            yield self._dollar(line, is_quoted=is_quoted)
        elif char == "`":
            yield Piece(PieceKind.COMMAND, self._quoted(), is_quoted, line)
        else:
            run = _RUN.match(self.text, self.at)
            self.at = self.at + 1 if run is None else run.end()
            yield Piece(PieceKind.TEXT, char if run is None else run[0], is_quoted, line)

    def _quoted(self) -> str:
        """The text from a quote to the next one like it, both included, which is passed."""
        begin, quote = self.at, self.peek()
        end = self.text.find(quote, begin + 1)
        if end < 0:
            raise self._error("a quote that is not closed", self.line(), f"a second {quote}", "the end of the text")
        self.at = end + 1
        return self.text[begin : self.at]

    def _double(self, line: int) -> Iterator[Piece]:
        self.at += 1
        if self.peek() == '"':
            yield Piece(PieceKind.TEXT, "", True, line)
        while self.peek() != '"':
            if self.at >= len(self.text):
                raise self._error("a quote that is not closed", line, 'a second "', "the end of the text")
            if self.peek() == "\\" and self.text[self.at + 1 : self.at + 2] not in tuple('$`"\\\n'):
                self.at += 1
                yield Piece(PieceKind.TEXT, "\\", True, self.line())
            else:
                yield from self._piece(is_quoted=True)
        self.at += 1

    def _dollar(self, line: int, *, is_quoted: bool) -> Piece:
        begin = self.at
        if self.peek(3) == "$((":
            self.at += 3
            return Piece(PieceKind.ARITHMETIC, self._until_arithmetic_end(line), is_quoted, line)
        if self.peek(2) == "$[":
            self.at += 2
            return Piece(PieceKind.ARITHMETIC, self._until("]", "[", line), is_quoted, line)
        if self.peek(2) == "$(":
            self.at += 2
            self._until(")", "(", line)
            return Piece(PieceKind.COMMAND, self.text[begin : self.at], is_quoted, line)
        if self.peek(2) == "${":
            self.at += 2
            return self._braced(line, is_quoted=is_quoted)
        match = _NAME.match(self.text, self.at + 1)
        if match is None:
            self.at += 1
            return Piece(PieceKind.TEXT, "$", is_quoted, line)
        self.at = match.end()
        name, subscript = ("@", match[0]) if match[0] in "@*" else (match[0], "")
        return Piece(PieceKind.VARIABLE, name, is_quoted, line, subscript)

    def _braced(self, line: int, *, is_quoted: bool) -> Piece:
        is_length = self.peek() == "#" and self.text[self.at + 1 : self.at + 2] != "}"
        self.at += is_length
        match = _BRACED_NAME.match(self.text, self.at)
        if match is None:
            return Piece(PieceKind.COMMAND, "${" + self._until("}", "{", line) + "}", is_quoted, line)
        self.at = match.end()
        name, subscript = ("@", match[0]) if match[0] in "@*" else (match[0], "")
        if self.peek() == "[":
            self.at += 1
            subscript = self._until("]", "[", line)
        use = _USE.match(self.text, self.at)
        if use is None:
            operator = self._until("}", "{", line)
            return Piece(PieceKind.VARIABLE, name, is_quoted, line, subscript, operator, (), is_length)
        self.at = use.end()
        operand: list[Piece] = []
        while self.peek() != "}":
            if self.at >= len(self.text):
                raise self._error("a brace that is not closed", line, "a '}' behind ${", "the end of the text")
            operand += self._piece(is_quoted=is_quoted)
        self.at += 1
        return Piece(PieceKind.VARIABLE, name, is_quoted, line, subscript, use[0], tuple(operand), is_length)

    def _until_arithmetic_end(self, line: int) -> str:
        inner = self._until(")", "(", line)
        if self.peek() != ")":
            raise self._error("arithmetic that is not closed", line, "'))' behind it", repr(self.peek()))
        self.at += 1
        return inner

    def _until(self, closing: str, opening: str, line: int) -> str:
        """Text up to the matching closing character, which is passed."""
        begin, depth = self.at, 1
        while self.at < len(self.text):
            char = self.peek()
            if char in "'\"":
                self._quoted()
                continue
            depth += (char == opening) - (char == closing)
            self.at += 2 if char == "\\" else 1
            if depth == 0:
                return self.text[begin : self.at - 1]
        raise self._error(f"{opening!r} is not closed", line, f"a {closing!r} behind it", "the end of the text")

    def _line_end(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _skip_heredocs(self) -> None:
        for ending in self.heredocs:
            while self.at < len(self.text):
                end = self._line_end()
                row = self.text[self.at : end].strip("\t")
                self.at = min(end + 1, len(self.text))
                if row == ending:
                    break
        self.heredocs = []

    def _error(self, message: str, line: int, expected: str, got: str) -> ConfigError:
        return ConfigError(message, where=f"{self.name}:{line}", expected=expected, got=got)

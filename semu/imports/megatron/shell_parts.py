"""Where the statements of a shell script end, and the parts of ``if``, loops and ``case``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from semu.errors import ConfigError
from semu.imports.megatron.shell_text import Operator, Word

Tokens: TypeAlias = Sequence[Word | Operator]

OPENING = frozenset({"if", "for", "while", "until", "case", "{", "select"})
CLOSING = frozenset({"fi", "done", "esac", "}"})
_BEFORE_COMMANDS = frozenset({"then", "else", "elif", "do", "!", "{", "if", "while", "until"})
_ENDS = frozenset({"\n", ";", "&&", "||", "|", "&"})


def statement_end(tokens: Tokens, begin: int, name: str) -> int:
    """Index of the operator behind a statement.

    Args:
        begin: its first token. name: of the file, for messages.
    Raises:
        ConfigError: a construct that is not closed.
    """
    depth, cases, is_first = 0, 0, True
    at = begin
    while at < len(tokens):
        token = tokens[at]
        if isinstance(token, Operator):
            if depth == 0 and token.text in _ENDS:
                return at
            if not cases:  # a pattern's parenthesis closes nothing
                depth += (token.text == "(") - (token.text == ")" and depth > 0)
            is_first = True
        elif token.plain == "[[":
            while at < len(tokens) and getattr(tokens[at], "plain", None) != "]]":
                at += 1
            is_first = False
        else:
            if is_first and token.plain in OPENING:
                depth += 1
                cases += token.plain == "case"
            elif is_first and token.plain in CLOSING:
                depth -= 1
                cases -= token.plain == "esac"
            is_first = token.plain in _BEFORE_COMMANDS
        at += 1
    if depth > 0:
        raise ConfigError(
            "a construct that is not closed",
            where=f"{name}:{tokens[begin].line}",
            expected="fi, done, esac or }",
            got="the end of the text",
        )
    return at


def split_parts(tokens: Tokens, words: tuple[str, ...]) -> list[tuple[str, Tokens]]:
    """The parts of a compound statement, each with the word before it; words of nested ones are theirs."""
    found: list[tuple[str, int]] = []
    depth, is_first = 0, True
    for at, token in enumerate(tokens):
        if isinstance(token, Operator):
            is_first = True
            continue
        word = token.plain
        if is_first and depth <= (at == 0) and word in words and (depth == 0 or at == 0):
            found.append((str(word), at))
        elif is_first and word in OPENING:
            depth += 1
        elif is_first and word in CLOSING:
            depth -= 1
        is_first = word in _BEFORE_COMMANDS
    ends = [at for _, at in found[1:]] + [len(tokens)]
    return [(word, tokens[at + 1 : end]) for (word, at), end in zip(found, ends, strict=True)]


def case_clauses(tokens: Tokens) -> list[Tokens]:
    """Clauses of a ``case``, between ``;;``."""
    clauses: list[Tokens] = []
    begin, depth = 0, 0
    for at, token in enumerate(tokens):
        if isinstance(token, Word):
            depth += (token.plain == "case") - (token.plain == "esac")
        elif token.text == ";;" and depth == 0:
            clauses.append(tokens[begin:at])
            begin = at + 1
    return [*clauses, tokens[begin:]]

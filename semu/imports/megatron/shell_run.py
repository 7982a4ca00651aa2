"""Following a script without running it: ``follow_script`` gives the commands that start Python.

Assignments are carried out; ``if``, ``case`` and ``&&`` are followed where their conditions follow from the
script. Where they cannot, every branch is looked at and what it assigns becomes a gap. Loops are looked at once, with
what they assign unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, takewhile

from semu.errors import ConfigError
from semu.imports.megatron.shell_conditions import both, either, holds_test
from semu.imports.megatron.shell_parts import Tokens, case_clauses, split_parts, statement_end
from semu.imports.megatron.shell_text import Operator, PieceKind, Word, tokenize
from semu.imports.megatron.shell_words import Field, Shell, check_text, gap_in
from semu.records import dataclass

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)")
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_SHELLS = frozenset({"bash", "sh"})
_MOST_DEPTH = 16
_MOST_CALLS = 1000
"""So deep, and so often, functions and ``eval`` are followed."""


@dataclass(frozen=True)
class Command:
    """A command that starts Python. fields: its words, expanded. line: where it begins."""

    fields: tuple[Field, ...]
    line: int

    @property
    def program(self) -> str:
        """File name of its first Python file, empty: none."""
        return os.path.basename(next((field.text for field in self.fields if field.text.endswith(".py")), ""))


@dataclass(frozen=True)
class Script:
    """What following a script gave: its commands that start Python, variables and gaps, and ``#SBATCH`` options."""

    commands: tuple[Command, ...]
    shell: Shell
    batch_options: Mapping[str, Field]


_SBATCH = re.compile(r"#SBATCH\s+(--?[\w-]+)(?:[= ]\s*(\S+))?")


def follow_script(text: str, name: str, defined: Mapping[str, str] | None = None) -> Script:
    """Follow a script.

    Args:
        text: the script. name: of the file, for messages.
        defined: variables that its caller sets, ``"1"`` is its first parameter.
    Raises:
        ConfigError: text that is no script: quotes, parentheses or a construct that are not closed.
    """
    check_text(text, name)
    shell = Shell(name, defined)
    runner = _Runner(shell)
    try:
        runner.block(tokenize(text, name))
    except RecursionError as error:
        raise ConfigError("nested too deeply", where=name, expected="a script", got="a deeper one") from error
    options = {}
    for number, row in enumerate(text.splitlines(), start=1):
        if (match := _SBATCH.match(row)) is not None:
            options[match[1]] = Field(match[2] or "", number)
    return Script(tuple(runner.commands), shell, options)


class _Runner:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.commands: list[Command] = []
        self.functions: dict[str, Tokens] = {}
        self.doubt: str = ""  # why an assignment may not happen; empty: it does
        self.depth = self.calls = 0
        self.is_over = False

    def block(self, tokens: Tokens) -> bool | None:
        """Statements in order; whether the last succeeds; None: undecided."""
        at, result = 0, None
        runs: bool | None = True  # whether the next command runs
        while at < len(tokens) and not self.is_over:
            end = statement_end(tokens, at, self.shell.name)
            statement, ending = tokens[at:end], tokens[end] if end < len(tokens) else None
            if statement and runs is not False:
                result = self.statement(statement) if runs else None
                if runs is None:
                    self._doubtful(statement, "a condition that is not known")
            word = ending.text if isinstance(ending, Operator) else ";"
            if word in ("&&", "||"):
                runs = result if word == "&&" or result is None else not result
            elif statement or word != "\n":
                runs = True
            at = end + 1
        return result

    def _doubtful(self, tokens: Tokens, why: str) -> None:
        before, self.doubt = self.doubt, self.doubt or why
        over, self.is_over = self.is_over, False
        self.block(tokens)
        self.doubt, self.is_over = before, over

    def statement(self, tokens: Tokens) -> bool | None:
        """One statement; whether it succeeds."""
        first = tokens[0]
        if isinstance(first, Operator):
            if first.text == "((":
                return self._arithmetic(first)
            return self.block(tokens[1:-1]) if first.text == "(" else None
        word = first.plain
        if word == "!":
            result = self.statement(tokens[1:]) if len(tokens) > 1 else None
            return None if result is None else not result
        if word == "if":
            return self._if(tokens)
        if word in ("case", "for", "while", "until", "select"):
            self._case(tokens) if word == "case" else self._loop(tokens)
            return None
        if word == "{":
            return self.block(tokens[1:-1])
        if word == "[[":
            return self._conditions(tokens[1:-1])
        if word == "function" or (len(tokens) > 2 and isinstance(tokens[1], Operator) and tokens[1].text == "("):
            return self._define(tokens)
        return self._simple([token for token in tokens if isinstance(token, Word)], first.line)

    def _define(self, tokens: Tokens) -> bool:
        names = [token.plain for token in tokens if isinstance(token, Word)]
        begin = next((i for i, t in enumerate(tokens) if isinstance(t, Word) and t.plain == "{"), None)
        if begin is None or len(names) < 2:
            raise self._malformed("a function without a body", tokens, "NAME() { ...; }")
        self.functions[str(names[1] if names[0] == "function" else names[0])] = tokens[begin + 1 : -1]
        return True

    def _malformed(self, message: str, tokens: Tokens, expected: str) -> ConfigError:
        where = f"{self.shell.name}:{tokens[0].line}"
        return ConfigError(message, where=where, expected=expected, got="something else")

    def _if(self, tokens: Tokens) -> bool | None:
        parts = split_parts(tokens[:-1], ("if", "elif", "then", "else"))
        is_unknown = False
        for (word, part), (_, body) in zip(parts, [*parts[1:], ("", [])], strict=True):
            if word == "else":
                return self._branch(part, is_unknown)
            if word == "then":
                continue
            holds = self.block(part)
            is_unknown = is_unknown or holds is None
            if holds is not False:
                self._branch(body, is_unknown)
            if holds:
                return None
        return None

    def _branch(self, body: Tokens, is_unknown: bool) -> bool | None:
        if not is_unknown:
            return self.block(body)
        self._doubtful(body, "assigned under a condition that is not known")
        return None

    def _case(self, tokens: Tokens) -> None:
        words = [token for token in tokens if isinstance(token, Word)]
        if len(words) < 3 or words[2].plain != "in":
            raise self._malformed("a case without its 'in'", tokens, "case WORD in PATTERN) ...;; esac")
        subject = "".join(field.text for field in self.shell.expand(words[1]))
        begin = tokens.index(words[2]) + 1
        is_unknown = gap_in(subject) is not None
        for clause in case_clauses(tokens[begin:-1]):
            closing = next((i for i, t in enumerate(clause) if isinstance(t, Operator) and t.text == ")"), None)
            if closing is None:
                continue
            patterns = [self.shell.text(token) for token in clause[:closing] if isinstance(token, Word)]
            matches = any(fnmatchcase(subject, pattern) for pattern in patterns)
            if is_unknown or matches:
                self._branch(clause[closing + 1 :], is_unknown)
            if matches and not is_unknown:
                return

    def _loop(self, tokens: Tokens) -> None:
        parts = split_parts(tokens[:-1], ("for", "while", "until", "select", "do"))
        head = parts[0][1]
        if parts[0][0] in ("for", "select") and head and isinstance(head[0], Word):
            name = self.shell.text(head[0])
            gap = self.shell.gap(f"${name}", head[0].line, "a loop's variable")
            self.shell.assign(name, [Field(gap, head[0].line)], adds=False, is_array=False)
        self._doubtful(parts[-1][1], "assigned in a loop")

    def _conditions(self, tokens: Tokens) -> bool | None:
        """``[[ a && b || c ]]``, from left to right."""
        result: bool | None = None
        joint, begin = "", 0
        for at in range(len(tokens) + 1):
            token = tokens[at] if at < len(tokens) else None
            if token is not None and not (isinstance(token, Operator) and token.text in ("&&", "||")):
                continue
            words = [t for t in tokens[begin:at] if isinstance(t, Word)]
            holds = self._test([self.shell.text(word) for word in words])
            result = holds if not joint else both(result, holds) if joint == "&&" else either(result, holds)
            joint, begin = token.text if isinstance(token, Operator) else "", at + 1
        return result

    def _test(self, words: list[str]) -> bool | None:
        """``holds_test``; what is done only where a variable is set is not done where nobody sets it."""
        if len(words) == 1 or words[:1] == ["-n"]:
            gap = self.shell.gap_of(words[-1]) if self.shell.gap_alone(words[-1]) else None
            if gap is not None and gap.is_unset:
                self.shell.note_empty(gap)
                return False
        return holds_test(words)

    def _arithmetic(self, token: Operator) -> bool | None:
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=(?!=)(.*)", token.expression, re.DOTALL)
        changed = re.match(r"\s*(?:\+\+|--)?([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]=)", token.expression)
        if match is not None:
            self._assign(match[1], [Field(self.shell.arithmetic(match[2], token.line), token.line)])
            return None
        if changed is not None:
            self._assign(changed[1], [Field(self.shell.gap(token.expression, token.line, "not read"), token.line)])
            return None
        value = self.shell.arithmetic(token.expression, token.line)
        return None if gap_in(value) is not None else int(value) != 0

    def _assign(self, name: str, fields: Sequence[Field], *, adds: bool = False, is_array: bool = False) -> None:
        if self.doubt:
            line = fields[0].line if fields else 0
            fields = [Field(self.shell.gap(f"${name}", line, self.doubt), line)]
        self.shell.assign(name, fields, adds=adds, is_array=is_array)

    def _assigned(self, word: Word) -> bool:
        """Carry out ``NAME=value`` or ``NAME=(...)``; whether the word is one."""
        plain = takewhile(lambda piece: piece.kind is PieceKind.TEXT and not piece.is_quoted, word.pieces)
        match = _ASSIGNMENT.match("".join(piece.text for piece in plain))
        if match is None:
            return False
        adds = match[2] == "+="
        if word.elements is not None:
            fields = [field for element in word.elements for field in self.shell.expand(element)]
            self._assign(match[1], fields, adds=adds, is_array=True)
        else:
            ends = list(accumulate(len(piece.text) for piece in word.pieces))  # a piece ends with the =
            value = self.shell.text(Word(word.pieces[ends.index(len(match[0])) + 1 :], word.line))
            self._assign(match[1], [Field(value, word.line)], adds=adds)
        return True

    def _simple(self, words: list[Word], line: int) -> bool | None:
        at = 0
        while at < len(words) and self._assigned(words[at]):
            at += 1
        if at == len(words):
            return True
        if words[at].plain in _DECLARING:
            for word in words[at + 1 :]:
                self._assigned(word)
            return True
        fields = [field for word in words[at:] for field in self.shell.expand(word)]
        if not fields:
            return None
        first, texts = fields[0].text, [field.text for field in fields]
        if first in ("[", "test"):
            return self._test(texts[1:-1] if first == "[" else texts[1:])
        if first in ("true", ":", "false"):
            return first != "false"
        if first == "exit" and not self.doubt:
            self.is_over = True
        elif first in ("source", "."):
            self.shell.notes.append(f"line {line}: {self.shell.shown(' '.join(texts))} is not read")
        elif first == "unset" and not self.doubt:
            for name in texts[1:]:
                self.shell.variables.pop(name, None)
        elif first in self.functions:
            self._nested(self.functions[first])
        elif first == "eval" or (texts[-2:-1] == ["-c"] and any(text in _SHELLS for text in texts)):
            inner = " ".join(texts[1:]) if first == "eval" else texts[-1]
            self._nested(tokenize(inner, self.shell.name, line))
        elif any(text.endswith(".py") for text in texts) or first.startswith("--"):
            self.commands.append(Command(tuple(fields), line))
        return None

    def _nested(self, tokens: Tokens) -> None:
        self.calls += 1
        if self.depth >= _MOST_DEPTH or self.calls > _MOST_CALLS:
            return
        self.depth += 1
        self.block(tokens)
        self.depth -= 1

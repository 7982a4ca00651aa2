"""Following a script without running it: ``follow_script`` gives the commands that start Python.

Assignments are carried out; ``if``, ``case`` and ``&&`` are followed where their conditions can be told from the
script. Where they cannot, every branch is looked at and what it assigns becomes a gap. Loops are looked at once, with
what they assign unknown.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from semu.errors import ConfigError
from semu.runfile.megatron.shell_text import Operator, PieceKind, Word, tokenize
from semu.runfile.megatron.shell_words import Field, Shell, check_text, gap_in

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)")
_DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
_SHELLS = frozenset({"bash", "sh"})
_OPENING = frozenset({"if", "for", "while", "until", "case", "{", "select"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_MOST_DEPTH = 16


@dataclass(frozen=True)
class Command:
    """A command that starts Python. fields: its words, expanded. line: where it begins."""

    fields: tuple[Field, ...]
    line: int


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
    runner.block(tokenize(text, name))
    options = {}
    for number, row in enumerate(text.splitlines(), start=1):
        if (match := _SBATCH.match(row)) is not None:
            options[match[1]] = Field(match[2] or "", number)
    return Script(tuple(runner.commands), shell, options)


Tokens = Sequence[Word | Operator]


class _Runner:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.commands: list[Command] = []
        self.functions: dict[str, Tokens] = {}
        self.doubt: str = ""  # why an assignment may not happen; empty: it does
        self.depth = 0
        self.is_over = False

    def block(self, tokens: Tokens) -> bool | None:
        """Statements in order; whether the last succeeds, None: not known."""
        at, result = 0, None
        runs: bool | None = True  # whether the next command runs
        while at < len(tokens) and not self.is_over:
            end = self._statement_end(tokens, at)
            statement, ending = tokens[at:end], tokens[end] if end < len(tokens) else None
            if statement and runs is not False:
                result = self._doubtful(statement, "a condition that is not known") if runs is None else None
                result = self.statement(statement) if runs else result
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

    def _statement_end(self, tokens: Tokens, at: int) -> int:
        """Index of the operator behind the statement at ``at``."""
        depth, is_first, in_case = 0, True, 0
        while at < len(tokens):
            token = tokens[at]
            if isinstance(token, Operator):
                depth += token.text == "("
                if token.text == ")" and (depth and not in_case):
                    depth -= 1
                elif depth == 0 and token.text in ("\n", ";", "&&", "||", "|", "&"):
                    return at
                is_first = token.text not in (")",) or bool(in_case)
            else:
                word = token.plain
                if word == "[[":
                    while at < len(tokens) and not (isinstance(tokens[at], Word) and tokens[at].plain == "]]"):  # type: ignore[union-attr]
                        at += 1
                elif is_first and word in _OPENING:
                    depth += 1
                    in_case += word == "case"
                elif is_first and word in _CLOSING:
                    depth -= 1
                    in_case -= word == "esac"
                is_first = word in ("then", "else", "elif", "do", "!", "{", "if", "while", "until")
            at += 1
        if depth > 0:
            first = next(token for token in tokens)
            raise ConfigError(
                "a construct that is not closed",
                where=f"{self.shell.name}:{first.line}",
                expected="fi, done, esac or }",
                got="the end of the text",
            )
        return at

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
        if word == "case":
            return self._case(tokens)
        if word in ("for", "while", "until", "select"):
            return self._loop(tokens)
        if word == "{":
            return self.block(tokens[1:-1])
        if word == "[[":
            return self._conditions(tokens[1:-1])
        if word == "function" or (len(tokens) > 2 and isinstance(tokens[1], Operator) and tokens[1].text == "("):
            return self._define(tokens)
        return self._simple([token for token in tokens if isinstance(token, Word)], first.line)

    def _define(self, tokens: Tokens) -> bool:
        names = [token.plain for token in tokens if isinstance(token, Word)]
        begin = next((i for i, t in enumerate(tokens) if isinstance(t, Word) and t.plain == "{"), len(tokens))
        self.functions[str(names[1] if names[0] == "function" else names[0])] = tokens[begin + 1 : -1]
        return True

    def _if(self, tokens: Tokens) -> bool | None:
        parts = _split(tokens[:-1], ("if", "elif", "then", "else"))
        is_unknown = False
        for number, (word, part) in enumerate(parts):
            if word == "else":
                return self._branch(part, is_unknown)
            if word not in ("if", "elif"):
                continue
            holds = self.block(part)
            body = parts[number + 1][1] if number + 1 < len(parts) else []
            if holds or holds is None:
                self._branch(body, is_unknown or holds is None)
            if holds:
                return None
            is_unknown = is_unknown or holds is None
        return None

    def _branch(self, body: Tokens, is_unknown: bool) -> bool | None:
        if not is_unknown:
            return self.block(body)
        return self._doubtful(body, "assigned under a condition that is not known")

    def _case(self, tokens: Tokens) -> None:
        words = [token for token in tokens if isinstance(token, Word)]
        subject = "".join(field.text for field in self.shell.expand(words[1]))
        begin = next(i for i, t in enumerate(tokens) if isinstance(t, Word) and t.plain == "in") + 1
        is_unknown = gap_in(subject) is not None
        for clause in _clauses(tokens[begin:-1]):
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
        parts = _split(tokens[:-1], ("for", "while", "until", "select", "do"))
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
            result = holds if not joint else _and(result, holds) if joint == "&&" else _or(result, holds)
            joint, begin = token.text if isinstance(token, Operator) else "", at + 1
        return result

    def _test(self, words: list[str]) -> bool | None:
        """``[ words ]``; None: not known, or not simple."""
        if words[:1] == ["!"]:
            inner = self._test(words[1:])
            return None if inner is None else not inner
        for joint, combine in (("-o", _or), ("-a", _and)):
            if joint in words[1:]:
                at = words.index(joint, 1)
                return combine(self._test(words[:at]), self._test(words[at + 1 :]))
        if any(gap_in(word) is not None for word in words):
            return None
        if len(words) == 1:
            return words[0] != ""
        if len(words) == 2 and words[0] in ("-z", "-n"):
            return (words[1] == "") == (words[0] == "-z")
        if len(words) == 3 and words[1] in ("=", "==", "!="):
            return fnmatchcase(words[0], words[2]) == (words[1] != "!=")
        if len(words) == 3 and words[1] in _NUMERIC and all(re.fullmatch(r"-?\d+", w) for w in (words[0], words[2])):
            return _NUMERIC[words[1]](int(words[0]), int(words[2]))
        return None

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
        head = ""
        for piece in word.pieces:
            if piece.kind is not PieceKind.TEXT or piece.is_quoted:
                break
            head += piece.text
        match = _ASSIGNMENT.match(head)
        if match is None:
            return False
        adds = match[2] == "+="
        if word.elements is not None:
            fields = [field for element in word.elements for field in self.shell.expand(element)]
            self._assign(match[1], fields, adds=adds, is_array=True)
        else:
            value = self.shell.text(Word(word.pieces[len(match[0]) :], word.line))
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
        if self.depth >= _MOST_DEPTH:
            return
        self.depth += 1
        self.block(tokens)
        self.depth -= 1


_NUMERIC: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


def _split(tokens: Tokens, words: tuple[str, ...]) -> list[tuple[str, Tokens]]:
    """The parts of a compound statement, each with the word before it; words of nested ones are theirs."""
    found: list[tuple[str, int]] = []
    depth, is_first = 0, True
    for at, token in enumerate(tokens):
        if isinstance(token, Operator):
            is_first = token.text != ")"
            continue
        word = token.plain
        if is_first and depth <= (at == 0) and word in words and (depth == 0 or at == 0):
            found.append((str(word), at))
        elif is_first and word in _OPENING:
            depth += 1
        elif is_first and word in _CLOSING:
            depth -= 1
        is_first = word in ("then", "else", "elif", "do", "!", "{", "if", "while", "until")
    ends = [at for _, at in found[1:]] + [len(tokens)]
    return [(word, tokens[at + 1 : end]) for (word, at), end in zip(found, ends, strict=True)]


def _clauses(tokens: Tokens) -> list[Tokens]:
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

"""Everything semu raises on purpose, as one tree.

    SemuError                      exit code
    ├── ConfigError                2    bad input: a value, a shape, a file
    │   └── GraphError             2    an operator or tensor that cannot exist
    ├── MemoryLimitError           3    the job does not fit in memory
    ├── ScheduleError              4    an illegal schedule or plan
    │   └── PlanError              4    an execution plan that cannot run: rank, action and fault
    ├── MissingCoefficientError    5    a default coefficient under --strict
    ├── ExecutorError              6    executor or remote failure
    ├── ValidationError            7    validation out of tolerance
    └── InternalError              70   a defect in semu itself

Every error says what was expected, what came, where, and, where there is one, the nearest legal value.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import Enum
from typing import Any, Self

LONGEST = 200
"""Characters of a value in a message: a value may be a whole file."""
LONGEST_MESSAGE = 20_000
"""Characters of a message, which may hold the grid of a schedule."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What reading a document ends in whose values are of other kinds than it should have."""


def shown(value: object, longest: int = LONGEST) -> str:
    """A value as messages show it: a member of an enum by its word, a long text without its middle."""
    text = str(value.value if isinstance(value, Enum) else value)
    if len(text) <= longest:
        return text
    return f"{text[: longest - 40]} ... {text[-20:]} ({len(text):,} characters)"


class SemuError(Exception):
    """Base of all deliberate errors.

    Args:
        message: one sentence, for a person.
        where: place of the offence, e.g. ``run.toml:12 parallel.tp`` or an operator's path.
        expected: what would have been legal.
        got: what came instead.
        nearest: the nearest legal value.
    """

    exit_code = 70

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        got: object = None,
        nearest: object = None,
    ) -> None:
        super().__init__(message)
        self.message = shown(message, LONGEST_MESSAGE)
        self.where = where
        self.expected = expected
        self.got = got
        self.nearest = nearest

    @classmethod
    def of(cls, error: SemuError, **changes: Any) -> Self:
        """What another error says, as an error of this class. ``changes``: what it says otherwise, by argument."""
        said = {name: getattr(error, name) for name in ("message", "where", "expected", "got", "nearest")} | changes
        return cls(said.pop("message"), **said)

    @property
    def kind(self) -> str:
        """Machine-readable name of the error's class."""
        return type(self).__name__

    def to_json(self) -> dict[str, object]:
        """Body of the ``error`` document of ``--json`` (DESIGN §6)."""
        return {
            "kind": self.kind,
            "message": self.message,
            "where": self.where,
            "expected": self.expected,
            "got": None if self.got is None else shown(self.got),
            "nearest": self.nearest if isinstance(self.nearest, int | float | None) else shown(self.nearest),
        }

    def __str__(self) -> str:
        parts = [self.message if not self.where else f"{self.where}: {self.message}"]
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.got is not None:
            parts.append(f"got {shown(self.got)}")
        if self.nearest is not None:
            parts.append(f"nearest allowed: {shown(self.nearest)}")
        return "; ".join(parts)


class ConfigError(SemuError):
    """Bad input: an unknown name, an impossible shape, a file that cannot be read."""

    exit_code = 2


class GraphError(ConfigError):
    """An operator or tensor that cannot exist, e.g. network bytes on a compute device."""


class MemoryLimitError(SemuError):
    """The job does not fit in device memory."""

    exit_code = 3


class ScheduleError(SemuError):
    """A schedule or plan that breaks a rule."""

    exit_code = 4


class PlanError(ScheduleError):
    """An execution plan that breaks a rule.

    Args:
        message, where, expected, got: as ``SemuError``.
        fault: which rule, one of ``semu.plan.verification.fault.Fault``.
        rank: pipeline rank, action: position in its list; None: it is of no rank, of no action.
    """

    def __init__(
        self,
        message: str,
        *,
        fault: str,
        rank: int | None = None,
        action: int | None = None,
        where: str | None = None,
        expected: str | None = None,
        got: object = None,
    ) -> None:
        super().__init__(message, where=where, expected=expected, got=got)
        self.fault = fault
        self.rank = rank
        self.action = action

    def to_json(self) -> dict[str, object]:
        """Body of the ``error`` document, with rank, action and fault."""
        return {**super().to_json(), "fault": str(self.fault), "rank": self.rank, "action": self.action}


class MissingCoefficientError(SemuError):
    """A default coefficient was needed under ``--strict``, or a time is too uncertain for ``--strict-interval``."""

    exit_code = 5


class ExecutorError(SemuError):
    """The executor or a remote worker failed."""

    exit_code = 6


class ValidationError(SemuError):
    """A validation is out of its tolerance."""

    exit_code = 7


class InternalError(SemuError):
    """A defect in semu."""


def nearest_name(name: str, legal: Iterable[str]) -> str | None:
    """The legal name closest to ``name``, else the shortest that begins with it, or None when nothing comes close."""
    names = list(legal)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    matches += sorted((other for other in names if name and other.startswith(name)), key=len)
    return matches[0] if matches else None


def unknown_name(what: str, name: str, legal: Iterable[str], *, where: str | None = None) -> ConfigError:
    """A ConfigError for a name that is not among the legal ones, with a 'did you mean'."""
    names, given = sorted(map(shown, legal)), shown(name)
    nearest = nearest_name(given, names)
    hint = f", did you mean {nearest!r}?" if nearest is not None else ""
    return ConfigError(
        f"unknown {what} {given!r}{hint}",
        where=where,
        expected="one of " + ", ".join(names),
        got=given,
        nearest=nearest,
    )


def install_line(extra: str, package: str) -> str:
    """How to install what an extra of semu needs.

    Args:
        extra: its name in pyproject.toml. package: what it installs.
    """
    return f"pip install '.[{extra}]' in a checkout of semu, or pip install {package}"

"""``AssignmentOptions``: ``[assignment]`` of a run file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from semu.checks import check_count, check_seed, find_named
from semu.records import dataclass

ALL = "all"
"""In place of a method: every one that suits the model."""


@dataclass(frozen=True)
class AssignmentOptions:
    """What ``semu assign``, ``semu workload`` and ``semu plan --assign`` are asked; a command line's words come first.

    Where ``samples`` stands in a run file, ``semu simulate``, ``semu search`` and ``semu plan`` train them, assigned,
    in place of ``[batch]``.

    Attributes:
        samples: path of a JSONL file of samples, from the current folder; None: the command line says it.
        method: a word of ``METHODS``, several with commas, or ``all``.
        count: samples of an iteration; None: as many as the job's packed sequences hold.
        iteration: which one of the file.
        window: iterations among which samples may change places; 1: none.
        seed: of the random order, and of packs and draws.
        speeds: of replicas, of usual ones 1; None: all are alike.
        costs: path of costs that ``semu validate --costs`` wrote; None: they are fitted to the engine.
    Raises:
        ConfigError: an unknown method, a number out of range.
    """

    samples: str | None = None
    method: str = "entrain"
    count: int | None = None
    iteration: int = 0
    window: int = 1
    seed: int = 0
    speeds: tuple[float, ...] | None = None
    costs: str | None = None

    def __post_init__(self) -> None:
        from semu.searcher.assignment.methods.table import METHODS

        for word in self.method.split(",") if self.method != ALL else ():
            find_named("method of assignment", word.strip(), METHODS, where="assignment.method")
        if self.count is not None:
            check_count(self.count, "assignment.count")
        check_count(self.iteration, "assignment.iteration", least=0)
        check_count(self.window, "assignment.window")
        check_seed(self.seed, "assignment.seed")
        if self.speeds is not None:
            own = self.speeds if isinstance(self.speeds, Iterable) else (self.speeds,)
            object.__setattr__(self, "speeds", tuple(own))

    @classmethod
    def of(cls, table: Mapping[str, Any], **given: object) -> AssignmentOptions:
        """The options of a table, and those given beside it that are not None."""
        known = {item.name for item in fields(cls)}
        return cls(**{**table, **{key: value for key, value in given.items() if value is not None and key in known}})

    @property
    def methods(self) -> tuple[str, ...] | None:
        """The methods by name; None: all."""
        return None if self.method == ALL else tuple(word.strip() for word in self.method.split(","))

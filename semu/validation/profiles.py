"""The same rows under two profiles: ``on_data_sheet`` (the one without calibration) and ``ProfileComparison``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from semu.frames import Tabular
from semu.hardware.data_sheets import data_sheet
from semu.job import TrainingJob
from semu.records import dataclass
from semu.units import fit_columns, fit_lines
from semu.validation.evaluate import JobMaker
from semu.validation.jobs import Tables
from semu.validation.result import Quantity, ValidationResult
from semu.validation.scoring import Errors


def on_data_sheet(make_job: JobMaker) -> JobMaker:
    """Makes the same jobs, on devices as their data sheets have them."""
    return partial(_on_data_sheet, make_job)


def _on_data_sheet(make_job: JobMaker, tables: Tables) -> TrainingJob:
    job = make_job(tables)
    cluster = replace(job.cluster, device=data_sheet(job.cluster.profile), override={})
    return replace(job, cluster=cluster)


@dataclass(frozen=True)
class GroupPair:
    """Errors of iteration times of a group under both profiles, on the rows that both predict.

    Attributes:
        group: its name. first, second: the errors.
    """

    group: str
    first: Errors
    second: Errors

    def to_json(self) -> dict[str, object]:
        """One of ``compare.groups``; percent."""
        return {
            "group": self.group,
            "n": self.first.n,
            "mape": self.first.mape,
            "bias": self.first.bias,
            "other_mape": self.second.mape,
            "other_bias": self.second.bias,
        }


@dataclass(frozen=True)
class ProfileComparison(Tabular):
    """Iteration times under a profile and under another.

    Attributes:
        first, second: the results, of the same rows. names: of the profiles, for people.
    """

    first: ValidationResult
    second: ValidationResult
    names: tuple[str, str]

    @cached_property
    def groups(self) -> tuple[GroupPair, ...]:
        """Groups with scored times, in the order of the file; the last one is all of them together."""
        errors: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        for one, other in zip(self.first.rows, self.second.rows, strict=True):
            a, b = one.error(Quantity.TIME), other.error(Quantity.TIME)
            if one.is_scored and other.is_scored and a is not None and b is not None:
                for name in (one.group, _ALL):
                    mine, others = errors.setdefault(name, ({}, {}))
                    mine[one.id], others[one.id] = a, b
        everything = errors.pop(_ALL, None)
        ordered = [*errors.items(), *([(_ALL, everything)] if everything is not None else [])]
        return tuple(GroupPair(name, Errors.of(mine), Errors.of(others)) for name, (mine, others) in ordered)

    def to_dicts(self) -> list[dict[str, Any]]:
        """A record for each group."""
        return [pair.to_json() for pair in self.groups]

    def to_json(self) -> dict[str, object]:
        """As ``compare`` of ``validate --json``."""
        return {
            "profile": self.names[0],
            "other": self.names[1],
            "groups": [pair.to_json() for pair in self.groups[:-1]],
            "overall": self.groups[-1].to_json() if self.groups else None,
        }

    def __repr__(self) -> str:
        return fit_lines("\n".join(self._lines()))

    def _lines(self) -> Iterator[str]:
        first, second = self.names
        yield f"iteration time under {first} and under {second}, error in %"
        heads = ("group", "n", "MAPE", "bias", f"MAPE {second}", f"bias {second}")
        rows = [
            (
                pair.group,
                str(pair.first.n),
                f"{pair.first.mape:.2f}",
                f"{pair.first.bias:+.2f}",
                f"{pair.second.mape:.2f}",
                f"{pair.second.bias:+.2f}",
            )
            for pair in self.groups
        ]
        yield from fit_columns([heads, *rows], (False, *[True] * 5))


_ALL = "all"

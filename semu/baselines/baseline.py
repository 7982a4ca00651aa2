"""``Baseline``: the job that a baseline runs, what it changed about the one it was given, and its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from enum import Enum
from functools import cached_property
from typing import Any

from semu.costs.result_cache import ResultCache
from semu.job import TrainingJob
from semu.parallel.layout import PipelineLayout
from semu.parallel.modules import ModuleParallel
from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.records import dataclass
from semu.schedule.schedule import Schedule
from semu.simulation import JobCheckpoint, prepare, simulate


@dataclass(frozen=True)
class Baseline:
    """What a baseline makes of a job.

    Attributes:
        name: of ``BASELINES``. source: where it is from.
        job: what it runs; the schedule's name is in it.
        changes: key of the run file -> value, what differs from the job that was given.
        notes: what it decided that the keys do not tell, a sentence each.
        order: its order of stages, where it is no named schedule's.
    """

    name: str
    source: str
    job: TrainingJob
    changes: Mapping[str, object]
    notes: tuple[str, ...] = ()
    order: Schedule | None = None

    @classmethod
    def of(
        cls,
        name: str,
        source: str,
        job: TrainingJob,
        *,
        parallel: Mapping[str, Any],
        training: Mapping[str, Any],
        notes: tuple[str, ...] = (),
    ) -> Baseline:
        """A baseline that sets options of ``Parallel`` and ``Training``.

        Raises:
            ConfigError: the changed job does not fit together.
        """
        changed = replace(job, parallel=replace(job.parallel, **parallel), training=replace(job.training, **training))
        return cls(name, source, changed, dict(differences(job, changed)), notes)

    @cached_property
    def checkpoint(self) -> JobCheckpoint:
        """The job before its schedule."""
        return prepare(self.job)

    @property
    def schedule(self) -> Schedule:
        """The order of stages on every rank."""
        return self.checkpoint.schedule(self.order)

    def simulate(self, *, cache: ResultCache | None = None, contention: bool = False) -> Report:
        """The whole report; the same as ``semu.simulate(self.job)``."""
        if self.order is not None:
            return prepare(self.job, cache=cache).report(self.order, contention=contention)
        return simulate(self.job, cache=cache, contention=contention)

    def evaluate(self) -> Estimate:
        """The first figures; the same as ``semu.evaluate(self.job)``."""
        return self.checkpoint.estimate(self.order)


NO_LAYOUT: Mapping[str, Any] = {
    "layout": None,
    "segments": "mixed",
    "shares": {},
    "partition": "parameters",
    "placement": "circular",
    "vocabulary": "ends",
    "loss": "head",
}
"""Stages cut by parameters, whatever a job has said of them."""
NO_SCHEDULE: Mapping[str, Any] = {
    "schedule_file": None,
    "activation_limit": None,
    "optimizer_post_validation": False,
}
"""What goes with another schedule."""


def differences(before: TrainingJob, after: TrainingJob) -> Iterator[tuple[str, object]]:
    """(key of the run file, value) of the options that differ; None: the key goes."""
    for table in ("parallel", "training"):
        old, new = getattr(before, table), getattr(after, table)
        named = [item.name for item in fields(old) if getattr(new, item.name) != getattr(old, item.name)]
        for name in dict.fromkeys(name.replace("recompute_modules", "recompute") for name in named):
            value = _plain(getattr(new, name))
            if name == "recompute" and new.recompute_modules is not None:
                value = list(new.recompute_modules)
            yield f"{table}.{name}", value


def _plain(value: object) -> object:
    if isinstance(value, PipelineLayout):
        return value.to_table()
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()} or None
    if isinstance(value, ModuleParallel):  # ``first_rank`` is found, no run file says it
        sizes = {item.name: getattr(value, item.name) for item in fields(value) if item.name != "first_rank"}
        return {key: own for key, own in sizes.items() if own is not None}
    return value.value if isinstance(value, Enum) else value

"""``RunConfig``: a run whose tables leave nothing open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from semu.job import TrainingJob
from semu.nn import Model
from semu.records import dataclass
from semu.runfile.build import build_job
from semu.runfile.places import Places
from semu.runfile.schema import SCHEMA
from semu.runfile.sources import move_paths, options_table
from semu.runfile.toml_text import format_toml
from semu.workload import AbstractBatch

if TYPE_CHECKING:
    from semu_models.hf import Reading


@dataclass(frozen=True)
class RunConfig:
    """A run, resolved: nothing is left open but what the batch decides by itself.

    Attributes:
        config: table -> key -> value, in the words of the run file; relative paths start from the current folder.
        places: where each value came from.
        model, batch: made of the tables.
        notes: what was decided for the user, and what looks unintended, a sentence each.
        reading: what was understood of the file that the model was read from.
        written: dotted keys that were there before defaults.
    """

    config: Mapping[str, Mapping[str, Any]]
    places: Places
    model: Model = field(repr=False, compare=False)
    batch: AbstractBatch = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()
    reading: Reading | None = field(default=None, repr=False, compare=False)
    written: frozenset[str] = frozenset()

    @property
    def names_samples(self) -> bool:
        """Whether ``[assignment]`` names samples, which simulate, search and plan train in place of ``[batch]``."""
        return self.config.get("assignment", {}).get("samples") is not None

    def job(self) -> TrainingJob:
        """The training job.

        Raises:
            ConfigError: values out of range or that do not fit together, with their places.
        """
        with self.places.located():
            return build_job(self.config, self.model, self.batch)

    def changed(self, changes: Mapping[str, object], flag: str) -> RunConfig:
        """The same run with other values.

        Args:
            changes: dotted key of ``[parallel]`` or ``[training]`` -> value, None: without it. flag: what changed them.
        """
        config: dict[str, dict[str, Any]] = {name: dict(table) for name, table in self.config.items()}
        for key, value in changes.items():
            table, _, name = key.partition(".")
            config[table].pop(name, None)
            if value is not None:
                config[table] = ordered({**config[table], name: value}, table)
        flags = self.places.flags | dict.fromkeys(changes, flag)
        return replace(self, config=config, places=replace(self.places, flags=flags))

    def with_job(self, job: TrainingJob) -> RunConfig:
        """The same run with the cluster, the parallelism and the training options of a job of the same model.

        Args:
            job: for example the best of a grid.
        """
        training = options_table(job.training, "training")
        tables: dict[str, dict[str, Any]] = {
            "parallel": options_table(job.parallel, "parallel"),
            "training": {**training, "global_batch": job.training.global_batch},
            "overlap": options_table(job.training.overlap, "overlap"),
        }
        cluster = {"device": job.cluster.device, "nodes": job.cluster.nodes, "gpus_per_node": job.cluster.gpus_per_node}
        config = {**self.config, "cluster": {**self.config["cluster"], **cluster}}
        config |= {name: ordered(table, name) for name, table in tables.items()}
        return replace(self, config=config)

    def settings(self) -> dict[str, dict[str, Any]]:
        """Every dotted key: its ``value``, and its ``source``: a flag, a line of the run file, the setup or model that
        brought it (or for which it was chosen, as a note says), else ``default``."""
        return {
            (key := f"{table}.{name}"): {
                "value": value,
                "source": self.places.source(key) or (self.places.name if key in self.written else "default"),
            }
            for table, values in self.config.items()
            for name, value in values.items()
        }

    def to_toml(self) -> str:
        """A run file that loads back to the same job from any folder."""
        config: dict[str, Any] = deepcopy({name: dict(table) for name, table in self.config.items()})
        move_paths(config, os.path.abspath)
        return format_toml(config)


def ordered(table: dict[str, Any], name: str) -> dict[str, Any]:
    """Keys in the order of the schema, then the rest."""
    return {key: table[key] for key in (*SCHEMA[name], *table) if key in table}

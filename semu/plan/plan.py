"""``ExecutionPlan``: what every pipeline rank does in one iteration, decisions only; estimates lie beside them.

A *pair* is the forward stage of a chunk for one (sub-)microbatch and its backward, where there is one, as in
``semu.searcher.problem``. A *message* is what one stage hands to a stage on another rank: an activation, or its
gradient. Results that stay on a rank are no messages. All data-parallel replicas run the same actions, each on
microbatches of its own.

Data is checked for shapes, ranges and kinds when it is made; whether the plan can run, and whether it does what its
schedule says, ``semu.plan.verification.rules`` finds out. JSON is its file (``semu.plan.json_form``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

from semu.files import write_text
from semu.plan.json_form import plan_json, plan_of_json, read_plan
from semu.plan.plan_data import PlanData
from semu.plan.tables import (
    PlanChunk,
    PlanEstimates,
    PlanMemory,
    PlanMessages,
    PlanPairs,
    PlanReduction,
    RankActions,
)
from semu.plan.text import plan_summary, plan_text
from semu.records import dataclass

__all__ = [
    "ExecutionPlan",
    "PlanChunk",
    "PlanEstimates",
    "PlanMemory",
    "PlanMessages",
    "PlanPairs",
    "PlanReduction",
    "RankActions",
    "model_hash_of",
]


@dataclass(frozen=True, eq=False, repr=False)
class ExecutionPlan(PlanData):
    """An iteration as actions; its attributes are those of ``PlanData``."""

    def to_json(self) -> str:
        """The plan as JSON (``semu.plan.json_form``)."""
        return plan_json(self)

    @classmethod
    def from_json(cls, text: str, name: str = "plan.json") -> ExecutionPlan:
        """Read JSON.

        Args:
            text: the file. name: of it, for messages.
        Raises:
            ScheduleError: not a plan, of a later version, or damaged. ConfigError: an unknown key.
        """
        return plan_of_json(cls, text, name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ExecutionPlan:
        """A plan from a file.

        Raises:
            ConfigError: the file cannot be read. Others as ``from_json``.
        """
        return read_plan(cls, path)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan.

        Raises:
            ConfigError: the file cannot be written.
        """

        write_text(path, self.to_json())

    def to_text(self, rank: int | None = None) -> str:
        """A table of actions for people (``semu.plan.text``).

        Args:
            rank: only of this one.
        Raises:
            ConfigError: there is no such rank.
        """
        return plan_text(self, rank)

    def __repr__(self) -> str:
        return plan_summary(self)


def model_hash_of(chunks: Sequence[PlanChunk], num_ranks: int) -> str:
    """SHA-256 of what must be equal in a runtime: ranks, and of every chunk its module, rank, layers and copy."""
    rows: list[list[object]] = []
    for c in chunks:
        rows.append([c.module, c.rank, c.first_layer, c.num_layers, c.has_backward, c.flow])
        rows[-1] += [*([c.gang] if c.gang >= 0 else []), *(["repeats"] if c.repeats else [])]
    return hashlib.sha256(json.dumps({"ranks": num_ranks, "chunks": rows}).encode()).hexdigest()

"""``Assignment``: which sample goes to which replica and microbatch, and what follows from it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.records import dataclass
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.costs import SampleCosts, prepared_with, weighted
from semu.searcher.assignment.deferring import deferring_job, deferring_plan, deferring_streams, parts_of
from semu.searcher.assignment.methods.table import METHODS
from semu.searcher.assignment.pipeline import Pipelines
from semu.searcher.assignment.problem import TICK_S, AssignmentProblem, Dealt
from semu.simulation.checkpoint import JobCheckpoint
from semu.workload.batch import Microbatch
from semu.workload.listed import ListedBatch
from semu.workload.packing import offsets
from semu.workload.samples import Samples

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Assignment:
    """Samples of an iteration, assigned.

    Attributes:
        method: that made it. job: as it was given; ``assigned_job`` is the one that runs this.
        samples: of the iteration, in the order of the file. ids: of each.
        dealt: where each goes. problem: what the method was asked. pipelines: of the job under fitted costs.
    """

    method: str
    job: TrainingJob
    samples: Samples
    ids: Sequence[str | int]
    dealt: Dealt
    problem: AssignmentProblem
    pipelines: Pipelines

    @property
    def costs(self) -> SampleCosts:
        """What samples cost."""
        return self.pipelines.costs

    # -- who has what ------------------------------------------------------------------------------------------------
    @property
    def dp(self) -> int:
        """Data-parallel replicas."""
        return self.problem.dp

    @property
    def num_microbatches(self) -> int:
        """Of a replica."""
        return self.dealt.num_microbatches

    @cached_property
    def _order(self) -> tuple[I64, I64]:
        """Samples microbatch after microbatch, replica after replica inside; and where each microbatch begins."""
        number = self.dealt.microbatch * self.dp + self.dealt.replica
        order = np.lexsort((np.arange(len(number)), self.dealt.is_deferred, number))
        return order, offsets(np.bincount(number, minlength=self.dp * self.num_microbatches))

    def members(self, replica: int, microbatch: int) -> I64:
        """Samples of a microbatch, numbered as in ``samples``; those that the backbone reads later come last."""
        order, bounds = self._order
        place = microbatch * self.dp + replica
        found: I64 = order[bounds[place] : bounds[place + 1]]
        return found

    @cached_property
    def _read_order(self) -> tuple[I64, I64]:
        """``_order`` of the microbatches in which the backbone reads; what was deferred to one comes first."""
        number = self.dealt.reader * self.dp + self.dealt.replica
        order = np.lexsort((np.arange(len(number)), ~self.dealt.is_deferred, number))
        return order, offsets(np.bincount(number, minlength=self.dp * self.num_microbatches))

    def readers(self, replica: int, microbatch: int) -> I64:
        """Samples that the backbone reads in a microbatch; those that were deferred to it come first."""
        order, bounds = self._read_order
        place = microbatch * self.dp + replica
        found: I64 = order[bounds[place] : bounds[place + 1]]
        return found

    @cached_property
    def loss_tokens(self) -> I64:
        """Tokens that the loss is over, of every microbatch of the backbone: int64[dp, num_microbatches]. Text
        counts; where no sample has any text, all tokens do."""
        tokens = self.samples.text_tokens
        tokens = tokens if tokens.any() else self.samples.lengths
        size = self.dp * self.num_microbatches
        total = np.bincount(self.dealt.reader_bins, weights=tokens, minlength=size)
        return total.reshape(self.dp, -1).astype(np.int64)

    @cached_property
    def loss_weights(self) -> F64:
        """What the mean loss of each microbatch is multiplied by, so that the mean over replicas of the sum over
        microbatches is the mean over all tokens: dp x tokens / global tokens, float64[dp, num_microbatches]."""
        weights: F64 = self.dp * self.loss_tokens / self.loss_tokens.sum()
        return weights

    # -- what it is for semu -----------------------------------------------------------------------------------------
    @cached_property
    def batch(self) -> ListedBatch:
        """The microbatches as a batch: replica r runs items r, r + dp, ..."""
        return ListedBatch(tuple(self._items), f"assignment ({self.method})")

    @cached_property
    def _items(self) -> list[Microbatch]:
        order, bounds = self._order
        encoded = self.samples.taken(order).microbatches(bounds, len(bounds) - 1, 1, False)
        if not self.defers:
            return encoded
        order, bounds = self._read_order
        read = self.samples.taken(order).microbatches(bounds, len(bounds) - 1, 1, False)
        return [
            Microbatch.from_arrays({**there.lengths, "text": here.lengths["text"]}, here.samples)
            for there, here in zip(encoded, read, strict=True)
        ]

    @property
    def defers(self) -> bool:
        """Whether any sample is encoded in another microbatch than it is read in."""
        return bool(self.dealt.is_deferred.any())

    def summary(self) -> dict[str, str | int]:
        """Method, number of samples, and how many are deferred."""
        deferred = int(self.dealt.is_deferred.sum())
        return {"method": self.method, "samples": len(self.ids), "deferred": deferred}

    @cached_property
    def recipe(self) -> StagePlan | None:
        """What defers samples: a plan for ``simulate`` of ``assigned_job``; None: nothing is deferred."""
        return self.checkpoint.layout.recipe.plan if self.defers else None

    @cached_property
    def _item_counts(self) -> dict[str, list[list[list[int]]]]:
        """Encoder -> per microbatch and replica, items that stay and items that wait."""
        parts = parts_of(self.num_microbatches)
        found = {}
        for module, stream in deferring_streams(self.job).items():
            size = 2 * self.dp * self.num_microbatches
            counts = np.bincount(
                2 * self.dealt.bins + self.dealt.is_deferred, weights=self.samples.items[stream].counts, minlength=size
            )
            table = counts.astype(np.int64).reshape(self.dp, self.num_microbatches, 2)
            found[module] = [
                [table[r, k, : parts[k]].tolist() for r in range(self.dp)] for k in range(self.num_microbatches)
            ]
        return found

    def cut(self, sizes: Mapping[str, int | None] = MappingProxyType({})) -> StagePlan:
        """What defers samples, without an order of stages; an empty plan where nothing is deferred.

        Args:
            sizes: as ``deferring_plan``.
        """
        return deferring_plan(self._item_counts, self.num_microbatches, sizes) if self.defers else StagePlan()

    @cached_property
    def undeferred(self) -> ListedBatch:
        """The batch, each sample encoded in the microbatch that reads it: what deferral is compared with."""
        if not self.defers:
            return self.batch
        order, bounds = self._read_order
        items = self.samples.taken(order).microbatches(bounds, len(bounds) - 1, 1, False)
        return ListedBatch(tuple(items), f"assignment ({self.method}, nothing deferred)")

    @property
    def beside(self) -> Assignment | None:
        """The same samples as the method that a search looks at too has them, where this one has decided by the job's
        own schedule: under another one they may be faster; None: it has them alike, or there is no other method."""
        other = METHODS[self.method].beside if self.method in METHODS else None
        if other is None:
            return None
        found = replace(self, method=other, dealt=METHODS[other].deal(self.problem))
        return None if found.dealt.is_like(self.dealt) else found

    def given_to(self, job: TrainingJob, batch: ListedBatch) -> TrainingJob:
        """A job with a batch of this assignment.

        Raises:
            ConfigError: a job with another number of replicas; replicas that are not equally fast.
        """
        self.check_alike()
        dp, training = job.parallel.replicas, job.training
        if dp != self.dp:
            expected = f"{self.dp} data-parallel replicas"
            raise ConfigError("samples assigned to another job", where="assigned", expected=expected, got=dp)
        size = self.num_microbatches * dp * training.micro_batch
        return replace(job, batch=batch, training=replace(training, global_batch=size))

    def check_alike(self) -> None:
        """Refuse replicas that are not equally fast.

        Raises:
            ConfigError: there are some.
        """
        slowdown = self.problem.slowdown
        if (slowdown != 1.0).any():
            raise ConfigError(
                "schedules are made for replicas that are equally fast",
                where="assignment.speeds",
                expected="none beside a simulation, a search or a plan; semu assign simulates slow replicas",
                got=[float(f"{1 / each:.6g}") for each in slowdown],
            )

    @cached_property
    def checkpoint(self) -> JobCheckpoint:
        """The job with this batch, prepared: restore it under schedules."""
        count = self.num_microbatches
        if not self.defers:
            return prepared_with(self.job, self.batch.items, count)
        return deferring_job(self.job, self.batch.items, self.cut(), self.pipelines.deferring(count).schedule(), count)

    @property
    def assigned_job(self) -> TrainingJob:
        """The job with this batch."""
        return self.checkpoint.job

    @cached_property
    def estimate(self) -> Estimate:
        """The iteration, simulated in full: time, memory of every rank."""
        return self.checkpoint.estimate()

    @property
    def iteration_s(self) -> float:
        """Simulated time of the iteration [s]; where replicas are not equally fast, with their stages as slow."""
        if (self.problem.slowdown == 1.0).all():
            return self.estimate.iteration_time_s
        return self._slowed_s

    @cached_property
    def _slowed_s(self) -> float:
        return self.checkpoint.slowed(self.problem.slowdown)

    # -- how good it is ----------------------------------------------------------------------------------------------
    def module_loads(self, module: str, dealt: Dealt) -> F64:
        """What every microbatch of all replicas costs a module's stages under fitted costs, both ways, without what it
        costs beside its samples: float64[dp x num_microbatches] [s]."""
        loads = self._sample_loads[:, self.costs.modules.index(module)]
        where = dealt.bins if module in self.encoders else dealt.reader_bins
        return np.bincount(where, weights=loads, minlength=self.dp * dealt.num_microbatches).astype(np.float64)

    @property
    def loads_s(self) -> dict[str, list[list[float]]]:
        """Per module, ``module_loads`` of this assignment, a list per replica [s]."""
        return {name: self.module_loads(name, self.dealt).reshape(self.dp, -1).tolist() for name in self.costs.modules}

    @cached_property
    def _sample_loads(self) -> F64:
        return weighted(self.costs.features(self.samples), self.costs.per_module[1])

    @cached_property
    def balance(self) -> Mapping[str, float]:
        """Per module, load of the heaviest microbatch of all replicas over the mean, under fitted costs."""
        found = {}
        for name in self.costs.modules:
            total = self.module_loads(name, self.dealt)
            found[name] = float(total.max() / total.mean()) if total.any() else 1.0
        return found

    @cached_property
    def replica_balance(self) -> float:
        """Time of the busiest rank of the slowest replica over the mean of replicas, under fitted costs."""
        total = np.zeros((self.dp, self.problem.load.shape[1]), np.int64)
        np.add.at(total, self.dealt.replica, self.problem.load)
        lasts = total * self.problem.slowdown[:, None]
        mean = lasts.mean(axis=0).max()
        return float(lasts.max() / mean) if mean else 1.0

    @cached_property
    def balance_bound(self) -> Mapping[str, float]:
        """Per module, what no assignment to as many microbatches goes below: max(1, largest sample / mean)."""
        size = self.dp * self.num_microbatches
        return {
            name: max(1.0, float(own.max() / (own.sum() / size))) if own.any() else 1.0
            for name, own in zip(self.costs.modules, self._sample_loads.T, strict=True)
        }

    @property
    def encoders(self) -> tuple[str, ...]:
        """Names of the model's encoders."""
        return encoder_names(self.job)

    @cached_property
    def bound_s(self) -> float:
        """What no assignment of these samples to as many microbatches goes below, under fitted costs [s]: the mean work
        of the busiest rank, or the work of the largest sample on all ranks one after the other."""
        problem = self.problem
        speed = 1.0 / problem.slowdown
        mean = problem.load.sum(axis=0) / problem.dp + problem.fixed * self.num_microbatches
        chain = (problem.load.sum(axis=1).max() + problem.fixed.sum()) / speed.max()
        return float(max(mean.max() / speed.mean(), chain) * TICK_S)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``assignment.json``, ``.csv``, ``.jsonl`` (for data loaders) and ``.png``; the files.

        Raises:
            ConfigError: a folder or a file that cannot be written.
        """
        from semu.searcher.assignment.export import save_assignment  # circle: files are written of a whole assignment

        return save_assignment(self, folder)

    @cached_property
    def fitted_s(self) -> F64:
        """End of every replica's pipeline under fitted costs: float64[dp] [s]."""
        return self.problem.times(self.dealt)


def encoder_names(job: TrainingJob) -> tuple[str, ...]:
    """Names of a model's encoders."""
    return tuple(module.name for module in job.model.modules if module.role.value == "encoder")

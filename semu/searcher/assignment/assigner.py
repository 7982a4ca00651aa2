"""``Assigner``: assigns samples, iteration after iteration; ``SampleSource``: a file of samples, in iterations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_count, check_number, check_seed, find_named
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn.model import ModalityRole
from semu.records import dataclass
from semu.searcher.assignment.assignment import Assignment, encoder_names
from semu.searcher.assignment.costs import SampleCosts, fit_costs, weighted
from semu.searcher.assignment.dealing import check_filled
from semu.searcher.assignment.exact import ExactAssignment, solve_exactly
from semu.searcher.assignment.methods.table import DEFAULT_METHOD, METHODS, Method
from semu.searcher.assignment.pipeline import Pipelines
from semu.searcher.assignment.problem import I64, AssignmentProblem, Dealt, in_ticks
from semu.workload.recorded import FileBatch
from semu.workload.samples import Samples
from semu.workload.stream import read_like

F64 = NDArray[np.float64]


class Assigner:
    """Assigns samples to the replicas and microbatches of a job.

    What samples cost is fitted once, on the samples of the first call or those given here; then a call takes
    milliseconds. The same samples give the same assignment on every rank.

    Args:
        job: what trains. Its microbatches hold ``micro_batch`` sequences of ``seq_len`` tokens at most.
        method: a word of ``METHODS``.
        samples: to fit costs on; None: those of the first call.
        costs: fitted before; None: they are fitted. seed: of ``random``, and of the packs that costs are fitted on.
        speeds: of the job's replicas, of usual ones 1: a straggler's stages take 1 / speed as long; None: all alike.
    Raises:
        ConfigError: an unknown method; a job whose samples cannot be moved; not a speed for every replica.
    """

    def __init__(
        self,
        job: TrainingJob,
        method: str = DEFAULT_METHOD,
        *,
        samples: Samples | None = None,
        costs: SampleCosts | None = None,
        seed: int = 0,
        speeds: Sequence[float] | None = None,
    ) -> None:
        check_assignable(job)
        self.slowdown = slowdown_of(speeds, job.parallel.replicas)
        self.job, self.method, self.seed = job, method, check_seed(seed, "assignment.seed")
        find_method(job, method)
        self._pipelines: Pipelines | None = None
        self._costs = costs
        if costs is None and samples is not None:
            self._costs = self._fitted(samples)

    @property
    def limit(self) -> int | None:
        """Tokens of a microbatch at most; None: any number."""
        context = self.job.batch.context_length(self.job.training.seq_len)
        return None if context is None else context * self.job.training.micro_batch

    @property
    def num_bins(self) -> int:
        """Microbatches of all replicas."""
        return self.job.parallel.replicas * self.job.num_microbatches

    def costs(self, samples: Samples) -> SampleCosts:
        """Costs of samples. ``samples``: to fit them on where they are not fitted yet."""
        if self._costs is None:
            self._costs = self._fitted(samples)
        return self._costs

    def _fitted(self, samples: Samples) -> SampleCosts:
        per_microbatch = len(samples.text_tokens) / self.num_bins
        if self.limit is not None:
            per_microbatch = min(per_microbatch, self.limit / max(1.0, float(samples.lengths.mean())))
        return fit_costs(self.job, samples, max(per_microbatch, 1.0), self.limit, self.seed)

    def __call__(
        self,
        samples: Samples,
        ids: Sequence[str | int] | None = None,
        *,
        bounds: I64 | None = None,
        method: str | None = None,
    ) -> Assignment:
        """Assign the samples of an iteration.

        Args:
            samples: all of them. ids: what a data loader calls each; None: their numbers.
            bounds: int64[k + 1], of the microbatches that packing in order makes; None: even numbers of samples where
                they fit, else greedily packed.
            method: in place of the assigner's.
        Raises:
            ConfigError: fewer samples than microbatches; samples that do not fit.
        """
        asked = self._asked(samples, ids, bounds)
        chosen = method if method is not None else self.method
        dealt = find_method(self.job, chosen).deal(asked.problem)
        return asked.answered(chosen, dealt)

    def exact(
        self,
        samples: Samples,
        ids: Sequence[str | int] | None = None,
        *,
        bounds: I64 | None = None,
        seconds: float = 20.0,
    ) -> tuple[Assignment, ExactAssignment]:
        """The fastest assignment under fitted costs by CP-SAT, for a dozen or two samples, and what the solver says.

        Args:
            samples, ids, bounds: as of a call. seconds: as ``solve_exactly``.
        Raises:
            ConfigError: as a call, and ``solve_exactly``.
        """
        asked = self._asked(samples, ids, bounds)
        start = METHODS[DEFAULT_METHOD].deal(asked.problem)
        found = solve_exactly(asked.problem, asked.features, asked.pipelines, start, seconds=seconds)
        best = asked.answered("exact", found.dealt)
        return best, replace(found, bound_s=max(found.bound_s, min(best.bound_s, found.time_s)))

    def _asked(self, samples: Samples, ids: Sequence[str | int] | None, bounds: I64 | None) -> _Asked:
        """What a method is asked.

        Raises:
            ConfigError: as a call.
        """
        count = len(samples.text_tokens)
        names: Sequence[str | int] = range(count) if ids is None else ids
        if count < self.num_bins:
            dp, micro_batch = self.job.parallel.replicas, self.job.training.micro_batch
            raise ConfigError(
                "fewer samples than microbatches",
                where="samples",
                expected=f"at least {self.num_bins}, one for each of {self.job.num_microbatches} microbatches of "
                f"{dp} replicas",
                got=count,
                nearest=f"training.global_batch = {max(1, count // dp) * dp * micro_batch}",
            )
        self._check_samples(samples, ids)
        costs = self.costs(samples)
        packed = bounds if bounds is not None else packed_bounds(samples.lengths, self.limit, self.num_bins, names)
        features = costs.features(samples)
        problem = self._problem(samples, features, packed, costs)
        return _Asked(self.job, samples, names, features, problem, self.pipelines(costs))

    @staticmethod
    def _check_samples(samples: Samples, ids: Sequence[str | int] | None) -> None:
        """What a file's reader refuses by its line is refused here by its number.

        Raises:
            ConfigError: a sample of no tokens; ids that are not one for every sample.
        """
        count = len(samples.text_tokens)
        empty = np.flatnonzero(samples.lengths < 1)
        if len(empty):
            raise ConfigError("nothing in the sample", where=f"sample {int(empty[0])}", expected=">= 1 token", got=0)
        if ids is not None and len(set(ids)) != count:
            got = f"{len(ids)} ids, {len(set(ids))} different ones"
            raise ConfigError("not an id for every sample", where="ids", expected=f"{count} different ids", got=got)

    def _problem(self, samples: Samples, features: I64, bounds: I64, costs: SampleCosts) -> AssignmentProblem:
        fixed_s, slope_s = costs.per_rank
        is_encoder = np.isin(costs.modules, encoder_names(self.job))
        by_module = in_ticks(weighted(features, costs.per_module[1]))
        return AssignmentProblem(
            load=in_ticks(weighted(features, slope_s)),
            fixed=in_ticks(fixed_s),
            encoder=by_module[:, is_encoder].sum(axis=1),
            backbone=by_module[:, ~is_encoder].sum(axis=1),
            tokens=samples.lengths,
            limit=self.limit,
            dp=self.job.parallel.replicas,
            num_microbatches=self.job.num_microbatches,
            bounds=bounds,
            seed=self.seed,
            slowdown=self.slowdown,
            ends=partial(self.pipelines(costs).seconds, features=features),
        )

    def pipelines(self, costs: SampleCosts) -> Pipelines:
        """The job's pipelines under fitted costs."""
        if self._pipelines is None:
            self._pipelines = Pipelines(self.job, costs, self.slowdown)
        return self._pipelines


@dataclass(frozen=True, eq=False)
class _Asked:
    """An iteration's samples as methods see them.

    Attributes:
        job, samples, ids: as given. features: int64[n, num_names]. problem: for methods. pipelines: of the job.
    """

    job: TrainingJob
    samples: Samples
    ids: Sequence[str | int]
    features: I64
    problem: AssignmentProblem
    pipelines: Pipelines

    def answered(self, method: str, dealt: Dealt) -> Assignment:
        """An answer as an assignment.

        Raises:
            ConfigError: it leaves a microbatch empty.
        """
        check_filled(self.problem, dealt.bins, dealt.num_microbatches)
        return Assignment(method, self.job, self.samples, self.ids, dealt, self.problem, self.pipelines)


@dataclass(frozen=True, eq=False)
class SampleSource:
    """Samples of a file, iteration after iteration.

    Attributes:
        path: of the file. samples: all of them. ids: of each. bounds: int64[k + 1], samples of the microbatches that
            the job's own packing makes, in the order of the file.
        num_bins: microbatches of an iteration. per_iteration: samples of one; None: as many as packing takes.
    """

    path: str
    samples: Samples
    ids: tuple[str | int, ...]
    bounds: I64
    num_bins: int
    per_iteration: int | None

    @classmethod
    def read(
        cls, job: TrainingJob, source: str | os.PathLike[str] | FileBatch, per_iteration: int | None = None
    ) -> SampleSource:
        """The samples of a file for a job.

        Args:
            source: a JSONL file (``semu.workload.metadata``), or one that was read.
            per_iteration: samples of an iteration; None: as many as the job's packed sequences hold.
        Raises:
            ConfigError: a bad line, a sample beyond the context, fewer samples than an iteration needs.
        """
        check_assignable(job)
        batch = source if isinstance(source, FileBatch) else read_like(job.batch, os.fspath(source))
        samples, bounds = batch.packed(job.training.seq_len)
        num_bins = job.parallel.replicas * job.num_microbatches
        bounds = bounds[:: job.training.micro_batch]
        found = cls(batch.metadata.path, samples, batch.metadata.ids(), bounds, num_bins, per_iteration)
        if per_iteration is not None:
            check_count(per_iteration, "assignment.count", least=num_bins)
        if not found.num_iterations:
            have, need = (len(samples.text_tokens), per_iteration) if per_iteration else (len(bounds) - 1, num_bins)
            what = "samples" if per_iteration else "packed microbatches"
            raise ConfigError(
                "the file holds fewer samples than an iteration needs",
                where=batch.metadata.path,
                expected=f"{need} {what}",
                got=have,
                nearest=None
                if have < job.parallel.replicas
                else f"training.global_batch = "
                f"{have // job.parallel.replicas * job.parallel.replicas * job.training.micro_batch}",
            )
        return found

    @property
    def num_iterations(self) -> int:
        """Whole iterations in the file."""
        if self.per_iteration is not None:
            return len(self.samples.text_tokens) // self.per_iteration
        return (len(self.bounds) - 1) // self.num_bins

    def first_sample(self, number: int) -> int:
        """Position in the file of an iteration's first sample."""
        if self.per_iteration is not None:
            return number * self.per_iteration
        return int(self.bounds[number * self.num_bins])

    def iteration(self, number: int) -> tuple[Samples, tuple[str | int, ...], I64 | None]:
        """The samples of an iteration, their ids, and the bounds of its microbatches in the file's order; None: where
        the number of samples is given.

        Args:
            number: < ``num_iterations``.
        Raises:
            ConfigError: there is no such iteration.
        """
        check_count(number, "assignment.iteration", least=0, most=self.num_iterations - 1)
        if self.per_iteration is not None:
            first, last, bounds = number * self.per_iteration, (number + 1) * self.per_iteration, None
        else:
            own = self.bounds[number * self.num_bins : (number + 1) * self.num_bins + 1]
            first, last, bounds = int(own[0]), int(own[-1]), own - own[0]
        return self.samples.taken(np.arange(first, last)), self.ids[first:last], bounds


def assign(
    job: TrainingJob,
    samples: Samples | FileBatch | str | os.PathLike[str],
    method: str = DEFAULT_METHOD,
    *,
    per_iteration: int | None = None,
    iteration: int = 0,
    seed: int = 0,
    speeds: Sequence[float] | None = None,
) -> Assignment:
    """Which sample goes to which replica and microbatch.

    Args:
        job: what trains. samples: of one iteration, or a file of many. method: a word of ``METHODS``.
        per_iteration: samples of an iteration of a file; None: as many as the job's packed sequences hold.
        iteration: which one of a file. seed, speeds: as ``Assigner``.
    Raises:
        ConfigError: as ``Assigner`` and ``SampleSource.read``.
    """
    if isinstance(samples, Samples):
        return Assigner(job, method, seed=seed, speeds=speeds)(samples)
    source = SampleSource.read(job, samples, per_iteration)
    own, ids, bounds = source.iteration(iteration)
    return Assigner(job, method, samples=source.samples, seed=seed, speeds=speeds)(own, ids, bounds=bounds)


def slowdown_of(speeds: Sequence[float] | None, dp: int) -> F64:
    """What the stages of every replica take over those of a usual one: float64[dp].

    Raises:
        ConfigError: not a speed for every replica.
    """
    if speeds is None:
        return np.ones(dp)
    for number, speed in enumerate(speeds):
        check_number(speed, f"assignment.speeds[{number}]", "a speed", most=1e3, is_above=True)
    if len(speeds) != dp:
        raise ConfigError(
            "not a speed for every replica", where="assignment.speeds", expected=f"{dp} speeds", got=len(speeds)
        )
    return 1.0 / np.array(speeds, dtype=np.float64)


def packed_bounds(lengths: I64, limit: int | None, num_bins: int, ids: Sequence[str | int]) -> I64:
    """Bounds of microbatches in the order of samples: even numbers of samples where they fit, else greedily packed:
    int64[num_bins + 1].

    Args:
        lengths: int64[n], tokens. limit: tokens of a microbatch. num_bins: microbatches, <= n. ids: for messages.
    Raises:
        ConfigError: they do not fit.
    """
    even = np.arange(num_bins + 1, dtype=np.int64) * len(lengths) // num_bins
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    if limit is None or np.diff(before[even]).max() <= limit:
        return even
    if lengths.max() > limit:
        first = int(np.argmax(lengths > limit))
        raise ConfigError(
            "a sample beyond the context",
            where=f"sample {ids[first]}",
            expected=f"<= {limit} tokens",
            got=int(lengths[first]),
            nearest=limit,
        )
    bounds = [0]
    for number in range(num_bins):  # as full as it fits, but one sample for every microbatch behind
        reach = int(np.searchsorted(before, before[bounds[-1]] + limit, side="right")) - 1
        bounds.append(min(reach, len(lengths) - (num_bins - number - 1)))
    if bounds[-1] < len(lengths):
        raise ConfigError(
            "more tokens than the microbatches hold, packed in order",
            where="samples",
            expected=f"at most {num_bins} microbatches of {limit} tokens",
            got=f"{len(lengths)} samples of {int(before[-1])} tokens",
            nearest=f"{bounds[-1]} samples",
        )
    return np.array(bounds, np.int64)


def find_method(job: TrainingJob, name: str) -> Method:
    """A method by its name.

    Raises:
        ConfigError: none of that name; one for models with encoders, of a model without.
    """
    method = find_named("method of assignment", name, METHODS, where="assignment.method")
    if method.needs_encoder and not encoder_names(job):
        raise ConfigError(
            f"{name} balances encoders, and {job.model.name} has none",
            where="assignment.method",
            expected=", ".join(key for key, own in METHODS.items() if not own.needs_encoder),
            got=name,
            nearest=DEFAULT_METHOD,
        )
    return method


def check_assignable(job: TrainingJob) -> None:
    """Refuse jobs whose samples cannot be moved between microbatches.

    Raises:
        ConfigError: no job, such as unequal pipelines; attention across samples; a model that reads or makes video.
    """
    if not isinstance(job, TrainingJob):
        raise ConfigError(
            "samples are assigned to replicas with equal numbers of microbatches",
            where="job",
            expected="a TrainingJob; replicas of unequal speed are told by speeds",
            got=type(job).__name__,
        )
    if getattr(job.batch, "attend_across_samples", False):
        raise ConfigError(
            "samples that attend to one another cost other than by themselves",
            where="batch.attend_across_samples",
            expected="false",
            got=True,
            nearest=False,
        )
    decoders = [module.name for module in job.model.modules if module.role is ModalityRole.DECODER]
    if decoders:
        raise ConfigError(
            "assignment of samples to decoders is not modelled",
            where="model",
            expected="encoders and a backbone, or a backbone alone",
            got=f"{job.model.name} with the decoder {decoders[0]}",
        )

"""``SampleCosts``: what samples cost on the units of a job's pipeline (stages and transfers), fitted to semu's engine.

    latency of a unit = c0 + sum over its samples of (b x tokens + a x pairs + d x sequences + w x pairs in windows)

for every stream that the unit's module reads. The fit is on random packs of about the size of a microbatch, costed
together: the sum of single samples is not the cost of a pack (kernels of small shapes are less efficient, and every
stage pays c0 once). Entrain fits layers on synthetic lengths (001 §4.4.1: a x^2 + b x + c per layer).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.compile.recipe.variants import symbols_of_module
from semu.costs.evaluation import CostedJob
from semu.costs.phases import CODES
from semu.distinct import sorted_distinct
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.records import dataclass
from semu.schedule.phases import PHASES
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.packs import draw_packs
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.pipeline import distinct_latencies
from semu.simulation.preparation import prepare
from semu.simulation.unit_programs import programs_of
from semu.workload.batch import Microbatch
from semu.workload.features import feature_names, sample_columns
from semu.workload.listed import ListedBatch
from semu.workload.samples import Samples

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

DIGITS = 9
"""Significant digits of fitted coefficients: solvers of two machines differ behind them, and every rank of a training
run must find the same assignment."""
_FEWEST_FITTED = 128
"""Packs of an iteration that is prepared for a fit, at least."""


@dataclass(frozen=True)
class Residual:
    """How well fitted costs meet the engine on packs that the fit has not seen.

    Attributes:
        module: of the stages. phase: ``F`` or ``B``. rms, worst: relative. packs: held out.
    """

    module: str
    phase: str
    rms: float
    worst: float
    packs: int


@dataclass(frozen=True, eq=False)
class SampleCosts:
    """Costs of samples on the units of a pipeline.

    Attributes:
        checkpoint: the job as it was prepared for the fit; its units are those of an iteration with as many
            microbatches.
        names: features of a sample, as ``sample_columns`` makes them.
        keys: distinct stages and transfers, as ``unit_keys`` tells them.
        fixed_s: float64[num_rows] [s], c0 of every distinct stage or transfer. slope_s: float64[num_rows, num_names]
            [s], per unit of a feature.
        residuals: of stages, by module and phase.
        source: what the coefficients are fitted to, in words.
        provenance: of every row, a word of ``measured``; empty: all are fitted to the engine.
    Raises:
        ConfigError: a coefficient that is not finite.
    """

    checkpoint: JobCheckpoint
    names: tuple[str, ...]
    keys: tuple[UnitKey, ...]
    fixed_s: F64
    slope_s: F64
    residuals: tuple[Residual, ...]
    source: str
    provenance: tuple[str, ...] = ()

    @property
    def provenance_of_rows(self) -> tuple[str, ...]:
        """A word for every row."""
        return self.provenance or ("fitted",) * len(self.keys)

    def __post_init__(self) -> None:
        for name in ("fixed_s", "slope_s"):
            wrong = np.argwhere(~np.isfinite(getattr(self, name)))
            if len(wrong):
                place = ", ".join(map(str, wrong[0].tolist()))
                value = float(getattr(self, name)[tuple(wrong[0])])
                raise ConfigError("not a cost", where=f"costs.{name}[{place}]", expected="a finite number", got=value)

    def features(self, samples: Samples) -> I64:
        """int64[num_samples, num_names]."""
        return sample_columns(samples, self.names)

    def rows_of(self, checkpoint: JobCheckpoint) -> I64:
        """int64[num_units], which of ``keys`` every unit of a pipeline is; of the same job, with any number of
        microbatches, under any plan without further variants."""
        number = {key: row for row, key in enumerate(self.keys)}
        keys, which = unit_keys(checkpoint)
        return np.array([number[key] for key in keys], np.int64)[which]

    @cached_property
    def per_rank(self) -> tuple[F64, F64]:
        """What a microbatch costs the stages of every rank, forward and backward: float64[num_ranks] [s], fixed, and
        float64[num_ranks, num_names] [s], per unit of a feature."""
        return self._summed([chunk.chunk.rank for chunk in self._chunks])

    @cached_property
    def per_module(self) -> tuple[F64, F64]:
        """The same for every module, in the order of the model's; over all of its stages."""
        names = self.modules
        return self._summed([names.index(chunk.module) for chunk in self._chunks])

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules with stages, in the order of data flow."""
        return tuple(dict.fromkeys(chunk.module for chunk in self._chunks))

    @property
    def _chunks(self) -> Sequence[ChunkStages]:
        return self.checkpoint.layout.chunks

    def _summed(self, group: Sequence[int]) -> tuple[F64, F64]:
        """Sums over the stages of one microbatch, by a group of chunks."""
        fixed, slope = np.zeros(max(group) + 1), np.zeros((max(group) + 1, len(self.names)))
        for row, key in enumerate(self.keys):
            if isinstance(key, StageKind) and key.kind < len(group):
                fixed[group[key.kind]] += self.fixed_s[row]
                slope[group[key.kind]] += self.slope_s[row]
        return fixed, slope


class StageKind(NamedTuple):
    """A stage, whichever microbatch it is of: number in ``Layout.kinds``, code of ``semu.schedule.phases``."""

    kind: int
    code: int


class TransferKind(NamedTuple):
    """A transfer, whichever microbatch it is of: chunks, whether it is a gradient, ranks."""

    source: int
    reader: int
    is_gradient: bool
    ranks: tuple[int, int]


UnitKey = StageKind | TransferKind


def unit_keys(checkpoint: JobCheckpoint) -> tuple[tuple[UnitKey, ...], I64]:
    """The distinct stages and transfers of a pipeline, and which of them every unit is: int64[num_units]."""
    units = checkpoint.units
    programs = programs_of(checkpoint.layout.recipe, units)
    kind = programs.kind.reshape(units.repeats, units.size)[:, : units.num_stages]
    stages, of_stage = np.unique(len(CODES) * kind + units.codes, return_inverse=True)
    keys: list[UnitKey] = [StageKind(*divmod(code, len(CODES))) for code in stages.tolist()]
    keys += [TransferKind(a, b, back > 0, units.pairs[pair]) for a, b, back, pair in programs.edges]
    which = np.concatenate((of_stage.reshape(kind.shape), len(stages) + programs.edge[units.copy]), axis=1)
    return tuple(keys), which.ravel().astype(np.int64)


def weighted(features: I64 | F64, slope_s: F64) -> F64:
    """Sums of features times slopes, feature after feature, so that every machine rounds alike.

    Args:
        features: [..., num_names]. slope_s: float64[num_groups, num_names].
    Returns:
        float64[..., num_groups].
    """
    from semu.searcher.assignment.kernels.bins import weigh

    total = np.empty((*features.shape[:-1], len(slope_s)))
    rows = np.ascontiguousarray(features, np.float64).reshape(-1, features.shape[-1])
    weigh(rows, np.ascontiguousarray(slope_s), total.reshape(len(rows), len(slope_s)))
    return total


def fit_costs(
    job: TrainingJob, samples: Samples, per_microbatch: float, limit: int | None, seed: int = 0
) -> SampleCosts:
    """Fit the costs of samples on the units of a job's pipeline.

    Args:
        job: its batch is replaced by packs. samples: to draw packs from.
        per_microbatch, limit, seed: as ``draw_packs``.
    Raises:
        ConfigError: samples that the model cannot take.
    """
    packs = draw_packs(samples, per_microbatch, limit, seed)
    items = packs.microbatches(samples)
    count = job.parallel.replicas * job.num_microbatches
    times = -(-_FEWEST_FITTED // count)
    repeated = [items[number % len(items)] for number in range(times * count)]
    fitted_on = prepared_with(job, repeated, times * job.num_microbatches)
    shape_of = fitted_on.evaluation.shapes.index.T.ravel()
    used = sorted_distinct(np.arange(len(shape_of)) % len(items))
    costed = CostedJob(fitted_on.layout, fitted_on.evaluation)
    by_row, rows = distinct_latencies(costed, fitted_on.units, fitted_on.replicas.links[0])
    keys, which = unit_keys(fitted_on)
    target = by_row[rows[np.unique(which, return_index=True)[1]]][:, shape_of[used]]
    names = feature_names(fitted_on.layout.library.symbols, samples.streams)
    if not names:
        expected = ", ".join(samples.streams)
        raise ConfigError("no cost of the model depends on samples", where="job.model", expected=expected)
    sums = packs.sums(sample_columns(samples, names)).astype(np.float64)[used]
    held_out = packs.is_held_out[used]
    fixed_s, slope_s = np.zeros(len(keys)), np.zeros((len(keys), len(names)))
    for row, allowed in enumerate(_allowed(fitted_on, keys, names)):
        fixed_s[row], slope_s[row] = _fit(sums[~held_out], target[row, ~held_out], allowed)
    guess = fixed_s[:, None] + weighted(sums[held_out], slope_s).T
    residuals = _residuals(fitted_on, keys, target[:, held_out], guess)
    fitted = int((~held_out).sum())
    source = f"fitted to semu's engine on {fitted} packs of the samples, device {job.profile.name}, seed {seed}"
    checkpoint = fitted_on if times == 1 else prepared_with(job, repeated[:count], job.num_microbatches)
    return SampleCosts(checkpoint, names, keys, fixed_s, slope_s, residuals, source)


def prepared_with(
    job: TrainingJob, items: Sequence[Microbatch], count: int, plan: StagePlan | None = None
) -> JobCheckpoint:
    """The job with listed microbatches, ``count`` for every replica."""
    training = replace(job.training, global_batch=count * job.parallel.replicas * job.training.micro_batch)
    return prepare(replace(job, training=training, batch=ListedBatch(tuple(items), "assignment")), plan=plan)


def _allowed(checkpoint: JobCheckpoint, keys: Sequence[UnitKey], names: Sequence[str]) -> NDArray[np.bool_]:
    """The features that a unit may depend on: of a stage those of its module, of a transfer all: bool[num_keys,
    num_names]."""
    layout = checkpoint.layout
    streams = {name.partition(".")[0] for name in names}
    modules = dict.fromkeys(chunk.module for chunk in layout.kinds)
    own = {module: np.isin(names, feature_names(symbols_of_module(layout, module), streams)) for module in modules}
    every = np.ones(len(names), np.bool_)
    return np.stack([own[layout.kinds[key.kind].module] if isinstance(key, StageKind) else every for key in keys])


def _fit(sums: F64, target: F64, allowed: NDArray[np.bool_]) -> tuple[float, F64]:
    """Least squares of relative errors: c0 and slopes, rounded to ``DIGITS`` digits."""
    slope = np.zeros(len(allowed))
    busy = target > 0
    if not busy.any():
        return 0.0, slope
    columns = np.flatnonzero(allowed & (sums[busy].max(axis=0) > 0))
    table = np.column_stack((np.ones(int(busy.sum())), sums[busy][:, columns])) / target[busy, None]
    scale = np.abs(table).max(axis=0)
    found = np.linalg.lstsq(table / scale, np.ones(len(table)), rcond=1e-10)[0] / scale
    rounded = [float(f"{value:.{DIGITS - 1}e}") for value in found]
    slope[columns] = rounded[1:]
    return rounded[0], slope


def _residuals(checkpoint: JobCheckpoint, keys: Sequence[UnitKey], target: F64, guess: F64) -> tuple[Residual, ...]:
    """Relative residuals by module and phase, of all stages of a module together."""
    groups: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(keys):
        if isinstance(key, StageKind) and key.code < len(PHASES):
            groups.setdefault((checkpoint.layout.kinds[key.kind].module, key.code), []).append(row)
    found = []
    for (module, code), rows in groups.items():
        real, said = target[rows].sum(axis=0), guess[rows].sum(axis=0)
        busy = real > 0
        if busy.any():
            error = said[busy] / real[busy] - 1
            rms = float(np.sqrt(np.mean(error**2)))
            found.append(Residual(module, PHASES[code].value, rms, float(np.abs(error).max()), int(busy.sum())))
    return tuple(found)

"""Entrain's search for a configuration (001 §4.4.3, algorithm 3): GPUs to modules by work, each module cut by itself.

For every data-parallel size GPUs of a replica are shared out in proportion to work; for every tp x cp x pp of a module
that makes its GPUs, layers are cut into pp stages whose slowest is fastest (eq. 4.1); a configuration takes

    T = sum of all stages + (K - 1) x the slowest stage          (eq. 4.2; K microbatches)

Stages last forward plus backward, as semu costs layers on the run's own batch. The resharding cost between modules of
different sizes is not printed, and not charged: what is simulated has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise, product

import numpy as np
from numpy.typing import NDArray

from semu.baselines import Baseline
from semu.baselines.baseline import NO_LAYOUT, NO_SCHEDULE
from semu.baselines.costs_of_layers import layer_costs
from semu.errors import ConfigError, SemuError
from semu.job import Recompute, TrainingJob
from semu.parallel.pipeline import partition
from semu.records import dataclass
from semu.searcher.assignment.allocation import proportional

F64 = NDArray[np.float64]

SIMULATED = 16
"""Configurations that ``entrain`` simulates, the fastest by the formula."""
_MICROBATCHES = 8
"""Of the run's batch, over which costs of layers are means."""
_SOURCE = "Entrain (a dissertation's chapter 4), §4.4.3, algorithm 3"


@dataclass(frozen=True)
class ModuleSizes:
    """A module's part of a configuration.

    Attributes:
        name: of the module. tp, cp, pp: its sizes. stages_s: forward plus backward of its stages [s].
    """

    name: str
    tp: int
    cp: int
    pp: int
    stages_s: tuple[float, ...]


@dataclass(frozen=True)
class Configuration:
    """One configuration.

    Attributes:
        time_s: eq. 4.2 [s]. dp: data-parallel replicas. num_microbatches: K. modules: in the order of data flow.
    """

    time_s: float
    dp: int
    num_microbatches: int
    modules: tuple[ModuleSizes, ...]

    @property
    def parallel(self) -> dict[str, object]:
        """What it sets of ``Parallel``."""
        shares = {own.name: own.pp for own in self.modules}
        sizes = {(own.tp, own.cp) for own in self.modules}
        tp, cp = max(sizes)
        found = {"dp": self.dp, "tp": tp, "cp": cp, "pp": sum(shares.values()), "vpp": 1, "ep": 1}
        if len(self.modules) == 1:
            return {**NO_LAYOUT, **found, "modules": {}}
        apart: dict[str, object] = {**NO_LAYOUT, **found, "segments": "apart", "partition": "latency"}
        if len(sizes) == 1:
            return {**apart, "shares": shares, "modules": {}}
        modules = {
            own.name: {"gpus": self.dp * own.tp * own.cp * own.pp, "tp": own.tp, "cp": own.cp, "pp": own.pp}
            for own in self.modules
        }
        return {**apart, "modules": modules}


def formula_s(stages_s: F64, num_microbatches: int) -> float:
    """Eq. 4.2: sum of all stages, and the slowest one for every further microbatch [s]."""
    return float(stages_s.sum() + (num_microbatches - 1) * stages_s.max())


def configurations(job: TrainingJob) -> list[Configuration]:
    """All configurations of algorithm 3, fastest by eq. 4.2 first; whether they fit in memory is not looked at.

    Args:
        job: its model, cluster, batch, ``global_batch`` and ``micro_batch``; its parallel sizes do not matter.
    Raises:
        ConfigError: no data-parallel size leaves every module a GPU.
    """
    costs = _LayerTimes(job)
    gpus, step = job.cluster.num_gpus, job.training.micro_batch
    modules = job.model.modules
    total = costs.of(1, 1)
    if total is None:
        raise ConfigError("the model does not run on one GPU's shapes", where="model", expected="tp = cp = 1 legal")
    work = np.array([own.sum() for own in total])
    found = []
    for dp in (n for n in range(1, gpus + 1) if gpus % n == 0 and job.training.global_batch % (n * step) == 0):
        if gpus // dp < len(modules):
            continue
        shares = proportional(work, gpus // dp).tolist()
        options = [[*costs.options(number, share)] for number, share in enumerate(shares)]
        count = job.training.global_batch // (dp * step)
        for chosen in product(*options):
            stages = np.concatenate([own.stages_s for own in chosen])
            found.append(Configuration(formula_s(stages, count), dp, count, tuple(chosen)))
    if not found:
        raise ConfigError(
            f"no configuration of {gpus} GPUs for {len(modules)} modules",
            where="training.global_batch",
            expected="a multiple of dp x micro_batch for some dp that leaves every module a GPU",
            got=job.training.global_batch,
        )
    return sorted(found, key=lambda own: (own.time_s, own.dp, [(m.tp, m.cp, m.pp) for m in own.modules]))


class _LayerTimes:
    """Forward plus backward of layers by tensor and context ranks."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._found: dict[tuple[int, int], list[F64] | None] = {}

    def of(self, tp: int, cp: int) -> list[F64] | None:
        """Per module, its layers: float64[num_layers] [s]; None: the model does not divide."""
        if (tp, cp) not in self._found:
            self._found[tp, cp] = self._measured(tp, cp)
        return self._found[tp, cp]

    def _measured(self, tp: int, cp: int) -> list[F64] | None:
        job, width = self._job, tp * cp
        each = min(job.cluster.gpus_per_node, width)
        cluster = replace(job.cluster, nodes=-(-width // each), gpus_per_node=each)
        try:
            parallel = replace(job.parallel, **NO_LAYOUT, modules={}, dp=1, tp=tp, cp=cp, pp=1, vpp=1, ep=1)
            costs = layer_costs(replace(job, cluster=cluster, parallel=parallel), job.batch, _MICROBATCHES)
        except SemuError:  # heads or layers that so many ranks do not divide
            return None
        again = int(job.training.recompute is Recompute.FULL)
        return [costs.latency_s[again, costs.module == number] for number in range(costs.num_modules)]

    def options(self, module: int, gpus: int) -> Iterator[ModuleSizes]:
        """All tp x cp x pp of a module that make so many GPUs, each cut by eq. 4.1."""
        name, per_node = self._job.model.modules[module].name, self._job.cluster.gpus_per_node
        for tp, cp in product((n for n in range(1, per_node + 1) if per_node % n == 0), range(1, gpus + 1)):
            if gpus % (tp * cp):
                continue
            times, pp = self.of(tp, cp), gpus // (tp * cp)
            if times is None or pp > len(times[module]):
                continue
            ends = partition(times[module].tolist(), pp)
            stages = tuple(float(times[module][first:last].sum()) for first, last in pairwise(ends))
            yield ModuleSizes(name, tp, cp, pp, stages)


def entrain_literal(job: TrainingJob) -> Baseline:
    """The configuration that is fastest by eq. 4.2, of those that the engine says fit in memory; 1F1B.

    Args:
        job: as ``configurations``.
    Raises:
        ConfigError: as ``configurations``; none that semu can run fits.
    """
    for found, _ in _simulated(job, "entrain-literal"):
        return found
    raise _none_fits(job)


def entrain(job: TrainingJob) -> Baseline:
    """Of the ``SIMULATED`` configurations that are fastest by eq. 4.2 and fit, the one that is fastest when simulated.

    Args:
        job: as ``configurations``.
    Raises:
        ConfigError: as ``entrain_literal``.
    """
    found = [*islice(_simulated(job, "entrain"), SIMULATED)]
    if not found:
        raise _none_fits(job)
    return min(found, key=lambda pair: pair[1])[0]


def _simulated(job: TrainingJob, name: str) -> Iterator[tuple[Baseline, float]]:
    """Configurations in the order of the formula that can be run and fit, with their simulated iteration [s]."""
    for own in configurations(job):
        sizes = ", ".join(f"{m.name} tp {m.tp} cp {m.cp} pp {m.pp}" for m in own.modules)
        note = f"eq. 4.2 says {own.time_s:.4g} s for dp {own.dp}, {sizes}"
        try:
            made = Baseline.of(
                name,
                _SOURCE,
                job,
                parallel=own.parallel,
                training={**NO_SCHEDULE, "schedule": "1f1b"},
                notes=(note,),
            )
            estimate = made.evaluate()
        except SemuError:  # what semu does not run: sizes that do not go together
            continue
        if estimate.fits:
            yield made, estimate.iteration_time_s


def _none_fits(job: TrainingJob) -> ConfigError:
    return ConfigError(
        "no configuration of algorithm 3 fits in memory",
        where="--baseline entrain",
        expected="more GPUs, recomputation, or a smaller micro_batch",
        got=f"{job.cluster.num_gpus} GPUs, recompute {job.training.recompute.value}",
        nearest="training.recompute = full" if job.training.recompute is not Recompute.FULL else None,
    )

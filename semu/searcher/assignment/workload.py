"""``WorkloadStudy``: what samples ask of a job's modules: shares of the work, GPUs for each, and how sure that is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.files import make_folder, write_file, write_text
from semu.job import TrainingJob
from semu.present.page import Page
from semu.records import dataclass
from semu.searcher.assignment.allocation import StableBatch, stable_batch
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.costs import SampleCosts, weighted
from semu.units import fit_columns

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WorkloadStudy:
    """Samples as a job's modules see them.

    Attributes:
        source: of the samples. modules: names. work: float64[num_samples, num_modules] [s], stages of all pipeline
            ranks, both ways, without what a microbatch costs beside its samples.
        gpus: of a replica. has: GPUs that each module has now; where a rank holds several, each by its share of the
            rank's work.
        stable: how many samples tell the allocation. global_batch: samples of an iteration.
        costs: of samples.
    """

    source: SampleSource
    modules: tuple[str, ...]
    work: F64
    gpus: int
    has: tuple[float, ...]
    stable: StableBatch
    global_batch: int
    costs: SampleCosts

    @property
    def shares(self) -> tuple[float, ...]:
        """Of all work, by module."""
        total = self.work.sum(axis=0)
        return tuple((total / total.sum()).tolist())

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        stable = self.stable
        near = stable.nearest
        return {
            "samples": self.source.path,
            "count": len(self.work),
            "gpus_per_replica": self.gpus,
            "modules": [
                {"module": name, "share": share, "gpus": now, "wanted_gpus": wanted, "mean_s": mean, "largest_s": most}
                for name, share, now, wanted, mean, most in zip(
                    self.modules,
                    self.shares,
                    self.has,
                    stable.of_all,
                    self.work.mean(axis=0).tolist(),
                    self.work.max(axis=0).tolist(),
                    strict=True,
                )
            ],
            "b_min": stable.samples,
            "converged": stable.samples is not None,
            "allocation": list(stable.allocation),
            "alpha": stable.alpha,
            "error": stable.error,
            "trials": [vars(trial) for trial in stable.trials],
            "global_batch": self.global_batch,
            "warning": self.warning,
            "nearest_breakpoint": None if near is None else {"module": self.modules[near[0]], "factor": near[1]},
            "costs": {"source": self.costs.source, "residuals": [vars(own) for own in self.costs.residuals]},
        }

    @property
    def warning(self) -> str | None:
        """What is doubtful about the global batch; None: nothing."""
        stable = self.stable
        if stable.samples is None:
            return f"not converged: up to {stable.trials[-1].samples:,} samples a batch, allocations differ"
        if self.global_batch < stable.samples:
            return f"an iteration has {self.global_batch:,} samples, fewer than b_min = {stable.samples:,}"
        tried = stable.trials[-1]
        if tried.samples == self.global_batch and not tried.passed:
            return f"at the global batch of {tried.samples:,} samples {100 * (1 - tried.share):.0f} % of draws differ"
        return None

    def __repr__(self) -> str:
        return _text(self)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write ``workload.json``, ``workload.png`` and ``report.html``; the files.

        Raises:
            ConfigError: a folder or a file that cannot be written.
        """
        from semu.present.plots.workload import WorkloadPicture, draw_workload

        path = Path(folder)
        make_folder(path)
        picture = WorkloadPicture(
            title=f"{len(self.work):,} samples, {self.gpus} GPUs a replica: {_words(self.stable.of_all)}",
            subtitle=f"b_min {self.stable.samples or 'not found'}; {self.source.path}",
            modules=self.modules,
            sizes=tuple(trial.samples for trial in self.stable.trials),
            shares=tuple(trial.share for trial in self.stable.trials),
            seen=tuple(tuple(map(_words, trial.seen[:4])) for trial in self.stable.trials),
        )
        return [
            write_text(path / "workload.json", json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"),
            write_file(path / "workload.png", lambda file: draw_workload(file, picture)),
            self.page().save(path / "report.html"),
        ]

    def page(self) -> Page:
        """Shares of the work, GPUs for every module, and how large a batch tells them, as one HTML file."""
        from semu.searcher.assignment.page import workload_page  # circle: a page is of a whole study

        return workload_page(self)


def study_workload(
    assigner: Assigner, source: SampleSource, *, alpha: float = 0.05, error: float = 0.05
) -> WorkloadStudy:
    """What samples ask of the modules of a job.

    Args:
        assigner: whose job and costs. source: of samples. alpha, error: as ``stable_batch``.
    Raises:
        ConfigError: as ``Assigner``.
    """
    costs = assigner.costs(source.samples)
    work = weighted(costs.features(source.samples), costs.per_module[1])
    job = assigner.job
    parallel = job.parallel
    gpus = parallel.num_gpus // parallel.replicas
    own = source.iteration(0)[0]
    count = len(own.text_tokens)
    stable = stable_batch(work, gpus, alpha=alpha, error=error, also=count, seed=assigner.seed)
    return WorkloadStudy(source, costs.modules, work, gpus, _has(job, costs, work, gpus), stable, count, costs)


def _has(job: TrainingJob, costs: SampleCosts, work: F64, gpus: int) -> tuple[float, ...]:
    """GPUs that each module has."""
    table = np.zeros((job.parallel.pp, len(costs.modules)))
    for chunk in costs.checkpoint.layout.chunks:
        table[chunk.chunk.rank, costs.modules.index(chunk.module)] += chunk.chunk.last - chunk.chunk.first
    layers = np.maximum(table.sum(axis=0), 1)
    busy = table / layers * work.sum(axis=0)
    share = busy / np.maximum(busy.sum(axis=1, keepdims=True), 1e-30)
    found: list[float] = (share.sum(axis=0) * gpus / job.parallel.pp).tolist()
    return tuple(found)


def _words(allocation: tuple[int, ...]) -> str:
    return ":".join(map(str, allocation))


def _text(study: WorkloadStudy) -> str:
    """The study for a terminal."""
    stable = study.stable
    heads = ("module", "share of work", "GPUs now", "GPUs in proportion", "mean ms", "largest / mean")
    rows = [heads]
    for number, name in enumerate(study.modules):
        own = study.work[:, number]
        rows.append(
            (
                name,
                f"{100 * study.shares[number]:.1f} %",
                f"{study.has[number]:.1f}",
                str(stable.of_all[number]),
                f"{1e3 * own.mean():.3g}",
                f"{own.max() / own.mean():.1f}" if own.mean() else "-",
            )
        )
    lines = [f"{len(study.work):,} samples of {study.source.path}, {study.gpus} GPUs in a replica", ""]
    lines += fit_columns(rows, [number > 0 for number in range(len(heads))])
    trials = [("samples", "draws", "same", "allocations drawn")]
    trials += [
        (f"{t.samples:,}", str(t.trials), f"{100 * t.share:.0f} %", " ".join(map(_words, t.seen[:5])))
        for t in stable.trials
    ]
    lines += ["", *fit_columns(trials, [True, True, True, False]), ""]
    if stable.samples is not None:
        lines.append(
            f"b_min = {stable.samples:,} samples: another batch of as many gives {_words(stable.allocation)} but for "
            f"{100 * stable.error:.0f} % at most, with {100 * (1 - stable.alpha):.0f} % confidence"
        )
    if stable.nearest is not None:
        module, factor = study.modules[stable.nearest[0]], stable.nearest[1]
        lines.append(f"the allocation changes where the work of {module} is {factor:.3f} times as much")
    if study.warning is not None:
        lines.append(f"warning: {study.warning}")
    return "\n".join(lines)

"""What the interval holds of kinds of runs that were never seen: frameworks, devices and families of models left out.

    python -m calibration.kinds_left_out RUNS.json [RUNS.json ...] [--json]

What the runs of a kind have told is forgotten before they are predicted:

- a framework: its factors are those of a profile without runs, which are neutral;
- a device that factors were fitted on: it has those of another device, as a profile with a ``base`` has (``OTHER``);
- a family of models (``family_of``): its factors stay, as they come from dense text of many sources;
- and of all three, spreads of ``semu.simulation.effects.structural`` come from the runs of other kinds: a cause that
  they alone have adds nothing.

Printed of each kind: runs, mean absolute error, how many lie inside their 90 % interval, and what spread the interval
lacks: the root of the mean over groups of max(0, mean of x^2 - mean of sigma^2), as in ``structural_spreads``. The root
of its mean square over families is the spread of a family that no run was of (``structure.family``).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean

import semu
from calibration.software_factors import SAME_DIE, chosen_job
from calibration.structural_spreads import Residual, inside, spread_of
from semu.errors import ConfigError, ScheduleError
from semu.hardware.kinds import Provenance
from semu.hardware.profile import load_profile
from semu.hardware.software import Software, SoftwareFactors
from semu.job import TrainingJob
from semu.nn.layers.lora import has_lora
from semu.nn.layers.moe import Experts
from semu.present.uncertainty import STRUCTURE
from semu.simulation.effects.structural import CAUSES
from semu.validation import Row, read_rows

AXES = ("framework", "device", "family")
OTHER: Mapping[str, str] = {"h100": "a100-80g", "h100-96g": "a100-80g", "a100-80g": "h100"}
"""Devices that factors were fitted on, or that have those of the same die -> the one that stands in."""


@dataclass(frozen=True)
class Prediction:
    """A time [s], and the relative standard deviation that kinds of coefficients or causes give it, by kind."""

    time_s: float
    spreads: Mapping[str, float]

    @classmethod
    def of(cls, job: TrainingJob) -> Prediction:
        """The simulated time of a job."""
        report = semu.simulate(job)
        assert report.uncertainty is not None
        kinds = report.uncertainty.kinds
        return cls(report.iteration_time_s, {item.kind: item.sigma_s / report.iteration_time_s for item in kinds})

    def sigma(self, *, but: str) -> float:
        """Root of the sum of squares over all kinds that do not start with ``but``."""
        return math.sqrt(math.fsum(one**2 for kind, one in self.spreads.items() if not kind.startswith(but)))


@dataclass(frozen=True)
class Seen:
    """A scored run.

    Attributes:
        group: of its source. kinds: axis -> kind. causes: names of those that hold. measured_s: [s].
        shipped: as semu predicts it. forgotten: axis -> by other factors; absent: factors are as shipped.
    """

    group: str
    kinds: Mapping[str, str]
    causes: tuple[str, ...]
    measured_s: float
    shipped: Prediction
    forgotten: Mapping[str, Prediction]


def family_of(job: TrainingJob) -> str:
    """What a model is: ``experts``, ``adapters``, gated or plain text, else the class of its last module that reads."""
    parts = [part for module in job.model.modules for part in module.body.modules()]
    if any(isinstance(part, Experts) for part in parts):
        return "experts"
    if has_lora(job.model):
        return "adapters"
    streams = {item.stream for module in job.model.modules for item in module.inputs}
    if streams == {"text"}:
        return "text, eager" if job.training.is_eager and job.cluster.fabric else "text"
    return " and ".join(sorted(module.name for module in job.model.modules))


def _of_other(device: str) -> dict[Software, SoftwareFactors]:
    """Another device's factors, as a profile that takes them from its base has them."""
    found = {}
    for software, factors in load_profile(OTHER[device]).software.items():
        numbers = {item.name: getattr(factors, item.name) for item in fields(SoftwareFactors)}
        fitted = (Provenance.MEASURED, Provenance.FITTED)
        found[software] = SoftwareFactors(
            **{
                name: replace(
                    number,
                    provenance=Provenance.TRANSFERRED if number.provenance in fitted else number.provenance,
                    relative_error=None,
                )
                for name, number in numbers.items()
            }
        )
    return found


def _under(job: TrainingJob, device: str, software: Mapping[Software, SoftwareFactors]) -> Prediction:
    profile = replace(load_profile(device), software=dict(software))
    return Prediction.of(replace(job, cluster=replace(job.cluster, device=profile)))


def seen_of(row: Row) -> Seen | None:
    """A row's run; None: it has no time to score, or is refused."""
    if not row.trust.is_scored or row.iteration_time_s is None:
        return None
    try:
        job = chosen_job(row)
        forgotten = {"framework": _under(job, row.profile, {})}
        if row.profile in OTHER:
            forgotten["device"] = _under(job, row.profile, _of_other(row.profile))
        shipped = Prediction.of(job)
    except (ConfigError, ScheduleError):
        return None
    kinds = {
        "framework": job.training.software.value,
        "device": SAME_DIE.get(row.profile, row.profile),
        "family": family_of(job),
    }
    causes = tuple(cause.name for cause in CAUSES if cause.holds(job))
    return Seen(row.group, kinds, causes, row.iteration_time_s, shipped, forgotten)


def spreads_of(runs: Sequence[Seen]) -> dict[str, float]:
    """Cause -> its spread by some runs; those that no run has first are absent."""
    found: dict[str, dict[str, list[Residual]]] = {}
    for run in runs:
        if run.causes:
            cause = run.causes[0]
            sigma = run.shipped.sigma(but=f"{STRUCTURE}.{cause}")
            residual = Residual(run.group, cause, math.log(run.measured_s / run.shipped.time_s), sigma)
            found.setdefault(cause, {}).setdefault(run.group, []).append(residual)
    return {cause: spread_of(list(groups.values())) for cause, groups in found.items()}


@dataclass(frozen=True)
class Kind:
    """What a kind of runs that nobody had seen comes to: error [%], runs inside, and the spread that lacks."""

    axis: str
    kind: str
    runs: int
    error: float
    inside: int
    lacks: float


def left_out(runs: Sequence[Seen]) -> Iterator[Kind]:
    """Every kind of every axis, by what the other runs tell."""
    for axis in AXES:
        for kind in dict.fromkeys(run.kinds[axis] for run in runs):
            spreads = spreads_of([run for run in runs if run.kinds[axis] != kind])
            own = [run for run in runs if run.kinds[axis] == kind]
            groups: dict[str, list[Residual]] = {}
            errors = []
            for run in own:
                predicted = run.forgotten.get(axis, run.shipped)
                sigma = math.hypot(predicted.sigma(but=STRUCTURE), *(spreads.get(cause, 0.0) for cause in run.causes))
                ratio = run.measured_s / predicted.time_s
                errors.append(abs(1 / ratio - 1))
                groups.setdefault(run.group, []).append(Residual(run.group, kind, math.log(ratio), sigma))
            held = sum(inside(group, 0.0) for group in groups.values())
            yield Kind(axis, kind, len(own), 100 * fmean(errors), held, spread_of(list(groups.values())))


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for path in options.runs for row in read_rows(path) if isinstance(row, Row)]
    kinds = list(left_out([found for row in rows if (found := seen_of(row)) is not None]))
    if options.json:
        print(json.dumps([vars(one) for one in kinds], indent=2))
        return 0
    for one in kinds:
        print(f"{one.axis:9} {one.kind:24} {one.runs:3} runs, {one.error:5.1f} %", end="")
        print(f", inside {one.inside}, lacks {one.lacks:.2f}")
    for axis in AXES:
        own = [one for one in kinds if one.axis == axis]
        if own:
            share = 100 * fmean(one.inside / one.runs for one in own)
            print(
                f"{axis}: {share:.0f} % inside in the mean, lacks {math.sqrt(fmean(one.lacks**2 for one in own)):.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

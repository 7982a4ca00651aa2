"""Refit the ``[software.NAME]`` factors of the shipped profiles on published runs.

    python calibration/software_factors.py [--runs FILE] [--device NAME] [--software NAME] [--write] [--json]

One set of factors for all dense runs of a device under a framework, over all groups; runs of models with experts use
other kernels and are left out. The factors minimise

    sum over runs of w H(log predicted - log measured) + ridge,

with Huber's function H (quadratic to 0.08), weights w by which a group counts as the square root of its runs, and a
ridge that pulls towards neutral factors: the spread of a run is 0.04, the prior spreads are below. A factor that
matters to fewer than four runs stays neutral; of the others, at most half as many as runs are fitted, those that matter
most. A predicted time is nearly linear in the factors, so each round takes slopes from simulations and solves on that
line. The script prints the error on the fitted runs and the error on runs left out: each group by factors from the
other groups, or, where a device has one group, each half of its runs by factors from the other half; the mean of the
latter over groups is the error that a profile says of its factors. Only ``--write`` changes files.

Factors are refitted after every change of the profiles' efficiencies (``make_profiles.py``), never tuned by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

import semu
from semu.errors import ConfigError, ScheduleError
from semu.files import toml_string
from semu.fitting.write import number_text, replace_blocks
from semu.hardware.attention_kernels import PASSES, AttentionKernel
from semu.hardware.profile import PROFILE_DIR
from semu.hardware.software import FACTORS, Software
from semu.job import TrainingJob
from semu.runfile import make_job
from semu.simulation import prepare
from semu.validation import Row, read_rows
from semu.validation.jobs import Settings, run_tables
from semu.validation.resolve import Run, choose

ROW_SPREAD = 0.04
HUBER = 0.08
ROUNDS = 4
LEAST_RUNS, LEAST_GROUPS = 8, 2
"""Runs and groups that a device needs."""
LEAST_MOVED = 4
"""Runs that a fitted factor must matter to."""
SAME_DIE: Mapping[str, str] = {"h100-96g": "h100"}
"""Devices that take the factors of another one: the same compute die under another clock or with another memory."""
MATTERS = 0.01
"""A factor matters to a run whose time its prior spread changes by this share."""

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """How a factor is fitted.

    Attributes:
        most: upper limit. prior: standard deviation of its departure from neutral: of the logarithm where neutral is 1.
        step: of slopes.
    """

    most: float
    prior: float
    step: float


KERNEL = AttentionKernel.TRITON_FA1.value
"""The attention kernel that nobody measured by itself: its factor comes from the runs."""
HOW: Mapping[str, Factor] = {
    "matmul": Factor(1.5, 0.05, 0.03),
    KERNEL: Factor(4.0, 0.5, 0.1),
    "memory_bound": Factor(2.5, 0.5, 0.05),
    "interference": Factor(1.5, 1.0, 0.1),
    "transfer_s": Factor(2e-3, 3e-4, 1e-4),
}
"""Products are measured under sustained load, so little is left for their factor. Attention kernels have factors from
measurements of their own but one."""
NAMES = tuple(HOW)
NEUTRALS: Mapping[str, float] = {KERNEL: 1.0, **FACTORS}
NEUTRAL = np.array([NEUTRALS[name] for name in NAMES])
MOST = np.array([HOW[name].most for name in NAMES])


@dataclass(frozen=True)
class Sample:
    """A run: its name, group, job and measured time [s]."""

    id: str
    group: str
    job: TrainingJob
    measured_s: float

    def predicted_s(self, factors: F64) -> float:
        """Time of an iteration under some factors [s]."""
        software = self.job.training.software.value
        numbers: dict[str, object] = {}
        for name, value in zip(NAMES, factors.tolist(), strict=True):
            keys = [f"attention_kernel.{name}.{side}" for side in PASSES]
            if name != KERNEL:
                numbers[f"software.{software}.{name}"] = value
            elif AttentionKernel.TRITON_FA1 in self.job.cluster.profile.attention_kernels:
                numbers |= dict.fromkeys(keys, value)
        cluster = replace(self.job.cluster, override={**self.job.cluster.override, **numbers})
        return semu.evaluate(replace(self.job, cluster=cluster)).iteration_time_s

    @cached_property
    def reach(self) -> float:
        """The upper end of the run's interval over its time, with the profile as it is."""
        found = semu.simulate(self.job).uncertainty
        assert found is not None
        return found.interval_s()[1] / found.iteration_time_s

    def is_inside(self, predicted_s: float) -> bool:
        """Whether the measured time lies in an interval as wide as the run's around another predicted time."""
        return 1 / self.reach <= self.measured_s / predicted_s <= self.reach


def read_samples(path: Path) -> dict[tuple[str, Software], list[Sample]]:
    """Scored dense runs with times, by device and framework; settings that are not published as ``semu validate``."""
    result: dict[tuple[str, Software], list[Sample]] = {}
    for row in read_rows(path):
        if not isinstance(row, Row) or not row.trust.is_scored or row.iteration_time_s is None or row.shape.moe:
            continue
        try:
            job = chosen_job(row)
        except (ConfigError, ScheduleError):
            continue
        key = SAME_DIE.get(row.profile, row.profile), job.training.software
        result.setdefault(key, []).append(Sample(row.id, row.group, job, row.iteration_time_s))
    return result


def chosen_job(row: Row) -> TrainingJob:
    """The job of a row; what it leaves open is the fastest that fits."""

    def _simulate(settings: Settings) -> Run:
        checkpoint = prepare(make_job(run_tables(row, settings, row.profile)))
        return Run(checkpoint, checkpoint.estimate())

    return choose(row, _simulate).run.checkpoint.job


@dataclass(frozen=True)
class Line:
    """Predicted times near some factors: ``time + slope (factors - at)``.

    Attributes:
        at: float64[num_factors]. time: float64[num_runs] [s]. slope: float64[num_runs, num_factors] [s].
    """

    at: F64
    time: F64
    slope: F64

    @classmethod
    def near(cls, samples: Sequence[Sample], at: F64) -> Line:
        """The line through the predictions at some factors."""
        time = np.array([sample.predicted_s(at) for sample in samples])
        slope = np.zeros((len(samples), len(NAMES)))
        for number, name in enumerate(NAMES):
            moved = at.copy()
            moved[number] += HOW[name].step
            ahead = np.array([sample.predicted_s(moved) for sample in samples])
            slope[:, number] = (ahead - time) / HOW[name].step
        return cls(at, time, slope)

    def predicted_s(self, factors: F64) -> F64:
        """Times of the runs under some factors: float64[num_runs] [s]."""
        result: F64 = self.time + self.slope @ (factors - self.at)
        return result


def worth_fitting(line: Line) -> list[int]:
    """Positions of the factors that matter to enough runs; at most half as many as runs."""
    values = np.where(NEUTRAL > 0, line.at, 1.0)
    moves = np.abs(line.slope) * values * np.array([HOW[name].prior for name in NAMES]) / line.time[:, None]
    candidates = [number for number in range(len(NAMES)) if (moves[:, number] >= MATTERS).sum() >= LEAST_MOVED]
    ranked = sorted(candidates, key=lambda number: -moves[:, number].mean())
    return sorted(ranked[: len(line.time) // 2])


def solve(line: Line, measured: F64, groups: Sequence[str], free: Sequence[int]) -> F64:
    """The factors that minimise the sum at the top of this file on a line: projected Gauss-Newton.

    Args:
        line: near the solution. measured: float64[num_runs] [s]. groups: of the runs. free: see ``worth_fitting``.
    """
    counts = {group: groups.count(group) for group in groups}
    share = np.array([1.0 / math.sqrt(counts[group]) for group in groups])
    factors = np.where(np.isin(np.arange(len(NAMES)), free), line.at, NEUTRAL)
    for _ in range(200):
        predicted = line.predicted_s(factors)
        error = np.log(predicted / measured)
        weight = share * np.minimum(1.0, HUBER / np.maximum(np.abs(error), 1e-12))
        gradient = line.slope / predicted[:, None]
        curvature = (gradient * weight[:, None]).T @ gradient
        descent = -(gradient.T @ (weight * error))
        for number, name in enumerate(NAMES):
            neutral, value = NEUTRALS[name], factors[number]
            pull = (ROW_SPREAD / HOW[name].prior) ** 2
            inner = 1.0 / value if neutral else 1.0
            curvature[number, number] += pull * inner * inner
            descent[number] -= pull * inner * (math.log(value) if neutral else value)
        before = factors.copy()
        for _ in range(50):  # coordinate by coordinate within the limits
            for number in free:
                moved = factors - before
                rest = descent[number] - curvature[number] @ moved + curvature[number, number] * moved[number]
                target = before[number] + rest / curvature[number, number]
                factors[number] = min(max(target, NEUTRAL[number]), MOST[number])
        if np.abs(factors - before).max() < 1e-9:
            break
    return factors


def fit(samples: Sequence[Sample]) -> tuple[F64, Line, list[int]]:
    """Factors of some runs, the line near them, and which were free."""
    measured = np.array([sample.measured_s for sample in samples])
    groups = [sample.group for sample in samples]
    factors = NEUTRAL.copy()
    for _ in range(ROUNDS):
        line = Line.near(samples, factors)
        free = worth_fitting(line)
        previous, factors = factors, solve(line, measured, groups, free)
        is_done = np.abs(factors - previous).max() < 1e-3
        if is_done:
            break
    return np.array([float(number_text(value)) for value in factors]), line, free


def mape(predicted: F64, measured: F64) -> float:
    """Mean absolute error of predicted times [%]."""
    return float(100 * np.abs(predicted / measured - 1).mean())


@dataclass(frozen=True)
class LeftOut:
    """How runs come out by the factors of others.

    Attributes:
        error: mean absolute error [%]. n: runs. inside: those of them inside their 90 % interval.
    """

    error: float
    n: int
    inside: int


def left_out(samples: Sequence[Sample], line: Line, free: Sequence[int]) -> dict[str, LeftOut]:
    """Each group by the factors of the others; each half of the runs, where there is one group."""
    measured = np.array([sample.measured_s for sample in samples])
    groups = [sample.group for sample in samples]
    names = list(dict.fromkeys(groups))
    parts = {name: np.array([group == name for group in groups]) for name in names}
    if len(names) == 1:
        even = np.arange(len(samples)) % 2 == 0
        parts = {f"{names[0]}, every second run": even, f"{names[0]}, the other runs": ~even}
    result = {}
    for name, away in parts.items():
        kept = np.flatnonzero(~away)
        rest = Line(line.at, line.time[kept], line.slope[kept])
        factors = solve(rest, measured[kept], [groups[number] for number in kept], free)
        gone = [samples[number] for number in np.flatnonzero(away)]
        predicted = np.array([sample.predicted_s(factors) for sample in gone])
        inside = sum(sample.is_inside(time) for sample, time in zip(gone, predicted.tolist(), strict=True))
        result[name] = LeftOut(mape(predicted, measured[away]), len(gone), inside)
    return result


@dataclass(frozen=True)
class Result:
    """Factors of a device under a framework.

    Attributes:
        device, software: whose. factors: by name. n, groups: runs they come from. error: on those, percent.
        neutral: that of kernels by themselves. group_errors, left_out: by group.
    """

    device: str
    software: str
    factors: Mapping[str, float]
    n: int
    error: float
    neutral: float
    group_errors: Mapping[str, float]
    left_out: Mapping[str, LeftOut]

    def tables(self) -> dict[str, str]:
        """The profile's tables: header -> text."""
        held = ", ".join(f"{group.error:.1f}" for group in self.left_out.values())
        groups = f"{len(self.group_errors)} group" + ("s" if len(self.group_errors) > 1 else "")
        source = f"{self.n} dense runs of {groups}, error {self.error:.1f}% "
        source += f"(kernels by themselves: {self.neutral:.1f}%; left out: {held}%)"
        error = number_text(fmean(group.error for group in self.left_out.values()) / 100)
        fitted = f'provenance = "fitted", source = {toml_string(source)}, relative_error = {error}'
        header = f"software.{self.software}"
        lines = [f"[{header}]"]
        for name in FACTORS:
            value = self.factors.get(name, NEUTRALS[name])
            origin = fitted
            if value == NEUTRALS[name]:  # said, lest it be inherited from another device
                origin = 'provenance = "default", source = "the runs do not tell it from a kernel by itself"'
            lines.append(f"{name} = {{ value = {number_text(value)}, {origin} }}")
        result = {header: "\n".join(lines)}
        if self.factors[KERNEL] != NEUTRALS[KERNEL]:
            header = f"attention_kernel.{KERNEL}"
            number = f"{{ value = {number_text(self.factors[KERNEL])}, {fitted} }}"
            result[header] = "\n".join([f"[{header}]", *(f"{side} = {number}" for side in PASSES)])
        return result

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        groups = {name: vars(group) for name, group in self.left_out.items()}
        return {**vars(self), "factors": dict(self.factors), "left_out": groups}


def refit(device: str, software: Software, samples: Sequence[Sample]) -> Result:
    """Fit the factors of a framework on a device, and score them."""
    factors, line, free = fit(samples)
    measured = np.array([sample.measured_s for sample in samples])
    predicted = np.array([sample.predicted_s(factors) for sample in samples])
    alone = np.array([sample.predicted_s(NEUTRAL) for sample in samples])
    groups = np.array([sample.group for sample in samples])
    return Result(
        device=device,
        software=software.value,
        factors=dict(zip(NAMES, factors.tolist(), strict=True)),
        n=len(samples),
        error=mape(predicted, measured),
        neutral=mape(alone, measured),
        group_errors={
            name: mape(predicted[groups == name], measured[groups == name]) for name in dict.fromkeys(groups)
        },
        left_out=left_out(samples, line, free),
    )


def main(argv: list[str] | None = None) -> int:
    """Refit all devices and frameworks with enough runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    data = Path(os.environ.get("SEMU_DATA") or here.parent / "shared" / "data")
    parser.add_argument("--runs", type=Path, default=data / "runs" / "runs.json")
    parser.add_argument("--device", help="only this device")
    parser.add_argument("--software", help="only this framework")
    parser.add_argument("--write", action="store_true", help="put the factors into the shipped profiles")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    results = []
    for (device, software), samples in sorted(read_samples(arguments.runs).items(), key=lambda item: str(item[0])):
        is_asked = arguments.device in (None, device) and arguments.software in (None, software.value)
        groups = {sample.group for sample in samples}
        if not is_asked or len(samples) < LEAST_RUNS or len(groups) < LEAST_GROUPS:
            continue
        result = refit(device, software, samples)
        results.append(result)
        if not arguments.json:
            held = {name: group.error for name, group in result.left_out.items()}
            print("\n\n".join(result.tables().values()))
            print(f"# {device}: error by group " + text_of(result.group_errors))
            print(
                f"# {device}: left out " + text_of(held) + "\n",
                flush=True,
            )
        if arguments.write:
            path = PROFILE_DIR / f"{device}.toml"
            text = replace_blocks(path.read_text("utf-8"), result.tables())
            path.write_text(text, encoding="utf-8")
    if arguments.json:
        print(json.dumps([result.to_json() for result in results], indent=1))
    return 0


def text_of(errors: Mapping[str, float]) -> str:
    """Errors [%] by name, as text."""
    return ", ".join(f"{name} {value:.2f} %" for name, value in errors.items())


if __name__ == "__main__":
    sys.exit(main())

"""Refit the ``[software.NAME]`` factors of the shipped profiles on published runs.

    python calibration/software_factors.py [--runs FILE] [--software NAME] [--write] [--json]

One fit per framework, over all its dense runs on all devices, all groups together; runs of models with experts use
other kernels and are left out. What runs the same kernels on all devices has one number for all of them (``SHARED``):
PyTorch's. Under Megatron-LM Hopper has Transformer Engine's kernels and Ampere those before it. What a transfer waits
for comes from a measurement (``MEASURED``). The factors minimise

    sum over runs of w H(log predicted - log measured) + ridge,

with Huber's function H (quadratic to 0.08), weights w by which a group counts as the square root of its runs, and a
ridge that pulls towards neutral factors: the spread of a run is 0.04, the prior spreads are below. A factor that does
not matter to eight runs of two groups stays neutral; of the others, at most half as many as runs are fitted, those that
matter most. A predicted time is nearly linear in the factors, so each round takes slopes from simulations and solves on
that line. The script prints the error on the fitted runs, and of each group by factors from all other groups; the mean
of the latter over groups is the error that a profile says of its factors. Only ``--write`` changes files.

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
from semu.hardware.kinds import Provenance
from semu.hardware.number import Number
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
"""Runs, and groups of them, that a fitted factor must matter to."""
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


KERNEL = AttentionKernel.TRITON_FA1
"""The attention kernel that nobody measured by itself: its factors, of FlashAttention-2's time, come from the runs."""
HOW: Mapping[str, Factor] = {
    "matmul": Factor(1.5, 0.05, 0.03),
    **dict.fromkeys(PASSES, Factor(4.0, 0.5, 0.1)),
    "memory_bound": Factor(2.5, 0.5, 0.05),
    "interference": Factor(1.5, 1.0, 0.1),
}
"""How each factor is fitted; ``PASSES`` are those of ``KERNEL``. Products are measured under sustained load, so little
is left for their factor. Attention kernels have factors from measurements of their own but one."""
NAMES = tuple(HOW)
NEUTRALS: Mapping[str, float] = {**dict.fromkeys(PASSES, 1.0), **FACTORS}
SHARED: Mapping[Software, frozenset[str]] = {
    Software.TORCH: frozenset((*PASSES, "memory_bound", "interference")),
    Software.MEGATRON: frozenset(),
}
"""Factors that are one number for all devices."""
MEASURED: Mapping[tuple[Software, str], Mapping[str, Number]] = {
    (Software.MEGATRON, "a100-80g"): {
        "transfer_s": Number(
            3.8e-4,
            Provenance.MEASURED,
            "profiles of pipelines (2401.10241, T_comm): 0.601 ms for 28.3 MB in a node and 0.377 ms for 10.5 MB,"
            " less 0.13 and 0.08 ms on the wire",
        )
    }
}
"""Factors that somebody measured by themselves."""


@dataclass(frozen=True)
class Parameter:
    """A number that is fitted: a factor's name, and its device; None: of all devices."""

    name: str
    device: str | None = None

    @property
    def neutral(self) -> float:
        """The value that changes nothing."""
        return NEUTRALS[self.name]

    def is_of(self, sample: Sample) -> bool:
        """Whether a run's time depends on it."""
        return self.device in (None, sample.device)


def parameters_of(samples: Sequence[Sample]) -> tuple[Parameter, ...]:
    """The numbers that some runs of one framework may tell, in the order of ``NAMES``."""
    devices: list[str | None] = [*sorted({sample.device for sample in samples})]
    shared = SHARED[samples[0].job.training.software]
    return tuple(Parameter(name, device) for name in NAMES for device in ([None] if name in shared else devices))


@dataclass(frozen=True)
class Sample:
    """A run: its name, group, device (of the factors), job and measured time [s]."""

    id: str
    group: str
    device: str
    job: TrainingJob
    measured_s: float

    def predicted_s(self, factors: Mapping[str, float]) -> float:
        """Time of an iteration under some factors, by name [s]."""
        software = self.job.training.software.value
        numbers: dict[str, object] = {}
        measured = MEASURED.get((self.job.training.software, self.device), {})
        for name, value in {**{name: number.value for name, number in measured.items()}, **factors}.items():
            if name not in PASSES:
                numbers[f"software.{software}.{name}"] = value
            elif self.job.attention_kernel is KERNEL:
                numbers[f"attention_kernel.{KERNEL.value}.{name}"] = value
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


def read_samples(path: Path) -> dict[Software, list[Sample]]:
    """Scored dense runs with times, by framework; settings that are not published as ``semu validate``."""
    result: dict[Software, list[Sample]] = {}
    for row in read_rows(path):
        if not isinstance(row, Row) or not row.trust.is_scored or row.iteration_time_s is None or row.shape.moe:
            continue
        try:
            job = chosen_job(row)
        except (ConfigError, ScheduleError):
            continue
        device = SAME_DIE.get(row.profile, row.profile)
        sample = Sample(row.id, row.group, device, job, row.iteration_time_s)
        result.setdefault(job.training.software, []).append(sample)
    return result


def chosen_job(row: Row) -> TrainingJob:
    """The job of a row; what it leaves open is the fastest that fits."""

    def _simulate(settings: Settings) -> Run:
        checkpoint = prepare(make_job(run_tables(row, settings, row.profile)))
        return Run(checkpoint, checkpoint.lived())

    return choose(row, _simulate).run.checkpoint.job


@dataclass(frozen=True)
class Line:
    """Predicted times near some factors: ``time + slope (factors - at)``.

    Attributes:
        parameters: the factors. at: float64[num_parameters]. time: float64[num_runs] [s].
        slope: float64[num_runs, num_parameters] [s].
    """

    parameters: tuple[Parameter, ...]
    at: F64
    time: F64
    slope: F64

    @classmethod
    def near(cls, samples: Sequence[Sample], parameters: tuple[Parameter, ...], at: F64) -> Line:
        """The line through the predictions at some factors."""
        time = predictions(samples, parameters, at)
        slope = np.zeros((len(samples), len(parameters)))
        for number, parameter in enumerate(parameters):
            step = HOW[parameter.name].step
            for run, sample in enumerate(samples):
                if parameter.is_of(sample):
                    factors = values_for(sample, parameters, at)
                    ahead = sample.predicted_s({**factors, parameter.name: factors[parameter.name] + step})
                    slope[run, number] = (ahead - time[run]) / step
        return cls(parameters, at, time, slope)

    @property
    def neutral(self) -> F64:
        """Neutral values of the factors: float64[num_parameters]."""
        return np.array([parameter.neutral for parameter in self.parameters])

    def predicted_s(self, factors: F64) -> F64:
        """Times of the runs under some factors: float64[num_runs] [s]."""
        result: F64 = self.time + self.slope @ (factors - self.at)
        return result


def values_for(sample: Sample, parameters: Sequence[Parameter], factors: F64) -> dict[str, float]:
    """The factors of a run, by name."""
    values = zip(parameters, factors.tolist(), strict=True)
    return {parameter.name: value for parameter, value in values if parameter.is_of(sample)}


def predictions(samples: Sequence[Sample], parameters: Sequence[Parameter], factors: F64) -> F64:
    """Simulated times under some factors: float64[num_runs] [s]."""
    return np.array([sample.predicted_s(values_for(sample, parameters, factors)) for sample in samples])


def worth_fitting(line: Line, groups: Sequence[str]) -> list[int]:
    """Positions of the factors that matter to enough runs; at most half as many as runs.

    Args:
        groups: of the runs.
    """
    priors = np.array([HOW[parameter.name].prior for parameter in line.parameters])
    values = np.where(line.neutral > 0, line.at, 1.0)
    moves = np.abs(line.slope) * values * priors / line.time[:, None]
    candidates = []
    for number in range(len(line.parameters)):
        told = np.flatnonzero(moves[:, number] >= MATTERS)
        if len(told) >= LEAST_RUNS and len({groups[run] for run in told}) >= LEAST_GROUPS:
            candidates.append(number)
    ranked = sorted(candidates, key=lambda number: -moves[:, number].mean())
    return sorted(ranked[: len(line.time) // 2])


def solve(line: Line, measured: F64, groups: Sequence[str], free: Sequence[int]) -> F64:
    """The factors that minimise the sum at the top of this file on a line: projected Gauss-Newton.

    Args:
        line: near the solution. measured: float64[num_runs] [s]. groups: of the runs. free: see ``worth_fitting``.
    """
    counts = {group: groups.count(group) for group in groups}
    share = np.array([1.0 / math.sqrt(counts[group]) for group in groups])
    neutral = line.neutral
    factors = np.where(np.isin(np.arange(len(neutral)), free), line.at, neutral)
    for _ in range(200):
        predicted = line.predicted_s(factors)
        error = np.log(predicted / measured)
        weight = share * np.minimum(1.0, HUBER / np.maximum(np.abs(error), 1e-12))
        gradient = line.slope / predicted[:, None]
        curvature = (gradient * weight[:, None]).T @ gradient
        descent = -(gradient.T @ (weight * error))
        for number, parameter in enumerate(line.parameters):
            value = factors[number]
            pull = (ROW_SPREAD / HOW[parameter.name].prior) ** 2
            inner = 1.0 / value if neutral[number] else 1.0
            curvature[number, number] += pull * inner * inner
            descent[number] -= pull * inner * (math.log(value) if neutral[number] else value)
        before = factors.copy()
        for _ in range(50):  # coordinate by coordinate within the limits
            for number in free:
                moved = factors - before
                rest = descent[number] - curvature[number] @ moved + curvature[number, number] * moved[number]
                target = before[number] + rest / curvature[number, number]
                most = HOW[line.parameters[number].name].most
                factors[number] = min(max(target, neutral[number]), most)
        if np.abs(factors - before).max() < 1e-9:
            break
    return factors


def fit(samples: Sequence[Sample]) -> tuple[F64, Line, list[int]]:
    """Factors of some runs, the line near them, and which were free."""
    measured = np.array([sample.measured_s for sample in samples])
    groups = [sample.group for sample in samples]
    parameters = parameters_of(samples)
    factors = np.array([parameter.neutral for parameter in parameters])
    for _ in range(ROUNDS):
        line = Line.near(samples, parameters, factors)
        free = worth_fitting(line, groups)
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
    """Each group by the factors of the others; what only the group itself tells is neutral.

    Args:
        line: near the factors of all runs. free: positions of the factors that all runs together tell.
    """
    measured = np.array([sample.measured_s for sample in samples])
    groups = [sample.group for sample in samples]
    result = {}
    for name in dict.fromkeys(groups):
        away = np.array([group == name for group in groups])
        kept = np.flatnonzero(~away)
        rest = Line(line.parameters, line.at, line.time[kept], line.slope[kept])
        factors = solve(rest, measured[kept], [groups[number] for number in kept], free)
        gone = [samples[number] for number in np.flatnonzero(away)]
        predicted = predictions(gone, line.parameters, factors)
        inside = sum(sample.is_inside(time) for sample, time in zip(gone, predicted.tolist(), strict=True))
        result[name] = LeftOut(mape(predicted, measured[away]), len(gone), inside)
    return result


@dataclass(frozen=True)
class Result:
    """Factors of a framework.

    Attributes:
        software: whose. factors: by parameter. n, groups: runs they come from. error: on those, percent.
        neutral: that of kernels by themselves. group_errors, left_out: by group.
    """

    software: Software
    factors: Mapping[Parameter, float]
    n: int
    error: float
    neutral: float
    group_errors: Mapping[str, float]
    left_out: Mapping[str, LeftOut]

    @property
    def devices(self) -> list[str]:
        """Those that any run is of."""
        return sorted({parameter.device for parameter in self.factors if parameter.device is not None})

    def tables(self, device: str) -> dict[str, str]:
        """The tables of a device's profile: header -> text."""
        held = ", ".join(f"{group.error:.1f}" for group in self.left_out.values())
        source = f"{self.n} dense runs of {len(self.group_errors)} groups on {' and '.join(self.devices)}, "
        source += f"error {self.error:.1f}% (kernels by themselves: {self.neutral:.1f}%; left out: {held}%)"
        error = number_text(fmean(group.error for group in self.left_out.values()) / 100)
        fitted = f'provenance = "fitted", source = {toml_string(source)}, relative_error = {error}'
        values = {p.name: value for p, value in self.factors.items() if p.device in (None, device)}
        measured = MEASURED.get((self.software, device), {})
        header = f"software.{self.software.value}"
        lines = [f"[{header}]"]
        for name in FACTORS:
            value = values.get(name, NEUTRALS[name])
            origin = fitted
            if name in measured:
                number = measured[name]
                value, origin = (
                    number.value,
                    f'provenance = "{number.provenance.value}", source = {toml_string(number.source)}',
                )
            elif value == NEUTRALS[name]:  # said, lest it be inherited from another device
                origin = 'provenance = "default", source = "the runs do not tell it from a kernel by itself"'
                origin += f", relative_error = {error}"
            lines.append(f"{name} = {{ value = {number_text(value)}, {origin} }}")
        result = {header: "\n".join(lines)}
        passes = {name: values.get(name, NEUTRALS[name]) for name in PASSES}
        if any(passes[name] != NEUTRALS[name] for name in PASSES):
            header = f"attention_kernel.{KERNEL.value}"
            numbers = (f"{name} = {{ value = {number_text(passes[name])}, {fitted} }}" for name in PASSES)
            result[header] = "\n".join([f"[{header}]", *numbers])
        return result

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        groups = {name: vars(group) for name, group in self.left_out.items()}
        factors = {f"{p.name} {p.device or ''}".strip(): value for p, value in self.factors.items()}
        return {**vars(self), "software": self.software.value, "factors": factors, "left_out": groups}


def refit(software: Software, samples: Sequence[Sample]) -> Result:
    """Fit the factors of a framework, and score them."""
    factors, line, free = fit(samples)
    measured = np.array([sample.measured_s for sample in samples])
    predicted = predictions(samples, line.parameters, factors)
    alone = predictions(samples, line.parameters, line.neutral)
    groups = np.array([sample.group for sample in samples])
    return Result(
        software=software,
        factors=dict(zip(line.parameters, factors.tolist(), strict=True)),
        n=len(samples),
        error=mape(predicted, measured),
        neutral=mape(alone, measured),
        group_errors={
            name: mape(predicted[groups == name], measured[groups == name]) for name in dict.fromkeys(groups)
        },
        left_out=left_out(samples, line, free),
    )


def main(argv: list[str] | None = None) -> int:
    """Refit all frameworks with enough runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    data = Path(os.environ.get("SEMU_DATA") or here.parent / "shared" / "data")
    parser.add_argument("--runs", type=Path, default=data / "runs" / "runs.json")
    parser.add_argument("--software", help="only this framework")
    parser.add_argument("--write", action="store_true", help="put the factors into the shipped profiles")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    results = []
    for software, samples in sorted(read_samples(arguments.runs).items(), key=lambda item: item[0].value):
        if arguments.software not in (None, software.value) or len(samples) < LEAST_RUNS:
            continue
        result = refit(software, samples)
        results.append(result)
        for device in result.devices:
            if not arguments.json:
                print(f"# {device}\n" + "\n\n".join(result.tables(device).values()), flush=True)
            if arguments.write:
                path = PROFILE_DIR / f"{device}.toml"
                text = replace_blocks(path.read_text("utf-8"), result.tables(device))
                path.write_text(text, encoding="utf-8")
        if not arguments.json:
            print(f"# {software.value}: error by group " + text_of(result.group_errors))
            held = {name: group.error for name, group in result.left_out.items()}
            print(f"# {software.value}: left out " + text_of(held) + "\n", flush=True)
    if arguments.json:
        print(json.dumps([result.to_json() for result in results], indent=1))
    return 0


def text_of(errors: Mapping[str, float]) -> str:
    """Errors [%] by name, as text."""
    return ", ".join(f"{name} {value:.2f} %" for name, value in errors.items())


if __name__ == "__main__":
    sys.exit(main())

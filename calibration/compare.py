"""Simulated against measured: the steps of a measurement folder, through semu with a given profile.

    python calibration/compare.py calibration/measurements/NAME --profile h100

Prints a row per step and quantity: time of forward, backward, optimizer and the whole step, and memory: static, peak
allocated, peak reserved. The exit code says nothing about how well they agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import semu
from calibration.memory import SIZE
from calibration.step.step_models import step_job
from calibration.steps import StepCase
from calibration.table import STEPS, read_rows
from semu.errors import ConfigError, SemuError
from semu.hardware.profile import load_profile

TIMES = ("forward", "backward", "optimizer", "step")
MEMORY = {
    "static": "static_bytes",
    "peak allocated": "peak_allocated_bytes",
    "peak reserved": "peak_reserved_bytes",
}


@dataclass(frozen=True)
class Figure:
    """One quantity of one step.

    Attributes:
        step: label. quantity: e.g. ``forward``, ``peak allocated``. unit: ``s`` or ``bytes``.
        simulated, measured: in that unit.
    """

    step: str
    quantity: str
    unit: str
    simulated: float
    measured: float

    @property
    def ratio(self) -> float:
        """Simulated / measured."""
        return self.simulated / self.measured


def simulated(case: StepCase, device: str, software: str = "kernels") -> dict[str, float]:
    """What semu says of a step: seconds by part, bytes by kind of memory."""
    report = semu.simulate(step_job(case, device, software))
    (rank,) = report.timeline.ranks
    spans = {phase: [s.end_s - s.start_s for s in rank.stages if s.phase is phase] for phase in semu.Phase}
    reserved = report.reserved_memory_bytes
    optimizer = sum(s.end_s - s.start_s for s in rank.outer if s.kind is semu.OpKind.OPTIMIZER)
    zeroing = _zeroing_s(case, device)
    return {
        "forward": sum(spans[semu.Phase.FORWARD]),
        "backward": sum(spans[semu.Phase.BACKWARD]),
        "optimizer": optimizer + zeroing,
        "step": report.iteration_time_s + zeroing,
        "static": report.static_memory_bytes[0],
        "peak allocated": report.peak_memory_bytes[0],
        "peak reserved": reserved[0] if reserved is not None else 0,
    }


def _zeroing_s(case: StepCase, device: str) -> float:
    """Setting the gradients to zero, which is measured with the optimizer and is no part of a run's step [s]."""
    profile = load_profile(device)
    rate = profile.efficiency(semu.OpKind.COPY).mem * profile.mem_bytes_per_s.value
    return case.num_parameters * SIZE[case.dtype] / rate


def compare(rows: Iterable[Mapping[str, str]], device: str, software: str = "kernels") -> list[Figure]:
    """Figures of all steps; memory that was not measured is left out.

    Raises:
        ConfigError: a row that is no step, a time that is none, an unknown profile.
    """
    figures = []
    for row in rows:
        case = StepCase.of(row)
        predicted = simulated(case, device, software)
        for name in TIMES:
            seconds = _positive(row, f"{name}_us") * 1e-6
            figures.append(Figure(case.label(), name, "s", predicted[name], seconds))
        for name, column in MEMORY.items():
            if row[column]:
                figures.append(Figure(case.label(), name, "bytes", predicted[name], _positive(row, column)))
    return figures


def _positive(row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError("not a measurement", where=f"model_steps.csv {column}", expected="> 0", got=row[column])
    return value


def table(figures: Sequence[Figure]) -> str:
    """For people."""
    lines = [f"{'quantity':15} {'simulated':>12} {'measured':>12} {'sim./meas.':>10}"]
    step = ""
    for figure in figures:
        if figure.step != step:
            step = figure.step
            lines.append(step)
        scale, unit = (1e3, "ms") if figure.unit == "s" else (2**-30, "GiB")
        both = (f"{value * scale:9.3f} {unit:3}"[:13] for value in (figure.simulated, figure.measured))
        lines.append(f"  {figure.quantity:14}" + " ".join(f"{text:>12}" for text in both) + f" {figure.ratio:9.3f}")
    lines.append("mean absolute error")
    for name in dict.fromkeys(figure.quantity for figure in figures):
        errors = [abs(figure.ratio - 1) for figure in figures if figure.quantity == name]
        lines.append(f"  {name:14} {mean(errors):7.1%} of {len(errors)} steps")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a measurement, with model_steps.csv")
    parser.add_argument("--profile", required=True, help="name of a shipped profile, or path of a profile TOML")
    parser.add_argument("--software", default="kernels", help="whose factors apply: kernels (none), torch, megatron")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    options = parser.parse_args(arguments)
    try:
        rows = list(read_rows(options.folder / "model_steps.csv", STEPS))
        if not rows:
            raise ConfigError("no measured steps", where=str(options.folder), expected="rows in model_steps.csv", got=0)
        figures = compare(rows, options.profile, options.software)
    except SemuError as error:
        if options.json:
            print(json.dumps({"error": error.to_json()}))
        else:
            print(error, file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps([{**asdict(figure), "ratio": figure.ratio} for figure in figures], indent=1))
    else:
        print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())

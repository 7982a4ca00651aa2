"""The spreads of ``semu.simulation.effects.structural``, from published runs.

    python -m calibration.structural_spreads RUNS.json [RUNS.json ...] [--json]

A run counts for the first cause that holds for it. Of each cause and group of runs, with x the logarithm of measured
over predicted and sigma the relative standard deviation that the coefficients (and other causes) give,

    excess = max(0, mean of x^2 - mean of sigma^2),

and the spread of the cause is the root of the mean of its groups' excesses. The second table says what the 90 %
interval would hold of a group with the spread of its cause from the other groups of that cause or, where there is no
other, every second run of the group from the rest. The spreads are copied by hand, rounded: nothing is written.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean

import semu
from calibration.software_factors import chosen_job
from semu.errors import ConfigError, ScheduleError
from semu.present.uncertainty import LEVEL
from semu.simulation.effects.structural import CAUSES
from semu.validation import Row, read_rows

QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
BY_NAME = {cause.name: cause for cause in CAUSES}


@dataclass(frozen=True)
class Residual:
    """A run: its group, its first cause, the logarithm of measured over predicted, and the sigma of all else."""

    group: str
    cause: str
    log_ratio: float
    sigma: float


def residual_of(row: Row) -> Residual | None:
    """The residual of a scored run that some cause holds for; None: of no other."""
    if not row.trust.is_scored or row.iteration_time_s is None:
        return None
    try:
        job = chosen_job(row)
        report = semu.simulate(job)
    except (ConfigError, ScheduleError):
        return None
    first = next((cause for cause in CAUSES if cause.holds(job)), None)
    if first is None:
        return None
    assert report.uncertainty is not None
    kinds = [item for item in report.uncertainty.kinds if item.kind != f"structure.{first.name}"]
    sigma = math.sqrt(math.fsum(item.sigma_s**2 for item in kinds)) / report.iteration_time_s
    return Residual(row.group, first.name, math.log(row.iteration_time_s / report.iteration_time_s), sigma)


def spread_of(groups: Sequence[Sequence[Residual]]) -> float:
    """Root of the mean excess of some groups of residuals, none of them empty."""
    excesses = [
        max(0.0, fmean(one.log_ratio**2 for one in group) - fmean(one.sigma**2 for one in group)) for group in groups
    ]
    return math.sqrt(fmean(excesses))


def inside(residuals: Sequence[Residual], spread: float) -> int:
    """How many lie in their interval with a spread of their cause."""
    return sum(abs(one.log_ratio) <= QUANTILE * math.hypot(one.sigma, spread) for one in residuals)


def split(residuals: Sequence[Residual], key: Callable[[Residual], str]) -> dict[str, list[Residual]]:
    """Residuals by a key, in the order of their first."""
    found: dict[str, list[Residual]] = {}
    for one in residuals:
        found.setdefault(key(one), []).append(one)
    return found


def left_out(groups: dict[str, list[Residual]]) -> dict[str, int]:
    """Group -> how many of its runs lie inside with the spread from the other groups, else from its other half."""
    found = {}
    for name, own in groups.items():
        others = [group for other, group in groups.items() if other != name]
        if others:
            found[name] = inside(own, spread_of(others))
        elif len(own) > 1:
            found[name] = inside(own[::2], spread_of([own[1::2]])) + inside(own[1::2], spread_of([own[::2]]))
    return found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for path in options.runs for row in read_rows(path) if isinstance(row, Row)]
    residuals = [found for row in rows if (found := residual_of(row)) is not None]
    document = []
    for cause, own in split(residuals, lambda one: one.cause).items():
        groups = split(own, lambda one: one.group)
        held = left_out(groups)
        document.append(
            {
                "cause": cause,
                "spread": spread_of(list(groups.values())),
                "shipped": BY_NAME[cause].spread,
                "groups": [
                    {"group": name, "runs": len(group), "inside": held.get(name),
                     "inside_with_shipped": inside(group, BY_NAME[cause].spread)}
                    for name, group in groups.items()
                ],
            }
        )  # fmt: skip
    if options.json:
        print(json.dumps(document, indent=2))
        return 0
    for one in document:
        print(f"{one['cause']}: spread {one['spread']:.2f}, shipped {one['shipped']:.2f}")
        for group in one["groups"]:
            print(
                f"  {group['group']:32} {group['runs']:3} runs, inside: {group['inside']} left out,"
                f" {group['inside_with_shipped']} with the shipped spread"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

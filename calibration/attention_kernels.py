"""Factors of attention kernels (``[attention_kernel.NAME]`` of a profile) from published figures and measurements.

    python -m calibration.attention_kernels [--data FOLDER] [--write]

Each kernel has, forward and backward, a factor on long sequences and what short ones lose (``s0_tokens``), fitted to
``attention.csv`` by least squares of the logarithm, with the formula of a run (``Efficiency.latency_s``). A short call feels only a part of the sustained load (``semu.fitting.forms``), so measured times are first stretched to
what they would be under all of it, by the device's ``power`` of attention.

* FlashAttention-2: bars of its figure, forward and backward together, on A100 and H100. How they share the time is not
  in the figure; its paper says that the backward reaches 63 % of A100's peak and the forward 73 % (2307.08691 §1): taken
  for both devices. Both passes have one ``s0_tokens``. Of the bars those with a causal mask are fitted.
* cuDNN on Hopper: cuDNN 9.19 on the H200, the same compute die, forward and backward apart.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from semu.files import toml_string
from semu.fitting.forms import ATTENTION_THROTTLE_S
from semu.fitting.write import number_text, replace_blocks
from semu.hardware.attention_kernels import PASSES, own_curve
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType, OpKind
from semu.hardware.profile import PROFILE_DIR, load_profile
from semu.hardware.shape_terms import attention_factor

FA2_BACKWARD_RATE = 63 / 73
"""Backward over forward rate of FlashAttention-2."""
KINDS = {"forward": OpKind.ATTENTION_FORWARD, "backward": OpKind.ATTENTION_BACKWARD}
SHORT_TOKENS = range(0, 2001, 10)
"""Values of ``s0_tokens`` that are looked at."""


@dataclass(frozen=True)
class Case:
    """A measured call: whole batch of equal sequences.

    Attributes:
        passes: of ``PASSES``, that the time covers. time_s: under sustained load.
    """

    passes: tuple[str, ...]
    batch: int
    heads: int
    kv_heads: int
    length: int
    head_dim: int
    is_causal: bool
    time_s: float

    def predicted_s(self, profile: DeviceProfile, name: str, rate: float, s0_tokens: float) -> float:
        """Time of a pass at a rate on long sequences [s].

        Args:
            name: of the pass. rate: over that of the profile's coefficients.
        """
        kind = KINDS[name]
        base = own_curve(profile.efficiency(kind, dtype=DType.BF16, head_dim=self.head_dim), s0_tokens)
        tokens, share = self.batch * self.length, 1.0 + self.is_causal
        times = 1.0 if name == "forward" else 2.5
        flop = times * 4.0 * tokens * self.length * self.heads * self.head_dim / share
        moved = (2.0 * self.heads + 2.0 * self.kv_heads) * tokens * self.head_dim * 2.0 * (2 if times > 1 else 1)
        factor = attention_factor(
            tokens,
            tokens * self.length,
            self.heads,
            share,
            s0=s0_tokens,
            tiles_at_once=base.tiles_at_once,
            rest=base.tile_rest,
        )
        peaks = profile.peak_flop_per_s(DType.BF16), profile.mem_bytes_per_s.value
        at_rate = base.latency_s(flop * factor / rate, moved, *peaks)
        return float(at_rate)


def read_cases(path: Path, device: str, source: str, power: float) -> list[Case]:
    """Rows of 64 and 128 features a head with a causal mask and without a window."""
    words = {"fwd": ("forward",), "bwd": ("backward",), "fwd+bwd": PASSES}
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Case(
                words[row["pass"]],
                *(int(row[name]) for name in ("batch", "heads", "kv_heads", "seq_q", "head_dim")),
                row["causal"] == "1",
                _sustained_s(float(row["time_us"]) * 1e-6, power),
            )
            for row in csv.DictReader(file)
            if (row["device"], row["source"]) == (device, source)
            and row["dtype"] != "fp8"
            and row["head_dim"] in ("64", "128")
            and row["head_dim"] == row["head_dim_v"]
            and row["causal"] == "1"
            and row["window"] == "0"
        ]


def _sustained_s(time_s: float, power: float) -> float:
    """Time of a call under sustained load."""
    return time_s * (1.0 + power) / (1.0 + power * time_s / (time_s + ATTENTION_THROTTLE_S))


@dataclass(frozen=True)
class Fit:
    """Factors of a kernel on a device: by pass, time over the profile's on long sequences, and ``s0_tokens``.

    Attributes:
        error: mean absolute error on the rows they come from.
    """

    factors: dict[str, float]
    s0_tokens: dict[str, float]
    error: float


def fit(cases: Sequence[Case], profile: DeviceProfile, shares: dict[str, float]) -> Fit:
    """One factor and one ``s0_tokens`` for the passes of ``shares``.

    Args:
        shares: pass -> factor of its time relative to that of the first.
    """
    best = (math.inf, 0.0, 0.0)
    for s0 in SHORT_TOKENS:
        factor = 1.0
        for _ in range(20):  # fixed times do not scale with the factor
            ratios = [math.log(case.time_s / _time(case, profile, shares, factor, s0)) for case in cases]
            factor *= math.exp(fmean(ratios))
        spread = fmean(ratio * ratio for ratio in ratios)
        best = min(best, (spread, factor, float(s0)))
    _, factor, s0 = best
    errors = [abs(_time(case, profile, shares, factor, s0) / case.time_s - 1.0) for case in cases]
    return Fit({name: factor * share for name, share in shares.items()}, dict.fromkeys(shares, s0), fmean(errors))


def _time(case: Case, profile: DeviceProfile, shares: dict[str, float], factor: float, s0: float) -> float:
    return math.fsum(case.predicted_s(profile, name, 1.0 / (factor * shares[name]), s0) for name in case.passes)


def fa2(profile: DeviceProfile, cases: Sequence[Case]) -> Fit:
    """FlashAttention-2, whose passes are in the ratio of ``FA2_BACKWARD_RATE`` on long sequences."""
    rates = [profile.efficiency(KINDS[name]).flop_rate(1.0) for name in PASSES]
    return fit(cases, profile, {"forward": 1.0, "backward": rates[1] / rates[0] / FA2_BACKWARD_RATE})


def cudnn(profile: DeviceProfile, cases: Sequence[Case]) -> Fit:
    """cuDNN, forward and backward apart."""
    parts = [fit([case for case in cases if case.passes == (name,)], profile, {name: 1.0}) for name in PASSES]
    return Fit(
        {name: part.factors[name] for name, part in zip(PASSES, parts, strict=True)},
        {name: part.s0_tokens[name] for name, part in zip(PASSES, parts, strict=True)},
        fmean(part.error for part in parts),
    )


KERNELS: tuple[tuple[str, str, str, str, Callable[[DeviceProfile, Sequence[Case]], Fit], str], ...] = (
    ("a100-80g", "fa2", "A100-SXM", "fa2fig", fa2, "FlashAttention-2's figure, forward and backward together"),
    ("h100", "fa2", "H100-SXM", "fa2fig", fa2, "FlashAttention-2's figure, forward and backward together"),
    ("h200", "fa2", "H100-SXM", "fa2fig", fa2, "FlashAttention-2's figure of the H100, the same compute die"),
    ("h100", "cudnn", "H200-SXM", "cudnn", cudnn, "cuDNN 9.19 on H200, the same compute die"),
    ("h200", "cudnn", "H200-SXM", "cudnn", cudnn, "cuDNN 9.19"),
)
"""Profile, kernel, device and source of the rows, how they are fitted, and what they are."""


def table(kernel: str, found: Fit, text: str) -> str:
    """The profile's table of a kernel."""
    source = f'provenance = "fitted", source = {toml_string(text)}, relative_error = {number_text(found.error)}'
    numbers = found.factors | {f"{name}_s0_tokens": value for name, value in found.s0_tokens.items()}
    lines = (f"{name} = {{ value = {number_text(value)}, {source} }}" for name, value in numbers.items())
    return "\n".join([f"[attention_kernel.{kernel}]", *lines])


def main(argv: Iterable[str] | None = None) -> int:
    """Print the tables; ``--write``: put them into the profiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--data", default=os.environ.get("SEMU_DATA") or here.parent / "shared" / "data", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args(None if argv is None else list(argv))
    for name, kernel, device, source, method, text in KERNELS:
        profile = load_profile(name)
        power = profile.efficiency(OpKind.ATTENTION_FORWARD).power
        cases = read_cases(arguments.data / "microbench" / "attention.csv", device, source, power)
        found = method(profile, cases)
        block = table(kernel, found, f"{text}: {len(cases)} rows, {100 * found.error:.1f}% off")
        print(f"# {name}\n{block}\n")
        if arguments.write:
            path = PROFILE_DIR / f"{name}.toml"
            text_now = path.read_text(encoding="utf-8")
            path.write_text(replace_blocks(text_now, {f"attention_kernel.{kernel}": block}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

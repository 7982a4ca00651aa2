"""Remake the fitted sections of the shipped profiles from public microbenchmarks, and the sections derived from them.

    python calibration/make_profiles.py [--data DIR] [--date YYYY-MM-DD] [--check]

For each device below: what ``semu calibrate FILES --device NAME --update PROFILE`` does, then the sections that are
carried over from another device, each with its reason. Peaks, ``[software.*]`` and what else was written by hand stay.
``--check`` writes nothing and exits 1 where a profile would change.

Factors of attention kernels (``[attention_kernel.NAME]``) come last, from published figures and measurements: forward
and backward, a factor on long sequences and what short ones lose (``s0_tokens``), fitted to ``attention.csv`` by
least squares of the logarithm, with the formula of a run (``Efficiency.latency_s``). A short call feels only a part of
the sustained load (``semu.fitting.forms``), so measured times are first stretched to what they would be under all of
it, by the device's ``power`` of attention.

* FlashAttention-2: bars of its figure, forward and backward together, on A100 and H100. How they share the time is not
  in the figure; its paper says that the backward reaches 63 % of A100's peak and the forward 73 % (2307.08691, §1),
  which is taken for both devices. Both passes have one ``s0_tokens``. Of the bars those with a causal mask are fitted.
* cuDNN on Hopper: cuDNN 9.19 on the H200, the same compute die, forward and backward apart.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from semu.files import toml_string
from semu.fitting.calibration import calibrate
from semu.fitting.coefficients import coefficients_of
from semu.fitting.forms import ATTENTION_THROTTLE_S
from semu.fitting.readers import read_measurements
from semu.fitting.write import Provenances, number_text, replace_blocks, update_profile
from semu.hardware import profile as profiles
from semu.hardware.attention_kernels import PASSES, own_curve
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.kinds import DType, OpKind, Port
from semu.hardware.known_devices import KNOWN_DEVICES
from semu.hardware.network import COEFFICIENTS
from semu.hardware.profile import load_profile
from semu.hardware.shape_terms import attention_factor, tiled_flop

FILES = ("gemm.csv", "attention.csv", "memory_ops.csv", "collectives.csv", "collective_efficiency_multinode.csv")
DEVICES = {
    "a100-80g": (),
    "a100-pcie": (),
    "a40": (),
    "h100": ("--beside", "fa2fig"),
    "h200": (),
    "b200": (),
    "h20": (),
    "h800-400g": ("--beside", "deepgemm", "--beside", "dstrace"),
}
"""Device -> options: FlashAttention-2 is not what runs on Hopper, so its figure only gets a factor there; DeepSeek's
rows on the H800 are best cases, or of a run beside communication on some of the multiprocessors."""
MASK_TILES = Path(__file__).resolve().parent / "measurements" / "h100-sxm-2026-11" / "mask_tiles.csv"
SAME_DIE = ("h100", "h100-96g", "h200")
"""Devices whose multiprocessors are those that masks were measured on."""
OTHER_DIES = ("b200", "h20")
"""Devices over the H100's profile with curves of their own, on which nobody measured masks."""
CURVE = ("mem", "t0_s", "p", "s0_tokens", "tiles_at_once", "tile_rest", "power")


def main(argv: list[str] | None = None) -> int:
    """Remake the shipped profiles; 1 under ``--check`` if one of them would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--data", default=os.environ.get("SEMU_DATA") or here.parent / "shared" / "data", type=Path)
    parser.add_argument("--date", default="2026-11-21")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(argv)
    before = {path.name: path.read_text(encoding="utf-8") for path in sorted(profiles.PROFILE_DIR.glob("*.toml"))}
    if arguments.check:
        folder = Path(tempfile.mkdtemp())
        for name, text in before.items():
            (folder / name).write_text(text, encoding="utf-8")
        profiles.PROFILE_DIR = folder
    for _ in range(2):  # a fit may keep coefficients that were derived from another fit
        for device, options in DEVICES.items():
            fit(device, options, arguments.data / "microbench", arguments.date)
            print(f"{device}: fitted", flush=True)
        derive()
    attention_kernels(arguments.data / "microbench" / "attention.csv")
    mask_tiles()
    changed = [name for name, text in before.items() if (profiles.PROFILE_DIR / name).read_text("utf-8") != text]
    print("changed: " + (", ".join(changed) or "nothing"))
    return 1 if arguments.check and changed else 0


def fit(device: str, options: tuple[str, ...], data: Path, date: str) -> None:
    """Fit a device's profile to its tables of measurements."""
    files = [data / name for name in FILES]
    beside = options[1::2]
    if device == "h20":  # only a rate is measured there: the curve is that of the h100
        drop(device, "efficiency.attention_forward")
    measured = read_measurements(files, device)
    command = " ".join(["semu calibrate", *FILES, "--device", device, *options])
    calibration = calibrate(measured, load_profile(device), beside=beside)
    path = profiles.PROFILE_DIR / f"{device}.toml"
    text = update_profile(path.read_text(encoding="utf-8"), calibration, Provenances(command, date), has_factors=False)
    path.write_text(text, encoding="utf-8")


def derive() -> None:
    """Sections that no measurement of the device tells about."""
    neusight = "softmax on A100 PCIe 80 GB, fp32 (neusight)"
    elementwise = "elementwise kernels on A100 PCIe 80 GB (neusight: relu, tanh, mul, add_scalar)"
    for device in ("a100-80g", "h100"):
        for section in ("softmax", "cross_entropy"):
            carry("a100-pcie", "efficiency.softmax", device, f"efficiency.{section}", neusight)
    carry("a100-pcie", "efficiency.softmax", "a100-pcie", "efficiency.cross_entropy", neusight)
    carry("a100-pcie", "efficiency.modulate", "a100-pcie", "efficiency.dropout", elementwise)
    for section in ("dropout", "modulate"):
        carry("a100-pcie", "efficiency.modulate", "a100-80g", f"efficiency.{section}", elementwise)
    figures = "head_dim 128 times the ratio of FlashAttention-2's figures, 176/203 TFLOP/s"
    scaled("a100-80g", "efficiency.attention_forward", "efficiency.attention_forward.head_dim_64", 176 / 203, figures)
    scaled(
        "a100-pcie", "efficiency.attention_backward", "efficiency.attention_backward.head_dim_64", 176 / 203, figures
    )
    cudnn = "cuDNN 9.19 training backward on H200, the same compute die"
    for variant in ("", ".head_dim_192"):
        section = f"efficiency.attention_backward{variant}"
        carry("h200", section, "h100", section, cudnn)
    fp8 = "efficiency.attention_forward.fp8"
    carry("h200", fp8, "h100", fp8, "cuDNN 9.19 on H200, the same compute die")
    for device in ("h100", "h200", "b200"):
        forward = "efficiency.attention_forward"
        ratio = settled(device, f"{forward}.head_dim_64") / settled(device, forward)
        main_section = "efficiency.attention_backward"
        text = "head_dim 128 times the forward's ratio of head_dim 64 to 128"
        scaled(device, main_section, f"{main_section}.head_dim_64", ratio, text)
        scaled(device, main_section, f"{main_section}.head_dim_256", 1.0, "taken from head_dim 128")
    capped = "h100; times (500 W / 700 W)^(1/3), since power at a fixed load grows with the cube of the clock"
    for section in ("efficiency.matmul", "efficiency.matmul.fp8"):
        write("h100-96g", section, {"flop": value("h100", section, "flop") * (500 / 700) ** (1 / 3)}, capped)
    for kind in ("attention_forward", "attention_backward"):
        for variant in ("", ".head_dim_64", ".head_dim_192", ".head_dim_256"):
            section = f"efficiency.{kind}{variant}"
            numbers = coefficients_of(load_profile("h100"), section)
            flop = numbers["flop"] * (500 / 700) ** (1 / 3)
            write("h100-96g", section, {"flop": flop, **{name: numbers[name] for name in CURVE}}, capped)
    h20_and_b200()
    h800()
    rings_over_nodes()


def h20_and_b200() -> None:
    """Carry curves of the H100 to devices that lack measurements of them."""
    h100 = coefficients_of(load_profile("h100"), "efficiency.matmul")
    units, size = float(KNOWN_DEVICES["h20"].multiprocessors), 8192.0
    tiles = tiled_flop(
        size,
        size,
        size,
        tiles_at_once=units,
        k0=h100["tile_k0"],
        rest=h100["tile_rest"],
        tile_128=h100["tile_128"],
    )
    text = (
        "h100, held to 0.9 for large products: few cores under a full power budget do not throttle (attention reaches "
    )
    text += "0.85 of the peak at 2k tokens)"
    flop = min(1.0, 0.9 * float(tiles) / (2.0 * size**3))
    write("h20", "efficiency.matmul", {"flop": flop, "tiles_at_once": units, "power": 0.0}, text)
    fp8 = {"flop": 0.85, "tiles_at_once": units}
    write("h20", "efficiency.matmul.fp8", fp8, "h100's ratio of fp8 to bf16, held to 0.85")
    for variant in ("", ".head_dim_64", ".head_dim_192", ".head_dim_256"):
        forward = f"efficiency.attention_forward{variant}"
        if variant in (".head_dim_192", ".head_dim_256"):
            scaled("h20", "efficiency.attention_forward", forward, 1.0, "taken from head_dim 128")
        rate = value("h20", forward, "flop") * 0.861
        backward = f"efficiency.attention_backward{variant}"
        write("h20", backward, {"flop": rate}, "the forward times H200's ratio of backward to cuDNN's forward, 0.861")
    b200 = coefficients_of(load_profile("b200"), "efficiency.matmul")
    settled = h100["flop"] / (1.0 + h100["power"])
    ratio = value("h100", "efficiency.matmul.fp8", "flop") / settled
    numbers = {
        "flop": ratio * b200["flop"] / (1.0 + b200["power"]),
        "mem": b200["mem"],
        "tiles_at_once": b200["tiles_at_once"],
        "power": 0.0,
    }
    write("b200", "efficiency.matmul.fp8", numbers, "bf16 under sustained load times h100's ratio of fp8 to bf16")


def h800() -> None:
    """NVLink of the H800: rates of eight GPUs as reported, latencies and curves of the h100."""
    asymptote, reduced = 163e9 / 200e9, 215e9 / 200e9
    text = "ring asymptote 163 of 200 GB/s (8 links x 20.6; DeepEP reaches 153 to 158); latency of h100"
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        section = f"link.nvlink.{kind}"
        numbers = coefficients_of(load_profile("h100"), section)
        numbers["net"] = min(1.0, asymptote * (1.0 + numbers["few_ranks"] / 7.0))
        numbers["switch"] = 1.0
        numbers["short_net"] *= 450e9 / 200e9  # short messages do not feel the missing links
        source = text
        if kind == "all_reduce":
            numbers["switch"] = reduced / numbers["net"]
            source += "; with all eight GPUs 215 GB/s of bus bandwidth, in the switch (a user's report)"
        write("h800-400g", section, of_table(section, numbers), source)


def rings_over_nodes() -> None:
    """Rings and trees over network cards that nobody measured: the H100's all-gather, at the rate of the card."""
    fitted = coefficients_of(load_profile("h100"), "link.nic.all_gather")
    ring = of_table("link.nic.all_gather", fitted)
    table = "SimAI's NIC table, all-gather/reduce-scatter ring, 16 to 1024 GPUs, at 48.5 of 50 GB/s per NIC"
    two = "; two rounds, so twice the hop"
    write("h100", "link.nic.all_reduce", {**ring, "hop_s": 2.0 * ring["hop_s"]}, table + two)
    slow = ring["net"] * (23.5 / 25.0) / (48.5 / 50.0)
    text = table.replace("48.5 of 50", "23.5 of 25") + "; latency from the 400G table"
    for device in ("a100-80g", "h800"):
        for kind in ("all_gather", "reduce_scatter"):
            write(device, f"link.nic.{kind}", {**ring, "net": slow}, text)
        both = {**ring, "net": slow, "hop_s": 2.0 * ring["hop_s"]}
        write(device, "link.nic.all_reduce", both, text + two)


def of_table(section: str, numbers: dict[str, float]) -> dict[str, float]:
    """The numbers that a table of a link has; all others are neutral."""
    _, port, kind = section.split(".")
    return {name: numbers[name] for name, item in COEFFICIENTS.items() if item.is_in(Port(port), OpKind(kind))}


def value(device: str, section: str, name: str) -> float:
    """A coefficient of a shipped profile, in the unit that the profile has."""
    return coefficients_of(load_profile(device), section)[name]


def settled(device: str, section: str) -> float:
    """Reached fraction of the peak under sustained load."""
    return value(device, section, "flop") / (1.0 + value(device, section, "power"))


def carry(source: str, section: str, device: str, target: str, text: str) -> None:
    """One device's coefficients as another's."""
    numbers = coefficients_of(load_profile(source), section)
    names = CURVE if "attention" in section else ("mem", "t0_s", "row0")
    kept = (
        {name: numbers[name] for name in ("flop", *names)} if "attention" in section else {n: numbers[n] for n in names}
    )
    write(device, target, kept, text)


def scaled(device: str, section: str, target: str, factor: float, text: str) -> None:
    """A head dimension from another of the same device."""
    numbers = coefficients_of(load_profile(device), section)
    kept = {name: numbers[name] for name in ("flop", *CURVE)}
    kept["flop"] = min(1.0, kept["flop"] * factor)
    write(device, target, kept, text)


def write(device: str, section: str, numbers: dict[str, float], text: str) -> None:
    """Put a section of transferred numbers into a profile."""
    lines = [f"[{section}]", *(f"{name} = {number_text(number)}" for name, number in numbers.items())]
    lines += ['provenance = "transferred"', f"source = {toml_string(text)}"]
    path = profiles.PROFILE_DIR / f"{device}.toml"
    path.write_text(replace_blocks(path.read_text("utf-8"), {section: "\n".join(lines)}), encoding="utf-8")


def mask_tiles() -> None:
    """What a mask costs inside tiles, of a measurement of our own: rows of equal tiles with a mask and without."""
    with MASK_TILES.open(encoding="utf-8") as file:
        times = {(row["pass"], row["head_dim"], row["mask"]): float(row["time_us"]) for row in csv.DictReader(file)}
    for device in (*SAME_DIE, *OTHER_DIES):
        path = profiles.PROFILE_DIR / f"{device}.toml"
        tables = re.split(r"(?m)^(?=\[)", path.read_text("utf-8"))
        for number, table in enumerate(tables):
            found = re.match(r"\[efficiency\.attention_(forward|backward)(\.head_dim_64)?", table)
            if found:
                which = {"forward": "fwd", "backward": "bwd"}[found[1]], "64" if found[2] else "128"
                ratio = times[(*which, "partial")] / times[(*which, "full")]
                without = re.sub(r"(?m)^partial_tile = .*\n", "", table)
                line = f"partial_tile = {number_text(ratio)}  # measurements/{MASK_TILES.parent.name}\n"
                if device in OTHER_DIES:
                    line = "partial_tile = 1\n"
                tables[number] = re.sub(r"(?m)^(?=provenance = )", line, without, count=1)
        path.write_text("".join(tables), encoding="utf-8")


def drop(device: str, section: str) -> None:
    """Take a section out of a profile."""
    path = profiles.PROFILE_DIR / f"{device}.toml"
    path.write_text(replace_blocks(path.read_text("utf-8"), {}, drop=(section,)), encoding="utf-8")


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
class KernelFit:
    """Factors of a kernel on a device: by pass, time over the profile's on long sequences, and ``s0_tokens``.

    Attributes:
        error: mean absolute error on the rows they come from.
    """

    factors: dict[str, float]
    s0_tokens: dict[str, float]
    error: float


def fit_kernel(cases: Sequence[Case], profile: DeviceProfile, shares: dict[str, float]) -> KernelFit:
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
    return KernelFit({name: factor * share for name, share in shares.items()}, dict.fromkeys(shares, s0), fmean(errors))


def _time(case: Case, profile: DeviceProfile, shares: dict[str, float], factor: float, s0: float) -> float:
    return math.fsum(case.predicted_s(profile, name, 1.0 / (factor * shares[name]), s0) for name in case.passes)


def fa2(profile: DeviceProfile, cases: Sequence[Case]) -> KernelFit:
    """FlashAttention-2, whose passes are in the ratio of ``FA2_BACKWARD_RATE`` on long sequences."""
    rates = [profile.efficiency(KINDS[name]).flop_rate(1.0) for name in PASSES]
    return fit_kernel(cases, profile, {"forward": 1.0, "backward": rates[1] / rates[0] / FA2_BACKWARD_RATE})


def cudnn(profile: DeviceProfile, cases: Sequence[Case]) -> KernelFit:
    """cuDNN, forward and backward apart."""
    parts = [fit_kernel([case for case in cases if case.passes == (name,)], profile, {name: 1.0}) for name in PASSES]
    return KernelFit(
        {name: part.factors[name] for name, part in zip(PASSES, parts, strict=True)},
        {name: part.s0_tokens[name] for name, part in zip(PASSES, parts, strict=True)},
        fmean(part.error for part in parts),
    )


KERNELS: tuple[tuple[str, str, str, str, Callable[[DeviceProfile, Sequence[Case]], KernelFit], str], ...] = (
    ("a100-80g", "fa2", "A100-SXM", "fa2fig", fa2, "FlashAttention-2's figure, forward and backward together"),
    ("h100", "fa2", "H100-SXM", "fa2fig", fa2, "FlashAttention-2's figure, forward and backward together"),
    ("h200", "fa2", "H100-SXM", "fa2fig", fa2, "FlashAttention-2's figure of the H100, the same compute die"),
    ("h100", "cudnn", "H200-SXM", "cudnn", cudnn, "cuDNN 9.19 on H200, the same compute die"),
    ("h200", "cudnn", "H200-SXM", "cudnn", cudnn, "cuDNN 9.19"),
)
"""Profile, kernel, device and source of the rows, how they are fitted, and what they are."""


def _table(kernel: str, found: KernelFit, text: str) -> str:
    """The profile's table of a kernel."""
    source = f'provenance = "fitted", source = {toml_string(text)}, relative_error = {number_text(found.error)}'
    numbers = found.factors | {f"{name}_s0_tokens": value for name, value in found.s0_tokens.items()}
    lines = (f"{name} = {{ value = {number_text(value)}, {source} }}" for name, value in numbers.items())
    return "\n".join([f"[attention_kernel.{kernel}]", *lines])


def attention_kernels(path: Path) -> None:
    """Put the factors of attention kernels into the profiles."""
    for name, kernel, device, source, method, text in KERNELS:
        profile = load_profile(name)
        cases = read_cases(path, device, source, profile.efficiency(OpKind.ATTENTION_FORWARD).power)
        found = method(profile, cases)
        block = _table(kernel, found, f"{text}: {len(cases)} rows, {100 * found.error:.1f}% off")
        file = profiles.PROFILE_DIR / f"{name}.toml"
        file.write_text(
            replace_blocks(file.read_text("utf-8"), {f"attention_kernel.{kernel}": block}), encoding="utf-8"
        )


if __name__ == "__main__":
    sys.exit(main())

"""``summarize``: the first screen of a report, at most 24 lines of 80 columns, with what a practitioner asks first."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from semu.errors import ConfigError
from semu.present.report_data import ReportData
from semu.present.uncertainty import LEVEL
from semu.records import dataclass
from semu.units import GIB, fit_options, format_count, format_time, format_usd, time_unit

WIDTH, LINES = 80, 24
"""Columns and lines of the screen."""
_LABEL = 15
_REASONS = 3
_SHORT = {"exposed_communication": "waiting for", "bubble": "pipeline bubble"}
GROUPS = {"tp": "tensor parallelism", "pp": "pipeline transfers", "dp": "data parallelism", "cp": "context parallelism"}
GROUPS |= {
    "vocabulary": "vocabulary over pipeline ranks",
    "towers": "features between towers",
    "ep": "expert all-to-all",
    "etp": "tensor-parallel experts",
    "experts": "expert all-gather",
    "fsdp": "FSDP gathers",
    "pcie": "host copies",
}
"""What those wait for who wait for the communication of a group."""
_KINDS = ("parameters", "gradients", "optimizer", "activations", "workspace", "communication")


@dataclass(frozen=True)
class Budget:
    """What a training run of many iterations is asked about.

    Attributes:
        tokens: tokens to train on; 0: not asked. gpu_hour_usd: price of a GPU for an hour [USD].
        gpu_watt: power of a GPU with its share of the machine [W].
    """

    tokens: float = 0.0
    gpu_hour_usd: float | None = None
    gpu_watt: float | None = None

    def of(self, report: ReportData) -> dict[str, float]:
        """Days, GPU-hours and, where they are asked for, cost [USD] and energy [kWh] of the run."""
        seconds = self.tokens / (report.tokens_per_s_per_gpu * report.num_gpus)
        found = {"tokens": self.tokens, "days": seconds / 86400, "gpu_hours": seconds * report.num_gpus / 3600}
        if self.gpu_hour_usd is not None:
            found["usd"] = found["gpu_hours"] * self.gpu_hour_usd
        if self.gpu_watt is not None:
            found["kwh"] = found["gpu_hours"] * self.gpu_watt / 1e3
        return found


def read_tokens(text: str, *, where: str) -> float:
    """A number of tokens: digits, and K, M, B or T.

    Raises:
        ConfigError: something else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([KMBT]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError("not a number of tokens", where=where, expected="a number like 300B, 15T or 2e12", got=text)
    return float(match[1]) * {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[match[2].upper()]


def seconds_of_groups(waits: Mapping[str, float]) -> dict[str, float]:
    """Waits by communicator, those of one kind of parallelism together, under its name [s]."""
    found: dict[str, float] = {}
    for kind, seconds in waits.items():
        group = "cp" if kind.startswith("cp_") else kind
        name = GROUPS.get(group, group)
        found[name] = found.get(name, 0.0) + float(seconds)
    return found


def seconds_of_parts(breakdown: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Parts of a breakdown that take time, and their seconds; communication by group."""
    for name, value in breakdown.items():
        if isinstance(value, Mapping):
            yield from ((f"waiting for {group}", time) for group, time in seconds_of_groups(value).items() if time > 0)
        elif isinstance(value, int | float) and value > 0:
            yield name.replace("_", " "), float(value)


def summarize(report: ReportData, budget: Budget | None = None, *, has_notes: bool = True) -> str:
    """The first screen of a report; no line ends with a newline or is longer than ``WIDTH``.

    Args:
        report: to show. budget: what is asked about a long run. has_notes: with the report's warnings, as far as they
            have room.
    """
    lines = [_short(report.title), ""]
    for label, text in facts(report, budget):
        options, gain = _options(text) if label in ("try", "fits with") else ([], text)
        first = f"{label:<{_LABEL}}"
        lines += fit_options(options, gain, first=first, width=WIDTH) if options else _wrapped(label, text)
    lines += ["", *_assumed(report)]
    if not has_notes:
        return "\n".join(lines)
    notes = [_wrapped("note", text) for text in sorted(report.warnings, key=_place)]
    is_short = len(lines) + sum(map(len, notes)) <= LINES
    for note in notes:
        lines += note if is_short or len(lines) + len(note) < LINES else []
    return "\n".join([*lines, *([] if is_short else [f"{'':<{_LABEL}}more with --details"])][:LINES])


def _place(note: str) -> int:
    """Of a note among others: how many GPUs first, what is not modelled last."""
    return -1 if note.startswith(("cluster: ", "parallel: ")) else int(note.startswith("not modelled"))


def facts(report: ReportData, budget: Budget | None = None) -> Iterator[tuple[str, str]]:
    """Labels and texts of what is found."""
    interval = report.iteration_time_interval_s
    scale, unit = time_unit(report.iteration_time_s)
    ends = [] if interval is None else [f"{end * scale:.3g}" for end in interval]
    sure = f", {LEVEL:.0%} interval {' to '.join(ends)} {unit}" if ends else ""
    yield "iteration", f"{format_time(report.iteration_time_s)}{sure}"
    if report.samples is not None:
        drawn = report.samples
        yield "with jitter", f"half within {format_time(drawn.p50_s)}, 95 % within {format_time(drawn.p95_s)}"
    if report.contention is not None:
        seen = report.contention
        more = format_time(max(0.0, report.iteration_time_s - seen.iteration_time_alone_s))
        yield "contention", f"+{more}: {seen.slowed:,} of {seen.transfers:,} transfers slowed"
    rate = report.tokens_per_s_per_gpu
    on_all = f", {rate * report.num_gpus:,.0f} on {report.num_gpus} GPUs" if report.num_gpus > 1 else ""
    yield "throughput", f"{rate:,.0f} tokens/s per GPU{on_all}"
    yield "MFU", f"{report.mfu:.1%}, {report.model_tflop_per_s_per_gpu:.0f} TFLOP/s per GPU (HFU {report.hfu:.1%})"
    if budget is not None and budget.tokens:
        yield f"{_tokens(budget.tokens)} tokens", _cost(budget.of(report))
    yield "memory", fit_sentence(report)
    rank = report.fullest_rank
    if (kinds := report.memory_of(rank)) is not None:
        sizes = [f"{name} {getattr(kinds, name) / GIB:.1f}" for name in _KINDS if getattr(kinds, name) >= GIB / 20]
        yield "", f"rank {rank} at its peak (GiB): {', '.join(sizes)}"
    yield "time goes to", ", ".join(f"{name} {share:.1%}" for name, share in _shares(report))
    for reason in report.reasons[:_REASONS]:
        yield "why", reason
    for change in report.advice:
        yield "try", change
    if report.reasons and not report.advice:
        yield "try", "no change that was tried makes it faster"
    if report.nearest_fit:
        fitting = report.nearest_fit[0]
        seconds = format_time(fitting.iteration_time_s)
        yield (
            "fits with",
            f"{' '.join(fitting.options())}: {fitting.peak_memory_bytes / GIB:.1f} GiB allocated, {seconds}",
        )
    elif report.nearest_fit is not None:
        yield "fits with", "no change that was tried makes it fit"


def fit_sentence(report: ReportData) -> str:
    """Whether the job fits in memory: which rank is fullest, and by how much it does or does not."""
    rank, room = report.fullest_rank, report.room
    peak, held = report.peak_memory_bytes[rank], report.held_memory_bytes[rank]
    need = held + room.other_bytes + room.margin_bytes
    parts = f"allocated {peak / GIB:.2f}, reserved {held / GIB:.2f}, other {room.other_bytes / GIB:.2f}"
    parts += f", margin {room.margin_bytes / GIB:.2f}"
    have = f"{room.capacity_bytes / GIB:.2f} GiB"
    if report.fits:
        return f"fits: rank {rank} needs {need / GIB:.2f} of {have} ({parts})"
    over = (need - room.capacity_bytes) / GIB
    return (
        f"does not fit: rank {rank} needs {need / GIB:.2f} GiB, {over:.2f} GiB more than the device's {have} ({parts})"
    )


def _options(text: str) -> tuple[list[str], str]:
    """Options of the command line, and what is said about them; none where the text is a sentence."""
    options, _, said = text.rpartition(": ")
    return re.findall(r"--set (?:'[^']*'|\S+)+", options), said


def _cost(found: Mapping[str, float]) -> str:
    """Days, GPU-hours, cost and energy of a run."""
    words = [f"{found['days']:,.1f} days", f"{format_count(found['gpu_hours'])} GPU-hours"]
    words += [format_usd(found["usd"])] if "usd" in found else []
    words += [f"{found['kwh'] / 1e3:,.1f} MWh"] if "kwh" in found else []
    return ", ".join(words)


def _tokens(count: float) -> str:
    return format_count(count).replace(".00", "").replace(" ", "")


def _shares(report: ReportData) -> Iterator[tuple[str, float]]:
    """Where the time of an iteration goes, the largest share first; what is below a tenth of a percent is left out."""
    shares: dict[str, float] = {}
    bubble = _SHORT["bubble"]
    if report.num_distinct_replicas > 1:  # the mean of all replicas, whose pipelines end before the slowest one's
        bubble = f"{bubble} and slower replicas" if len(report.ranks) > 1 else "waits for slower replicas"
    for name, value in report.breakdown_s.items():
        if isinstance(value, Mapping):
            shares |= seconds_of_groups(value)
        elif isinstance(value, int | float):
            shares[bubble if name == "bubble" else _SHORT.get(name, name.replace("_", " "))] = float(value)
    for name, seconds in sorted(shares.items(), key=lambda item: -item[1]):
        if seconds >= 1e-3 * report.iteration_time_s:
            yield name, seconds / report.iteration_time_s


def _assumed(report: ReportData) -> list[str]:
    """The settings behind the numbers."""
    job: Mapping[str, Any] = report.job
    training, parallel = job.get("training", {}), job.get("parallel", {})
    words = [
        f"{training.get('global_batch')} items per iteration in microbatches of {training.get('micro_batch')}",
        *([f"{training['seq_len']} tokens each"] if training.get("seq_len") else []),
        f"{training.get('precision')} with {training.get('grad_dtype')} gradients",
        f"ZeRO-{parallel.get('zero')}",
        f"recompute {training.get('recompute')}",
        f"schedule {report.title.rpartition(', ')[2]}",
        f"software {training.get('software')}",
    ]
    shown = _wrapped("assumed", ", ".join(words)) if training else []
    weak = sum(share for name, share in report.coverage.items() if name in ("transferred", "spec", "default"))
    if weak >= 0.005:
        shown += _wrapped("coefficients", f"{weak:.0%} of the time is not measured on this GPU (--provenance)")
    return shown


def _short(title: str) -> str:
    return title if len(title) <= WIDTH else title[: WIDTH - 3] + "..."


def _wrapped(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL, break_on_hyphens=False
    )

"""``render``: a report as the table that people read, as wide as the terminal, without boxes.

Objects: ``render``, ``render_provenance``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from semu.present.report_data import (
    CONTENTION_SCOPE,
    CONVENTION,
    ContentionSummary,
    LayerRow,
    RankMemoryRow,
    ReportData,
    TopOperator,
)
from semu.present.summary import fit_sentence
from semu.present.uncertainty import LEVEL, Uncertainty
from semu.units import GIB, fit_columns, fit_lines, format_count, format_time

MAX_RANKS = 16
"""Pipelines with more ranks show only their highest peaks."""
SHOWN_RANKS = 4
"""How many of them."""
SHOWN_KINDS = 3
"""So many kinds whose errors widen the interval most are named."""

_LABEL = 22


def render(report: ReportData) -> str:
    """The table behind ``report.details()``, without a newline at its end."""
    parts = (_summary, _breakdown, _layers, _ranks, _nearest_fit, _operators, _notes)
    sections = [[report.title], *(list(part(report)) for part in parts)]
    return _joined(line for section in sections if section for line in (*section, ""))


def render_provenance(report: ReportData) -> str:
    """The operators that cost most, the sources of their coefficients, and the share of the time that each covers."""
    return _joined([*_operators(report), "", *_notes(report)])


def _joined(lines: Iterable[str]) -> str:
    return fit_lines("\n".join(line.rstrip() for line in lines).rstrip("\n"))


# -- sections ------------------------------------------------------------------------------------------------------
def _summary(report: ReportData) -> Iterator[str]:
    training = report.job.get("training")
    options = training if isinstance(training, Mapping) else {}
    peak = f"of the dense {options['precision']} peak" if "precision" in options else "of the dense peak"
    replicas = f"{report.num_microbatches} microbatches per replica"
    if report.num_distinct_replicas > 1:
        replicas += f"; slowest of {report.num_distinct_replicas} distinct replicas: {report.slowest_replica}"
    full = _percent(report.mfu_full_attention)
    yield _line("iteration time", format_time(report.iteration_time_s), replicas)
    if report.contention is not None:
        yield from _contention(report.contention, report.iteration_time_s)
    if report.samples is not None:
        drawn = report.samples
        share = options.get("straggler_share", 0)
        note = f"half of {drawn.count} iterations with jitter {drawn.jitter:g} take no longer (seed {drawn.seed})"
        if share:
            random = f"jitter {drawn.jitter:g}, stragglers {share:g}, seed {drawn.seed}"
            note = f"half of {drawn.count} iterations take no longer ({random})"
        yield _line("p50", format_time(drawn.p50_s), note)
        yield _line("p95", format_time(drawn.p95_s), "95 % take no longer")
    if report.uncertainty is not None:
        yield from _interval(report.uncertainty)
    yield _line("tokens/s/GPU", f"{report.tokens_per_s_per_gpu:,.1f}", f"{report.tokens:,} tokens per iteration")
    yield _line("model TFLOP/s/GPU", f"{report.model_tflop_per_s_per_gpu:.1f}", "")
    yield _line("MFU", _percent(report.mfu), f"{peak}; causal attention counted half (in full: {full})")
    if report.mfu_bf16 is not None:
        yield _line("MFU, bf16 peak", _percent(report.mfu_bf16), "the same FLOP against the dense bf16 peak")
    yield _line("HFU", _percent(report.hfu), "recomputation counted too")
    whose = "the slowest replica's pipeline" if report.num_distinct_replicas > 1 else "the pipeline"
    note = f"of {whose} (ends at {format_time(report.makespan_s)}), waits for transfers counted"
    yield _line("bubble ratio", _percent(report.bubble_ratio), note)
    active = report.active_parameters
    has_idle = active is not None and report.has_idle_parameters
    note = f"{format_count(active)} active: used by a token" if active is not None and has_idle else ""
    trained = _trained(report)
    if trained is not None:
        note = ", ".join([*([note] if note else []), f"{format_count(trained)} trained"])
    yield _line("parameters", format_count(report.parameters), note)
    yield f"{'memory':<{_LABEL}}{fit_sentence(report)}"


def _interval(found: Uncertainty) -> Iterator[str]:
    """Between what times the iteration lies, and whose errors make the interval wide."""
    low, high = found.interval_s()
    time = found.iteration_time_s or 1.0
    most = ", ".join(f"{item.kind} {_percent(item.sigma_s / time)}" for item in found.kinds[:SHOWN_KINDS])
    text = f"{format_time(low)} to {format_time(high)}"
    note = f"standard error {_percent(found.sigma_s / time)}, mostly that of {most}" if most else ""
    yield _line(f"{LEVEL:.0%} interval", text, note)


def _contention(seen: ContentionSummary, iteration_s: float) -> Iterator[str]:
    """What sharing links cost."""
    more = iteration_s - seen.iteration_time_alone_s
    note = f"{seen.slowed:,} of {seen.transfers:,} transfers slowed, {seen.touched_stages:,} of {seen.stages:,} stages"
    lost = ", ".join(f"{name} {format_time(seconds)}" for name, seconds in seen.lost_s.items())
    yield _line("contention", "+" + (format_time(more) if more > 0 else "0 s"), f"{note} touched")
    if lost:
        yield _line("", "", f"transfers lost: {lost}")


def _breakdown(report: ReportData) -> Iterator[str]:
    rows = list(_breakdown_rows(report.breakdown_s))
    total = report.iteration_time_s
    several = report.num_distinct_replicas > 1
    yield f"where the time goes (mean over ranks{' and replicas' if several else ''}, shares of the iteration)"
    waits = {"bubble": "bubble, waits for slower replicas"} if several else {}
    cells = [
        (
            f"  {waits.get(name, name)}",
            format_time(time) if abs(time) >= 1e-9 else "0 s",
            _percent(time / total if total else 0.0),
        )
        for name, time in rows
    ]
    cells.append(("  iteration", format_time(total), _percent(1.0)))
    yield from fit_columns(cells, (False, True, True))


def _breakdown_rows(breakdown: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Names and times [s] in the order of the report; ``other`` only where there is some."""
    for name, value in breakdown.items():
        if isinstance(value, Mapping):
            yield from ((f"{name.replace('_', ' ')}, {kind}", float(time)) for kind, time in value.items())
        elif isinstance(value, int | float) and (value or name != "other"):
            yield name.replace("_", " "), float(value)


def _layers(report: ReportData) -> Iterator[str]:
    """What every layer costs: the numbers by which ``parallel.partition`` cuts."""
    if not report.layer_times:
        return
    yield "layers (time of one, alone, on the mean microbatch; the backward with what runs again)"
    rows: list[Sequence[str]] = [("  layers", "of", "ranks", "forward", "backward", "runs again", "B / F", "")]
    rows += [_layer_cells(row) for row in report.layer_times]
    yield from fit_columns(rows, (True, False, False, True, True, True, True, False))


def _layer_cells(row: LayerRow) -> tuple[str, ...]:
    name = row.first if row.layers == 1 else f"{row.first} to {row.last.rpartition('.')[2]}"
    ranks = f"{row.ranks[0]} to {row.ranks[-1]}" if len(row.ranks) > 1 else str(row.ranks[0])
    times = [format_time(time) if time else "0 s" for time in (row.forward_s, row.backward_s, row.recompute_s)]
    ratio = f"{row.backward_s / row.forward_s:.2f}" if row.forward_s else ""
    return str(row.layers), _cut_left(name, 36), ranks, *times, ratio, row.state


def _ranks(report: ReportData) -> Iterator[str]:
    shown = sorted(report.ranks, key=lambda row: (-row.peak_bytes, row.rank))
    shown = shown if len(shown) <= MAX_RANKS else shown[:SHOWN_RANKS]
    yield f"memory of each pipeline rank (GiB; the device has {report.capacity_bytes / GIB:.2f})"
    rows: list[Sequence[str]] = [
        ("  rank", "chunks", "static", "peak", "of device", "at the peak", "parameters", "operator at the peak")
    ]
    rows += [_rank_cells(row, report.capacity_bytes) for row in sorted(shown, key=lambda row: row.rank)]
    yield from fit_columns(rows, (True, False, True, True, True, False, True, False))
    hidden = [row.peak_bytes / GIB for row in report.ranks if row not in shown]
    if hidden:
        peaks = f"{min(hidden):.2f} to {max(hidden):.2f}"
        yield f"  the {len(shown)} highest; {len(hidden)} more with peaks of {peaks} are hidden"


def _rank_cells(row: RankMemoryRow, capacity_bytes: int) -> tuple[str, ...]:
    share = _percent(row.peak_bytes / capacity_bytes) + ("" if row.peak_bytes <= capacity_bytes else " !")
    return (
        str(row.rank),
        _cut(row.chunks, 30),
        f"{row.static_bytes / GIB:.2f}",
        f"{row.peak_bytes / GIB:.2f}",
        share,
        _stage(row.peak_stage) or ("" if row.peak_operator else "static memory alone"),
        format_count(row.parameters),
        _cut_left(row.peak_operator, 35),
    )


_PHASES = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


def _stage(name: str) -> str:
    """A stage in words: ``0B11`` is the backward of chunk 0 on microbatch 11."""
    match = re.fullmatch(r"(\d+)([FBIW])(\d+)", name)
    return name if match is None else f"chunk {match[1]} {_PHASES[match[2]]}, microbatch {match[3]}"


def _nearest_fit(report: ReportData) -> Iterator[str]:
    if report.nearest_fit is None:
        return
    if not report.nearest_fit:
        yield "no change that was tried makes it fit in memory"
        return
    yield "changes after which it fits in memory, the fastest first"
    rows: list[Sequence[str]] = [("  saves", "peak", "costs", "", "--set")]
    rows += [
        (
            f"{change.saved_bytes / GIB:.2f} GiB",
            f"{change.peak_memory_bytes / GIB:.2f} GiB",
            ("-" if change.added_time_s < 0 else "+") + format_time(abs(change.added_time_s)),
            f"{change.added_time_s / report.iteration_time_s:+.1%}",
            change.label(),
        )
        for change in report.nearest_fit
    ]
    yield from fit_columns(rows, (True, True, True, True, False))


def _operators(report: ReportData) -> Iterator[str]:
    if not report.top_operators:
        return
    sources = list(dict.fromkeys((row.provenance, row.source) for row in report.top_operators))
    yield "operators that cost most (share of all stage time of the slowest replica)"
    rows: list[Sequence[str]] = [("  share", "time", "operator", "phase", "bound by", "from", "calls")]
    rows += [_operator_cells(row, sources.index((row.provenance, row.source)) + 1) for row in report.top_operators]
    yield from fit_columns(rows, (True, True, False, False, False, False, True))
    yield from (f"  [{number}]  {kind}: {source}" for number, (kind, source) in enumerate(sources, start=1))


def _operator_cells(row: TopOperator, source: int) -> tuple[str, ...]:
    return (
        _percent(row.share),
        format_time(row.time_s),
        _cut_left(row.path, 36),
        row.phase.replace("_", " "),
        row.bound,
        f"[{source}]",
        f"{row.calls:,}",
    )


def _tenths(shares: Mapping[str, float]) -> dict[str, int]:
    """Shares in tenths of a percent that add up to what they add up to unrounded: largest remainders go up."""
    whole = {name: int(1000 * share) for name, share in shares.items()}
    short = round(1000 * sum(shares.values())) - sum(whole.values())
    for name in sorted(shares, key=lambda name: whole[name] - 1000 * shares[name])[: max(0, short)]:
        whole[name] += 1
    return whole


def _notes(report: ReportData) -> Iterator[str]:
    shares = report.coverage if report.provenance else {}
    text = ", ".join(f"{name} {tenths / 10:.1f}%" for name, tenths in _tenths(shares).items()) or "none used"
    yield f"coverage: compute and communication time by coefficients: {text}"
    yield f"MFU and HFU: {CONVENTION}"
    if report.contention is not None:
        yield f"contention: {CONTENTION_SCOPE}"
    yield from (f"note: {warning}" for warning in report.warnings)


# -- cells ---------------------------------------------------------------------------------------------------------
def _line(label: str, value: str, note: str) -> str:
    return f"{label:<{_LABEL}}{value:>10}  {note}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _cut(text: str, width: int) -> str:
    """At most ``width`` characters, the end left out."""
    return text if len(text) <= width else text[: width - 3] + "..."


def _cut_left(text: str, width: int) -> str:
    """At most ``width`` characters, the beginning left out: the end of a module path says more."""
    return text if len(text) <= width else "..." + text[3 - width :]


def _trained(report: ReportData) -> int | None:
    """Parameters that are trained, where others are frozen; None where all or none are, or the job does not say."""
    model = report.job.get("model")
    modules = model.get("modules") if isinstance(model, Mapping) else None
    if not isinstance(modules, list):
        return None
    frozen = sum(module["parameters"] - module["trainable_parameters"] for module in modules)
    trained = sum(module["trainable_parameters"] for module in modules)
    return int(trained) if frozen and trained else None

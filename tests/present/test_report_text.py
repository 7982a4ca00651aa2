"""The table of a report: its numbers are the report's, and it stays readable whatever they are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, cast

import pytest

from semu.present.report import RankMemoryRow, Report, TopOperator
from semu.present.report_text import fit_sentence, render
from semu.units import GIB, align_columns, format_usd


def rank(number: int, peak_gib: float) -> RankMemoryRow:
    return RankMemoryRow(
        rank=number,
        chunks=f"{number}: llm[{number}:{number + 1}]",
        parameters=1_500_000_000,
        static_bytes=20 * GIB,
        peak_bytes=int(peak_gib * GIB),
        peak_stage=f"{number}B3",
        peak_operator=f"llm.layers.{number}.mlp.up",
    )


def make_report(peaks_gib: tuple[float, ...] = (60.0, 70.5), **changes: object) -> Report:
    ranks = tuple(rank(number, peak) for number, peak in enumerate(peaks_gib))
    values: dict[str, Any] = {
        "title": "toy on h800:1x8, dp2-tp2-pp2, 1f1b",
        "iteration_time_s": 4.0,
        "makespan_s": 3.5,
        "mfu": 0.4321,
        "hfu": 0.5432,
        "mfu_full_attention": 0.4545,
        "mfu_bf16": None,
        "model_flop": 1e18,
        "hardware_flop": 1.2e18,
        "model_tflop_per_s_per_gpu": 427.3,
        "tokens_per_s_per_gpu": 12345.6,
        "tokens": 262_144,
        "bubble_ratio": 0.1234,
        "peak_memory_bytes": tuple(row.peak_bytes for row in ranks),
        "static_memory_bytes": tuple(row.static_bytes for row in ranks),
        "capacity_bytes": 79 * GIB,
        "parameters": 12_400_000_000,
        "breakdown_s": {
            "compute": 2.0,
            "exposed_communication": {"tp": 1.0, "dp": 0.25},
            "bubble": 0.5,
            "optimizer": 0.25,
            "other": 0.0,
        },
        "ranks": ranks,
        "top_operators": (
            TopOperator("llm.layers.mlp.up", "matmul", "forward", 1.5, 0.3, 4096, "compute", "fitted", "gemm runs"),
            TopOperator("llm.layers.mlp.down", "matmul", "recompute", 1.0, 0.2, 4096, "memory", "fitted", "gemm runs"),
            TopOperator("llm.head.softmax", "cross_entropy", "forward", 0.5, 0.1, 16, "memory", "default", "a guess"),
        ),
        "provenance": {"default": 0.1, "fitted": 0.9},
        "num_microbatches": 8,
        "num_distinct_replicas": 1,
        "slowest_replica": 0,
        "job": {"training": {"precision": "bf16"}},
        "warnings": ("a first warning",),
        "timeline": cast(Any, None),
    }
    return Report(**(values | changes))


def line(text: str, start: str) -> str:
    """The one line that starts so, without the indent, blanks squeezed."""
    (found,) = [row for row in text.split("\n") if row.lstrip().startswith(start)]
    return " ".join(found.split())


def test_details_are_the_table() -> None:
    report = make_report()
    assert report.details() == render(report)
    assert report.details().startswith(report.title)
    assert report.provenance_text() in report.details()


def test_the_summary_tells_every_headline_number_and_its_convention() -> None:
    text = render(make_report())
    assert line(text, "iteration time") == "iteration time 4.000 s 8 microbatches per replica"
    assert line(text, "tokens/s/GPU") == "tokens/s/GPU 12,345.6 262,144 tokens per iteration"
    assert line(text, "model TFLOP/s/GPU") == "model TFLOP/s/GPU 427.3"
    assert line(text, "MFU  ") == ("MFU 43.2% of the dense bf16 peak; causal attention counted half (in full: 45.5%)")
    assert line(text, "HFU").startswith("HFU 54.3% recomputation")
    assert line(text, "bubble ratio").startswith("bubble ratio 12.3%")
    assert line(text, "MFU and HFU:").startswith("MFU and HFU: model FLOP = matrix products and attention")


def test_fp8_shows_the_bf16_figure_too() -> None:
    assert "bf16 peak" not in render(replace(make_report(), job={}))
    text = render(replace(make_report(), mfu_bf16=0.61))
    assert line(text, "MFU, bf16 peak").startswith("MFU, bf16 peak 61.0%")


def test_several_replicas_name_the_slowest() -> None:
    text = render(replace(make_report(), num_distinct_replicas=4, slowest_replica=2))
    assert "slowest of 4 distinct replicas: 2" in line(text, "iteration time")


def test_the_breakdown_is_in_percent_of_the_iteration_and_sums_to_it() -> None:
    text = render(make_report())
    section = text.split("where the time goes")[1].split("\n\n")[0].split("\n")[1:]
    percents = [float(row.rsplit(maxsplit=1)[1].rstrip("%")) for row in section]
    names = [re.split(r"\s{2,}", row.strip())[0] for row in section]
    assert names == [
        "compute",
        "exposed communication, tp",
        "exposed communication, dp",
        "bubble",
        "optimizer",
        "iteration",
    ]
    assert percents == [50.0, 25.0, 6.2, 12.5, 6.2, 100.0]
    assert sum(percents[:-1]) == pytest.approx(100, abs=0.05 * len(percents))


def test_other_time_is_shown_where_there_is_some() -> None:
    breakdown = {**make_report().breakdown_s, "other": 0.5}
    assert line(render(replace(make_report(), breakdown_s=breakdown)), "other") == "other 500.00 ms 12.5%"


def test_a_row_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = render(make_report())
    assert line(text, "1  ") == (
        "1 1: llm[1:2] 20.00 70.50 89.2% chunk 1 backward, microbatch 3 1.50 B llm.layers.1.mlp.up"
    )
    assert "static memory alone" in render(
        replace(make_report(), ranks=(replace(rank(0, 20), peak_stage="", peak_operator=""),))
    )


def test_fits_or_not() -> None:
    parts = "(allocated 70.50, reserved 70.50, other 0.00, margin 0.00)"
    assert fit_sentence(make_report()) == f"fits: rank 1 needs 70.50 of 79.00 GiB {parts}"
    report = make_report((60.0, 81.25, 80.0))
    parts = "(allocated 81.25, reserved 81.25, other 0.00, margin 0.00)"
    sentence = f"does not fit: rank 1 needs 81.25 GiB, 2.25 GiB more than the device's 79.00 GiB {parts}"
    assert fit_sentence(report) == sentence
    (start,) = [number for number, row in enumerate(render(report).split("\n")) if row.startswith("memory  ")]
    assert " ".join(" ".join(render(report).split("\n")[start : start + 2]).split()) == f"memory {sentence}"
    assert line(render(report), "2  2: llm").split()[5:7] == ["101.3%", "!"]


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (16, 16), (17, 4), (64, 4)])
def test_long_pipelines_show_their_highest_ranks(count: int, shown: int) -> None:
    peaks = [30.0 + (7 * i) % count * 0.5 for i in range(count)]
    text = render(make_report(tuple(peaks)))
    rows = [int(match[1]) for match in re.finditer(r"^ +(\d+)  \d+: llm", text, re.MULTILINE)]
    assert rows == sorted(sorted(range(count), key=lambda i: -peaks[i])[:shown])
    hidden = sorted(peaks)[: count - shown]
    assert ("hidden" in text) == (count > 16)
    if hidden:
        assert f"{count - 4} more with peaks of {hidden[0]:.2f} to {hidden[-1]:.2f} are hidden" in text


def test_operators_are_said_to_be_of_the_slowest_replica() -> None:
    assert "operators that cost most (share of all stage time of the slowest replica)" in render(make_report())


def test_operators_refer_to_the_sources_of_their_coefficients() -> None:
    text = render(make_report())
    assert line(text, "30.0%") == "30.0% 1.500 s llm.layers.mlp.up forward compute [1] 4,096"
    assert line(text, "20.0%").endswith("recompute memory [1] 4,096")
    assert line(text, "10.0%").endswith("forward memory [2] 16")
    assert (line(text, "[1]"), line(text, "[2]")) == ("[1] fitted: gemm runs", "[2] default: a guess")
    words = line(render(make_report()), "coverage:")
    assert words.startswith("coverage: compute and communication time by coefficients: measured 0.0%, fitted 90.0%,")


def test_warnings_are_shown() -> None:
    assert line(render(make_report()), "note:") == "note: a first warning"
    assert "note:" not in render(replace(make_report(), warnings=()))


def test_no_line_is_too_wide_or_ends_in_blanks() -> None:
    name = "encoder." + "very_long_module_name." * 8 + "up"
    report = make_report()
    report = replace(
        report,
        title="model " * 40,
        ranks=tuple(replace(row, chunks="0: vit[0:100], " * 9, peak_operator=name) for row in report.ranks),
        top_operators=tuple(replace(row, path=name, source="words " * 60) for row in report.top_operators),
        warnings=("danger " * 50,),
    )
    lines = render(report).split("\n")
    assert max(map(len, lines)) <= 110
    assert [row for row in lines if row != row.rstrip()] == []
    assert "danger " * 5 in " ".join(lines)


def test_nothing_is_drawn_with_boxes() -> None:
    assert not re.search(r"[─-╿|]", render(make_report()))


def test_an_empty_job_does_not_divide_by_zero() -> None:
    report = make_report((0.0,), iteration_time_s=0.0, top_operators=(), provenance={}, warnings=())
    assert "none used" in render(report)


def test_columns_are_aligned() -> None:
    assert align_columns([("a", "bb", "c"), ("aaa", "b", "")], (False, True, False)) == ["a    bb  c", "aaa   b"]


@pytest.mark.parametrize(
    "shares",
    [
        {"fitted": 1 / 3, "transferred": 1 / 3, "spec": 1 / 3},
        {"measured": 0.0004, "fitted": 0.99915, "default": 0.00045},
    ],
)
def test_the_coverage_line_adds_up(shares: dict[str, float]) -> None:
    """Tenths of a percent that are rounded each by itself make 99.9 or 100.1 %."""
    text = render(replace(make_report(), provenance=shares))
    words = text[text.index("coverage:") : text.index("MFU and HFU")].split()
    tenths = [round(10 * float(word.rstrip(",%"))) for word in words if word.rstrip(",").endswith("%")]
    assert sum(tenths) == 1000 and len(tenths) >= 4


@pytest.mark.parametrize(
    ("usd", "said"),
    [
        (0.0, "0.00 USD"),
        (0.35, "0.35 USD"),
        (-12.5, "-12.50 USD"),
        (999.99, "999.99 USD"),
        (999.996, "1.00 K USD"),
        (3200.0, "3.20 K USD"),
        (999_996.0, "1.00 M USD"),
        (12_910_000.0, "12.91 M USD"),
        (-4e9, "-4.00 B USD"),
        (2.5e12, "2.50 T USD"),
    ],
)
def test_money(usd: float, said: str) -> None:
    """Two decimals of the unit that fits, and within half a hundredth of it."""
    assert format_usd(usd) == said
    number, *unit, _ = said.split()
    factor = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get("".join(unit), 1.0)
    assert abs(float(number) * factor - usd) <= 0.005 * factor * 1.001

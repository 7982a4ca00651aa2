"""HolisticTraceAnalysis reads semu's traces and finds the numbers that the timeline has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semu.engine.timeline import IterationTimeline, RankTimeline
from semu.present.traces import write_rank_trace, write_trace
from tests.present.timeline_fixture import make_timeline

pytest.importorskip("hta", reason="HolisticTraceAnalysis is not installed (pip install HolisticTraceAnalysis)")

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_RANKS = 4


@pytest.fixture(scope="module")
def timeline() -> IterationTimeline:
    return make_timeline(num_ranks=NUM_RANKS, num_microbatches=6, num_layers=2)


@pytest.fixture(scope="module")
def analysis(timeline: IterationTimeline, tmp_path_factory: pytest.TempPathFactory):
    """All ranks as HTA loads them from a folder, timestamps as written."""
    from hta.trace_analysis import TraceAnalysis

    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(NUM_RANKS):
        write_rank_trace(folder / f"rank{rank}.json", timeline, rank, title="test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        return TraceAnalysis(trace_dir=str(folder))


def intervals(rank: RankTimeline) -> list[tuple[bool, float, float]]:
    """(is communication, start, end) [us] of every operator of a rank."""
    rows = [(s.kind.is_communication, s.start_s * 1e6, s.end_s * 1e6) for s in rank.outer]
    for _, ops in rank.stage_operators():
        is_communication = [kind.is_communication for kind in ops.table.kinds]
        rows += zip(is_communication, ops.start_s * 1e6, ops.end_s * 1e6, strict=True)
    return rows


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union, by a plain sweep."""
    total, reach = 0.0, -np.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def test_temporal_breakdown(analysis, timeline: IterationTimeline) -> None:
    table = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    assert sorted(table.index) == list(range(NUM_RANKS))
    for rank in timeline.ranks:
        rows = intervals(rank)
        span = max(end for _, _, end in rows) - min(start for _, start, _ in rows)
        busy = covered([(start, end) for _, start, end in rows])
        compute = covered([(start, end) for is_comm, start, end in rows if not is_comm])
        slack = 1e-3 * len(rows)
        assert table.loc[rank.rank, "kernel_time(us)"] == pytest.approx(span, abs=1e-3)
        assert table.loc[rank.rank, "idle_time(us)"] == pytest.approx(span - busy, abs=slack)
        assert table.loc[rank.rank, "compute_time(us)"] == pytest.approx(compute, abs=slack)
        assert table.loc[rank.rank, "non_compute_time(us)"] == pytest.approx(busy - compute, abs=slack)


def test_communication_overlap(analysis, timeline: IterationTimeline) -> None:
    table = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    for rank in timeline.ranks:
        rows = intervals(rank)
        compute = covered([(start, end) for is_comm, start, end in rows if not is_comm])
        communication = covered([(start, end) for is_comm, start, end in rows if is_comm])
        both = compute + communication - covered([(start, end) for _, start, end in rows])
        assert 0 < both < communication
        percent = table.loc[rank.rank, "comp_comm_overlap_pctg"]
        assert percent == pytest.approx(100 * both / communication, abs=0.02)


def test_kernel_breakdown_conserves(analysis, timeline: IterationTimeline) -> None:
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    sums = dict(zip(kinds["kernel_type"], kinds["sum"], strict=True))
    for is_communication in (False, True):
        exclusive = sum(
            covered([(start, end) for _, start, end in intervals(rank)])
            - covered([(start, end) for is_comm, start, end in intervals(rank) if is_comm != is_communication])
            for rank in timeline.ranks
        )
        name = "COMMUNICATION" if is_communication else "COMPUTATION"
        assert sums[name] == pytest.approx(exclusive, rel=1e-3)


def test_stages_annotate_kernels(analysis, timeline: IterationTimeline) -> None:
    kernels = analysis.get_gpu_kernels_with_user_annotations(rank=1, expand_names=True, shortern_names=False)
    rank = timeline.ranks[1]
    expected = {
        f"{stage.label} {stage.module}": sum(stream == "compute" for stream in ops.table.streams)
        for stage, ops in rank.stage_operators()
    }
    found = kernels[kernels["s_user_annotation"].str.contains(" ")]["s_user_annotation"].value_counts().to_dict()
    assert found == expected


def test_whole_job_in_one_file(timeline: IterationTimeline, tmp_path: Path) -> None:
    """The file with all ranks loads too; HTA takes it for one GPU, busy when any rank is."""
    from hta.trace_analysis import TraceAnalysis

    path = tmp_path / "trace.json"
    write_trace(path, timeline, title="test", metadata={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
        table = TraceAnalysis(trace_files={0: str(path)}).get_temporal_breakdown(visualize=False)
    rows = [row for rank in timeline.ranks for row in intervals(rank)]
    busy = covered([(start, end) for _, start, end in rows])
    span = max(end for _, _, end in rows) - min(start for _, start, _ in rows)
    assert table["idle_time(us)"][0] == pytest.approx(span - busy, abs=1e-3 * len(rows))

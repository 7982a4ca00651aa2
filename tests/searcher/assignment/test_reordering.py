"""Samples that change places within windows of iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.assignment.jobs import draw_text, draw_vlm, text_assigner, vlm_assigner, write_samples

import semu
from semu.searcher.assignment.assigner import SampleSource
from semu.searcher.assignment.reordering import assigned_iterations


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> SampleSource:
    path = write_samples(tmp_path_factory.mktemp("samples") / "samples.jsonl", draw_vlm(350, 5))
    return SampleSource.read(vlm_assigner(1, 4).job, path, 50)


def positions(source: SampleSource, window: int, first: int = 0) -> list[list[int]]:
    return [own.tolist() for own, _ in assigned_iterations(vlm_assigner(1, 4), source, window, first)]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 9))
def test_every_sample_is_used_once_and_not_too_late(source: SampleSource, window: int) -> None:
    found = positions(source, window)
    assert sorted(n for own in found for n in own) == list(range(350))
    assert [len(own) for own in found] == [50] * 7
    assert all(abs(number - n // 50) < window for number, own in enumerate(found) for n in own)
    assert all(own == sorted(own) for own in found)


def test_nothing_moves_unless_it_is_asked_for(source: SampleSource) -> None:
    assert positions(source, 1) == [list(range(50 * n, 50 * n + 50)) for n in range(7)]


def test_windows_are_dealt_where_that_takes_less_time(source: SampleSource) -> None:
    assigner = vlm_assigner(1, 4)
    seconds = {
        window: [float(found.fitted_s.max()) for _, found in assigned_iterations(assigner, source, window)]
        for window in (1, 3)
    }
    assert positions(source, 3) != positions(source, 1)
    for begin in (0, 3):
        assert sum(seconds[3][begin : begin + 3]) <= sum(seconds[1][begin : begin + 3])
    assert sum(seconds[3]) < sum(seconds[1])
    assert seconds[3][6] == seconds[1][6]  # a window of one


@pytest.mark.parametrize("first", [0, 1, 4, 6])
def test_iterations_are_the_same_from_wherever_they_begin(source: SampleSource, first: int) -> None:
    assert positions(source, 3, first) == positions(source, 3)[first:]


def test_the_assignment_is_of_the_samples_at_the_positions(source: SampleSource) -> None:
    for own, found in assigned_iterations(vlm_assigner(1, 4), source, 3):
        assert [source.ids[n] for n in own.tolist()] == list(found.ids)
        assert found.samples.text_tokens.tolist() == source.samples.text_tokens[own].tolist()


def test_packed_documents_keep_within_the_context(tmp_path: Path) -> None:
    """Iterations of unequal numbers of samples, as many as fill the sequences."""
    assigner = text_assigner(1, 4)
    path = write_samples(tmp_path / "documents.jsonl", draw_text(500, 5))
    source = SampleSource.read(assigner.job, path)
    whole = [len(own) for own, _ in assigned_iterations(assigner, source)]
    assert len(whole) > 2
    assert len(set(whole)) > 1
    found = list(assigned_iterations(assigner, source, 2))
    assert [len(own) for own, _ in found] == whole
    assert sorted(n for own, _ in found for n in own.tolist()) == list(range(sum(whole)))
    for _, one in found:
        held = np.bincount(one.dealt.reader_bins, weights=one.samples.lengths)
        assert held.max() <= assigner.limit


@pytest.mark.parametrize("window", [0, -1, 1.5])
def test_windows_that_are_none(source: SampleSource, window: object) -> None:
    with pytest.raises(semu.ConfigError, match="window"):
        next(assigned_iterations(vlm_assigner(1, 4), source, window))  # type: ignore[arg-type]

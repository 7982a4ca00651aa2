"""What a search problem holds, refuses, and keeps in a file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from searcher.instances import problem_of_study, vlm

from semu.errors import ConfigError, ScheduleError
from semu.schedule import PipelineShape, PipelineStudy
from semu.searcher import NO_LIMIT, SearchProblem


@pytest.mark.parametrize(
    "options",
    [{}, {"candidates": 5, "peaks": True}, {"frozen": True, "candidates": 3}, {"images": (0, 0)}, {"audio": True}],
)
def test_a_file_holds_all_of_it(options: dict[str, Any]) -> None:
    problem = vlm(3, 4, transfer_s=(0.1, 0.3), limit_bytes=12345, **options)
    text = problem.to_json()
    again = SearchProblem.from_json(text)
    for name, value in problem.__getstate__().items():
        other = getattr(again, name)
        if isinstance(value, np.ndarray):
            assert value.dtype == other.dtype, name
            assert np.array_equal(value, other), name
        else:
            assert value == other
    assert again.to_json() == text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "semu search problem 1"}'])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a search problem"):
        SearchProblem.from_json(text, "file.json")


@pytest.mark.parametrize("value", [10**30, [10**30], "x", None, {"a": 1}, [[]]])
def test_values_of_other_kinds_are_refused(value: object) -> None:
    """Numbers beyond 64 bits were an OverflowError."""
    problem = json.loads(vlm(3, 4, transfer_s=(0.1, 0.3)).to_json())
    for name in ("costs_of", "costs", "pred", "pred_ptr", "rank", "module_names"):
        with pytest.raises(ConfigError):
            SearchProblem.from_json(json.dumps(problem | {name: value}), "file.json")


def test_a_study_becomes_a_problem() -> None:
    """Two ranks, two slots, one microbatch: chunk c on rank c % 2; backwards against the flow."""
    study = PipelineStudy.of(PipelineShape.chain(2, 1, 2), forward_s=[1, 2, 3, 4], transfer_s=0.25, held_bytes=7)
    problem = problem_of_study(study, limit_bytes=100, static_bytes=[1, 2])
    assert problem.rank.tolist() == [0, 1, 0, 1]
    assert problem.slot.tolist() == [0, 0, 1, 1]
    assert problem.segment.tolist() == [0, 0, 1, 1]
    assert problem.group.tolist() == [0, 0, 0, 0]
    assert problem.forward_s[:, 0].tolist() == [1, 2, 3, 4]
    assert problem.backward_s[:, 0].tolist() == [2, 2, 2, 2]
    assert problem.held_bytes[:, 0].tolist() == [7, 7, 7, 7]
    before, after = problem.edges
    edges = [(a, b, t) for a, b, t in zip(before.tolist(), after.tolist(), problem.transfer_s.tolist(), strict=True)]
    own = [(2 * i, 2 * i + 1, 0.0) for i in range(4)]
    forward, backward = [(2 * i, 2 * i + 2, 0.25) for i in range(3)], [(2 * i + 3, 2 * i + 1, 0.25) for i in range(3)]
    assert sorted(edges) == sorted(own + forward + backward)
    assert (problem.static_bytes.tolist(), problem.limit_bytes.tolist()) == ([1, 2], [100, 100])
    assert problem.name_of(5) == " backward, microbatch 0, part 0, slot 1, rank 0"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"rank": [0, 2]}, r"rank\[1\]"),
        ({"rank": [0, -1]}, "rank"),
        ({"rank": [0, 0.5]}, "rank"),
        ({"rank": "x"}, "rank"),
        ({"module": [0, 1]}, "module"),
        ({"num_candidates": [0, 2]}, "num_candidates"),
        ({"forward_s": [[1.0, np.nan], [1.0, 1.0]]}, "forward_s"),
        ({"forward_s": [[1.0, 1.0]]}, "forward_s"),
        ({"held_bytes": [[4, 3], [4, 4]]}, r"held_bytes\[0, 1\]"),
        ({"held_bytes": [[4, 8], [4, 5]]}, r"held_bytes\[1, 1\].*an unused column"),
        ({"backward_s": [[1.0, 2.0], [1.0, 1.0]]}, r"forward_s\[0, 1\].*more time"),
        ({"forward_peak_bytes": [[3, 8], [4, 4]]}, r"forward_peak_bytes\[0, 0\].*less than is held"),
        ({"has_backward": [True, False]}, "backward that does not exist"),
        ({"group": [0, 0]}, "group"),
        ({"limit_bytes": [1]}, "static_bytes"),
        ({"pred": [0]}, "transfer_s"),
        ({"surprise": [0]}, "surprise"),
    ],
)
def test_numbers_that_no_pipeline_has_are_refused(change: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        SearchProblem.of(**(arrays() | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pred": [9, 2]}, "no such stage"),
        ({"pred_ptr": [0, 0, 1, 1, 1]}, "not a CSR"),
        ({"pred": [2, 0]}, "an impossible edge"),
        ({"pred_ptr": [0, 0, 2, 2, 2], "pred": [0, 3]}, "without its own forward"),
        ({"pred_ptr": [0, 1, 2, 3, 4], "pred": [2, 0, 0, 2], "transfer_s": [0] * 4}, "in a circle"),
        ({"transfer_s": [0.5, 0]}, "a send within a rank"),
    ],
)
def test_edges_that_no_pipeline_has_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        SearchProblem.of(**(arrays() | change))


def test_a_missing_array_is_named() -> None:
    given = arrays()
    del given["slot"]
    with pytest.raises(ConfigError, match="slot: an array is missing"):
        SearchProblem.of(**given)


def arrays() -> dict[str, Any]:
    """Two pairs of two microbatches on one of two ranks; the first has two candidates."""
    return {
        "rank": [0, 0],
        "has_backward": [True, True],
        **{name: [0, 1] for name in ("microbatch", "group", "segment")},
        **{name: [0, 0] for name in ("module", "part", "slot", "chunk")},
        "module_names": ("model",),
        "num_candidates": [2, 1],
        "forward_s": [[1.0, 1.0], [1.0, 1.0]],
        "backward_s": [[3.0, 2.0], [2.0, 2.0]],
        "held_bytes": [[4, 8], [4, 4]],
        "forward_peak_bytes": [[4, 8], [4, 4]],
        "backward_peak_bytes": [[1, 0], [0, 0]],
        "pred_ptr": [0, 0, 1, 1, 2],
        "pred": [0, 2],
        "transfer_s": [0.0, 0.0],
        "static_bytes": [0, 0],
        "limit_bytes": [NO_LIMIT, NO_LIMIT],
    }

"""Masks as intervals in a file: against dense tables of pairs, through the counter and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from masks.dense import dense_tiles
from numpy.typing import NDArray

from semu.cli.command import main
from semu.errors import ConfigError
from semu.masks import Balance, Seen, Spans, count, cut_tokens, read_intervals, write_intervals
from semu.masks.bits import seen_of_file
from semu.masks.intervals import in_sequences


def _lambda(length: int, sinks: int, window: int) -> Seen:
    """Every token sees the first ones and those less than a window before it."""
    ends = np.array([0, length]), np.array([0, 2]), np.array([0, sinks]), np.array([sinks, length])
    return Seen(*ends, np.ones(1, np.bool_), np.array([0, window]))


def _shared(question: int, answers: list[int]) -> Seen:
    """Answers see the question and themselves."""
    ends = np.cumsum([question, *answers])
    keys = [[(0, question)], *([(0, question), (int(b - n), int(b))] for n, b in zip(answers, ends[1:], strict=True))]
    return Seen.of_keys(np.concatenate(([0], ends)), keys, np.ones(len(keys), np.bool_))


def _dense(length: int, sees: object) -> NDArray[np.bool_]:
    query, key = np.meshgrid(np.arange(length), np.arange(length), indexing="ij")
    table: NDArray[np.bool_] = (key <= query) & sees(query, key)  # type: ignore[operator]
    return table


CASES = {
    "lambda": (_lambda(600, 40, 90), lambda q, k: (k < 40) | (q - k < 90)),
    "shared": (
        _shared(200, [150, 130, 120]),
        lambda q, k: (
            (k < 200) | (np.searchsorted([200, 350, 480], q, "right") == np.searchsorted([200, 350, 480], k, "right"))
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("lengths", [[600], [600, 411, 128]])
@pytest.mark.parametrize("by_owner", [False, True])
def test_tiles_are_those_of_a_table(name: str, lengths: list[int], by_owner: bool, tmp_path: Path) -> None:
    seen, sees = CASES[name]
    path = tmp_path / "mask.npz"
    write_intervals(seen, path)
    spans = Spans.of_text(lengths)
    mask = np.zeros((spans.num_tokens,) * 2, np.bool_)
    for begin, end in zip(spans.starts[:-1], spans.starts[1:], strict=True):
        mask[begin:end, begin:end] = _dense(end - begin, sees)
    cut = cut_tokens(Balance.STRIPED, spans, 3, 32)
    found = count(seen_of_file(str(path), spans.starts), spans.starts, cut, by_owner=by_owner)
    for mine, other in zip(
        (found.pairs, found.tiles, found.partial, found.columns),
        dense_tiles(mask, spans, cut, by_owner=by_owner),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, other)


def test_the_command_line_takes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A causal mask as intervals costs what it costs as a word."""
    write_intervals(Seen.whole(np.array([0, 4096])), tmp_path / "causal.npz")
    words = ["llama-3.2-1b", "--cluster", "h100:1x4", "--parallel", "cp4", "--set", "training.seq_len=4096"]
    times = []
    for mask in ("causal", tmp_path / "causal.npz"):
        assert (
            main(
                [
                    "simulate",
                    *words,
                    "--set",
                    f"training.attention_mask={mask}",
                    "--set",
                    "parallel.cp_balance=lpt",
                    "--json",
                ]
            )
            == 0
        )
        times.append(json.loads(capsys.readouterr().out)["iteration_time_s"])
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ptr": [0, 8]}, "not a mask"),
        ({"ptr": [0, 8, 4], "first": [0, 1, 2], "low": [0, 0], "high": [8, 8], "is_causal": [1, 1]}, "ptr"),
        ({"ptr": [0, 8], "first": [0, 2], "low": [0], "high": [8], "is_causal": [1]}, "first"),
        ({"ptr": [0, 8], "first": [0, 1], "low": [0], "high": [9], "is_causal": [1]}, "low, high"),
        ({"ptr": [0, 8], "first": [0, 2], "low": [0, 3], "high": [4, 8], "is_causal": [1]}, "overlap"),
        ({"ptr": [0, 8], "first": [0, 1], "low": [0], "high": [8], "is_causal": [1], "reach": [-1]}, "reach"),
        ({"ptr": [0, 8], "first": [0, 1], "low": [0], "high": [8], "is_causal": [1, 0]}, "runs"),
    ],
)
def test_bad_files(arrays: dict[str, list[int]], message: str, tmp_path: Path) -> None:
    path = tmp_path / "mask.npz"
    np.savez(path, **{name: np.array(values) for name, values in arrays.items()})
    with pytest.raises(ConfigError, match=message) as caught:
        read_intervals(path)
    assert caught.value.where == str(path)
    path.write_text("no")
    with pytest.raises(ConfigError, match="cannot read"):
        read_intervals(path)


def test_a_longer_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than the mask") as caught:
        in_sequences(_lambda(600, 40, 90), np.array([0, 601]), "mask.npz")
    assert caught.value.nearest == "training.seq_len = 600"

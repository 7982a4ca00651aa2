"""``search_many`` and ``semu search --batches``: what single searches find, whatever engine runs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.runfile import load_run
from semu.searcher.engines import make_engine
from semu.searcher.many import search_many

SMALL = ["training.global_batch=2"]
pytestmark = pytest.mark.slow


def jobs(count: int) -> list[tuple[str, semu.TrainingJob]]:
    setups = ("vlm-s", "t2v-s")
    return [(f"{name} {seed}", load_run(name, SMALL, seed=seed)) for seed in range(count) for name in setups]


@pytest.mark.multiprocess
def test_rows_are_single_searches_and_engines_agree() -> None:
    asked = jobs(2)
    here = search_many(asked, rollouts=4, seed=1)
    there = search_many(asked, rollouts=4, seed=1, engine=make_engine("local", workers=2))
    assert here.to_dicts() == there.to_dicts()
    assert repr(here) == repr(there)
    assert [row.name for row in here.rows] == [name for name, _ in asked]
    for (_, job), row in zip(asked[:2], here.rows, strict=False):
        found = semu.search(job, rollouts=4, seed=1, workers=1)
        assert row.iteration_time_s == found.report.iteration_time_s
        assert row.gap == found.gap
    times = [row.iteration_time_s for row in here.rows if row.iteration_time_s is not None]
    assert here.mean("iteration_time_s") == pytest.approx(sum(times) / 4)


def test_a_job_that_cannot_be_searched_has_its_reason_and_the_others_go_on() -> None:
    asked = [*jobs(1)]
    found = search_many(asked, rollouts=0, memory_limit_bytes=1 << 30)
    assert [row.iteration_time_s for row in found.rows] == [None, None]
    assert all(row.refused for row in found.rows)
    with pytest.raises(ConfigError, match="two jobs of one name"):
        search_many([asked[0], asked[0]], rollouts=0)


def test_ctrl_c_keeps_what_is_done() -> None:
    class Stopped:
        workers = 1

        def run(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
            for number, task in enumerate(tasks):
                if number == 1:
                    raise KeyboardInterrupt
                yield number, work(task)

    found = search_many(jobs(1), rollouts=0, engine=Stopped())
    assert found.is_interrupted
    assert len(found.rows) == 1


def test_the_command_prints_a_row_per_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "vlm-s", "--set", *SMALL, "--rollouts", "2", "--batches", "2", "--seed", "5"]
    assert main([*words, "--json", "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "searches.json").read_text())
    assert [row["name"] for row in document["rows"]] == ["seed 5", "seed 6"]
    alone = semu.search(load_run("vlm-s", SMALL, seed=6), rollouts=2, seed=5)
    assert document["rows"][1]["iteration_time_s"] == alone.report.iteration_time_s
    assert main(["search", "vlm-s", "--engine", "local"]) == 2
    assert "--batches N" in capsys.readouterr().err
    assert main(["search", "vlm-s", "--batches", "0"]) == 2


def test_no_batch_that_can_be_searched_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "vlm-s", "--set", *SMALL, "--rollouts", "2", "--batches", "2", "--json"]
    for option, code, kind in (
        ("--strategy=mtcs", 2, "ConfigError"),
        ("--memory-limit=1GiB", 3, "MemoryLimitError"),
    ):
        assert main([*words, option]) == code
        document = json.loads(capsys.readouterr().out)
        assert len(document["rows"]) == 2
        assert (document["error"]["kind"], document["error"]["message"]) == (kind, document["rows"][0]["refused"])

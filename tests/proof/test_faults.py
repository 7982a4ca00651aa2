"""A slice of ``make faults``, and what it has found, each in a cheap form."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.searcher.grid.space import Point
from semu.searcher.grid.store import ResultStore
from tests.proof.faults import Bench, faults, held_before, tried
from tests.proof.shop import NotHere, Shop, different, halves

SLICE = (
    "sigterm-simulate",
    "disk-full-simulate",
    "results-cut",
    "sigkill-grid",
    "worker-killed-grid",
    "clock-simulate",
)
SLICE_S = 30.0
"""No fault is begun later."""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_slice(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEMU_FAULTS_SEED", "1"))
    bench, begin, made = Bench(tmp_path), time.monotonic(), 0
    for name in SLICE:
        if time.monotonic() - begin < SLICE_S:
            try:
                assert tried(name, bench, seed, 0) == "", f"{name}, seed {seed}"
                made += 1
            except NotHere:  # a file system may not be mounted here
                continue
    assert made > 0


def test_names() -> None:
    assert set(SLICE) <= faults().keys()
    assert len(faults()) > 80


def test_what_is_half_written_is_seen(tmp_path: Path) -> None:
    for name, data in {
        "a.json": b'{"a": 1',
        "a.csv": b"a,b\n1\n",
        "a.png": b"\x89PNG\r\n",
        "a.html": b"<html>",
        "a.json.gz": b"\x1f\x8b\x08",
        ".result-x.json": b"{}",
    }.items():
        folder = tmp_path / name.strip(".")
        folder.mkdir()
        (folder / name).write_bytes(data)
        assert halves(folder), name
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "a.json").write_text("{}")
    (tmp_path / "whole" / "a.csv").write_text("a,b\n1,2\n")
    assert halves(tmp_path / "whole") == ""


def test_what_is_another_answer_is_seen(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, took in ((one, 1.0), (other, 2.0)):
        folder.mkdir()
        said = {"loss": 3.5, "measured_makespan_s": [took], "makespan_error": took}
        (folder / "result.json").write_text(json.dumps(said))
        (folder / "drill.json").write_text(json.dumps({"iteration_s": took, "losses": [1.0]}))
        (folder / "timeline.png").write_text(str(took))
    assert different(one, other) == ""  # what was measured is another every time
    (other / "drill.json").write_text(json.dumps({"iteration_s": 1.0, "losses": [1.5]}))
    assert different(one, other).startswith("drill.json")
    for folder, took in ((one, 1.0), (other, 2.0)):  # what is simulated is not
        (folder / "drill.json").unlink()
        (folder / "result.json").write_text(json.dumps({"iteration_s": took}))
    assert different(one, other).startswith("result.json")
    (other / "result.json").write_text(json.dumps({"iteration_s": 1.0}))
    assert different(one, other).startswith("timeline.png")


def test_what_held_is_not_made_again(tmp_path: Path) -> None:
    state = tmp_path / "faults.jsonl"
    assert held_before(None) == held_before(state) == set()
    state.write_text('{"name": "clock-run", "seed": 2, "number": 0}\n')
    assert held_before(state) == {("clock-run", 2, 0)}


SLOWLY = """\
import sys, time
from semu.__main__ import run
class Slowly:
    def find_spec(self, name, path=None, target=None):
        if name == "semu.cli":
            sys.stderr.write("\\x00")
            sys.stderr.flush()
            time.sleep(15)
sys.meta_path.insert(0, Slowly())
run()
"""


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_semu_is_imported(number: signal.Signals, tmp_path: Path) -> None:
    """It was a traceback, or an end without a word."""
    started = Shop(tmp_path).start(["list", "setups"], code=SLOWLY)
    assert started.has_begun()
    started.process.send_signal(number)
    done = started.end()
    assert done.fault(130) == "" and done.err == "semu: interrupted\n"


WORKERS = """\
import sys, time
from functools import partial
from semu.searcher.engines import make_engine
def work(task):
    time.sleep(300)
if __name__ == "__main__":
    list(make_engine("local", workers=2).run(work, range(4)))
"""


@pytest.mark.slow
@pytest.mark.multiprocess
def test_workers_do_not_outlive_the_one_that_started_them(tmp_path: Path) -> None:
    """SIGKILL of a grid left its workers behind for ever."""
    shop = Shop(tmp_path / "shop")
    (tmp_path / "workers.py").write_text(WORKERS)
    started = shop.start(
        [], code=f"import runpy\nrunpy.run_path({str(tmp_path / 'workers.py')!r}, run_name='__main__')\n"
    )
    until = time.monotonic() + 60
    while len(shop.children(started.process.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(shop.children(started.process.pid)) == 2
    time.sleep(0.5)
    started.process.kill()
    started.process.wait()
    assert shop.left() == ""


# -- a grid's results ----------------------------------------------------------------------------------------------
def test_results_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "grid.sqlite"
    with ResultStore(path, "job", "a job") as store:
        assert store.known([]) == {}
    with sqlite3.connect(path) as file:
        file.execute("DROP TABLE results")
        file.execute("CREATE TABLE results (other TEXT)")
    file.close()
    point = Point(**dict.fromkeys(Point._fields, 1))  # type: ignore[arg-type]
    with (
        ResultStore(path, "job", "a job") as store,
        pytest.raises(ConfigError, match=r"grid\.sqlite: cannot use the results file"),
    ):
        store.known([point])


def test_why_results_cannot_be_written_is_said(tmp_path: Path) -> None:
    """SQLite says that it is unable to open the file, and no more."""
    with pytest.raises(ConfigError, match="unable to open database file: No such file or directory"):
        ResultStore(tmp_path / "absent" / "grid.sqlite", "job", "a job")
    with pytest.raises(ConfigError, match="unable to open database file: Is a directory"):
        ResultStore(tmp_path, "job", "a job")


def test_results_without_a_word_of_whose_they_are(tmp_path: Path) -> None:
    path = tmp_path / "grid.sqlite"
    ResultStore(path, "job", "a job").close()
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM about")
        file.execute("CREATE TRIGGER none BEFORE INSERT ON about BEGIN SELECT RAISE(IGNORE); END")
    file.close()
    with pytest.raises(ConfigError, match=r"another format.*got nothing"):
        ResultStore(path, "job", "a job")


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE songs (name TEXT)")
    file.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"database of another program.*songs"):
        ResultStore(path, "job", "a job")
    assert path.read_bytes() == before

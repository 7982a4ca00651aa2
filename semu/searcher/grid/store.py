"""``ResultStore``: results of configurations in an SQLite file, so that a grid that was interrupted goes on.

Several processes may use one file: it is written ahead (WAL), who comes second waits, and a result that is there
already stays. Rows are keyed by a hash of all that they depend on.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from semu.errors import ConfigError
from semu.searcher.grid.content import point_hash
from semu.searcher.grid.evaluate_points import Outcome
from semu.searcher.grid.space import Point
from semu.simulation.results.estimated import Metrics

FORMAT = "semu grid 2"
BUSY_S = 60.0
"""How long a process waits for another one that is writing [s]."""
_AT_ONCE = 500
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY, point TEXT NOT NULL, iteration_time_s REAL, mfu REAL, bubble_ratio REAL,
    peak_memory_bytes INTEGER, held_bytes INTEGER, refusal TEXT NOT NULL
);
"""


def _why_not(path: Path) -> str:
    """Why a file cannot be opened to be written to, in the system's words; "" where it can."""
    was_there = path.exists()
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        return f": {error.strerror}"
    if not was_there:
        path.unlink(missing_ok=True)
    return ""


class ResultStore:
    """A file of results of one job.

    Args:
        path: the file; it is made where it is not there. job_hash: see ``content_hash``. label: names the job.
    Raises:
        ConfigError: another file, or one with the results of another job, which is named.
    """

    def __init__(self, path: str | Path, job_hash: str, label: str) -> None:
        self.path, self._hash = Path(path), job_hash
        try:
            self._file = sqlite3.connect(self.path, timeout=BUSY_S)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        try:
            self._open(label)
        except BaseException:
            self._file.close()
            raise

    def _open(self, label: str) -> None:
        try:
            names = "SELECT name FROM sqlite_master WHERE type = 'table'"
            if others := sorted({name for (name,) in self._file.execute(names)} - {"about", "results"}):
                raise ConfigError(
                    "the database of another program", where=str(self.path), expected="a new name", got=others[0]
                )
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.executescript(_TABLES)
            with self._file:
                self._file.executemany(
                    "INSERT OR IGNORE INTO about VALUES (?, ?)",
                    [("format", FORMAT), ("job", self._hash), ("label", label)],
                )
            about = dict(self._file.execute("SELECT name, value FROM about"))
        except sqlite3.Error as error:
            raise self._unreadable(error) from error
        form, job, whose = (str(about.get(name, "nothing")) for name in ("format", "job", "label"))
        if form != FORMAT:
            raise ConfigError("results in another format", where=str(self.path), expected=FORMAT, got=form)
        if job != self._hash:
            raise ConfigError(
                f"the file holds results of another job: {whose}",
                where=str(self.path),
                expected=f"a new file, or one of {label}",
                got=f"{whose} (job {job[:12]}, this one is {self._hash[:12]})",
            )

    def _unreadable(self, error: sqlite3.Error) -> ConfigError:
        why = _why_not(self.path) if "unable to open" in str(error) else ""  # SQLite does not say
        return ConfigError(
            f"cannot use the results file: {error}{why}", where=str(self.path), expected="an SQLite file, or a new name"
        )

    def known(self, points: Sequence[Point]) -> dict[Point, Outcome]:
        """The stored results among some configurations.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            return self._known(points)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _known(self, points: Sequence[Point]) -> dict[Point, Outcome]:
        found: dict[Point, Outcome] = {}
        keys = {point_hash(self._hash, point): point for point in points}
        names = list(keys)
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            marks = ",".join("?" * len(some))
            for key, *figures, held, refusal in self._file.execute(
                "SELECT key, iteration_time_s, mfu, bubble_ratio, peak_memory_bytes, held_bytes, refusal FROM results "
                f"WHERE key IN ({marks})",
                some,
            ):
                own = Metrics(*figures) if figures[0] is not None else None
                found[keys[key]] = Outcome(keys[key], own, refusal, held)
        return found

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Keep results; what is there already stays.

        Raises:
            ConfigError: the file cannot be written.
        """
        rows = [
            (point_hash(self._hash, point), repr(tuple(point)), *(figures or (None,) * 4), held, refusal)
            for point, figures, refusal, held in outcomes
        ]
        try:
            with self._file:
                self._file.executemany("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Write what is left to the file itself."""
        with suppress(sqlite3.Error):
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

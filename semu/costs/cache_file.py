"""``CacheFile``: the file of a ``ResultCache``, an SQLite database that processes share.

The file is opened for each call and closed again, so that it may be deleted, replaced or forked away from at any
moment. There is no journal and no sync beside it: a row proves itself by a checksum over key, shape and value, and a
database that is not sound is made anew. Nothing here raises: what cannot be read is not known, and is said once.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

import semu
from semu import memo

if TYPE_CHECKING:
    import sqlite3

Words = NDArray[np.int64]
_Result = TypeVar("_Result")

FILE_NAME = "semu-results.sqlite"
"""Name within a folder."""
APPLICATION_ID = 0x73656D75
"""In the header of every cache of ours: "semu"."""
FORMAT = 1
MAX_BYTES = 1 << 30
"""A file of this size takes no more results."""
PATIENCE_S = 5.0
"""How long to wait for another process that writes."""

_PAGE_BYTES = 4096
_PER_QUERY = 500
# Primary codes of SQLite that speak of the surroundings, not of the file: busy, locked, no memory, read-only,
# interrupted, input or output, full, cannot open, permission, large files, authorization.
_SURROUNDINGS = frozenset((3, 5, 6, 7, 8, 9, 10, 13, 14, 22, 23))
_READ_ONLY, _FULL, _SHORT_READ = 8, 13, 522


class _Found(Enum):
    """What is at the path."""

    NOTHING = "nothing"
    EMPTY = "an empty file"
    OURS = "a cache"
    FOREIGN = "something else"


class _Stale(Exception):
    """A cache of another version."""


class CacheFile:
    """Results in a file.

    Args:
        path: the file, or a folder for it. warn: called at most once, with a sentence.
    """

    def __init__(self, path: str | os.PathLike[str], warn: Callable[[str], None]) -> None:
        place = os.path.expanduser(path)
        has_suffix = bool(os.path.splitext(place)[1])
        is_folder = os.path.isdir(place) or place.endswith(os.sep) or not (has_suffix or os.path.exists(place))
        self.path = Path(os.path.realpath(os.path.join(place, FILE_NAME) if is_folder else place))
        self._warn = warn
        self._is_named_by_us = is_folder
        self._said = self._is_off = self._is_read_only = False

    def read(self, queries: Sequence[tuple[bytes, Words]]) -> list[tuple[Words, Words]]:
        """Per key: the shapes that are known, and their words."""
        known = self._attempt(lambda database: [self._select(database, *query) for query in queries], creates=False)
        return known if known is not None else [(shapes[:0], shapes[:0]) for _, shapes in queries]

    def write(self, records: Sequence[tuple[bytes, Words, Words]]) -> None:
        """Add results, all or none."""
        if records and not self._is_read_only:
            self._attempt(lambda database: self._insert(database, records), creates=True)

    def _select(self, database: sqlite3.Connection, key: bytes, shapes: Words) -> tuple[Words, Words]:
        most = 2 * len(shapes) + _PER_QUERY  # a key with few others beside those wanted is read whole
        rows = database.execute("SELECT shape, value FROM result WHERE key = ? LIMIT ?", (key, most)).fetchall()
        if len(rows) == most:
            rows, wanted = [], _blobs(shapes)
            for first in range(0, len(wanted), _PER_QUERY):
                part = wanted[first : first + _PER_QUERY]
                marks = ",".join("?" * len(part))
                question = f"SELECT shape, value FROM result WHERE key = ? AND shape IN ({marks})"
                rows += database.execute(question, (key, *part))
        known, words = _parse(rows, shapes.shape[1])
        is_right = _checksums(key, known, words[:, :-1]) == words[:, -1] if len(words) else np.zeros(0, dtype=np.bool_)
        if int(is_right.sum()) < len(rows):
            self._say(f"some results in the cache {self.path} are damaged; they are computed again")
        return known[is_right], words[is_right, :-1]

    @staticmethod
    def _insert(database: sqlite3.Connection, records: Sequence[tuple[bytes, Words, Words]]) -> None:
        database.execute("BEGIN IMMEDIATE")
        for key, shapes, values in records:
            words = np.concatenate((values, _checksums(key, shapes, values)[:, None]), axis=1)
            rows = zip(repeat(key), _blobs(shapes), _blobs(words))
            database.executemany("INSERT OR REPLACE INTO result VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")

    def _attempt(self, work: Callable[[sqlite3.Connection], _Result], *, creates: bool) -> _Result | None:
        """Work on the opened file, made anew where it must be; None: there is no such file, or it cannot be used."""
        import sqlite3

        for _ in range(3):
            if self._is_off:
                return None
            try:
                found = self._look()
                if found is _Found.NOTHING and not creates:
                    return None
                if found is _Found.FOREIGN and self._is_named_by_us and self.path.is_file():
                    self._make(found)  # in a folder for caches, under our name: its header is damaged
                    self._say(f"the cache {self.path} was damaged and has been made anew")
                    continue
                if found is _Found.FOREIGN:
                    self._stop("is not a cache of semu and is left alone")
                    return None
                if found is not _Found.OURS:
                    self._make(found)
                with closing(self._open()) as database:
                    return work(database)
            except (_Stale, sqlite3.Error, UnicodeDecodeError, OSError) as error:  # a damaged schema in a message
                self._recover(error)
                if self._is_read_only:
                    return None
        self._stop("cannot be made or kept")
        return None

    def _recover(self, error: Exception) -> None:
        """Make a stale or damaged file anew; give up where the surroundings are in the way."""
        import sqlite3

        code = getattr(error, "sqlite_errorcode", None)
        primary = code & 0xFF if code is not None else None
        why = "of another version" if isinstance(error, _Stale) else f"damaged ({error})"
        try:
            found = self._look()
            if found is not _Found.OURS:  # deleted or replaced meanwhile
                return
            if primary in (_READ_ONLY, _FULL):
                self._is_read_only = True
                self._say(f"the cache {self.path} takes no new results ({error})")
            elif isinstance(error, OSError) or (primary in _SURROUNDINGS and code != _SHORT_READ):
                self._stop(f"cannot be used ({error})")
            else:
                self._make(found)
                self._say(f"the cache {self.path} was {why} and has been made anew")
        except (sqlite3.Error, OSError) as reason:
            self._stop(
                f"cannot be used ({reason})" if reason is error else f"is {why} and cannot be made anew ({reason})"
            )

    def _look(self) -> _Found:
        """What is at the path; an SQLite file begins with its name and has the application's number at byte 68."""
        try:
            status = os.stat(self.path)
            if not stat.S_ISREG(status.st_mode):
                return _Found.FOREIGN
            if status.st_size == 0:
                return _Found.EMPTY
            with open(self.path, "rb") as file:
                head = file.read(72)
        except FileNotFoundError:
            return _Found.NOTHING
        is_ours = head[:16] == b"SQLite format 3\0" and head[68:] == APPLICATION_ID.to_bytes(4, "big")
        return _Found.OURS if is_ours else _Found.FOREIGN

    def _make(self, found: _Found) -> None:
        """Put an empty cache at the path, whole from the first moment; what is there is ours, or empty."""
        import sqlite3

        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f"{self.path.name}.{os.urandom(8).hex()}.new")
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as database:
                database.executescript(
                    f"PRAGMA page_size = {_PAGE_BYTES}; PRAGMA application_id = {APPLICATION_ID};"
                    "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; BEGIN;"
                    "CREATE TABLE meta (version BLOB NOT NULL);"
                    "CREATE TABLE result (key BLOB NOT NULL, shape BLOB NOT NULL, value BLOB NOT NULL,"
                    " PRIMARY KEY (key, shape)) WITHOUT ROWID;"
                )
                database.execute("INSERT INTO meta VALUES (?)", (results_version(),))
                database.execute("COMMIT")
            self._place(draft, found)
        finally:
            draft.unlink(missing_ok=True)

    def _place(self, draft: Path, found: _Found) -> None:
        """Put the draft where nothing, or what was found, is; of processes that begin at once the first one's stays."""
        if self._look() is not found:
            return
        if found is _Found.NOTHING:
            try:
                os.link(draft, self.path)
            except FileExistsError:
                return
            except OSError:  # a file system without links
                os.replace(draft, self.path)
        else:
            os.replace(draft, self.path)

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        address = f"{self.path.as_uri()}?mode=rw"  # an existing file: sqlite3 would make one that is not a cache
        database = sqlite3.connect(address, uri=True, timeout=PATIENCE_S, isolation_level=None)
        try:
            database.text_factory = bytes
            database.execute("PRAGMA journal_mode = MEMORY")
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA cell_size_check = ON")
            database.execute(f"PRAGMA max_page_count = {MAX_BYTES // _PAGE_BYTES}")
            if database.execute("SELECT version FROM meta").fetchall() != [(results_version(),)]:
                raise _Stale
        except BaseException:
            database.close()
            raise
        return database

    def _stop(self, why: str) -> None:
        self._is_off = True
        self._say(f"the cache {self.path} {why}; results are kept in memory only")

    def _say(self, message: str) -> None:
        if not self._said:
            self._said = True
            self._warn(message)


@memo.remembered(1)
def results_version() -> bytes:
    """Format of the file, version of semu, and hash of the code that results come from (in a checkout it changes)."""
    package = Path(__file__).parents[1]
    patterns = ("compile/*.py", "costs/*.py", "engine/*.py", "graph/dim.py", "units.py")
    files = [file for pattern in patterns for file in sorted(package.glob(pattern))]
    code = blake2b(b"\0".join(file.read_bytes() for file in files), digest_size=16)
    return f"{FORMAT} {semu.__version__} {code.hexdigest()}".encode()


def _checksums(key: bytes, shapes: Words, values: Words) -> NDArray[np.int64]:
    """A checksum of each result: int64[num_shapes]."""
    content = blake2b(key + f" {shapes.shape[1]} {values.shape[1]}".encode(), digest_size=8)
    seed = int.from_bytes(content.digest(), "little")
    return row_hash(np.concatenate((shapes, values), axis=1), seed).view(np.int64)


def _blobs(rows: Words) -> list[bytes]:
    """The bytes of each row; rows in order give bytes in order, which SQLite takes fastest."""
    size = 8 * rows.shape[1]
    whole = rows.astype(">i8").tobytes()
    return [whole[i * size : (i + 1) * size] for i in range(len(rows))]


def _parse(rows: list[tuple[bytes, bytes]], num_symbols: int) -> tuple[Words, Words]:
    """Shapes and words of rows whose lengths are right: int64[n, num_symbols], int64[n, width + 1]."""
    lengths = Counter((_length(shape), _length(value)) for shape, value in rows)
    right = [pair for pair in lengths if pair[0] == 8 * num_symbols and pair[1] > 0 and pair[1] % 8 == 0]
    usual = max(right, key=lambda pair: lengths[pair], default=None)
    if usual is None:
        return np.zeros((0, num_symbols), dtype=np.int64), np.zeros((0, 0), dtype=np.int64)
    if len(lengths) > 1:
        rows = [(shape, value) for shape, value in rows if (_length(shape), _length(value)) == usual]
    shapes, words = (np.frombuffer(b"".join(part), dtype=">i8") for part in zip(*rows, strict=True))
    return (
        shapes.reshape(len(rows), num_symbols).astype(np.int64),
        words.reshape(len(rows), usual[1] // 8).astype(np.int64),
    )


def _length(blob: object) -> int:
    """Length of a blob, -1 for what a damaged row may hold instead."""
    return len(blob) if isinstance(blob, bytes) else -1


def row_hash(rows: Words, seed: int = 0) -> NDArray[np.uint64]:
    """A 64-bit hash of each row: uint64[num_rows]; rows that differ in one word never have the same.

    Args:
        rows: int64[num_rows, num_words]. seed: 64 bits.
    Source:
        The steps are those of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), each of them invertible.
    """
    result = np.full(len(rows), seed & (2**64 - 1), dtype=np.uint64)
    for column in rows.T:
        result ^= column.view(np.uint64)
        result += np.uint64(0x9E3779B97F4A7C15)
        result ^= result >> np.uint64(30)
        result *= np.uint64(0xBF58476D1CE4E5B9)
        result ^= result >> np.uint64(27)
        result *= np.uint64(0x94D049BB133111EB)
        result ^= result >> np.uint64(31)
    return result

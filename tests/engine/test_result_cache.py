"""The result cache: what it gives back is what was stored, whatever happens to its file."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from semu.costs import cache_file
from semu.costs.cache_file import APPLICATION_ID, FILE_NAME, row_hash
from semu.costs.result_cache import ResultCache, ResultTable

ROOT = Path(__file__).resolve().parents[2]
WORDS = st.integers(-(2**63), 2**63 - 1)


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


def shapes_of(numbers: range | list[int]) -> np.ndarray:
    return np.array([[number, number * number] for number in numbers], dtype=np.int64).reshape(-1, 2)


def values_of(key: int, numbers: range | list[int]) -> np.ndarray:
    """What the result is: any 64 bits, some of them NaNs and infinities."""
    random = [np.random.default_rng((key, number)).integers(-(2**63), 2**63 - 1, 5) for number in numbers]
    return np.array(random, dtype=np.int64).reshape(-1, 5)


def store(cache: ResultCache, key: int, numbers: range | list[int]) -> None:
    cache.store([(key_of(key), shapes_of(numbers), values_of(key, numbers))])


def known(cache: ResultCache, key: int, numbers: range | list[int]) -> list[int]:
    """Which results the cache has; they must be right."""
    found, values = cache.lookup([(key_of(key), shapes_of(numbers))])[0]
    have = [number for number, is_found in zip(numbers, found.tolist(), strict=True) if is_found]
    assert values.tolist() == values_of(key, have).tolist() or not have
    assert len(values) == len(have)
    return have


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


# -- in memory --------------------------------------------------------------------------------------------------------
@given(data=st.data())
def test_what_is_found_is_what_was_stored(data: st.DataObject) -> None:
    """Several stores of overlapping shapes; a dictionary says what must come back."""
    cache, expected = ResultCache(), dict[tuple[int, ...], list[int]]()
    num_symbols = data.draw(st.integers(0, 3))
    small = st.integers(-2, 2)
    for _ in range(data.draw(st.integers(0, 4))):
        rows = data.draw(st.lists(st.tuples(*[small] * num_symbols), unique=True, max_size=8))
        shapes = np.array(rows, dtype=np.int64).reshape(len(rows), num_symbols)
        values = data.draw(arrays(np.int64, (len(rows), 3), elements=WORDS))
        cache.store([(b"key", shapes, values)])
        for row, words in zip(rows, values.tolist(), strict=True):
            expected.setdefault(row, words)
    rows = data.draw(st.lists(st.tuples(*[small] * num_symbols), unique=True, max_size=12))
    ((found, values),) = cache.lookup([(b"key", np.array(rows, dtype=np.int64).reshape(len(rows), num_symbols))])
    assert found.tolist() == [row in expected for row in rows]
    assert values.tolist() == [expected[row] for row in rows if row in expected]
    assert (cache.hits, cache.misses) == (int(found.sum()), int((~found).sum()))
    assert not cache.lookup([(b"other", np.zeros((1, num_symbols), dtype=np.int64))])[0][0].any()


def test_two_shapes_with_one_hash_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semu.costs.result_cache.row_hash", lambda rows, seed=0: np.zeros(len(rows), dtype=np.uint64))
    cache = ResultCache()
    store(cache, 0, range(4))
    store(cache, 0, range(2, 8))
    assert known(cache, 0, range(10)) == [0]


@given(arrays(np.int64, (2, 4), elements=WORDS), st.integers(0, 3), WORDS)
def test_rows_that_differ_in_one_word_have_other_hashes(rows: np.ndarray, column: int, word: int) -> None:
    rows[1] = rows[0]
    rows[1, column] = word
    one, other = row_hash(rows, 7).tolist()
    assert (one == other) == (rows[0, column] == word)
    assert row_hash(rows[:1], 8)[0] != one


def test_memory_is_bounded_and_the_least_used_keys_go_first() -> None:
    cache = ResultCache(max_rows=10)
    for key in range(3):
        store(cache, key, range(3))
    assert known(cache, 0, range(3)) == [0, 1, 2]
    store(cache, 3, range(4))
    assert [len(known(cache, key, range(4))) for key in (0, 1, 2, 3)] == [3, 0, 3, 4]
    store(cache, 4, range(11))
    assert [len(known(cache, key, range(11))) for key in range(5)] == [0] * 5
    nothing = ResultCache(max_rows=0)
    store(nothing, 0, range(3))
    assert known(nothing, 0, range(3)) == []


def test_a_table_grows_in_place() -> None:
    table = ResultTable(shapes_of(range(0)), values_of(0, range(0)))
    random = np.random.default_rng(0)
    have: set[int] = set()
    for _ in range(20):
        numbers = random.choice(200, 15, replace=False).tolist()
        assert table.add(shapes_of(numbers), values_of(0, numbers)) == len(set(numbers) - have)
        have |= set(numbers)
    place = table.find(shapes_of(range(200)))
    assert set(np.flatnonzero(place >= 0).tolist()) == have
    assert (table.shapes[place[place >= 0]] == shapes_of(sorted(have))).all()


@pytest.mark.parametrize("on_disk", [False, True])
def test_threads_share_a_cache(path: Path, on_disk: bool) -> None:
    cache = ResultCache(path if on_disk else None, max_rows=200)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(15):
                key, numbers = int(random.integers(4)), random.choice(60, 20, replace=False).tolist()
                known(cache, key, numbers)
                store(cache, key, numbers)
                if on_disk:
                    assert known(cache, key, numbers) == numbers
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# -- on disk ----------------------------------------------------------------------------------------------------------
@given(values=arrays(np.int64, (3, 4), elements=WORDS), shapes=arrays(np.int64, (3, 2), elements=WORDS, unique=True))
def test_bits_survive_the_file(values: np.ndarray, shapes: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ResultCache(folder).store([(b"key", shapes, values)])
        found, back = ResultCache(folder).lookup([(b"key", shapes)])[0]
        assert found.all()
        assert back.tolist() == values.tolist()


def test_results_without_symbols_survive_the_file(path: Path) -> None:
    none = np.zeros((1, 0), dtype=np.int64)
    ResultCache(path).store([(b"key", none, values_of(0, [0]))])
    found, values = ResultCache(path).lookup([(b"key", none)])[0]
    assert found.tolist() == [True]
    assert values.tolist() == values_of(0, [0]).tolist()


@pytest.mark.parametrize("wanted", [range(20), range(0, 3000, 3), range(2990, 3010)], ids=["few", "many", "some"])
def test_a_key_with_more_results_than_are_wanted(path: Path, wanted: range) -> None:
    store(ResultCache(path), 0, range(3000))
    store(ResultCache(path), 1, range(10))
    assert known(ResultCache(path), 0, wanted) == [number for number in wanted if number < 3000]


def test_the_file_serves_what_memory_does_not_hold(path: Path) -> None:
    cache = ResultCache(path, max_rows=0)
    store(cache, 0, range(5))
    store(cache, 0, range(3, 9))
    assert known(cache, 0, range(12)) == list(range(9))


def test_a_folder_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for given_path, file in (
        (tmp_path / "folder", tmp_path / "folder" / FILE_NAME),
        (tmp_path / "new" / "folder", tmp_path / "new" / "folder" / FILE_NAME),
        (f"{tmp_path}/dotted.d/", tmp_path / "dotted.d" / FILE_NAME),
        (tmp_path / "else" / "results.db", tmp_path / "else" / "results.db"),
    ):
        store(ResultCache(given_path), 0, range(3))
        assert [entry.name for entry in file.parent.iterdir()] == [file.name]
        assert known(ResultCache(given_path), 0, range(3)) == [0, 1, 2]


def test_looking_up_makes_no_file(path: Path) -> None:
    assert known(ResultCache(path), 0, range(3)) == []
    assert not path.exists()


def test_the_file_may_go_at_any_moment(path: Path, messages: list[str]) -> None:
    cache = ResultCache(path, max_rows=0, warn=messages.append)
    for _ in range(3):
        store(cache, 0, range(4))
        assert known(cache, 0, range(4)) == [0, 1, 2, 3]
        path.unlink()
        assert known(cache, 0, range(4)) == []
    path.touch()
    assert known(cache, 0, range(4)) == []
    store(cache, 0, range(4))
    assert known(ResultCache(path), 0, range(4)) == [0, 1, 2, 3]
    assert messages == []


def test_the_file_may_go_while_it_is_opened(path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    store(ResultCache(path), 0, range(4))
    connect = sqlite3.connect

    def late(*args: object, **options: object) -> sqlite3.Connection:
        monkeypatch.undo()
        path.unlink()
        return connect(*args, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", late)
    cache = ResultCache(path, warn=messages.append)
    assert known(cache, 0, range(4)) == []
    store(cache, 0, range(4))
    assert known(ResultCache(path), 0, range(4)) == [0, 1, 2, 3]
    assert messages == []


def test_another_version_is_made_anew(path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(cache_file, "results_version", lambda: b"1 0.0.1 older")
        store(ResultCache(path), 0, range(4))
    cache = ResultCache(path, max_rows=0, warn=messages.append)
    assert known(cache, 0, range(4)) == []
    assert len(messages) == 1
    assert "another version" in messages[0]
    store(cache, 0, range(4))
    assert known(ResultCache(path), 0, range(4)) == [0, 1, 2, 3]
    assert len(messages) == 1


def test_other_code_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "__file__", str(tmp_path / "engine" / "cache_file.py"))
    version = cache_file.results_version.__wrapped__
    seen = {version()}
    for name in ("engine/kernels.py", "engine/stage.py", "graph/dim.py", "units.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        for text in ("one", "other"):
            (tmp_path / name).write_text(text)
            assert version() not in seen
            seen.add(version())
    monkeypatch.setattr("semu.__version__", "9.9.9")
    assert version() not in seen


OTHERS = {
    "text": b"Dear diary, today I trained a model.\n" * 300,
    "a byte": b"S",
    "the beginning of a database": b"SQLite format 3\0",
}


def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE result (key, shape, value)")
        database.commit()


@pytest.mark.parametrize("name", [*OTHERS, "another program's database"])
def test_a_file_of_somebody_else_is_left_alone(path: Path, messages: list[str], name: str) -> None:
    if name in OTHERS:
        path.write_bytes(OTHERS[name])
    else:
        other_database(path)
    content = path.read_bytes()
    cache = ResultCache(path, warn=messages.append)
    assert known(cache, 0, range(4)) == []
    store(cache, 0, range(4))
    assert known(cache, 0, range(4)) == [0, 1, 2, 3]
    assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert len(messages) == 1
    assert str(path) in messages[0]
    assert "left alone" in messages[0]


def test_what_is_no_file_is_left_alone(tmp_path: Path, messages: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe.sqlite")
    cache = ResultCache(tmp_path / "pipe.sqlite", warn=messages.append)
    store(cache, 0, range(4))
    assert known(cache, 0, range(4)) == [0, 1, 2, 3]
    assert stat.S_ISFIFO((tmp_path / "pipe.sqlite").stat().st_mode)
    assert len(messages) == 1


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "real.sqlite")
    store(ResultCache(tmp_path / "link.sqlite"), 0, range(4))
    assert (tmp_path / "link.sqlite").is_symlink()
    assert known(ResultCache(tmp_path / "real.sqlite"), 0, range(4)) == [0, 1, 2, 3]


# -- damage -----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def sound() -> bytes:
    """A cache of three keys on a few dozen pages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.sqlite"
        for key in range(3):
            store(ResultCache(path), key, range(300))
        return path.read_bytes()


PATCHES = st.lists(st.tuples(st.integers(0, 2**31), st.binary(min_size=1, max_size=60)), max_size=4)


@pytest.mark.slow
@given(patches=PATCHES, cut=st.none() | st.integers(0, 2**31), holes=st.lists(st.integers(0, 100), max_size=3))
def test_damage_is_never_a_result(
    sound: bytes, patches: list[tuple[int, bytes]], cut: int | None, holes: list[int]
) -> None:
    """Bytes changed, pages zeroed, the end cut off: results are right or not there, and a file of ours is mended."""
    content = bytearray(sound)
    for place, patch in patches:
        start = place % len(sound)
        content[start : start + len(patch)] = patch[: len(sound) - start]
    for page in holes:
        start = 4096 * page % len(sound)
        content[start : start + 4096] = bytes(4096)
    del content[len(sound) if cut is None else cut % len(sound) :]
    is_ours = content[:16] == sound[:16] and content[68:72] == sound[68:72]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.sqlite"
        path.write_bytes(content)
        messages: list[str] = []
        cache = ResultCache(path, max_rows=0, warn=messages.append)
        for key in range(3):
            known(cache, key, range(300))
        for key in range(3):
            store(cache, key, range(300))
            known(cache, key, range(300))
        assert len(messages) <= 1
        if content and not is_ours:
            assert path.read_bytes() == content
        else:
            assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")
        assert not [entry.name for entry in path.parent.iterdir() if entry.name.endswith(".new")]


def test_a_damaged_tree_is_made_anew(path: Path, sound: bytes, messages: list[str]) -> None:
    path.write_bytes(sound[:4096] + b"\xff" * 8192 + sound[3 * 4096 :])
    cache = ResultCache(path, max_rows=0, warn=messages.append)
    for key in range(3):
        known(cache, key, range(300))
        store(cache, key, range(300))
    for key in range(3):
        assert known(ResultCache(path), key, range(300)) == list(range(300))
    assert len(messages) == 1
    assert "made anew" in messages[0]


def test_a_damaged_schema_is_made_anew(path: Path, sound: bytes, messages: list[str]) -> None:
    """SQLite then quotes it in a message that is no text."""
    path.write_bytes(sound.replace(b"NOT NULL", b"NOT N\xffLL", 1))
    cache = ResultCache(path, max_rows=0, warn=messages.append)
    store(cache, 0, range(5))
    assert known(cache, 0, range(5)) == [0, 1, 2, 3, 4]
    assert len(messages) == 1
    assert "made anew" in messages[0]


DAMAGED = {
    "a changed word": "UPDATE result SET value = zeroblob(8) || substr(value, 9) WHERE key = ? AND shape = ?",
    "a cut value": "UPDATE result SET value = substr(value, 1, 17) WHERE key = ? AND shape = ?",
    "a value cut by words": "UPDATE result SET value = substr(value, 1, 16) WHERE key = ? AND shape = ?",
    "an empty value": "UPDATE result SET value = x'' WHERE key = ? AND shape = ?",
    "a text": "UPDATE result SET value = CAST(hex(substr(value, 1, 24)) AS TEXT) WHERE key = ? AND shape = ?",
    "a number": "UPDATE result SET value = 7 WHERE key = ? AND shape = ?",
    "another key's value": "UPDATE result SET value = (SELECT value FROM result AS r WHERE r.key != result.key"
    " AND r.shape = result.shape) WHERE key = ? AND shape = ?",
    "another shape's value": "UPDATE result SET value = (SELECT value FROM result AS r WHERE r.key = result.key"
    " AND r.shape != result.shape LIMIT 1) WHERE key = ? AND shape = ?",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_result_is_computed_again(path: Path, messages: list[str], name: str) -> None:
    for key in range(2):
        store(ResultCache(path), key, range(5))
    with closing(sqlite3.connect(path)) as database:
        database.execute(DAMAGED[name], (key_of(0), shapes_of([3]).astype(">i8").tobytes()))
        database.commit()
    cache = ResultCache(path, warn=messages.append)
    assert known(cache, 1, range(5)) == [0, 1, 2, 3, 4]
    assert known(cache, 0, range(5)) == [0, 1, 2, 4]
    assert len(messages) == 1
    assert "damaged" in messages[0]
    store(cache, 0, [3])
    assert known(ResultCache(path), 0, range(5)) == [0, 1, 2, 3, 4]


def test_a_table_that_is_gone(path: Path, messages: list[str]) -> None:
    store(ResultCache(path), 0, range(5))
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP TABLE result")
        database.commit()
    cache = ResultCache(path, max_rows=0, warn=messages.append)
    store(cache, 0, range(5))
    assert known(cache, 0, range(5)) == [0, 1, 2, 3, 4]
    assert len(messages) == 1


# -- surroundings -----------------------------------------------------------------------------------------------------
@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder in which nothing can be written, also for root."""
    user = os.geteuid()
    modes = {entry: entry.stat().st_mode for entry in (folder, *folder.iterdir())}
    for entry in modes:
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        if user == 0:
            os.seteuid(0)
        for entry, mode in modes.items():
            entry.chmod(mode)


def test_a_folder_that_cannot_be_written(messages: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with read_only(folder):
            cache = ResultCache(folder, warn=messages.append)
            assert known(cache, 0, range(4)) == []
            assert messages == []
            for _ in range(2):
                store(cache, 0, range(4))
            assert known(cache, 0, range(4)) == [0, 1, 2, 3]
        assert len(messages) == 1
        assert list(folder.iterdir()) == []


def test_a_file_that_cannot_be_written_can_be_read(messages: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store(ResultCache(folder), 0, range(4))
        content = (folder / FILE_NAME).read_bytes()
        with read_only(folder):
            cache = ResultCache(folder, max_rows=0, warn=messages.append)
            assert known(cache, 0, range(6)) == [0, 1, 2, 3]
            assert messages == []
            for _ in range(2):
                store(cache, 0, range(6))
            assert known(cache, 0, range(6)) == [0, 1, 2, 3]
        assert len(messages) == 1
        assert "takes no new results" in messages[0]
        assert (folder / FILE_NAME).read_bytes() == content


def test_another_version_that_cannot_be_made_anew(messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store(ResultCache(folder), 0, range(4))
        monkeypatch.setattr(cache_file, "results_version", lambda: b"another")
        with read_only(folder):
            cache = ResultCache(folder, warn=messages.append)
            assert known(cache, 0, range(4)) == []
            store(cache, 0, range(4))
            assert known(cache, 0, range(4)) == [0, 1, 2, 3]
        assert len(messages) == 1
        assert "another version" in messages[0]


def test_a_path_below_a_file(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ResultCache(tmp_path / "file" / "cache.sqlite", warn=messages.append)
    store(cache, 0, range(4))
    assert known(cache, 0, range(4)) == [0, 1, 2, 3]
    assert len(messages) == 1


def test_a_file_that_somebody_holds(path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    store(ResultCache(path), 0, range(4))
    monkeypatch.setattr(cache_file, "PATIENCE_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        cache = ResultCache(path, warn=messages.append)
        assert known(cache, 0, range(4)) == []
        store(cache, 0, range(4))
        assert known(cache, 0, range(4)) == [0, 1, 2, 3]
    assert len(messages) == 1
    assert known(ResultCache(path), 0, range(4)) == [0, 1, 2, 3]


def test_a_full_file_keeps_what_it_has(path: Path, messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "MAX_BYTES", 40 * 4096)
    store(ResultCache(path), 0, range(100))
    cache = ResultCache(path, max_rows=0, warn=messages.append)
    store(cache, 1, range(5000))
    assert len(messages) == 1
    assert known(cache, 1, range(5000)) == []
    assert known(cache, 0, range(100)) == list(range(100))
    assert path.stat().st_size <= 40 * 4096


def test_without_a_callback_it_is_a_warning(path: Path) -> None:
    path.write_bytes(b"not a database")
    cache = ResultCache(path)
    with pytest.warns(UserWarning, match="left alone"):
        store(cache, 0, range(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store(cache, 1, range(4))


# -- processes --------------------------------------------------------------------------------------------------------
WORKER = """
import sys
import engine.test_result_cache as t
path, seed = sys.argv[1], int(sys.argv[2])
for turn in range(12):
    cache = t.ResultCache(path, max_rows=0, warn=lambda message: sys.exit(message))
    numbers = list(range(40 * turn, 40 * turn + 60))
    for key in range(3):
        t.known(cache, key, numbers)
        t.store(cache, key, numbers[seed::2])
        assert t.known(cache, key, numbers[seed::2]) == numbers[seed::2]
"""


@pytest.mark.multiprocess
def test_processes_share_a_file(path: Path) -> None:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths}
    commands = [[sys.executable, "-c", WORKER, str(path), str(number % 2)] for number in range(4)]
    running = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=ROOT) for command in commands
    ]
    for process in running:
        assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)
    for key in range(3):
        assert known(ResultCache(path), key, range(500)) == list(range(500))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", [b"\0\0\0\0", b"nothing like a database"])
def test_a_damaged_header_under_our_own_name_is_made_anew_and_said_once(tmp_path: Path, damage: bytes) -> None:
    said: list[str] = []
    shapes, values = np.array([[1], [2]]), np.array([[10, 11], [20, 21]])
    ResultCache(tmp_path).store([(b"key", shapes, values)])
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage + file.read_bytes()[len(damage) :])
    cache = ResultCache(tmp_path, warn=said.append)
    found, _ = cache.lookup([(b"key", shapes)])[0]
    assert not found.any()
    cache.store([(b"key", shapes, values)])
    assert len(said) == 1
    assert "made anew" in said[0]
    found, again = ResultCache(tmp_path, warn=said.append).lookup([(b"key", shapes)])[0]
    assert found.all()
    assert again.tolist() == values.tolist()
    assert len(said) == 1

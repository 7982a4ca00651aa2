"""Kernels compiled ahead of a command, what is said meanwhile, and a cache that cannot be written to."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from hashlib import sha256
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from semu import ahead
from semu.cli import console, main
from semu.dispatchers import compiler_options
from semu.kernel_table import KERNELS, NEEDS

ROOT = Path(__file__).resolve().parents[1]
SMALL = "searcher.kernels.bounds.one_machine"
CALL = "from semu.searcher.kernels.bounds import one_machine\nimport numpy as np\nones = np.ones(2)\n"


@pytest.fixture(autouse=True)
def is_compiled_ahead() -> bool:
    """As users have it."""
    return True


def run_python(code: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


# -- the table -------------------------------------------------------------------------------------------------------
def test_every_kernel_that_a_command_needs_is_in_the_table() -> None:
    assert {name for names in NEEDS.values() for name in names} == KERNELS.keys()
    assert all(len(set(names)) == len(names) for names in NEEDS.values())


CALLED = """
import contextlib, io, json, sys
import semu.dispatchers
import semu.stored
from numba.core import sigutils
from semu.cli import main
from semu.kernel_table import KERNELS
called = {}
semu.stored.read = lambda function: []
original = semu.dispatchers._Cache.load_overload
def load(self, sig, context):
    name = semu.stored.kernel_name(self._py_func)
    if not self._py_func.__name__.startswith("_"):
        called.setdefault(name, []).append(sig)
    return original(self, sig, context)
semu.dispatchers._Cache.load_overload = load
with contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[1:]) == 0
expected = {name: sigutils.normalize_signature(f"({KERNELS[name].types},)")[0] for name in called if name in KERNELS}
print(json.dumps({name: [sig == expected.get(name) for sig in sigs] for name, sigs in called.items()}))
"""
INSIDE = {"costs.kernels.quantize", "searcher.kernels.bounds._edge_find"}
"""Kernels that others call."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "lm-7b"),
        ("simulate", "vlm-s"),
        ("grid", "lm-7b", "--vary", "tp=1:2,pp=2:4"),
        ("what-if", "vlm-s"),
        ("schedules", "lm-7b"),
        ("plan", "vlm-s"),
        ("search", "vlm-s", "--rollouts", "64"),
        ("search", "lm-7b", "--rollouts", "64"),
    ],
    ids=" ".join,
)
def test_commands_call_what_the_table_says(words: tuple[str, ...], tmp_path: Path) -> None:
    words = (*words, "-o", str(tmp_path / "plan.json")) if words[0] == "plan" else words
    done = subprocess.run([sys.executable, "-c", CALLED, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    called = json.loads(done.stdout.splitlines()[-1])
    assert called.keys() - INSIDE - KERNELS.keys() == set()
    assert {name: same for name, same in called.items() if name in NEEDS[words[0]] and not all(same)} == {}


ARRAYS = """
import numpy as np
from numba.core.caching import NullCache
from semu import compiled
@compiled.kernel
def make(n, small):
    room = compiled.empty((n, small), np.int16)
    for i in range(n):
        for k in range(small):
            room[i, k] = i - k
    flags, table = compiled.zeros(n, np.bool_), compiled.zeros((n, 2, small), np.uint64)
    return compiled.zeros(n, np.float64), flags, table, room
make.dispatcher._cache = NullCache()
for n in (0, 3, 1000):
    wanted = np.zeros(n), np.zeros(n, np.bool_), np.zeros((n, 2, 4), np.uint64)
    wanted += ((np.arange(n)[:, None] - np.arange(4)).astype(np.int16),)
    for _ in range(3):  # memory that was used before
        for one, other in zip(make(n, np.int32(4)), wanted):
            assert one.dtype == other.dtype and one.shape == other.shape and one.flags.c_contiguous
            assert (one == other).all()
            one[...] = 1
print("same")
"""


def test_arrays_made_in_kernels_are_those_of_numpy() -> None:
    assert run_python(ARRAYS) == "same"


# -- ahead -----------------------------------------------------------------------------------------------------------
AHEAD = """
import json, time
from semu import ahead
ahead.NEEDS["simulate"] = ("searcher.kernels.bounds.one_machine", "schedule.kernels.memory_of_orders")
ahead._cores = lambda: 2
with ahead.compiled_ahead("simulate"):
    begun = ahead.running()
    while ahead.missing_kernels("simulate"):
        time.sleep(0.05)
    done = len(begun.names) - len(begun.left())
CALL
found = one_machine(ones, ones, ones)
stats = one_machine.stats
print(json.dumps([done, found, sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]))
""".replace("CALL\n", CALL)


def test_another_process_compiles_what_a_command_will_call(tmp_path: Path) -> None:
    done, found, hits, misses = json.loads(run_python(AHEAD, NUMBA_CACHE_DIR=str(tmp_path)))
    assert (done, found, hits, misses) == (2, 4.0, 1, 0)


class Helper:
    """A helper that is at one kernel until it is asked for."""

    def __init__(self, names: list[str], changed: object) -> None:
        self.waiting, self.at = names[1:], names[0]

    def leave(self, name: str) -> None:
        self.waiting.remove(name)

    def stop(self) -> None:
        pass


def test_while_one_kernel_is_compiled_elsewhere_others_are_compiled_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ahead, "_Helper", Helper)
    monkeypatch.setattr(ahead, "_cores", lambda: 2)
    begun = ahead.Ahead("simulate")
    (helper,) = begun._helpers
    first, *others = NEEDS["simulate"]
    compiled: list[str] = []

    def compile_here(name: str) -> None:
        assert not begun.awaited(name, compile_here)  # nobody else has it
        compiled.append(name)
        if len(compiled) == 2:
            helper.at = None  # the helper has ended

    assert begun.awaited(first, compile_here)
    assert compiled == others[:-3:-1] and helper.waiting == others[:-2]
    assert not begun.awaited("a part", compile_here)


def test_compiling_is_said_and_not_under_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ahead, "_Helper", Helper)
    monkeypatch.setattr(console, "PATIENCE_S", 0.05)
    for is_quiet in (False, True):
        monkeypatch.setattr(console.Progress, "is_quiet", is_quiet)
        with ahead.compiled_ahead("search"), console.Progress():
            time.sleep(0.2)
        told = capsys.readouterr().err
        assert (
            f"compiling kernels (first use): 0 of {len(NEEDS['search'])}, 0 s so far, about" in told
        ) is not is_quiet
    with console.Progress():
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_what_was_compiled_before_a_change_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert ahead.missing_kernels("search") == list(NEEDS["search"])
    assert ahead.missing_kernels("list") == []
    file = tmp_path / "kernels_1" / "bounds.one_machine-80.py311.nbi"
    file.parent.mkdir()
    file.touch()
    assert SMALL not in ahead.missing_kernels("search")
    other = file.with_name("bounds.one_machine-70.py311.nbi")
    other.touch()
    for old in (file, other):
        os.utime(old, (0, 0))
    assert SMALL in ahead.missing_kernels("search")
    # the source may have been copied since: what counts is what it says
    other.write_bytes(b"stamp " + sha256((ROOT / "semu/searcher/kernels/bounds.py").read_bytes()).digest())
    os.utime(other, (0, 0))
    assert SMALL not in ahead.missing_kernels("search")


CALLER = """
import sys
from pathlib import Path
import semu
from semu import ahead
semu.__path__.append(sys.argv[1])
ahead._PACKAGE = Path(sys.argv[1])
from semu.kernels.caller import call
print(call(1), 'numba' in sys.modules)
"""


def test_a_kernel_is_compiled_anew_when_a_file_that_it_calls_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "kernels"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    called = "from semu.compiled import part\n@part\ndef add(x):\n    return x + {}\n"
    (folder / "caller.py").write_text(
        "from semu.compiled import kernel\nfrom semu.kernels.called import add\n"
        "@kernel\ndef call(x):\n    return add(x)\n"
    )
    said = []
    for number in (1, 1, 2):
        (folder / "called.py").write_text(called.format(number))
        code = CALLER.replace("sys.argv[1]", repr(str(tmp_path / "source")))
        said.append(run_python(code, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1"))
    assert said == ["2 True", "2 False", "3 True"]


def test_every_file_whose_kernels_a_kernel_calls_is_found() -> None:
    called = 0
    for name in KERNELS:
        module = import_module(f"semu.{name.rpartition('.')[0]}")
        files = {
            Path(found.py_func.__code__.co_filename)
            for found in vars(module).values()
            if hasattr(found, "py_func") and found.py_func.__module__ != module.__name__
        }
        called += len(files)
        assert files <= set(ahead.kernel_sources(Path(str(module.__file__)))), name
    assert called > 5


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def test_constants_of_kernels_stand_in_files_that_are_looked_at() -> None:
    """A kernel is compiled with the values of its constants."""
    used = 0
    for module in {import_module(f"semu.{name.rpartition('.')[0]}") for name in KERNELS}:
        sources = ahead.kernel_sources(Path(str(module.__file__)))
        trees = [ast.parse(source.read_text(encoding="utf-8")) for source in sources]
        written = {one.id for tree in trees for one in ast.walk(tree) if isinstance(one, ast.Name) and _is_set(one)}
        functions = [found.py_func for found in vars(module).values() if hasattr(found, "py_func")]
        for name in {name for function in functions for name in function.__code__.co_names}:
            if isinstance(vars(module).get(name), int | float | tuple | np.generic):
                used += 1
                assert name in written, f"{module.__name__} uses {name}"
    assert used > 5


# -- a cache that cannot be written to -------------------------------------------------------------------------------
TROUBLE = f"from semu import ahead\n{CALL}print(one_machine(ones, ones, ones), ahead.trouble())"


@pytest.mark.parametrize("kind", ["a file", "of the system"])
def test_a_folder_that_cannot_be_made(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file" / "x") if kind == "a file" else "/proc/semu"
    code = "import numba.core.caching as c\nc.CacheImpl._locator_classes = c.CacheImpl._locator_classes[:1]\n" + TROUBLE
    assert run_python(code, NUMBA_CACHE_DIR=place) == "4.0 no folder for compiled kernels can be written to"


def test_a_full_disk(tmp_path: Path) -> None:
    full = (
        "import errno, os, numba.core.caching as c\n"
        "def write(self, path): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))\n"
        "c.IndexDataCacheFile._open_for_write = write\n"
    )
    said = run_python(full + TROUBLE, NUMBA_CACHE_DIR=str(tmp_path))
    assert said.startswith("4.0 cannot write to ") and said.endswith("No space left on device")
    assert not list(tmp_path.rglob("*.nb*"))


def test_what_was_kept_and_cannot_be_read(tmp_path: Path) -> None:
    assert run_python(TROUBLE, NUMBA_CACHE_DIR=str(tmp_path)) == "4.0 None"
    (file,) = tmp_path.rglob("*.nbi")
    file.write_bytes(b"")
    (stored,) = tmp_path.rglob("*.kernel")
    stored.unlink()
    assert run_python(TROUBLE, NUMBA_CACHE_DIR=str(tmp_path)).startswith("4.0 cannot read ")


def test_the_command_says_once_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ahead, "_trouble", [])
    ahead.report_trouble("cannot write to /x: No space left on device")
    ahead.report_trouble("another")
    assert main(["list", "schedules"]) == 0
    assert capsys.readouterr().err == (
        "semu: cannot write to /x: No space left on device: kernels are compiled anew by every process; "
        "set NUMBA_CACHE_DIR to another folder\n"
    )


# -- numba's compiler with shortcuts ---------------------------------------------------------------------------------
SHORTCUTS = """
import numba
from numba.core.types.functions import BaseFunction
from numba.core.targetconfig import TargetConfig
from semu.compiled import kernel, part
kept = BaseFunction.get_call_type, TargetConfig.__eq__, TargetConfig.__hash__
@part
def halve(a):
    return max(a, 0) / 2
@kernel
def both(a, b):
    return halve(a) / halve(b)
found = both(3.0, 4.0) == both(6, 8) == 0.75
try:
    both(1.0, 0.0)
except ZeroDivisionError:
    found += 1
emitted = [code.library._is_emitted for code in (*both.overloads.values(), *halve.overloads.values())]
is_restored = kept == (BaseFunction.get_call_type, TargetConfig.__eq__, TargetConfig.__hash__)
print(found, emitted, is_restored, numba.njit(lambda a: a + 1)(2.0))
"""


def test_only_what_python_calls_is_machine_code_and_numba_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "kernels_of_a_test.py"  # numba's cache asks for a file
    file.write_text(SHORTCUTS)
    code = f"import runpy; runpy.run_path({str(file)!r})"
    found = run_python(code, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_DISABLE_JIT="0")
    assert found == "2 [True, True, False, False] True 3.0"


def test_shortcuts_are_taken_in_versions_of_numba_that_they_were_tried_with() -> None:
    taken = [set(compiler_options(version)) for version in ((0, 60), (0, 61), (0, 68), (0, 69), (1, 0))]
    assert taken == [set(), {"pipeline_class"}, {"pipeline_class"}, set(), set()]

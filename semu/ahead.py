"""``ahead``: kernels compiled before they are called, by other processes at the same time; how far that is.

A command knows which kernels it will call (``NEEDS``). Where numba's cache lacks some of them and there is a core to
spare, helpers (``python -m semu.compiled``) compile them in the order in which they will be called, while the command
imports, reads and traces. When the command calls a kernel that a helper is at, it compiles one of those to come
meanwhile; one that nobody has begun it compiles itself. Results meet in numba's cache on disk.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from semu.kernel_table import KERNELS, NEEDS

_PACKAGE = Path(__file__).resolve().parent
_MOST_HELPERS = 3
_CONSTANTS = "units"
"""The only file beside those of kernels whose constants kernels use."""
_KERNEL_IMPORT = re.compile(rf"^from semu\.((?:\w+\.)*kernels\.\w+|{_CONSTANTS}) import", re.MULTILINE)
_trouble: list[str] = []
WRITING = threading.Lock()
"""Held while what was compiled is written to the cache."""


def report_trouble(text: str) -> None:
    """Note why compiled kernels cannot be kept; the first reason counts."""
    if not _trouble:
        _trouble.append(text)


def trouble() -> str | None:
    """Why compiled kernels could not be kept, in this process."""
    return _trouble[0] if _trouble else None


def cache_folder() -> Path:
    """Where numba keeps compiled kernels: ``NUMBA_CACHE_DIR``, the package, or the user's cache."""
    if own := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(own)
    if os.access(_PACKAGE, os.W_OK):
        return _PACKAGE
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"


def missing_kernels(command: str) -> list[str]:
    """Kernels that a command needs and that the cache lacks, in the order in which they are called.

    An index of numba's cache holds the SHA-256 of the source that was compiled (numba 0.68; before, its time); one
    without that of today's source counts where it is younger than the source.
    """
    needed = NEEDS.get(command, ())
    kept: dict[str, list[Path]] = {}
    with suppress(OSError):
        for file in cache_folder().rglob("*.nbi") if needed else ():
            kept.setdefault(file.name.partition("-")[0], []).append(file)
    return [
        name for name in needed if not any(_is_of(file, name) for file in kept.get(".".join(name.split(".")[-2:]), ()))
    ]


def kernel_sources(source: Path) -> list[Path]:
    """A file of kernels, and the files whose kernels and constants it uses by what it imports: the file itself
    first."""
    found = [source]
    for path in found:
        with suppress(OSError):
            for name in _KERNEL_IMPORT.findall(path.read_text(encoding="utf-8")):
                called = _PACKAGE.joinpath(*name.split(".")).with_suffix(".py")
                if called not in found:
                    found.append(called)
    return found


def _is_of(index: Path, name: str) -> bool:
    """Whether an index of numba's cache is of a kernel's source as it is now."""
    *folders, module, _function = name.split(".")
    with suppress(OSError):
        kept, age = index.read_bytes(), index.stat().st_mtime
        return all(
            sha256(source.read_bytes()).digest() in kept or age >= source.stat().st_mtime
            for source in kernel_sources(_PACKAGE.joinpath(*folders, f"{module}.py"))
        )
    return False


class _Helper:
    """A process that compiles kernels, one after another."""

    def __init__(self, names: Sequence[str], changed: threading.Condition) -> None:
        self.waiting = list(names)
        self.at: str | None = None
        self._changed = changed
        path = os.pathsep.join(filter(None, (str(_PACKAGE.parent), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "semu.compiled", *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="semu-ahead", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, name = line.strip().partition(" ")
            with self._changed:
                self.at = name if word == "begin" else None
                if name in self.waiting:
                    self.waiting.remove(name)
                self._changed.notify_all()
        with self._changed:
            self.at, self.waiting = None, []
            self._changed.notify_all()

    def leave(self, name: str) -> None:
        """Have the process not compile a kernel."""
        assert self._process.stdin is not None
        self.waiting.remove(name)
        with suppress(OSError):
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """End the process, after what it is writing."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Ahead:
    """Kernels that a command has compiled ahead.

    Attributes:
        names: what was missing when the command began. expected_s: how long all of them take, about [s].
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self.names = missing_kernels(command)
        self._changed = threading.Condition()
        self._mine: list[str] = []
        count = min(_cores() - 1, _MOST_HELPERS, len(self.names))
        self.expected_s = sum(KERNELS[name].seconds for name in self.names) / max(1, count + 1)
        self._helpers: list[_Helper] = []
        with suppress(OSError):  # no process can be started: kernels are compiled when they are called
            for k in range(count):
                self._helpers.append(_Helper(self.names[k::count], self._changed))

    def awaited(self, name: str, compile_kernel: Callable[[str], None]) -> bool:
        """Whether a helper has compiled a kernel; while one is at it, others are compiled here."""
        while True:
            with self._changed:
                if name in self._mine or name not in self.names:
                    return False
                for helper in self._helpers:
                    if name in helper.waiting:
                        helper.leave(name)
                        self._mine.append(name)
                        return False
                if all(helper.at != name for helper in self._helpers):
                    return True
                other = next((each.waiting[-1] for each in self._helpers if each.waiting), None)
                if other is None:
                    self._changed.wait()
                    continue
            compile_kernel(other)

    def stop(self) -> None:
        """End the helpers."""
        for helper in self._helpers:
            helper.stop()

    def left(self) -> list[str]:
        """Kernels that have not been compiled since the command began."""
        return missing_kernels(self._command)


_running: list[Ahead] = []


def running() -> Ahead | None:
    """What is being compiled ahead."""
    return _running[-1] if _running else None


def awaited(name: str, compile_kernel: Callable[[str], None]) -> bool:
    """Whether somebody has compiled a kernel since the cache was looked at, see ``Ahead.awaited``."""
    return bool(_running) and _running[-1].awaited(name, compile_kernel)


@contextmanager
def compiled_ahead(command: str) -> Iterator[None]:
    """Have the kernels of a command compiled while it runs."""
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" or not missing_kernels(command):
        yield
        return
    _running.append(Ahead(command))
    threshold = gc.get_threshold()
    gc.set_threshold(100_000, *threshold[1:])  # compiling makes many objects that stay: a tenth of its time
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        _running.pop().stop()


def serve(names: Sequence[str], compile_kernel: Callable[[str], None]) -> None:
    """Compile kernels and say on stdout which; lines on stdin name those to leave out, its end ends the process."""
    left_out: set[str] = set()
    gc.disable()  # ends soon

    def _listen() -> None:
        for line in sys.stdin:
            left_out.add(line.strip())
        with WRITING:
            os._exit(0)

    threading.Thread(target=_listen, daemon=True).start()
    for name in names:
        if name not in left_out:
            print(f"begin {name}", flush=True)
            compile_kernel(name)
            print(f"end {name}", flush=True)
            if _trouble:  # nobody will see what is compiled here
                return


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def progress_line(begin_s: float) -> str | None:
    """How far compiling is, for people; None: nothing is compiled.

    Args:
        begin_s: of ``time.monotonic``, when the command began [s].
    """
    ahead = running()
    left = ahead.left() if ahead is not None else []
    if ahead is None or not left:
        return None
    done = len(ahead.names) - len(left)
    spent_s, left_s = time.monotonic() - begin_s, sum(KERNELS[name].seconds for name in left)
    done_s = sum(KERNELS[name].seconds for name in ahead.names) - left_s
    rest_s = spent_s * left_s / done_s if done else ahead.expected_s
    counts = f"{done} of {len(ahead.names)}, {spent_s:.0f} s so far, about {rest_s:.0f} s to go"
    return f"compiling kernels (first use): {counts}"

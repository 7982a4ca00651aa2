"""Where text goes: the payload on stdout, messages and progress on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from semu.ahead import progress_line, running
from semu.errors import ConfigError, SemuError
from semu.units import fit_lines, fit_options

if TYPE_CHECKING:
    from semu.present.page import Page

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
PATIENCE_S = 2.0
"""A step that takes longer says so, even where stderr is no terminal."""
EVERY_S = 5.0
"""Time between two lines that say how far compiling is [s]."""


class Result(Protocol):
    """What a command finds; its ``repr`` is a table."""

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON document."""


def prepare_streams() -> None:
    """Let no character that the terminal's encoding lacks stop a message."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def emit(text: str, *, is_code: bool = False) -> None:
    """Write the payload; a reader that has gone away (``| head``) is no error.

    Args:
        text: for people, wrapped as the terminal needs it. is_code: for programs: nothing is changed.
    Raises:
        ConfigError: stdout cannot be written to, e.g. on a full disk.
    """
    text = text if is_code else fit_lines(text)
    flush_output(text if text.endswith("\n") else f"{text}\n")


def flush_output(text: str = "") -> None:
    """Write a text and what stdout still holds, or drop it where the reader has gone away.

    Raises:
        ConfigError: as ``emit``.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        _discard(sys.stdout)
        message = f"cannot write to stdout: {error.strerror}"
        raise ConfigError(message, where="stdout", expected="a place to write to") from error


def emit_json(document: object) -> None:
    """Write the payload as one JSON document.

    Raises:
        ValueError: a number that JSON does not have (infinity, NaN).
    """
    emit(json.dumps(document, indent=2, allow_nan=False), is_code=True)


def emit_result(result: Result, *, is_json: bool, **beside: object) -> None:
    """Write a result as its table, or as one JSON document.

    Args:
        beside: keys of the document before those of the result.
    """
    if is_json:
        emit_json({**beside, **result.to_json()})
    else:
        emit(repr(result))


@contextlib.contextmanager
def printed_anyway(text: Callable[[], str], *, is_json: bool = False) -> Iterator[None]:
    """Files are written inside: where one cannot be, what was computed is printed before the error.

    Args:
        text: makes what is printed. is_json: stdout gets one document, which is then the error.
    """
    try:
        yield
    except SemuError:
        if not is_json:
            emit(text())
        raise


class Paged(Protocol):
    """A result with a page of its own."""

    def page(self) -> Page:
        """The page."""


def write_html(path: str | None, result: Paged) -> None:
    """Write what ``--html`` asks for and say so; None: nothing.

    Raises:
        ConfigError: it cannot be written.
    """
    if path is not None:
        say_written(result.page().save(path))


def say_written(*files: Path) -> None:
    """Write to stderr which files a command has made."""
    for file in files:
        say(f"wrote {file}")


def say_options(intro: str, options: Sequence[str]) -> None:
    """Write to stderr options of a command line, as a shell takes them."""
    say("\n".join([f"{intro}:", *fit_options(options, first="  ")]))


def say(message: str) -> None:
    """Write a message to stderr, wrapped where a terminal or COLUMNS says how wide it may be."""
    text = f"semu: {message}"
    if os.environ.get("COLUMNS") or sys.stderr.isatty():
        text = fit_lines(text)
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:  # the reader has gone away, or the disk is full
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Progress:
    """Tells on stderr what is being done: every step on a terminal, else only steps of more than two seconds; and how
    far compiling kernels is, where that takes so long. Nothing under ``--quiet``.

    Call it with a line at the start of each step; leaving the ``with`` block ends the last one.
    """

    is_quiet = False
    """Of this process: ``--quiet``."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._lock = threading.Lock()
        self._step: threading.Timer | None = None
        self._compiling: threading.Timer | None = None
        self._watch(PATIENCE_S)

    def __call__(self, line: str) -> None:
        """Begin a step."""
        self._stop()
        if self.is_quiet:
            return
        if self._is_live:
            self._say(line)
        else:
            self._step = _start_timer(PATIENCE_S, lambda: self._say(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._compiling is not None:
            self._compiling.cancel()
            self._compiling = None

    def _stop(self) -> None:
        if self._step is not None:
            self._step.cancel()
            self._step.join()
            self._step = None

    def _watch(self, after_s: float) -> None:
        if running() is not None and not self.is_quiet:
            self._compiling = _start_timer(after_s, self._say_compiling)

    def _say_compiling(self) -> None:
        if self._compiling is not None and (line := progress_line(self._begin)) is not None:
            self._say(line)
            self._watch(EVERY_S)

    def _say(self, line: str) -> None:
        if not self.is_quiet:
            with self._lock:
                say(f"[{time.monotonic() - self._begin:5.1f} s] {line}")


def _start_timer(after_s: float, run: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(after_s, run)
    timer.daemon = True
    timer.start()
    return timer

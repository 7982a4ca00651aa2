"""``main``: runs a command; errors become messages, JSON documents and exit codes."""

from __future__ import annotations

import argparse
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module

from semu import __version__
from semu.ahead import compiled_ahead, trouble
from semu.cli.console import INTERRUPTED, Progress, emit, emit_json, flush_output, prepare_streams, say
from semu.cli.options.every import parse_arguments
from semu.collector import collect_rarely, without_collector
from semu.errors import ConfigError, InternalError, SemuError

LONGEST_LIST = 300
"""Characters of a message's list of legal values; ``--json`` gives all of it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: words after the program's name; None: those of the process.
    Returns:
        The exit code (DESIGN §6).
    """
    if argv is None:
        collect_rarely()
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    is_json, is_debug = "--json" in words, "--debug" in words
    try:
        try:
            return _run(words)
        except SystemExit:  # argparse, after --help
            flush_output()
            return 0
    except KeyboardInterrupt:
        if is_json:
            emit_json({"error": {**SemuError("interrupted").to_json(), "kind": "Interrupted"}})
        say("interrupted")
        return INTERRUPTED
    except Exception as error:
        known = _known(error)
        if is_debug:
            traceback.print_exc()
        if is_json:
            with suppress(SemuError):  # stdout itself may be what cannot be written to
                emit_json({"error": known.to_json()})
        if known.expected is not None:
            known.expected = textwrap.shorten(known.expected, LONGEST_LIST, placeholder=" ...")
        say(f"error: {known}")
        if known.exit_code == InternalError.exit_code:
            say("this is a defect in semu: please report it with the command line and what --debug adds")
        return known.exit_code


def _known(error: Exception) -> SemuError:
    """The error that a person is told of."""
    if isinstance(error, SemuError):
        return error
    if isinstance(error, MemoryError):
        message = "this machine has not the memory for it, or the process may not have it"
        return ConfigError(message, expected="a smaller run, or more memory (ulimit -v)", got=str(error) or None)
    return InternalError(f"{type(error).__name__}: {error}")


_MODULES = {
    "import": "importing",
    "export": "exporting",
    "list": "listing",
    "assign": "samples.assign",
    "goodput": "resilience.goodput",
    "templates": "resilience.templates",
    "drill": "resilience.drill",
    "workload": "samples.workload",
}
"""Commands whose module has another name."""
WITHOUT_COLLECTOR = ("simulate", "schedules", "what-if")
"""Commands in which the garbage collector does not run."""


def _run(words: list[str]) -> int:
    arguments = parse_arguments(words)
    arguments.typed = words
    if arguments.command is None:
        emit(f"semu {__version__}")
        return 0
    word = arguments.command.replace("-", "_")
    module = _MODULES.get(word, word)
    Progress.is_quiet = arguments.quiet
    with (
        compiled_ahead(arguments.command),
        without_collector() if arguments.command in WITHOUT_COLLECTOR else nullcontext(),
    ):
        run: Callable[[argparse.Namespace], int] = getattr(
            import_module(f"semu.cli.commands.{module}"), f"{word}_command"
        )
        try:
            return run(arguments)
        finally:
            if (reason := trouble()) is not None:
                say(f"{reason}: kernels are compiled anew by every process; set NUMBA_CACHE_DIR to another folder")

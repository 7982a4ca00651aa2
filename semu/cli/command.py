"""``main``: runs a command; errors become messages, JSON documents and exit codes."""

from __future__ import annotations

import gc
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from semu import __version__
from semu.cli.arguments import Command, parse_arguments
from semu.cli.console import emit, emit_json, flush_output, prepare_streams, say
from semu.errors import InternalError, SemuError

LONGEST_LIST = 300
"""Characters of a message's list of legal values; ``--json`` gives all of it."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: words after the program's name; None: those of the process.
    Returns:
        The exit code (DESIGN §6).
    """
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    is_json, is_debug = "--json" in words, "--debug" in words
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
        known = error if isinstance(error, SemuError) else InternalError(f"{type(error).__name__}: {error}")
        if is_debug:
            traceback.print_exc()
        if is_json:
            emit_json({"error": known.to_json()})
        if known.expected is not None:
            known.expected = textwrap.shorten(known.expected, LONGEST_LIST, placeholder=" ...")
        say(f"error: {known}")
        if known.exit_code == InternalError.exit_code:
            say("this is a defect in semu: please report it with the command line and what --debug adds")
        return known.exit_code


@contextmanager
def _without_collector() -> Iterator[None]:
    """No cyclic garbage collection: a short run makes next to none, and looking for it took a seventh of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _run(words: list[str]) -> int:
    arguments = parse_arguments(words)
    if arguments.command is None:
        emit(f"semu {__version__}")
        return 0
    if arguments.command == Command.SIMULATE:
        with _without_collector():
            from semu.cli.simulate import simulate_command

            return simulate_command(arguments)
    if arguments.command == Command.SCHEDULES:
        with _without_collector():
            from semu.cli.schedules import schedules_command

            return schedules_command(arguments)
    if arguments.command == Command.VALIDATE:
        from semu.cli.validate import validate_command

        return validate_command(arguments)
    if arguments.command == Command.CALIBRATE:
        from semu.cli.calibrate import calibrate_command

        return calibrate_command(arguments)
    if arguments.command == Command.IMPORT:
        from semu.cli.importing import import_command

        return import_command(arguments)
    from semu.cli.listing import list_command

    return list_command(arguments)

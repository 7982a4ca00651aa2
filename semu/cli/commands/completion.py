"""``semu completion``: a shell's completion of commands, options and names, made by shtab."""

from __future__ import annotations

import argparse

from semu.cli.console import emit, emit_json
from semu.cli.options.completion import SHELLS
from semu.cli.options.every import build_parser
from semu.errors import ConfigError, unknown_name


def completion_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: another shell, or shtab is not installed.
    """
    if arguments.shell not in SHELLS:
        raise unknown_name("shell", arguments.shell, SHELLS, where="semu completion")
    try:
        import shtab
    except ImportError as error:
        raise ConfigError(
            "completion needs shtab, which is not installed", where="semu completion", expected="pip install shtab"
        ) from error
    from semu_models import MODELS, SETUPS

    parser, commands = build_parser()
    for command in commands.values():
        for action in command._actions:
            if action.metavar in ("RUN", "NAME") and not action.option_strings:
                action.choices = [*SETUPS, *MODELS]
    script = shtab.complete(parser, arguments.shell)
    if arguments.json:
        emit_json({"shell": arguments.shell, "script": script})
    else:
        emit(script, is_code=True)
    return 0

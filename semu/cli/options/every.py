"""Options of every command, and what ``--help`` says."""

from __future__ import annotations

import argparse
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import NoReturn

from semu.cli.options.calibrate import CALIBRATE
from semu.cli.options.compare import COMPARE
from semu.cli.options.completion import COMPLETION
from semu.cli.options.context import CONTEXT
from semu.cli.options.doctor import DOCTOR
from semu.cli.options.exporting import EXPORT
from semu.cli.options.grid import GRID
from semu.cli.options.importing import IMPORT
from semu.cli.options.init import INIT
from semu.cli.options.plan import PLAN
from semu.cli.options.resilience import DRILL, GOODPUT, TEMPLATES
from semu.cli.options.run import RUN
from semu.cli.options.samples import ASSIGN, WORKLOAD
from semu.cli.options.schedules import SCHEDULES
from semu.cli.options.search import SEARCH
from semu.cli.options.shared import CommandOptions
from semu.cli.options.simulate import SIMULATE
from semu.cli.options.validate import VALIDATE
from semu.cli.options.what_if import WHAT_IF
from semu.cli.spellings import as_ours, canonical, run_keys, unknown_option
from semu.errors import ConfigError, shown, unknown_name
from semu.units import fit_options

LISTS: Mapping[str, str] = {
    "models": "models by name, with their parameters",
    "setups": "published runs: model, cluster, parallelism and batch",
    "devices": "device profiles and their peaks",
    "schedules": "pipeline schedules",
    "masks": "masks of attention over text, and policies of context ranks",
}
"""The lists of ``semu list``, and what each of them holds."""


def _add_list(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(LISTS)
    parser.add_argument("what", metavar="WHAT", nargs="?", help=f"one of {kinds}; without it, what each of them holds")


COMMANDS: Mapping[str, CommandOptions] = {
    "simulate": SIMULATE,
    "schedules": SCHEDULES,
    "search": SEARCH,
    "grid": GRID,
    "what-if": WHAT_IF,
    "context": CONTEXT,
    "assign": ASSIGN,
    "workload": WORKLOAD,
    "goodput": GOODPUT,
    "templates": TEMPLATES,
    "drill": DRILL,
    "compare": COMPARE,
    "plan": PLAN,
    "run": RUN,
    "validate": VALIDATE,
    "calibrate": CALIBRATE,
    "list": CommandOptions("list " + ", ".join(LISTS), "List what semu ships.", _add_list),
    "import": IMPORT,
    "export": EXPORT,
    "init": INIT,
    "doctor": DOCTOR,
    "completion": COMPLETION,
}
"""What every command takes, in the order of ``semu --help``."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Descriptions as wide as the terminal: sentences are wrapped; what is indented, examples, stays as it is, with a
    comment that has no room on a line of its own."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_prose, group in itertools.groupby(text.split("\n"), lambda line: bool(line) and line[0] != " "):
            if is_prose:
                lines += textwrap.wrap(" ".join(group), width, break_on_hyphens=False)
            else:
                lines += [part for line in group for part in _example(line, width)]
        return "\n".join(lines)


def _example(line: str, width: int) -> list[str]:
    """A line of examples: a command, and what it does."""
    if len(line) <= width:
        return [line]
    command, _, said = line.strip().partition("  ")
    words = re.split(r" (?=--?[a-z])", command)
    return [*fit_options(words, first="  ", width=width), *([f"      {said.strip()}"] if said else [])]


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are ConfigErrors, so that they obey ``--json``."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        message = re.sub(r"^argument (\S+): expected one argument$", r"\1 needs a value", message)
        raise ConfigError(f"{message} ({self.prog} --help lists all options)", where=self.prog)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read a command line.

    Args:
        words: without the program's name; ``--json``, ``--quiet`` and ``--debug`` may also stand before the command.
    Returns:
        The options; ``version`` is true, and ``command`` None, where only the version is asked for.
    Raises:
        ConfigError: an unknown command or option, a missing argument.
        SystemExit: after ``--help``.
    """
    position = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    command = words[position : position + 1]
    if command and command[0] in LISTS and command[0] not in COMMANDS:  # semu models
        command = ["list", *command]
    elif command and command[0] not in COMMANDS:
        raise _unknown_command(command[0])
    early = [word for word in words[:position] if word in ("--json", "--quiet", "--debug")]
    others = [word for word in words[:position] if word not in early]
    words = [*others, *command, *(early if command else ()), *words[position + 1 :]]
    parser, commands = build_parser()
    arguments, extra = parser.parse_known_args(words)
    used = commands.get(arguments.command, parser)
    options = set(re.findall(r"--[a-z-]+", used.format_usage())) if extra else set()
    if extra and (ours := as_ours(words, extra, options)) is not None:
        arguments, extra = parser.parse_known_args(ours)
    for word in extra:
        if re.match(r"--?[a-zA-Z]", word):
            raise unknown_option(word.partition("=")[0], options, used.prog)
        size = re.fullmatch(r"([a-zA-Z_]+)=(\S+)", word)
        option = "" if size is None else canonical(f"--{size[1].lower()}")
        raise ConfigError(
            "an argument too many",
            where=used.prog,
            expected=f"{used.prog} {_positional(used)} and options ({used.prog} --help)",
            got=word,
            nearest=f"{option} {size[2]}" if size is not None and option in run_keys() else None,
        )
    if arguments.command is None and not arguments.version:
        raise ConfigError("no command", where="command line", expected="one of " + ", ".join(COMMANDS))
    return arguments


def _positional(parser: argparse.ArgumentParser) -> str:
    """What a command takes without an option's name."""
    return " ".join(str(action.metavar) for action in parser._actions if not action.option_strings)


_MEANT: Mapping[str, str] = {
    **dict.fromkeys(("memory", "estimate", "estimate-memory", "predict", "cost", "time", "profile"), "simulate"),
    **dict.fromkeys(("sweep", "tune", "autotune", "optimize", "best"), "grid"),
    **dict.fromkeys(("convert", "read"), "import"),
    "diff": "compare",
    "recommend": "what-if",
}
"""Words that are no commands, and the command that does what they ask for."""


def _unknown_command(word: str) -> ConfigError:
    """A command that is none; what names a run instead is one to simulate."""
    from semu.runfile.sources import names_run

    error = unknown_name("command", word, COMMANDS, where="command line")
    if (meant := _MEANT.get(word.lower().replace("_", "-"))) is not None:
        error.nearest = meant
        error.message = f"unknown command {shown(word)!r}, did you mean {meant!r}?"
    if names_run(word):
        error.nearest = f"semu simulate {word}"
        error.message = f"unknown command {shown(word)!r}, did you mean {error.nearest!r}?"
    return error


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, _Parser]]:
    """The parser of a command line, and those of its commands by name."""
    parser = _Parser(
        prog="semu",
        description="Simulates the distributed training of large multimodal models.",
        epilog=SIMULATE.epilog,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and stop")
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document, also for errors")
    common.add_argument("--quiet", action="store_true", help="no progress on stderr")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parsers = {}
    for command, options in COMMANDS.items():
        parsers[command] = commands.add_parser(
            command,
            parents=[common],
            help=options.help,
            description=options.description,
            epilog=options.epilog,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        options.add(parsers[command])
    return parser, parsers

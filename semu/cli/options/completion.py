"""Options of ``semu completion``."""

from __future__ import annotations

import argparse

from semu.cli.options.shared import CommandOptions

SHELLS = ("bash", "zsh", "tcsh")

_EPILOG = """\
bash:  semu completion bash > ~/.local/share/bash-completion/completions/semu
zsh:   semu completion zsh > ~/.zfunc/_semu          # a folder of $fpath
tcsh:  semu completion tcsh > ~/.semu.tcsh           # and: source ~/.semu.tcsh
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="one of " + ", ".join(SHELLS))


COMPLETION = CommandOptions(
    "print what completes semu's commands and options in a shell",
    "Print a script that completes commands, options and names of models and setups in a shell.",
    _add,
    _EPILOG,
)

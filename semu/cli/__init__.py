"""The command line: ``options`` has a file of options for each command, ``commands`` a file that runs it.

Nothing heavy is imported before a command needs it, so that ``semu --help`` answers at once.
"""

from semu.cli.command import main

__all__ = ["main"]

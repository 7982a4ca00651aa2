"""The command line: ``semu simulate RUN``, ``semu schedules RUN``, ``semu validate``, ``semu list WHAT``,
``semu import FILE``.

Files:

    arguments.py   options and help
    command.py     ``main``: runs a command, turns errors into messages and exit codes
    simulate.py    ``semu simulate``
    schedules.py   ``semu schedules``, its options in ``schedules_arguments.py``
    validate.py    ``semu validate``
    listing.py     ``semu list``
    importing.py   ``semu import``
    console.py     payload on stdout, messages and progress on stderr

Nothing heavy is imported before a command needs it, so that ``semu --help`` answers at once.
"""

from semu.cli.command import main

__all__ = ["main"]

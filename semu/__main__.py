"""``semu`` and ``python -m semu``: the command line as a process of its own, which Ctrl-C and SIGTERM end in order."""

import signal
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line of this process. After either signal it prints and writes what it has, and exits with 130.

    Nothing else is imported before the handlers stand: importing a command takes longer than many a simulation.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from semu.cli import main

        code = main()
    except KeyboardInterrupt:  # before all that main does, or behind it
        print("semu: interrupted", file=sys.stderr)
        code = 130  # semu.cli.console.INTERRUPTED, which may not be imported yet
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # all is said and written; Python takes a moment to end
    sys.exit(code)


if __name__ == "__main__":
    run()

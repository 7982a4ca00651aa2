"""``python -m semu``: the command line."""

import sys

from semu.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m semu.cli`` is ``semu``."""

import sys

from semu.cli import main

sys.exit(main())

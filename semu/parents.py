"""``follow_parent``: processes that semu starts do not outlive the one that started them, however that ends."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process


def follow_parent() -> None:
    """End this process when the one that started it ends; nothing where it was started by something else."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        """Wait for it."""
        parent.join()
        os._exit(1)  # nobody is left to read it

    threading.Thread(target=watch, name="semu-parent", daemon=True).start()

"""``without_collector`` and ``collect_rarely``: less search for cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """No cyclic garbage collection: a short run makes next to none, and looking for it took a seventh of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_rarely() -> None:
    """Look for cyclic garbage a hundredth as often: for a process that is one command. Its objects stay to the end
    anyway; looking through them took about a tenth of the processor time of ``semu simulate`` and ``semu grid``."""
    gc.set_threshold(100_000, 20, 100)

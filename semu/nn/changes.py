"""A count of changes to modules and parameters: while it stands still, nothing has changed."""

from __future__ import annotations


class Changes:
    """Counts assignments to attributes of modules and parameters in this process.

    Attributes:
        count: never decreases.
    """

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        """Something has been assigned or deleted."""
        self.count += 1


CHANGES = Changes()
"""Of all modules and parameters."""

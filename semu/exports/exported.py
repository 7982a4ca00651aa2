"""``Exported``: a run in the words of another program."""

from __future__ import annotations

from semu.records import dataclass


@dataclass(frozen=True)
class Exported:
    """A run as another program says it.

    Attributes:
        text: the file.
        unsaid: what that program cannot say, a sentence each; empty: reading the file gives the same job.
    """

    text: str
    unsaid: tuple[str, ...] = ()

"""Stage traversal priorities: of which of a rank's chunks a stage runs first (FlexPipe §5.2, Table 2)."""

from __future__ import annotations

from semu.errors import ConfigError
from semu.records import dataclass
from semu.schedule.rules.expressions import Number


@dataclass(frozen=True)
class Traversal:
    """How the reorder queue of one type of computation is traversed.

    Attributes:
        run: FlexPipe's interval: so many stages of a chunk run in a row before the traversal moves on to the next
            chunk, after the last one to the first; None: at every step the first chunk that has a stage ready.
        is_last: of a chunk's stages that are ready, that of the highest microbatch; else of the lowest.
    """

    run: Number | None = None
    is_last: bool = False

    def __post_init__(self) -> None:
        if type(self) is Oldest and self.run is not None:
            raise ConfigError("the oldest microbatch first knows no run", where="run", expected="none", got=self.run)


class Breadth(Traversal):
    """Earlier chunks of the model first; each copy of the model counts from its own beginning."""


class Depth(Traversal):
    """Later chunks of the model first."""


class Oldest(Traversal):
    """The lowest microbatch first, of one microbatch the later chunk."""


TRAVERSALS = {"breadth": Breadth, "depth": Depth, "oldest": Oldest}
"""By name."""

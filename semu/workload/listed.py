"""``ListedBatch``: microbatches that were packed elsewhere, such as by a training run's data loader."""

from __future__ import annotations

from collections.abc import Iterable

from semu.errors import ConfigError
from semu.records import dataclass
from semu.workload.batch import AbstractBatch, Microbatch, check_request


@dataclass(frozen=True)
class ListedBatch(AbstractBatch):
    """Microbatches as listed: of all data-parallel replicas, microbatch after microbatch.

    Attributes:
        items: at least one. source: where they are from, for messages.
    """

    items: tuple[Microbatch, ...]
    source: str = "batch"

    def __post_init__(self) -> None:
        if not self.items:
            raise ConfigError("no microbatches", where=self.source, expected="at least one", got=0)

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        """The first ``count`` of them; the other arguments change nothing.

        Raises:
            ConfigError: there are fewer.
        """
        check_request(count, micro_batch, seq_len)
        if count > len(self.items):
            raise ConfigError(
                "fewer microbatches than the iteration needs",
                where=self.source,
                expected=f"{count} microbatches",
                got=len(self.items),
                nearest=f"training.global_batch = {len(self.items) * micro_batch}",
            )
        return list(self.items[:count])

    @property
    def default_seq_len(self) -> None:
        """None: nothing is packed here."""
        return None

    def describe(self) -> dict[str, object]:
        """Kind and number."""
        return {"kind": "listed", "source": self.source, "microbatches": len(self.items)}


def listed_batch(items: Iterable[Microbatch], source: str = "batch") -> ListedBatch:
    """Microbatches that are packed already.

    Raises:
        ConfigError: none.
    """
    return ListedBatch(tuple(items), source)

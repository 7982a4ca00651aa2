"""Network cards that GPUs of a node share, as ports of their own under contention.

Without contention a transfer between modules on GPUs of their own has the cards of its messages for itself
(``semu.simulation.module_transfers``); here other transfers and collectives that cross the same card at the same time
slow it down. Of a job whose modules share GPUs, every GPU has its even share of a card, which is a port of that GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from semu.hardware.device import Direction
from semu.simulation.context import TimedJob
from semu.simulation.module_transfers import Card, card_loads


class SharedCards:
    """Which cards the distinct replicas of a job use.

    Args:
        timed: the job.
    Attributes:
        count: ports, two for each card; 0: every GPU has a card, or an even share of one.
    """

    def __init__(self, timed: TimedJob) -> None:
        self._layout, self._replicas = timed.layout, timed.replicas
        cluster, parallel = timed.job.cluster, timed.job.parallel
        is_shared = parallel.has_own_gpus and cluster.shares_cards
        self.count = 2 * (cluster.card_of(cluster.num_gpus - 1) + 1) if is_shared else 0

    @staticmethod
    def port(card: Card) -> int:
        """Number of a card's port among those of all cards."""
        return 2 * card[0] + (card[1] is Direction.IN)

    def of_transfer(self, replica: int, source: int, target: int, *, is_gradient: bool) -> dict[Card, float]:
        """Part of each card that the messages of a transfer take while they move at full speed.

        Args:
            replica: distinct one; all replicas equal to it send at once. source, target: chunks.
        """
        loads = card_loads(self._layout, source, target, is_gradient=is_gradient)
        if loads is None:
            return {}
        total = sum((loads.by_replica[dp] for dp in self._equal(replica)), Counter[Card]())
        return {card: loads.share * count / loads.fullest for card, count in total.items()}

    def of_rank(self, replica: int, rank: int, way: Direction) -> dict[Card, float]:
        """Part of each card that the GPUs of a pipeline rank have, if each takes its even share of one."""
        cluster, place = self._layout.job.cluster, self._layout.job.parallel.rank_places[rank]
        firsts = [self._layout.mesh.rank(pp=rank, dp=dp) for dp in self._equal(replica)]
        gpus = Counter(cluster.card_of(first + number) for first in firsts for number in range(place.width))
        return {(card, way): float(count * cluster.card_share) for card, count in gpus.items()}

    def _equal(self, replica: int) -> Iterator[int]:
        """The data-parallel replicas that are equal to a distinct one."""
        return (dp for dp, other in enumerate(self._replicas.of.tolist()) if other == replica)

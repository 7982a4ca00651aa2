"""``ExpertPlan``: where experts live and how unevenly tokens reach them, hence how many rows a rank works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from fractions import Fraction

from semu.graph.dim import Dim
from semu.graph.rounding import rounded
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.records import dataclass


@dataclass(frozen=True)
class Routing:
    """How tokens are shared out among experts.

    Attributes:
        imbalance: rows of the worst rank of an expert-parallel group / mean rows, >= 1; or the load of each expert, in
            any unit.
        capacity_factor: most rows that an expert takes from a source rank, in multiples of the mean; further rows are
            dropped; None: no limit.
        is_padded: every expert gets as many rows as its capacity, missing rows are zeros.
    """

    imbalance: Fraction | tuple[Fraction, ...] = Fraction(1)
    capacity_factor: Fraction | None = None
    is_padded: bool = False

    def shares(self, ep: int) -> tuple[Fraction, Fraction]:
        """Rows of the worst and of the mean rank, in multiples of the routed rows per rank."""
        limit = self.capacity_factor
        if limit is not None and self.is_padded:
            return limit, limit
        if isinstance(self.imbalance, Fraction):
            if limit is None:
                return self.imbalance, Fraction(1)
            return min(self.imbalance, limit), min(Fraction(1), limit)
        mean = sum(self.imbalance, Fraction(0)) / len(self.imbalance)
        kept = [load / mean if limit is None else min(load / mean, limit) for load in self.imbalance]
        by_rank = rank_means(kept, ep)
        return max(by_rank), sum(by_rank, Fraction(0)) / ep


def rank_means(loads: Sequence[Fraction], ep: int) -> list[Fraction]:
    """Mean load of the experts of every rank; rank r holds the r-th of ``ep`` equal runs."""
    each = len(loads) // ep
    return [sum(loads[first : first + each], Fraction(0)) / each for first in range(0, len(loads), each)]


@dataclass(frozen=True)
class ExpertPlan:
    """Expert parallelism of one job.

    Attributes:
        ep: ranks that share the experts out. etp: ranks that an expert is split over.
        ep_group, etp_group: the communicators.
        routing: how tokens are shared out.
        is_grouped: a rank's experts are costed as one grouped product; false: as one ordinary product.
        token_group: the ep x etp ranks whose tokens every one of them gathers; None: rows travel.
        sends_tokens: tokens travel, and are copied for each of a rank's experts where they arrive, sorted at once, as
            under DeepEP.
    """

    ep: int = 1
    etp: int = 1
    ep_group: CommGroup = field(default_factory=lambda: CommGroup("ep", 1))
    etp_group: CommGroup = field(default_factory=lambda: CommGroup("etp", 1))
    routing: Routing = field(default_factory=Routing)
    is_grouped: bool = True
    token_group: CommGroup | None = None
    sends_tokens: bool = False

    @property
    def product(self) -> OpKind:
        """Kind of the experts' products."""
        return OpKind.GROUPED_MATMUL if self.is_grouped else OpKind.MATMUL

    def rows(self, tokens: Dim, experts: int, top_k: int, where: str) -> tuple[Dim, Dim]:
        """Rows that a rank sends out, and that the worst rank receives.

        Args:
            tokens: at the router of this rank. experts: all of them. top_k: experts of a token. where: for errors.
        Source:
            Capacity: ceil(tokens x top_k / experts x factor) per expert and source rank (Megatron-LM, moe_utils).
        """
        routed = tokens * top_k
        worst, mean = self.routing.shares(self.ep)
        step = experts if self.routing.is_padded else 1
        sent = rounded(routed, mean, mean=mean, step=step, where=where)
        return sent, rounded(routed, worst, mean=mean, step=step, where=where)

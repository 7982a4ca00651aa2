"""The space of rules: placements, traversal priorities, limits in flight (FlexPipe §6 and Table 2).

As there, forwards first is left out, units are 1, and an interval is p, on circular placements alone. Beside Table 2:
the oldest microbatch first, limits in flight, and for intervals whether a rank waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal

from semu.records import dataclass
from semu.schedule.placement import Placement
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.traversal import Breadth, Depth, Oldest


@dataclass(frozen=True)
class Cut:
    """Where the chunks of a model lie.

    Attributes:
        placement: of the chunks. num_slots: chunks per rank, of both copies where the model is there twice.
    """

    placement: Placement
    num_slots: int

    def __str__(self) -> str:
        return f"{self.placement.value}/{self.num_slots}"


MOST_SLOTS = 4
"""Chunks per rank that are tried, of one copy of the model."""


def cuts_of(num_ranks: int, num_microbatches: int, most_slots: int = MOST_SLOTS) -> list[Cut]:
    """The cuts that are tried: one chunk per rank, several in turn, a V or a wave; with p and m even both directions.

    Both directions are tried with one chunk per rank and copy, and in a V.
    """
    found = [Cut(Placement.ONE_TO_ONE, 1)]
    if num_ranks == 1:
        return found
    found += [Cut(Placement.CIRCULAR, slots) for slots in range(2, most_slots + 1)]
    found += [Cut(Placement.V_SHAPE, slots) for slots in range(2, most_slots + 1, 2)]
    if num_ranks % 2 == 0 and num_microbatches % 2 == 0:
        found += [Cut(placement, placement.fewest_slots) for placement in Placement if placement.copies == 2]
    return found


def rules_of(cut: Cut) -> Iterator[Priority]:
    """The rules that are tried on a cut."""
    if cut.num_slots == 1:
        for prefer, most in product(_PREFER, ("p-r", "p", "2*(p-r)-1", "2*p")):
            yield Priority(prefer, in_flight=most)
        return
    limits = {
        Placement.BIDIRECTIONAL: ("p", "2*p"),
        Placement.V_BIDIRECTIONAL: ("p*v//2", "p*v"),  # v counts the chunks of both copies, a limit those of one
    }.get(cut.placement, ("p*v", "2*p*v"))
    for prefer, forward, backward, most in product(_PREFER, _WAYS, _WAYS, limits):
        yield Priority(prefer, forward=forward, backward=backward, in_flight=most)
    if cut.placement is Placement.CIRCULAR:
        for prefer, blocked, (most, admission) in product(_PREFER, _BLOCKED, _INTERLEAVED):
            yield Priority(
                prefer,
                forward=Breadth("p"),
                backward=Depth("p"),
                in_flight=most,
                admission=admission,
                when_blocked=blocked,
            )


_PREFER: tuple[Literal["backward", "alternate"], ...] = ("backward", "alternate")
_WAYS = (Depth(), Breadth(), Oldest())
_BLOCKED: tuple[Literal["yield", "wait"], ...] = ("yield", "wait")
_INTERLEAVED: tuple[tuple[str, Literal["stage", "microbatch"]], ...] = (
    ("2*(p-r-1)+(v-1)*p+1", "stage"),
    ("p*v", "microbatch"),
)

GRID_RULES = (
    "priority in-flight=2*p*v",
    "priority forward=depth in-flight=p*v",
    "priority forward=oldest backward=oldest in-flight=2*p*v",
    "priority prefer=alternate forward=depth backward=depth in-flight=2*p*v",
    "separated inner={priority in-flight=p-r} activations=p",
    "separated inner={priority forward=depth in-flight=p*v}",
    "separated inner={priority prefer=alternate forward=depth backward=depth in-flight=2*p*v}",
)
"""Rules that a grid tries in every placement: an idea of the space each, as they were, and with gradients separated."""

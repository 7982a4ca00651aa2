"""A schedule as one line of text: a rule, and where it needs one, a placement with its virtual stages per rank.

priority in-flight=p-r
v-shape/2: priority forward=depth in-flight=2*p
separated inner={alternate warm-up=p-r-1} activations=p
"""

from __future__ import annotations

from semu import memo
from semu.errors import unknown_name
from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.block import Block
from semu.schedule.rules.expressions import Size, value_of
from semu.schedule.rules.pattern import Pattern
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.text import KINDS, parse_rule, rule_text

PLACEMENTS = {placement.value: placement for placement in Placement}


def is_program(text: str) -> bool:
    """Whether a text is meant as a rule rather than as a schedule's name."""
    return ":" in text.partition("=")[0] or text.split(" ")[0] in KINDS


def program_text(rule: Rule, placement: Placement | None = None, num_slots: int | None = None) -> str:
    """The text of a rule in a placement, of so many virtual stages per rank; None: in any.

    Raises:
        ConfigError: the rule holds a function of Python.
    """
    if placement is None:
        return rule_text(rule)
    return f"{placement.value}{'' if num_slots is None else f'/{num_slots}'}: {rule_text(rule)}"


@memo.remembered(512)
def program_family(text: str, where: str = "schedule") -> ScheduleFamily:
    """The schedule that a text describes; it is its name.

    Raises:
        ConfigError: an unknown placement, a number of virtual stages that is none; as ``parse_rule``.
    """
    place, colon, rest = text.partition(":") if ":" in text.partition("=")[0] else ("", "", text)
    name, slash, count = place.strip().partition("/")
    if colon and name not in PLACEMENTS:
        raise unknown_name("placement", name, PLACEMENTS, where=where)
    rule = parse_rule(rest, where)
    slots = value_of(int(count) if count.isdecimal() else count, Size(1, 0, 1, 1), where, 1) if slash else None

    def _slots(p: int, m: int, v: int) -> Misfit | None:
        if slots is None or v == slots or p == 1:
            return None
        return Misfit("the rule is for another number of virtual stages", f"{slots} per rank", v, slots)

    return ScheduleFamily(
        text,
        rule,
        "a rule",
        PLACEMENTS[name] if colon else Placement.ONE_TO_ONE,
        doc=f"{rest.strip()}.",
        splits_backward=rule.splits,
        rules=(_slots,) if slots is not None else (),
        is_fixed=isinstance(rule, Pattern | Block),
        adapt=rule.on if rule.runs else None,
        runs_two_copies=not isinstance(rule, Pattern | Block),
        is_placed=bool(colon),
    )

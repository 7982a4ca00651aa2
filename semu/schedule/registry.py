"""``ALL_SCHEDULES``: every schedule by name, with all that is asked about it (``ScheduleFamily``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from semu.checks import find_named
from semu.schedule.family import ScheduleFamily
from semu.schedule.generators.chimera import chimera
from semu.schedule.generators.dualpipe_v import dualpipe_v
from semu.schedule.generators.eager import eager_1f1b
from semu.schedule.generators.gpipe import gpipe_family
from semu.schedule.generators.greedy import greedy
from semu.schedule.generators.hanayo import hanayo
from semu.schedule.generators.interleaved import interleaved_family
from semu.schedule.generators.interleaved_zb import interleaved_zb
from semu.schedule.generators.looped_bfs import looped_bfs
from semu.schedule.generators.one_f_one_b import one_f_one_b_family
from semu.schedule.generators.optimus import optimus
from semu.schedule.generators.v_half import v_half
from semu.schedule.generators.v_min import v_min
from semu.schedule.generators.zb_auto import zb_auto, zb_auto_2p
from semu.schedule.generators.zb_h1 import zb_h1
from semu.schedule.generators.zb_h2 import zb_h2
from semu.schedule.generators.zb_v import zb_v
from semu.schedule.rules.program import is_program, program_family
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape

REGISTRY = {
    family.name: family
    for family in (
        gpipe_family,
        one_f_one_b_family,
        interleaved_family,
        looped_bfs,
        eager_1f1b,
        zb_h1,
        zb_h2,
        zb_auto,
        zb_auto_2p,
        interleaved_zb,
        zb_v,
        v_half,
        v_min,
        dualpipe_v,
        chimera,
        hanayo,
        greedy,
        optimus,
    )
}
"""The table of schedules; a new one is a file in ``generators`` and a line here."""


class _Schedules(Mapping[str, ScheduleFamily]):
    """Names lead to the table's schedules; a rule's text (``semu.schedule.rules.program``) to a schedule made of it."""

    def __getitem__(self, name: str) -> ScheduleFamily:
        if name in REGISTRY:
            return REGISTRY[name]
        if is_program(name):
            return program_family(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(REGISTRY)

    def __len__(self) -> int:
        return len(REGISTRY)


ALL_SCHEDULES: Mapping[str, ScheduleFamily] = _Schedules()
"""Schedules by the name of run.toml and the command line, the merged ones of the classics first; beside the names that
it lists, it knows every rule by its text."""

SCHEDULES: Mapping[str, Callable[[PipelineShape], Schedule]] = MappingProxyType(
    {name: family.generate for name, family in sorted(REGISTRY.items()) if family.generate is not None}
)
"""Generators of Megatron-LM's schedules, which run a pipeline of any number of chunks per rank."""

NEAREST: Mapping[str, str] = MappingProxyType({"dualpipe": "dualpipe-v"})
"""Schedules that semu does not have -> the nearest that it has: DualPipe without its second copy of the model."""


def schedule_family(name: str, where: str = "schedule") -> ScheduleFamily:
    """The schedule of a name, or of a rule's text.

    Raises:
        ConfigError: an unknown name, a text that is no rule; ``where`` it stands.
    """
    if is_program(name):
        return program_family(name, where)
    return find_named("schedule", name, ALL_SCHEDULES, where=where)


def is_executed(name: str) -> bool:
    """Whether a job can run a schedule of this name, in the placement that it needs."""
    return name in ALL_SCHEDULES


def compared_schedules() -> tuple[str, ...]:
    """What a comparison compares by default: one of each idea; every shipped setup sees what is best for it or within a
    hundredth of that."""
    places = {name: family.compared for name, family in ALL_SCHEDULES.items() if family.compared is not None}
    return tuple(sorted(places, key=lambda name: places[name]))

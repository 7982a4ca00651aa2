"""``ALL_SCHEDULES``: every generator by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semu.errors import unknown_name
from semu.schedule.family import ScheduleFamily
from semu.schedule.generators.chimera import chimera
from semu.schedule.generators.classic import families
from semu.schedule.generators.dualpipe_v import dualpipe_v
from semu.schedule.generators.eager import eager_1f1b
from semu.schedule.generators.greedy import greedy
from semu.schedule.generators.hanayo import hanayo
from semu.schedule.generators.interleaved_zb import interleaved_zb
from semu.schedule.generators.optimus import optimus
from semu.schedule.generators.v_half import v_half
from semu.schedule.generators.v_min import v_min
from semu.schedule.generators.zb_auto import zb_auto, zb_auto_2p
from semu.schedule.generators.zb_h1 import zb_h1
from semu.schedule.generators.zb_h2 import zb_h2
from semu.schedule.generators.zb_v import zb_v

ALL_SCHEDULES: Mapping[str, ScheduleFamily] = MappingProxyType(
    {
        family.name: family
        for family in (
            *families,
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
)
"""Schedules by the name of run.toml and the command line, the merged ones of the classics first."""


def schedule_family(name: str) -> ScheduleFamily:
    """The generator of a name.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in ALL_SCHEDULES:
        raise unknown_name("schedule", name, ALL_SCHEDULES, where="schedule")
    return ALL_SCHEDULES[name]

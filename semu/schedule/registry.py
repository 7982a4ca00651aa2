"""``ALL_SCHEDULES``: every schedule by name, with all that is asked about it (``ScheduleFamily``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import MappingProxyType

from semu.checks import find_named
from semu.lazy import LazyTable, imported
from semu.schedule.family import ScheduleFamily
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape


def _family(module: str, name: str) -> Callable[[], ScheduleFamily]:
    return imported(f"semu.schedule.generators.{module}", name)


REGISTRY: MutableMapping[str, ScheduleFamily] = LazyTable(
    {
        "gpipe": _family("gpipe", "gpipe_family"),
        "1f1b": _family("one_f_one_b", "one_f_one_b_family"),
        "interleaved": _family("interleaved", "interleaved_family"),
        "looped-bfs": _family("looped_bfs", "looped_bfs"),
        "eager-1f1b": _family("eager", "eager_1f1b"),
        "zb-h1": _family("zb_h1", "zb_h1"),
        "zb-h2": _family("zb_h2", "zb_h2"),
        "zb-auto": _family("zb_auto", "zb_auto"),
        "zb-auto-2p": _family("zb_auto", "zb_auto_2p"),
        "interleaved-zb": _family("interleaved_zb", "interleaved_zb"),
        "zb-v": _family("zb_v", "zb_v"),
        "v-half": _family("v_half", "v_half"),
        "v-min": _family("v_min", "v_min"),
        "dualpipe-v": _family("dualpipe_v", "dualpipe_v"),
        "chimera": _family("chimera", "chimera"),
        "hanayo": _family("hanayo", "hanayo"),
        "greedy": _family("greedy", "greedy"),
        "optimus": _family("optimus", "optimus"),
    }
)
"""The table of schedules; a new one is a file in ``generators`` and a line here."""


class _Schedules(Mapping[str, ScheduleFamily]):
    """Names lead to the table's schedules; a rule's text (``semu.schedule.rules.program``) to a schedule made of it."""

    def __getitem__(self, name: str) -> ScheduleFamily:
        if name in REGISTRY:
            return REGISTRY[name]
        from semu.schedule.rules.program import is_program, program_family

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

SCHEDULES: Mapping[str, Callable[[PipelineShape], Schedule]] = LazyTable(
    {
        name: imported(f"semu.schedule.generators.{module}", module)
        for name, module in (("1f1b", "one_f_one_b"), ("gpipe", "gpipe"), ("interleaved", "interleaved"))
    }
)
"""Generators of Megatron-LM's schedules, which run a pipeline of any number of chunks per rank."""

NEAREST: Mapping[str, str] = MappingProxyType({"dualpipe": "dualpipe-v"})
"""Schedules that semu does not have -> the nearest that it has: DualPipe without its second copy of the model."""


_OTHERS: Mapping[str, str] = MappingProxyType(
    {
        "interleaved1f1b": "interleaved",
        "interleavedzerobubble": "interleaved-zb",
        "zbvzerobubble": "zb-v",
        "zerobubble": "zb-h1",
    }
)
"""What PyTorch and papers call schedules, in small letters without hyphens -> their names here."""


def nearest_schedule(name: str) -> str | None:
    """The schedule here that another program's name means, or that comes nearest; None: none."""
    letters = name.lower().replace("-", "").replace("_", "")
    return _OTHERS.get(letters, NEAREST.get(letters))


def schedule_family(name: str, where: str = "schedule") -> ScheduleFamily:
    """The schedule of a name, or of a rule's text.

    Raises:
        ConfigError: an unknown name, a text that is no rule; ``where`` it stands.
    """
    if name in REGISTRY:
        return REGISTRY[name]
    from semu.schedule.rules.program import is_program, program_family

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

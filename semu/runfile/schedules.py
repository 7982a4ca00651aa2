"""``set_cut``: a run's schedule brings the placement and the virtual stages that it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from semu.checks import known_spelling
from semu.errors import ConfigError
from semu.parallel.config import PLACEMENTS
from semu.runfile.places import Places
from semu.schedule.registry import ALL_SCHEDULES, NEAREST
from semu.simulation.schedules.cuts import cut_for

_KEYS = ("vpp", "placement")


def set_cut(
    config: dict[str, dict[str, Any]], written_keys: Collection[str], places: Places, count: Callable[[int], int]
) -> list[str]:
    """Write ``parallel.vpp`` and ``parallel.placement`` as the schedule needs them, where they are left open.

    A key is open where neither ``--set`` gives it nor, for a schedule that the file names too, the file. What does not
    go with a key that is given is refused with the rest of the job; a cut with which the schedule runs stays.

    Args:
        config: complete tables. written_keys: of ``[parallel]`` before defaults. places: where they came
            from. count: virtual stages -> microbatches of a replica.
    Returns:
        What was decided, a sentence each.
    """
    parallel, training = config["parallel"], config["training"]
    notes, written = [], training["schedule"]
    name = known_spelling(written, ALL_SCHEDULES) or NEAREST.get(written.lower())
    if name is None or training.get("schedule_file") is not None:
        return []
    if name != written:
        training["schedule"] = name
        notes.append(f"training.schedule: {written!r} is taken as {name!r}: {ALL_SCHEDULES[name].description}")
    family, (vpp, placement) = ALL_SCHEDULES[name], (parallel[key] for key in _KEYS)
    by_flag = places.flags.get("training.schedule") == "--set"
    setters = [places.flags.get(f"parallel.{key}", "file" if key in written_keys else None) for key in _KEYS]
    is_open = [setter in (None, "--parallel") or (setter == "file" and by_flag) for setter in setters]
    if parallel["pp"] < 2 or vpp < 1 or "layout" in parallel or not any(is_open):
        return notes
    with suppress(ConfigError):  # sizes that it does not fit with any cut are refused with the others
        found = cut_for(family, parallel["pp"], vpp, placement, count)
        runs = vpp >= family.fewest_slots
        if family.generate is None:  # others run with any cut that their rules allow
            is_placed = family.placement.value in (placement, "circular") or family.placement.value not in PLACEMENTS
            runs = is_placed and family.misfit(parallel["pp"], count(vpp), vpp) is None
        keys = zip(_KEYS, found, is_open, strict=True)
        changes = {key: value for key, value, free in keys if free and parallel[key] != value}
        if changes and not runs:
            parallel.update(changes)
            said = ", ".join(f"parallel.{key} = {value}" for key, value in changes.items())
            notes.append(f"training.schedule: {name!r} needs, and sets, {said}")
    return notes

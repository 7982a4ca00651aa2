"""``set_cut``: a run's schedule brings the placement and the virtual stages that it needs; ``named_rules``: schedules
that a run file describes itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from semu.checks import check_integer, check_word, known_spelling
from semu.errors import ConfigError
from semu.parallel.config import PLACEMENTS
from semu.runfile.places import Places
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES, nearest_schedule
from semu.simulation.schedules.cuts import cut_for

_KEYS = ("vpp", "placement")


def named_rules(config: Mapping[str, Any], places: Places) -> tuple[dict[str, Any], list[str]]:
    """The tables without ``[schedule.NAME]``; ``training.schedule`` is the text of the rule that it names.

    A table has a rule's ``text``, or the fields of a kind of rule (``rule``, by default ``priority``); and
    ``placement`` and ``vpp`` where the rule needs them.

    Returns:
        the tables, and what to tell the user.
    Raises:
        ConfigError: an unknown key, a value that is none, the name of a schedule that ships.
    """
    rest = {name: table for name, table in config.items() if name != "schedule"}
    training, tables = rest.get("training"), config.get("schedule")
    name = training.get("schedule") if isinstance(training, Mapping) else None
    name = name if isinstance(name, str) else None  # a value of another kind is refused with the others
    if isinstance(tables, Mapping) and isinstance(own := tables.get(name), Mapping):
        places.fields |= {field: f"schedule.{name}.{field}" for field in own if "text" not in own}
    with places.located():
        texts = program_texts(tables, places)
    if not isinstance(training, Mapping) or name not in texts:
        return rest, []
    return rest | {"training": {**training, "schedule": texts[name]}}, [
        f"training.schedule: {name!r} is {texts[name]!r}"
    ]


def program_texts(tables: object, places: Places) -> dict[str, str]:
    """The texts of the schedules that the tables ``[schedule.NAME]`` describe, by name; errors as ``named_rules``."""
    if tables is None:
        return {}
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        expected = "[schedule.NAME] with the fields of a rule, or its text"
        raise ConfigError("not a table of schedules", where=places.where("schedule"), expected=expected, got=tables)
    return {name: _program(table, name, places) for name, table in tables.items()}


def _program(table: Mapping[str, Any], name: str, places: Places) -> str:
    """The text of the schedule that a table describes."""
    from semu.schedule.rules.program import program_text
    from semu.schedule.rules.text import make_rule, parse_rule

    where = places.where(f"schedule.{name}")
    if name in ALL_SCHEDULES:
        expected = "another name"
        raise ConfigError(
            "a schedule of this name ships", where=where, expected=expected, got=name, nearest=f"my-{name}"
        )
    values = dict(table)
    placement, vpp, kind = (values.pop(key, None) for key in ("placement", "vpp", "rule"))
    if "text" in values:
        rule = parse_rule(str(values.pop("text")), where)
        if values or kind is not None:
            raise ConfigError("text beside other fields", where=where, expected="text alone", got=sorted(values))
    else:
        rule = make_rule("priority" if kind is None else str(kind), values, where)
    if placement is not None:
        placement = Placement(
            check_word(placement, [each.value for each in Placement], "placement", f"{where}.placement")
        )
    elif vpp is not None:
        placement = Placement.CIRCULAR
    return program_text(rule, placement, None if vpp is None else check_integer(vpp, f"{where}.vpp", "a count"))


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
    name = known_spelling(written, ALL_SCHEDULES) or nearest_schedule(written)
    if name is None or training.get("schedule_file") is not None:
        return []
    if name != written:
        training["schedule"] = name
        notes.append(f"training.schedule: {written!r} is taken as {name!r}: {ALL_SCHEDULES[name].description}")
    family, (vpp, placement) = ALL_SCHEDULES[name], (parallel[key] for key in _KEYS)
    by_flag = places.flags.get("training.schedule") == "--set"
    setters = [places.flags.get(f"parallel.{key}", "file" if key in written_keys else None) for key in _KEYS]
    is_open = [setter in (None, "--parallel") or (setter == "file" and by_flag) for setter in setters]
    if not family.is_placed or parallel["pp"] < 2 or vpp < 1 or "layout" in parallel or not any(is_open):
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

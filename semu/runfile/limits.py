"""What a run file may say but this version does not model: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping

from semu.checks import check_word
from semu.errors import ConfigError
from semu.job.training import OPTIONS
from semu.runfile.places import Places
from semu.schedule.registry import nearest_schedule, schedule_family


def refuse_unmodelled(config: Mapping[str, object], places: Places) -> None:
    """Say no to what would not be simulated as asked.

    Args:
        config: tables that have passed ``check_schema``.
        places: for messages.
    Raises:
        ConfigError: the key, what came and the legal values.
    """
    tables = [config.get(name) for name in ("parallel", "training")]
    parallel, training = (table if isinstance(table, Mapping) else {} for table in tables)
    zero, schedule = parallel.get("zero"), training.get("schedule")
    if isinstance(zero, int) and zero > 3:
        raise ConfigError(
            f"parallel.zero = {zero} is not modelled by this version",
            where=places.where("parallel.zero"),
            expected="0 or 1 or 2 or 3",
            got=zero,
            nearest=3,
        )
    for row in OPTIONS:
        value = training.get(row.name)
        if isinstance(value, str) and row.value.words:
            check_word(value, row.value.words, row.name, places.where(f"training.{row.name}"))
    if isinstance(schedule, str):
        schedule_family(nearest_schedule(schedule) or schedule, places.where("training.schedule"))

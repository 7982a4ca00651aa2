"""Pipeline schedules as data: ``Schedule`` = order of stages per rank; one file per generator, each a table over the
rules (``Priority``, ``Alternate``, ...) that anyone can use; ``separate`` puts weight gradients in bubbles.

``ALL_SCHEDULES`` holds every schedule (``registry``), each also an attribute (``semu.schedule.zb_v(shape)``);
``SCHEDULES`` the generators of Megatron-LM's. ``PipelineStudy`` evaluates any of them on plain numbers, ``draw_grid``
shows one to people, ``files`` reads and writes, ``stage_table`` has a line per stage with times and memory.
"""

from semu.lazy import lazy_names

_name, __dir__ = lazy_names(__name__)


def __getattr__(name: str) -> object:
    """A name of this package, or the schedule of a name, ``_`` for ``-``: a function of a pipeline's shape.

    Raises:
        AttributeError: nothing has it.
    """
    try:
        return _name(name)
    except AttributeError:
        from semu.schedule.registry import ALL_SCHEDULES

        if name.startswith("_") or name.replace("_", "-") not in ALL_SCHEDULES:
            raise
        return ALL_SCHEDULES[name.replace("_", "-")]

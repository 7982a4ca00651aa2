"""Microbatches with the derived streams that a model's sizes depend on (names: ``semu.nn.streams``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semu.nn.streams import changes_of
from semu.workload.batch import Lengths, Microbatch


def with_derived(microbatches: Sequence[Microbatch], streams: Iterable[str]) -> list[Microbatch]:
    """The microbatches with derived streams; equal objects stay equal objects.

    Args:
        microbatches: of one iteration. streams: names of derived streams; one whose base a microbatch has not is left
            out.
    """
    wanted = tuple(streams)
    if not wanted:
        return list(microbatches)
    made = {id(item): _with(item, wanted) for item in microbatches}
    return [made[id(item)] for item in microbatches]


def _with(item: Microbatch, streams: Sequence[str]) -> Microbatch:
    lengths: dict[str, Lengths] = dict(item.lengths)
    for name in streams:
        base, changes = changes_of(name)
        if base in lengths and name not in lengths:
            values = lengths[base]
            for change in changes:
                values = change.lengths(values)
            values.flags.writeable = False
            lengths[name] = values
    return Microbatch.from_arrays(lengths, item.samples, item.video_seconds, item.places)

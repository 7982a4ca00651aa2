"""Sub-microbatches that readers of a module take of several microbatches: the checks and columns of ``StagePlan.reads``
and ``StagePlan.items``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.recipe.cut_module import CutModule
from semu.errors import ScheduleError
from semu.nn.model import Model
from semu.schedule.stage_plan import Items, Parts, Reads
from semu.workload.batch import Microbatch

I64 = NDArray[np.int64]


def counts_of_all(given: Parts, where: str, dp: int) -> I64:
    """Parts of every replica where items are listed: all have as many, of which some may be empty: int64[dp, m]."""
    for number, count in enumerate(given):
        if not isinstance(count, int) or count < 1:
            expected = "one number >= 1: parts whose items are listed may be empty"
            raise ScheduleError("not a number of parts", where=f"{where}[{number}]", expected=expected, got=count)
    return np.tile(np.array(given, dtype=np.int64), (dp, 1))


def sizes_of(items: Items, own: I64, have: I64, name: str) -> I64:
    """Items of every part: int64[dp, num_parts].

    Args:
        items: as the plan lists them. own: int64[dp, m], parts. have: int64[dp, m], items. name: of the module.
    Raises:
        ScheduleError: not a number for every part, or another sum than there are items.
    """
    where = f"plan.items.{name}"
    if len(items) != own.shape[1]:
        raise ScheduleError("not a list a microbatch", where=where, expected=f"{own.shape[1]} lists", got=len(items))
    columns = []
    for number, rows in enumerate(items):
        count = int(own[0, number])
        if len(rows) != len(own) or any(len(row) != count for row in rows):
            expected = f"{len(own)} lists of {count} numbers, one for each replica"
            raise ScheduleError("not a number a part", where=f"{where}[{number}]", expected=expected, got=rows)
        table = np.array(rows, dtype=np.int64).reshape(len(own), count)
        if (table.sum(axis=1) != have[:, number]).any():
            got, expected = table.sum(axis=1).tolist(), f"sums of {have[:, number].tolist()}, the items"
            raise ScheduleError("other items than there are", where=f"{where}[{number}]", expected=expected, got=got)
        columns.append(table)
    return np.concatenate(columns, axis=1)


def parts_read(
    model: Model, reads: Reads, name: str, modules: Mapping[str, CutModule], m: int
) -> tuple[tuple[int, ...], ...]:
    """For every microbatch of a module's readers, the numbers of the parts that they read.

    Args:
        model, name: the module. reads: of the plan. modules: that cut. m: microbatches of a replica.
    Raises:
        ScheduleError: a module that does not cut; readers that cut or are read; parts that are read other than once.
    """
    where = f"plan.reads.{name}"
    readers = [module.name for module in model.modules if name in module.sources]
    if name not in modules or not readers:
        expected = "a module of plan.parts that others read"
        raise ScheduleError("nothing to defer", where=where, expected=expected, got=name)
    further = [own.name for own in model.modules if set(own.sources) & set(readers)]
    if any(own in modules for own in readers) or further:
        expected = "readers that run microbatches whole, and that nothing reads"
        raise ScheduleError(
            "readers that cannot defer", where=where, expected=expected, got=", ".join(readers + further)
        )
    if len(reads) != m:
        raise ScheduleError("not a list a microbatch", where=where, expected=f"{m} lists", got=len(reads))
    cut = modules[name]
    every = [(i, part) for i, count in enumerate(cut.counts) for part in range(count)]
    listed = [pair for own in reads for pair in own]
    if sorted(listed) != every:
        expected = f"each of {len(every)} parts once"
        raise ScheduleError("parts that are read never or twice", where=where, expected=expected, got=len(listed))
    late = next(((i, pair) for i, own in enumerate(reads) for pair in own if pair[0] > i), None)
    if late is not None:
        expected = "parts of this microbatch or of earlier ones"
        raise ScheduleError("a part of a later one", where=f"{where}[{late[0]}]", expected=expected, got=late[1])
    return tuple(tuple(i * cut.split + part for i, part in own) for own in reads)


def read_columns(
    sources: Sequence[str],
    modules: Mapping[str, CutModule],
    reads: Mapping[str, tuple[tuple[int, ...], ...]],
    by_replica: Sequence[Sequence[Microbatch]],
) -> list[tuple[Microbatch, ...]]:
    """Per microbatch, what a reader of several microbatches runs on every replica: the streams of the sources' items
    are those of the parts that it reads, the others those of the microbatch.

    Args:
        sources: modules that it reads. modules: that cut. reads: ``parts_read`` of each that defers.
        by_replica: microbatches of every replica.
    """
    found = []
    for number in range(len(by_replica[0])):
        column = []
        for replica, own in enumerate(by_replica):
            lengths = dict(own[number].lengths)
            for name in sources:
                if name not in reads:
                    continue
                cut = modules[name]
                for stream in cut.streams:
                    pieces = [lengths[stream][:0]]
                    for microbatch, part in (divmod(other, cut.split) for other in reads[name][number]):
                        whole = own[microbatch].lengths[stream]
                        first, last = cut.items(replica, microbatch, part, len(whole))
                        pieces.append(whole[first:last])
                    lengths[stream] = np.concatenate(pieces)
                    lengths[stream].flags.writeable = False
            item = own[number]
            places = item.places if lengths.get("text") is item.lengths.get("text") else None
            column.append(Microbatch.from_arrays(lengths, item.samples, item.video_seconds, places))
        found.append(tuple(column))
    return found

"""Microbatches cut by modality modules into sub-microbatches: what each stage runs, as columns of a table of shapes.

Columns: the whole microbatches; then, module by module, the parts of those that cut; then, where one such module reads
another, what every two of their parts share. A replica that does not need a part has nothing in its column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from semu.compile.recipe.cut_module import CutModule
from semu.compile.recipe.deferred import counts_of_all, parts_read, read_columns, sizes_of
from semu.errors import ScheduleError
from semu.masks.spans import Spans
from semu.nn.model import Model
from semu.nn.streams import changes_of
from semu.records import dataclass
from semu.schedule.stage_plan import StagePlan
from semu.workload.batch import Microbatch


@dataclass(frozen=True, eq=False)
class SubMicrobatches:
    """What the stages of all modules run.

    Attributes:
        modules: those that cut microbatches, by name. num_microbatches: of a replica.
        meetings: (module, module that reads it) -> first column of what their parts share.
        reads: module -> for every microbatch of its readers, the numbers of its parts that they read.
        readers: modules that read parts of several microbatches -> column of their first microbatch.
        table: per column, what it holds on every replica.
    """

    modules: Mapping[str, CutModule]
    num_microbatches: int
    meetings: Mapping[tuple[str, str], int]
    table: tuple[tuple[Microbatch, ...], ...]
    reads: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    readers: Mapping[str, int] = field(default_factory=dict)

    def counts(self, module: str) -> tuple[int, ...]:
        """Parts of every microbatch in a module."""
        return self.modules[module].counts if module in self.modules else (1,) * self.num_microbatches

    @classmethod
    def whole(cls, num_microbatches: int) -> SubMicrobatches:
        """No module cuts microbatches."""
        return cls({}, num_microbatches, {}, ())

    @cached_property
    def microbatches(self) -> list[Microbatch]:
        """Column after column, replica after replica."""
        return [item for column in self.table for item in column]

    def columns(self, module: str, parts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Columns of a module's parts, as ``StageKey`` numbers them: int64[n]."""
        if module in self.readers:
            return self.readers[module] + parts
        if module not in self.modules:
            return parts
        cut = self.modules[module]
        microbatch, within = np.divmod(parts, cut.split)
        found: NDArray[np.int64] = cut.column + np.array(cut.first, dtype=np.int64)[microbatch] + within
        return found

    def between(self, source: str, target: str, microbatch: int, given: int, taken: int) -> int:
        """Column of what a module's part gives to a part of another one that reads it; parts within the microbatch."""
        giver, taker = self.modules.get(source), self.modules.get(target)
        if giver is None and taker is None:
            return microbatch
        if taker is None:
            assert giver is not None
            return giver.column + giver.first[microbatch] + given
        if giver is None:
            return taker.column + taker.first[microbatch] + taken
        before = sum(a * b for a, b in zip(giver.counts[:microbatch], taker.counts[:microbatch], strict=True))
        return self.meetings[source, target] + before + given * taker.counts[microbatch] + taken

    @property
    def read(self) -> list[Microbatch]:
        """What readers of several microbatches read, microbatch after microbatch, replica after replica; empty where
        there are none."""
        first = next(iter(self.readers.values()), len(self.table))
        return [item for column in self.table[first : first + self.num_microbatches] for item in column]

    def parts_differ(self, source: str, target: str) -> bool:
        """Whether parts are joined, or cut, between two modules."""
        return source != target and (source in self.modules or target in self.modules)


def cut_batch(model: Model, plan: StagePlan, microbatches: Sequence[Microbatch], dp: int) -> SubMicrobatches:
    """Cut a batch as a plan says.

    Args:
        model: whose modules cut. microbatches: replica r runs r, r + dp, ...
    Raises:
        ScheduleError: counts for other modules, microbatches or items than there are.
    """
    m = len(microbatches) // dp
    by_replica = [microbatches[replica::dp] for replica in range(dp)]
    modules: dict[str, CutModule] = {}
    column = m
    names = [module.name for module in model.modules]
    for name in plan.parts:
        if name not in names:
            raise ScheduleError(
                "no such modality module", where=f"plan.parts.{name}", expected=", ".join(names), got=name
            )
    for module in model.modules:
        if module.name not in plan.parts:
            continue
        where = f"plan.parts.{module.name}"
        given = plan.parts[module.name]
        if len(given) != m:
            raise ScheduleError("not one number a microbatch", where=where, expected=f"{m} counts", got=len(given))
        if not module.inputs:
            raise ScheduleError(
                f"{module.name} gets nothing from the data loader: there are no items to cut",
                where=where,
                expected="a module with data of its own",
            )
        stream = module.inputs[0].stream
        have = np.array([[len(item.lengths[stream]) for item in own] for own in by_replica], dtype=np.int64)
        own = _own_counts(given, have, where) if module.name not in plan.items else counts_of_all(given, where, dp)
        sizes = None if module.name not in plan.items else sizes_of(plan.items[module.name], own, have, module.name)
        if (own.max(axis=0) == 1).all() and module.name not in plan.reads:
            continue  # every microbatch whole
        together = [key for key in microbatches[0].lengths if _goes_along(key, stream, microbatches)]
        counts = tuple(own.max(axis=0).tolist())
        first = (0, *accumulate(counts))
        modules[module.name] = CutModule(module.name, frozenset(together), own, counts, first, column, sizes)
        column += first[-1]
    if not modules:
        return SubMicrobatches.whole(m)
    meetings: dict[tuple[str, str], int] = {}
    for module in model.modules:
        for source in module.sources:
            if source in modules and module.name in modules:
                _check_meeting(modules[source], modules[module.name])
                meetings[source, module.name] = column
                column += sum(a * b for a, b in zip(modules[source].counts, modules[module.name].counts, strict=True))
    table = list(zip(*by_replica, strict=True))
    for cut in modules.values():
        table += [
            tuple(
                _part(by_replica[r][i], cut.streams, cut.items(r, i, part, _items(by_replica[r][i], cut)))
                for r in range(dp)
            )
            for i in range(m)
            for part in range(cut.counts[i])
        ]
    for source, target in meetings:
        table += _shared(modules[source], modules[target], by_replica)
    readers: dict[str, int] = {}
    reads = {name: parts_read(model, own, name, modules, m) for name, own in plan.reads.items()}
    for module in model.modules:
        if any(source in reads for source in module.sources):
            readers[module.name] = len(table)
            table += read_columns(module.sources, modules, reads, by_replica)
    return SubMicrobatches(modules, m, meetings, tuple(table), reads, readers)


def check_symbols(cut: CutModule, symbols: Iterable[str]) -> None:
    """Every size in a module that cuts microbatches must be of what it cuts.

    Args:
        symbols: names that the sizes of the module's stages use.
    Raises:
        ScheduleError: a stream with other items.
    """
    for symbol in sorted(symbols):
        for stream in symbol.split("~")[0].split(".")[0].split("*"):
            base = changes_of(stream)[0]
            if base not in cut.streams:
                raise ScheduleError(
                    f"{cut.name} reads the stream {base!r} too, which has other items than it cuts",
                    where=f"plan.parts.{cut.name}",
                    expected="1 everywhere: the module runs microbatches whole",
                    got=list(cut.counts),
                    nearest=1,
                )


def _own_counts(given: Sequence[int | tuple[int, ...]], have: NDArray[np.int64], where: str) -> NDArray[np.int64]:
    """Parts of every replica: int64[dp, num_microbatches]. ``have``: its items."""
    own = np.zeros_like(have)
    for number, count in enumerate(given):
        items = have[:, number].tolist()
        place = f"{where}[{number}]"
        if isinstance(count, int):
            most = max(items)
            if count > most or (count == 0 and most):
                expected = f"1 to {most}, the items of microbatch {number}" if most else "0: there are no items"
                raise ScheduleError(
                    "not so many items", where=place, expected=expected, got=count, nearest=min(max(count, 1), most)
                )
            own[:, number] = [min(count, item) for item in items]
            continue
        if len(count) != len(items):
            raise ScheduleError("not one number a replica", where=place, expected=f"{len(items)} counts", got=count)
        for replica, (parts, item) in enumerate(zip(count, items, strict=True)):
            if parts > item or (parts == 0 and item):
                expected = f"1 to {item}, its items" if item else "0: there are no items"
                raise ScheduleError("not so many items", where=f"{place}[{replica}]", expected=expected, got=parts)
        own[:, number] = count
    return own


def _goes_along(key: str, stream: str, microbatches: Sequence[Microbatch]) -> bool:
    return all(len(item.lengths[key]) == len(item.lengths[stream]) for item in microbatches)


def _check_meeting(giver: CutModule, taker: CutModule) -> None:
    if giver.streams != taker.streams:
        raise ScheduleError(
            f"{taker.name} reads {giver.name}, and both are cut by items that do not correspond",
            where=f"plan.parts.{taker.name}",
            expected=f"1 everywhere for {giver.name} or {taker.name}",
        )


def _items(item: Microbatch, cut: CutModule) -> int:
    return len(item.lengths[next(iter(cut.streams))])


def _part(item: Microbatch, streams: frozenset[str], items: tuple[int, int]) -> Microbatch:
    """Some items of a microbatch, and nothing else."""
    first, last = items
    lengths = {name: own[first:last] if name in streams else own[:0] for name, own in item.lengths.items()}
    has_places = item.places is not None and "text" in streams and last > first
    return Microbatch.from_arrays(lengths, 0, places=_PlacesOfPart(item, first, last) if has_places else None)


@dataclass(frozen=True)
class _PlacesOfPart:
    """What stands where in some sequences of a microbatch: first to last - 1."""

    whole: Microbatch
    first: int
    last: int

    def spans(self) -> Spans:
        """Its runs."""
        return self.whole.spans().part(self.first, self.last)


def _shared(
    giver: CutModule, taker: CutModule, by_replica: Sequence[Sequence[Microbatch]]
) -> list[tuple[Microbatch, ...]]:
    """What every two parts of two modules share."""
    found = []
    for number, (given, taken) in enumerate(zip(giver.counts, taker.counts, strict=True)):
        for a in range(given):
            for b in range(taken):
                column = []
                for replica, own in enumerate(by_replica):
                    item = own[number]
                    count = _items(item, giver)
                    begin, end = giver.items(replica, number, a, count)
                    first, last = taker.items(replica, number, b, count)
                    low, high = max(begin, first), min(end, last)
                    column.append(_part(item, giver.streams, (low, high) if low < high else (0, 0)))
                found.append(tuple(column))
    return found

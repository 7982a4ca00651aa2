"""``StagePlan``: what a planner decides for one batch: sub-microbatches, chunks, a memory strategy of every stage pair,
and the order of all stages. Data only; JSON is its file (``schedule.json``).

A modality module cuts a microbatch's items (images, clips) into even parts, which differ by one item at most; every
chunk of the module runs a forward and a backward stage for each part (DIP §4). A chunk has one or several variants, a
memory strategy for each of its layers, and every part runs one of them (DIP §5.3).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from semu import memo
from semu.checks import check_word, is_integer
from semu.errors import ConfigError, ScheduleError
from semu.files import write_text
from semu.records import dataclass
from semu.schedule.schedule import Schedule

STRATEGIES = ("none", "selective", "full", "offload")
"""Memory strategies of a layer: keep everything, recompute what ``training.recompute`` names (the attention core where
it names nothing), recompute the whole layer from its input, keep everything on the host."""
FORMAT = "semu schedule 1"

Parts = tuple[int | tuple[int, ...], ...]
"""Per microbatch, sub-microbatches: one number, or one for each data-parallel replica."""
Items = tuple[tuple[tuple[int, ...], ...], ...]
"""Per microbatch and replica, how many items each sub-microbatch has, in order."""
Reads = tuple[tuple[tuple[int, int], ...], ...]
"""Per microbatch of the readers, the (microbatch, sub-microbatch) of the module that they read."""


@dataclass(frozen=True)
class StagePlan:
    """A schedule with what it is a schedule of; everything has a default, which is what the job says.

    Attributes:
        parts: modality module -> sub-microbatches of each microbatch; 0 where the microbatch has none of its items.
            One number is for all replicas, of which one with fewer items takes as many as it has. Modules left out
            run microbatches whole.
        layers: modality module -> layers of its chunks, pp x K_i of them, dealt to the ranks in turn, one module
            behind the other (as ``PipelineLayout.modules``); None: the job's layout.
        variants: per chunk its variants, each a strategy (``STRATEGIES``) for every layer of the chunk, in order; an
            empty list: one variant, the job's own. Empty: of no chunk.
        choice: per chunk, the variant that each of its (sub-)microbatches runs, in order; empty: the first everywhere.
        orders: the order of stages on every rank; where a module cuts microbatches into k parts at most, those of
            microbatch i are numbered from i x k. None: the job's schedule.
        items: modality module -> items of every sub-microbatch (``Items``), where they are not even; a replica may have
            none for one of them. ``parts`` says how many sub-microbatches there are.
        reads: modality module -> what the modules that read it take of it (``Reads``), where that is not their own
            microbatch: samples that are deferred. In the batch, a microbatch of the module's streams is what the module
            encodes, and one of the other streams is what its readers read.
        problem: what the plan was made for, as ``JobCheckpoint.described`` says; it must be the job's. None: not said.
    Raises:
        ScheduleError: something that is no count, no strategy, no variant.
    """

    parts: Mapping[str, Parts] = field(default_factory=dict)
    layers: Mapping[str, tuple[int, ...]] | None = None
    variants: tuple[tuple[tuple[str, ...], ...], ...] = ()
    choice: tuple[tuple[int, ...], ...] = ()
    orders: Schedule | None = None
    items: Mapping[str, Items] = field(default_factory=dict)
    reads: Mapping[str, Reads] = field(default_factory=dict)
    problem: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        parts = {name: _parts(counts, f"plan.parts.{name}") for name, counts in self.parts.items()}
        object.__setattr__(self, "parts", MappingProxyType(parts))
        items = {name: _nested(own, f"plan.items.{name}") for name, own in self.items.items()}
        object.__setattr__(self, "items", MappingProxyType(items))
        object.__setattr__(self, "reads", checked_reads(self.reads, "plan.reads"))
        if self.layers is not None:
            layers = {name: _counts(counts, f"plan.layers.{name}") for name, counts in self.layers.items()}
            object.__setattr__(self, "layers", MappingProxyType(layers))
        object.__setattr__(self, "variants", _variants(self.variants))
        choice = tuple(_counts(own, f"plan.choice[{chunk}]", least=0) for chunk, own in enumerate(self.choice))
        object.__setattr__(self, "choice", choice)
        if self.choice and self.variants and len(self.choice) != len(self.variants):
            raise ScheduleError(
                "choices and variants of different numbers of chunks",
                where="plan.choice",
                expected=f"{len(self.variants)} lists",
                got=len(self.choice),
            )

    def __hash__(self) -> int:
        cuts = tuple(self.parts.items()), tuple(self.items.items()), tuple(self.reads.items())
        return hash((cuts, self.variants, self.choice, self.orders))

    # -- files -------------------------------------------------------------------------------------------------------
    def to_json(self) -> str:
        """The plan as JSON: everything that is set, orders in words (``0F0``)."""
        table: dict[str, Any] = {"format": FORMAT}
        if self.problem is not None:
            table["problem"] = dict(self.problem)
        if self.layers is not None:
            table["layers"] = {name: list(counts) for name, counts in self.layers.items()}
        if self.parts:
            table["parts"] = {
                name: [list(own) if isinstance(own, tuple) else own for own in counts]
                for name, counts in self.parts.items()
            }
        for key, nested in (("items", self.items), ("reads", self.reads)):
            if nested:
                table[key] = {name: [[list(row) for row in own] for own in rows] for name, rows in nested.items()}
        if self.variants:
            table["variants"] = [[list(words) for words in own] for own in self.variants]
        if self.choice:
            table["choice"] = [list(own) for own in self.choice]
        if self.orders is not None:
            table["name"] = self.orders.name
            table["orders"] = [" ".join(map(str, order)) or "-" for order in self.orders.orders]
        return json.dumps(table, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "schedule.json") -> StagePlan:
        """Read JSON.

        Raises:
            ScheduleError: not a plan; a key or a word that is none.
        """
        try:
            table: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleError(f"not JSON: {error}", where=name, expected=f'{{"format": "{FORMAT}", ...}}') from error
        if not isinstance(table, dict) or table.get("format") != FORMAT:
            got = table.get("format") if isinstance(table, dict) else type(table).__name__
            raise ScheduleError("not a schedule of this format", where=name, expected=FORMAT, got=got)
        legal = ["format", "name", *(item.name for item in fields(cls))]
        for key in table:
            check_word(key, legal, "key", f"{name}: {key}")
        orders = None
        if "orders" in table:
            lines = table["orders"]
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise ScheduleError("not orders", where=f"{name}: orders", expected="a line of stages for every rank")
            text = "\n".join(line.strip() or "-" for line in lines)
            orders = Schedule.from_text(text, str(table.get("name", name)))
        kinds = {
            **dict.fromkeys(("parts", "layers", "problem", "items", "reads"), dict),
            "variants": list,
            "choice": list,
        }
        given = {key: table[key] for key in kinds if key in table}
        for key, kind in kinds.items():
            if key in given and not isinstance(given[key], kind):
                words = "a table" if kind is dict else "a list"
                raise ScheduleError("of another kind", where=f"{name}: {key}", expected=words, got=repr(given[key]))
        return cls(**given, orders=orders)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StagePlan:
        """A plan from a file.

        Raises:
            ConfigError: the file cannot be read. ScheduleError: it is no plan.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise ConfigError(f"cannot read the schedule: {reason}", where=str(path), expected="a .json") from error
        return cls.from_json(text, Path(path).name)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the plan.

        Raises:
            ConfigError: the file cannot be written.
        """
        write_text(path, self.to_json())


def first_difference(made_for: Mapping[str, Any], is_for: Mapping[str, Any], where: str = "plan.problem") -> None:
    """Refuse a plan that was made for something else.

    Args:
        made_for: as the plan says. is_for: as the job is. where: of both.
    Raises:
        ScheduleError: the first thing that differs.
    """
    for key in [*is_for, *(key for key in made_for if key not in is_for)]:
        mine, its, place = made_for.get(key), is_for.get(key), f"{where}.{key}"
        if isinstance(mine, list) and isinstance(its, list) and len(mine) == len(its):
            pairs: list[tuple[str, Any, Any]] = [
                (f"{place}[{number}]", a, b) for number, (a, b) in enumerate(zip(mine, its, strict=True))
            ]
        else:
            pairs = [(place, mine, its)]
            if isinstance(mine, list) and isinstance(its, list):
                pairs = [(f"the length of {place}", len(mine), len(its))]
        for spot, a, b in pairs:
            if isinstance(a, Mapping) and isinstance(b, Mapping):
                first_difference(a, b, spot)
            elif a != b:
                raise ScheduleError("a schedule for another problem", where=spot, expected=str(b), got=str(a))


def checked_reads(value: Mapping[str, object], where: str) -> Mapping[str, Reads]:
    """What readers of modules read (``StagePlan.reads``), checked.

    Raises:
        ScheduleError: not lists of pairs of numbers.
    """
    found: dict[str, Reads] = {}
    for name, own in value.items():
        reads = _nested(own, f"{where}.{name}")
        if any(len(pair) != 2 for pairs in reads for pair in pairs):
            raise ScheduleError("not microbatch and part", where=f"{where}.{name}", expected="pairs of numbers")
        found[name] = tuple(tuple((pair[0], pair[1]) for pair in pairs) for pairs in reads)
    return MappingProxyType(found)


_CHECKED = memo.Table["tuple[tuple[tuple[str, ...], ...], ...]"]("variants of plans that have been checked", 64)


def _variants(value: Sequence[object]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Per chunk, lists of strategies of equal lengths; the same object where it is what was found before."""
    known = _CHECKED.peek(memo.Same((value,)))
    if known is not None:
        return known
    variants = []
    for chunk, own in enumerate(value):
        where = f"plan.variants[{chunk}]"
        if isinstance(own, str) or not isinstance(own, Sequence):
            raise ScheduleError("not a list of variants", where=where, expected="lists of words", got=repr(own))
        lists = [_strategies(words, f"{where}[{number}]") for number, words in enumerate(own)]
        if len({len(words) for words in lists}) > 1:
            raise ScheduleError("variants of different numbers of layers", where=where, got=list(map(len, lists)))
        variants.append(tuple(lists))
    found = tuple(variants)
    return _CHECKED.put(memo.Same((found,)), found)


def _parts(value: object, where: str) -> Parts:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else None
    if items is None:
        raise ScheduleError("not sub-microbatches", where=where, expected="a count per microbatch", got=repr(value))
    return tuple(
        _counts(item, f"{where}[{number}]", least=0)
        if isinstance(item, Sequence) and not isinstance(item, str)
        else _counts([item], f"{where}[{number}]", least=0)[0]
        for number, item in enumerate(items)
    )


def _nested(value: object, where: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Lists of lists of counts."""
    outer = value if isinstance(value, Sequence) and not isinstance(value, str) else (None,)
    if any(isinstance(own, str) or not isinstance(own, Sequence) for own in outer):
        raise ScheduleError("not lists of lists", where=where, expected="a list for every microbatch", got=repr(value))
    return tuple(
        tuple(_counts(row, f"{where}[{number}]") for row in own)
        for number, own in enumerate(outer)
        if isinstance(own, Sequence)
    )


def _counts(value: object, where: str, least: int = 0) -> tuple[int, ...]:
    items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (None,)
    if {*map(type, items)} == {int} and min(items) >= least:  # as the rest, in less time
        return items
    if not all(is_integer(item) and item >= least for item in items):
        raise ScheduleError("not a list of counts", where=where, expected=f"integers >= {least}", got=repr(value))
    return tuple(int(item) for item in items if item is not None)


def _strategies(value: object, where: str) -> tuple[str, ...]:
    words = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (repr(value),)
    for word in words:
        if word not in STRATEGIES:
            raise ScheduleError(
                "unknown memory strategy of a layer", where=where, expected=", ".join(STRATEGIES), got=word
            )
    return tuple(str(word) for word in words)

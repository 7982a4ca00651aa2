"""How GPUs are split over modality modules, as values of a grid's axes ``shares`` and ``modules``: words.

``vit=1/llm=3``: pipeline ranks of every module (virtual segments where modules are ``separated``), all on meshes alike.
``vit=tp2-cp1-pp1/llm=tp4-cp1-pp3``: sizes of every module on GPUs of its own; a replica has all of them, so that dp
follows. The empty word is what the job has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from semu.errors import ConfigError, unknown_name
from semu.job import TrainingJob
from semu.parallel.segments import OWN_RANKS, sharing_ranks

BALANCED = "balanced"
"""In place of shares: as the partition balances best."""
MOST_VALUES = 20_000
"""Ways to split GPUs that a grid lists by itself."""
_SIZES = ("tp", "cp", "pp")
Sizes = dict[str, dict[str, int]]


def takes_shares(segments: str) -> bool:
    """Whether modules placed like this have shares."""
    return segments in OWN_RANKS or segments == "separated"


def shares_of(word: str) -> dict[str, int]:
    """Module -> its share; empty: as the partition balances."""
    pairs = (own.split("=") for own in word.split("/")) if word not in ("", BALANCED) else ()
    return {name: int(count) for name, count in pairs}


def sizes_of(word: str) -> Sizes:
    """Module -> tp, cp and pp."""
    pairs = (own.split("=") for own in word.split("/")) if word else ()
    return {name: {size[:2]: int(size[2:]) for size in text.split("-")} for name, text in pairs}


def widths_of(word: str) -> tuple[tuple[int, int], ...]:
    """tp and cp of every module."""
    return tuple((own["tp"], own["cp"]) for own in sizes_of(word).values())


def word_of(values: dict[str, int] | Sizes) -> str:
    """Shares or sizes of modules as a word."""

    def _text(value: int | dict[str, int]) -> str:
        return str(value) if isinstance(value, int) else "-".join(f"{key}{value[key]}" for key in _SIZES)

    return "/".join(f"{name}={_text(value)}" for name, value in values.items())


def total_sizes(word: str) -> tuple[int, int, int]:
    """tp, cp and pp of the job whose modules have these sizes: those of its widest module, and all pipeline ranks."""
    sizes = sizes_of(word).values()
    tp, cp = max((own["tp"], own["cp"]) for own in sizes)
    return tp, cp, sum(own["pp"] for own in sizes)


class Splits:
    """Words of a job's modules.

    Args:
        job: whose modules. segments: how they lie over pipeline ranks.
    """

    def __init__(self, job: TrainingJob, segments: Sequence[str]) -> None:
        self._job, self._segments = job, segments
        self._names = [module.name for module in job.model.modules]
        self._blocks = [len(module.blocks()) for module in job.model.modules]

    def read_shares(self, word: object, where: str) -> str:
        """A word as the axis has it: names may be left out, in the order of data flow.

        Raises:
            ConfigError: no word of shares; another module.
        """
        if word == BALANCED:
            return BALANCED
        expected = f"{self._example(lambda _: '1')}, shares in this order, or {BALANCED}"
        parts = self._parts(word, "shares", where, expected)
        if not all(text.isdecimal() and int(text) >= 1 for text in parts.values()):
            raise ConfigError("no shares of modules", where=where, expected=expected, got=word)
        return word_of({name: int(text) for name, text in parts.items()})

    def read_sizes(self, word: object, where: str) -> str:
        """The same of sizes; those of a module that are left out are 1.

        Raises:
            ConfigError: no word of sizes; another module.
        """
        expected = f"{self._example(lambda _: 'tp2-pp1')}, sizes in this order"
        found: Sizes = {}
        for name, text in self._parts(word, "modules", where, expected).items():
            pairs = [(part[:2], part[2:]) for part in text.split("-")]
            is_size = all(key in _SIZES and count.isdecimal() and int(count) >= 1 for key, count in pairs)
            if not is_size or len(dict(pairs)) < len(pairs):
                raise ConfigError("no sizes of modules", where=where, expected=expected, got=word)
            found[name] = {key: int(dict(pairs).get(key, 1)) for key in _SIZES}
        return word_of(found)

    def _example(self, text: Any) -> str:
        return "/".join(f"{name}={text(name)}" for name in self._names)

    def _parts(self, word: object, axis: str, where: str, expected: str) -> dict[str, str]:
        """Module -> its part of a word, in the order of data flow."""
        parts = str(word).split("/")
        named = [part.split("=") for part in parts]
        if len(parts) != len(self._names) or any(len(own) > 2 for own in named):
            what = f"not a part for each of {len(self._names)} modules"
            raise ConfigError(what, where=where, expected=expected, got=word)
        found = {own[0] if len(own) == 2 else name: own[-1] for name, own in zip(self._names, named, strict=True)}
        for name in found:
            if name not in self._names:
                raise unknown_name("module", name, self._names, where=f"{where} {axis}")
        if len(found) < len(self._names):
            raise ConfigError("a module twice", where=where, expected=expected, got=word)
        return {name: found[name] for name in self._names}

    def fits(self, shares: str, segments: str, pp: int, vpp: int) -> bool:
        """Whether shares make the pipeline's ranks or segments."""
        own = shares_of(shares)
        if not own:
            return True
        if segments == "separated":
            return sum(own.values()) == vpp
        places = [[self._names[k] for k in place] for place in self._places(segments)]
        alike = all(len({own[name] for name in place}) == 1 for place in places)
        return alike and sum(own[place[0]] for place in places) == pp

    def _places(self, segments: str) -> list[list[int]]:
        return sharing_ranks(segments, self._names, self._job.model.encoders)

    def width(self, word: str, segments: str) -> int:
        """GPUs of a replica whose modules have sizes."""
        sizes = sizes_of(word)
        each = [math.prod(sizes[name].values()) for name in self._names]
        return sum(math.lcm(*(each[k] for k in place)) for place in self._places(segments))

    def every_shares(self, totals: Sequence[int]) -> tuple[str, ...]:
        """All shares that make one of some numbers of ranks or segments, with a block for each.

        Raises:
            ConfigError: too many.
        """
        found: dict[str, None] = {}
        for segments, total in product([own for own in self._segments if takes_shares(own)], sorted(set(totals))):
            places = [[k] for k in range(len(self._names))] if segments == "separated" else self._places(segments)
            most = [min(self._blocks[k] for k in place) for place in places]
            for counts in _compositions(total, most):
                own = {self._names[k]: count for place, count in zip(places, counts, strict=True) for k in place}
                found[word_of({name: own[name] for name in self._names})] = None
                _check_number(found, "shares")
        return tuple(found)

    def every_sizes(self, dps: Sequence[int], tps: Sequence[int], cps: Sequence[int]) -> tuple[str, ...]:
        """All sizes of modules, each on ranks of its own, that use all GPUs with some number of replicas.

        Args:
            dps, tps, cps: replicas, tensor and context ranks that may be.
        Raises:
            ConfigError: too many.
        """
        gpus = self._job.cluster.num_gpus
        meshes = {tp * cp: None for tp, cp in product(tps, cps)}
        by_mesh = {width: [(tp, cp) for tp, cp in product(tps, cps) if tp * cp == width] for width in meshes}
        found: dict[str, None] = {}
        for dp in sorted(set(dps)):
            if gpus % dp:
                continue
            most = [gpus // dp] * len(self._names)
            for counts in _compositions(gpus // dp, most):
                options = [
                    [
                        {"tp": tp, "cp": cp, "pp": count // width}
                        for width, own in by_mesh.items()
                        if count % width == 0 and count // width <= blocks
                        for tp, cp in own
                    ]
                    for count, blocks in zip(counts, self._blocks, strict=True)
                ]
                for chosen in product(*options):
                    found[word_of(dict(zip(self._names, chosen, strict=True)))] = None
                    _check_number(found, "modules")
        return tuple(found)


def _compositions(total: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as a sum of as many numbers >= 1, each at most its own."""
    if len(most) == 1:
        if 1 <= total <= most[0]:
            yield (total,)
        return
    for first in range(1, min(most[0], total - len(most) + 1) + 1):
        for rest in _compositions(total - first, most[1:]):
            yield (first, *rest)


def _check_number(found: dict[str, None], axis: str) -> None:
    if len(found) > MOST_VALUES:
        raise ConfigError(
            f"more than {MOST_VALUES:,} ways to split GPUs over modules",
            where=f"vary {axis}",
            expected=f"values of {axis} by name, or dp, tp or pp fixed",
            got=f"{axis} without values",
        )

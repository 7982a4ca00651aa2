"""``PipelineLayout``: an explicit assignment of layers to pipeline stages (run.toml ``[parallel.layout]``).

A layer is a member of the longest numbered family of a modality module's ``Sequential`` (``layers.0``, ``layers.1``,
...; every member where none is numbered). Members before the family (an embedding) lie with its first layer, those
behind it (a head, an adapter, the loss) with its last one; a first or last stage without layers holds those alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from semu.checks import check_integer, check_switch, check_word, is_integer
from semu.errors import ConfigError
from semu.parallel.layout_text import expand_stages
from semu.records import dataclass

_WHERE = "parallel.layout"


@dataclass(frozen=True)
class PipelineLayout:
    """Layers of every virtual stage; stage g is on rank g mod pp, slot g div pp, or where ``ranks`` says. One of four
    ways to say which layers, or evenly.

    Attributes:
        stages: Megatron-LM's ``--pipeline-model-parallel-layout``: ``"Et*3|(tt|)*2tL"``, E embedding, t layer, L loss,
            ``|`` between stages, ``*n`` repeats the symbol or the group in parentheses before it.
        layers: of each of the pp x vpp stages, for a model of one modality module.
        modules: modality module -> layers of its stages. Lists with pp x vpp entries together are dealt out one
            module behind the other; lists with pp x vpp entries each are over the same stages, 0 where a module has
            no part in one.
        first, last: of the first and the last pipeline rank, over all its virtual stages; the others share the rest
            evenly (Megatron-LM's ``--decoder-first-pipeline-num-layers``, ``--decoder-last-pipeline-num-layers``).
        account_for_embedding, account_for_loss: the first stage has one layer less than an even share, the last one
            (Megatron-LM's ``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``).
        ranks: the pipeline rank of each of the pp x vpp stages, every rank vpp times, as FlexPipe's ``place`` takes any
            map of stages to actors (§4.1); None: circular, or as ``parallel.placement`` says.
    Raises:
        ConfigError: several ways at once, an unknown symbol, something that is no count.
    """

    stages: str | None = None
    layers: tuple[int, ...] | None = None
    modules: Mapping[str, tuple[int, ...]] | None = None
    first: int | None = None
    last: int | None = None
    account_for_embedding: bool = False
    account_for_loss: bool = False
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("account_for_embedding", "account_for_loss"):
            check_switch(getattr(self, name), f"{_WHERE}.{name}")
        for name in ("first", "last"):
            value = getattr(self, name)
            if value is not None:
                check_integer(value, f"{_WHERE}.{name}", "a number of layers", least=0)
        if self.layers is not None:
            object.__setattr__(self, "layers", _counts(self.layers, f"{_WHERE}.layers"))
        if self.ranks is not None:
            object.__setattr__(self, "ranks", _counts(self.ranks, f"{_WHERE}.ranks"))
        if self.modules is not None:
            if not isinstance(self.modules, Mapping) or not self.modules:
                raise ConfigError(
                    "not a table", where=f"{_WHERE}.modules", expected="module = [layers, ...]", got=repr(self.modules)
                )
            counts = {name: _counts(value, f"{_WHERE}.modules.{name}") for name, value in self.modules.items()}
            object.__setattr__(self, "modules", MappingProxyType(counts))
        self._check_ways()
        if self.stages is not None:
            expand_stages(self.stages, f"{_WHERE}.stages")

    def _check_ways(self) -> None:
        """One way, not several."""
        ways = [name for name in ("stages", "layers", "modules") if getattr(self, name) is not None]
        if self.first is not None or self.last is not None:
            ways.append("first and last")
        if self.account_for_embedding or self.account_for_loss:
            ways.append("account_for_embedding and account_for_loss")
        if len(ways) > 1:
            raise ConfigError(
                "the layout is given in several ways", where=_WHERE, expected="one of them", got="; ".join(ways)
            )

    @classmethod
    def of(cls, value: object) -> PipelineLayout:
        """A layout, or the one that a table of a run file describes.

        Raises:
            ConfigError: neither, an unknown key.
        """
        if isinstance(value, PipelineLayout):
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(
                "not a layout", where=_WHERE, expected="a table, or semu.PipelineLayout(...)", got=repr(value)
            )
        legal = [item.name for item in fields(cls)]
        for name in value:
            check_word(name, legal, "key", f"{_WHERE}.{name}")
        return cls(**value)

    def to_table(self) -> dict[str, Any]:
        """The keys that are set, as ``of`` reads them."""
        table: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None or value is False:
                continue
            if isinstance(value, Mapping):
                value = {name: list(counts) for name, counts in value.items()}
            table[item.name] = list(value) if isinstance(value, tuple) else value
        return table

    def check_stages(self, pp: int, vpp: int) -> None:
        """Whether there is something for each of the pp x vpp stages.

        Raises:
            ConfigError: more or fewer stages, with the nearest number of virtual stages per rank.
        """
        if self.stages is not None:
            _check_number(len(expand_stages(self.stages, f"{_WHERE}.stages")), pp, vpp, f"{_WHERE}.stages")
        if self.layers is not None:
            _check_number(len(self.layers), pp, vpp, f"{_WHERE}.layers")
        if self.modules is not None:
            sizes = [len(counts) for counts in self.modules.values()]
            if any(size != pp * vpp for size in sizes):
                _check_number(sum(sizes), pp, vpp, f"{_WHERE}.modules")
        if self.ranks is not None:
            self._check_ranks(self.ranks, pp, vpp)

    @staticmethod
    def _check_ranks(ranks: tuple[int, ...], pp: int, vpp: int) -> None:
        _check_number(len(ranks), pp, vpp, f"{_WHERE}.ranks")
        for rank in range(max(pp, max(ranks) + 1)):
            if ranks.count(rank) != (vpp if rank < pp else 0):
                raise ConfigError(
                    f"{ranks.count(rank)} stages on rank {rank}" if rank < pp else f"there is no rank {rank}",
                    where=f"{_WHERE}.ranks",
                    expected=f"every rank from 0 to {pp - 1}, {vpp} times",
                    got=list(ranks),
                )


def _check_number(count: int, pp: int, vpp: int, where: str) -> None:
    if count != pp * vpp:
        raise ConfigError(
            f"{count} stages for pp x vpp = {pp} x {vpp}",
            where=where,
            expected=f"{pp * vpp} stages",
            got=count,
            nearest=f"vpp = {count // pp}" if count % pp == 0 and count else None,
        )


def _counts(value: object, where: str) -> tuple[int, ...]:
    items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if not items or not all(is_integer(item) and item >= 0 for item in items):
        raise ConfigError("not a list of layer counts", where=where, expected="integers >= 0", got=repr(value))
    return items

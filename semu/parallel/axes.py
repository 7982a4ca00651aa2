"""The table of parallel axes: ``ParallelSizes`` has a field per axis, ``MESH`` is the order of ranks.

A new axis is a field, and a place in ``MESH`` if it needs GPUs of its own. From these are made the keyword of
``Parallel``, the key of ``[parallel]``, ``--parallel`` and labels (``dp8-tp2-pp4``), the number of GPUs, coordinates
and groups of ranks (``Mesh``), the ranks over which gradients are reduced and ZeRO shards, and what reports say.
"""

from __future__ import annotations

import math
import re
from dataclasses import field, fields, replace
from enum import Enum
from typing import Any, Self

from semu.checks import check_integer
from semu.errors import ConfigError
from semu.records import dataclass


class Shards(Enum):
    """What an axis cuts into parts, one per rank."""

    SAMPLES = "samples"
    SEQUENCE = "sequence"
    WEIGHTS = "weights"
    LAYERS = "layers"
    EXPERTS = "experts"


class Following(int):
    """The size of an axis that nobody gave: 1 until a cluster says how many GPUs there are."""


FOLLOWING = Following(1)


def _axis(shards: Shards, default: int | None = 1, *, is_shown: bool = False) -> Any:
    """A row of the table.

    Args:
        shards: what the axis cuts. default: size where it is not given; None: it follows from other axes.
        is_shown: labels name the axis at its default size too.
    """
    return field(default=default, kw_only=default is None, metadata={"shards": shards, "is_shown": is_shown})


@dataclass(frozen=True)
class ParallelSizes:
    """Ranks on every parallel axis, in the order of texts.

    Attributes:
        dp, tp, pp: data-, tensor- and pipeline-parallel sizes, >= 1. A job whose dp is not given has as many replicas
            as its cluster holds.
        vpp: virtual stages per pipeline rank, >= 1; group g of all pp x vpp groups of layers is on rank g mod pp.
        cp, ep: context- and expert-parallel sizes, >= 1.
        etp: ranks that every expert is split over; None: tp, as in Megatron-LM. The dp x cp x tp ranks of a pipeline
            rank are etp x ep x (expert data parallel), in this order.
    """

    dp: int = _axis(Shards.SAMPLES, FOLLOWING, is_shown=True)
    tp: int = _axis(Shards.WEIGHTS, is_shown=True)
    pp: int = _axis(Shards.LAYERS, is_shown=True)
    vpp: int = _axis(Shards.LAYERS)
    cp: int = _axis(Shards.SEQUENCE)
    ep: int = _axis(Shards.EXPERTS)
    etp: int | None = _axis(Shards.EXPERTS, None)

    def check_sizes(self) -> None:
        """Every size is an integer >= 1.

        Raises:
            ConfigError: the first that is not.
        """
        for name, value in self.sizes.items():
            check_integer(value, f"parallel.{name}", "a parallel size")

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> size, of all axes that have one."""
        return {name: size for name in AXES if (size := getattr(self, name)) is not None or name in COUNTS}

    def ranks(self, axes: tuple[str, ...]) -> int:
        """Product of the sizes of some axes."""
        return math.prod([getattr(self, name) for name in axes])

    def stride(self, axis: str) -> int:
        """How far apart the ranks of an axis of ``MESH`` are: GPUs from one to the next."""
        return self.ranks(MESH[: MESH.index(axis)])

    def on(self, num_gpus: int) -> Self:
        """The same sizes; where dp is not given, with as many replicas as so many GPUs hold, if they come out even."""
        rest = self.num_gpus // self.dp
        return replace(self, dp=num_gpus // rest) if isinstance(self.dp, Following) and num_gpus % rest == 0 else self

    @property
    def num_gpus(self) -> int:
        """GPUs that the job needs: dp x cp x tp x pp."""
        return self.ranks(MESH)

    @property
    def stage_gpus(self) -> int:
        """GPUs of a pipeline rank: dp x cp x tp."""
        return self.num_gpus // self.pp

    @property
    def replica_gpus(self) -> int:
        """GPUs of a pipeline rank that work on one replica: tp x cp."""
        return self.ranks(PEERS)

    @property
    def replicas(self) -> int:
        """Replicas of the model, each with microbatches of its own: dp."""
        return self.ranks(REPLICATING)

    @property
    def data_ranks(self) -> int:
        """Ranks that hold the same weights and see other data: dp x cp."""
        return self.ranks(DATA)

    @classmethod
    def parse(cls, text: str, base: Self | None = None) -> Self:
        """Read the command line's short form, ``dp8-tp2-pp4-vpp1-cp1-ep1``; what is not named keeps ``base``'s value,
        except that axes not named become 1 (dp what the cluster holds; etp stays). Commas, blanks, ``tp=8`` and
        capitals are taken too.

        Raises:
            ConfigError: a part that is not the name of an axis and a size.
        """
        given: dict[str, int] = {}
        for part in re.split(r"\s*,\s*|[-_]|\s+|(?<=\d)(?=[a-z])", text.strip().lower()):
            match = re.fullmatch(rf"({'|'.join(AXES)})[=:]?(\d+)", part)
            if match is None or match[1] in given:
                raise ConfigError(
                    "not a parallel configuration",
                    where="--parallel",
                    expected="parts like dp8-tp2-pp4-vpp1-cp1-ep1, each at most once",
                    got=text,
                )
            given[match[1]] = int(match[2])
        return replace(base if base is not None else cls(), **{**dict.fromkeys(COUNTS, 1), "dp": FOLLOWING, **given})

    def label(self) -> str:
        """Short form, ``dp8-tp2-pp4``; vpp, cp and ep only where they are not 1, etp where it is given."""
        rows = ((item, getattr(self, item.name)) for item in _ROWS)
        return "-".join(
            f"{item.name}{size}" for item, size in rows if item.metadata["is_shown"] or size != item.default
        )


_ROWS = fields(ParallelSizes)


def axes_of(*shards: Shards) -> tuple[str, ...]:
    """Axes that cut one of these."""
    return tuple(item.name for item in _ROWS if item.metadata["shards"] in shards)


AXES = tuple(item.name for item in _ROWS)
"""All axes, in the order of texts."""
COUNTS = tuple(item.name for item in _ROWS if item.default is not None)
"""Axes that always have a size."""
MESH = ("tp", "cp", "dp", "pp")
"""Axes that multiply the number of GPUs, in Megatron-LM's order (``tp-cp-dp-pp``): neighbours differ in the first."""
GPU_AXES = tuple(name for name in AXES if name in MESH)
"""Axes that multiply the number of GPUs, in the order of texts."""
DATA = tuple(name for name in MESH if name in axes_of(Shards.SAMPLES, Shards.SEQUENCE))
"""Axes of ``MESH`` over which gradients are reduced; they are neighbours in it."""
REPLICATING = tuple(name for name in DATA if name in axes_of(Shards.SAMPLES))
"""Axes of ``MESH`` over which samples are shared out; they are neighbours in it."""
PEERS = tuple(name for name in MESH if name in axes_of(Shards.WEIGHTS, Shards.SEQUENCE))
"""Axes of ``MESH`` inside a pipeline rank of one replica; the first of it."""

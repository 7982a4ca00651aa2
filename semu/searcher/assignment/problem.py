"""``AssignmentProblem``: what a method is asked; ``Dealt``: what it answers. Plain arrays; the door checks them."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

_ALIKE = 1e-2
"""Difference of two ranks' shares of a sample that does not count, of the largest share."""
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

TICK_S = 2.0**-30
"""Loads are whole multiples of it [s], 0.9 ns: sums do not depend on an order, and all machines find the same."""


def in_ticks(seconds: F64) -> I64:
    """Times as whole ticks."""
    return np.rint(seconds / TICK_S).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Dealt:
    """Which sample goes where.

    Attributes:
        replica: int64[n], data-parallel replica of every sample.
        microbatch: int64[n], in which its encoders run; numbered in the order of execution.
        reader: int64[n], microbatch in which the backbone reads it: the same, or the next one (deferred).
        num_microbatches: of a replica.
    """

    replica: I64
    microbatch: I64
    reader: I64
    num_microbatches: int

    @classmethod
    def together(cls, replica: I64, microbatch: I64, num_microbatches: int) -> Dealt:
        """Every sample whole in one microbatch."""
        return cls(replica, microbatch, microbatch, num_microbatches)

    def is_like(self, other: Dealt) -> bool:
        """Whether every sample is in the same replica and microbatches."""
        mine, theirs = ((own.replica, own.microbatch, own.reader) for own in (self, other))
        is_same = all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        return is_same and self.num_microbatches == other.num_microbatches

    @property
    def is_deferred(self) -> NDArray[np.bool_]:
        """bool[n], samples that the backbone reads in a later microbatch."""
        differs: NDArray[np.bool_] = self.reader != self.microbatch
        return differs

    @property
    def bins(self) -> I64:
        """int64[n], replica x microbatches + microbatch."""
        return self.replica * self.num_microbatches + self.microbatch

    @property
    def reader_bins(self) -> I64:
        """int64[n], replica x microbatches + microbatch of the backbone."""
        return self.replica * self.num_microbatches + self.reader


class PipelineEnds(Protocol):
    """The iteration's pipeline under fitted costs."""

    def __call__(self, dealt: Dealt, replica: int | None = None, samples: I64 | None = None) -> F64:
        """End of every replica's last stage: float64[dp] [s].

        Args:
            dealt: where samples go. replica: the one that ``dealt`` is of, as its only one; None: it is of all.
            samples: int64[n], those of ``dealt``; None: all.
        """
        ...


@dataclass(frozen=True, eq=False)
class AssignmentProblem:
    """One iteration's samples.

    Attributes:
        load: int64[n, num_ranks] [ticks], what a sample adds to the stages of every pipeline rank, both ways.
        fixed: int64[num_ranks] [ticks], what a microbatch costs them beside its samples.
        encoder, backbone: int64[n] [ticks], what a sample adds to the stages of all encoders, of all other modules.
        tokens: int64[n], in the backbone. limit: most tokens of a microbatch; None: any number.
        dp: replicas. num_microbatches: of a replica. num_ranks_of_encoder: pipeline ranks with encoder stages.
        bounds: int64[k + 1], samples of the microbatches that packing in their order makes, k <= dp x microbatches.
        seed: of ``random``. slowdown: float64[dp], time of every replica's stages over that of a usual one's.
        ends: the iteration's pipelines.
    """

    load: I64
    fixed: I64
    encoder: I64
    backbone: I64
    tokens: I64
    limit: int | None
    dp: int
    num_microbatches: int
    bounds: I64
    seed: int
    slowdown: F64
    ends: PipelineEnds

    @property
    def num_samples(self) -> int:
        """Samples of the iteration."""
        return len(self.tokens)

    @property
    def cap(self) -> int:
        """``limit``, -1 where there is none."""
        return -1 if self.limit is None else self.limit

    @cached_property
    def slowness(self) -> I64:
        """``slowdown`` in whole 1/1024; none where all replicas are alike."""
        if (self.slowdown == self.slowdown[0]).all():
            return np.empty(0, np.int64)
        return np.rint(self.slowdown * 1024).astype(np.int64)

    @cached_property
    def kept_ranks(self) -> tuple[int, ...]:
        """Ranks whose loads matter: of ranks whose loads are alike up to a factor the one with the largest."""
        kept: list[int] = []
        total = self.load.sum(axis=0)
        shape = self.load / np.maximum(total, 1)
        for rank in np.argsort(-total, kind="stable").tolist():
            limits = [_ALIKE * shape[:, other].max() for other in kept]
            apart = [np.abs(shape[:, rank] - shape[:, other]).max() for other in kept]
            if total[rank] and all(apart[n] > limits[n] for n in range(len(kept))):
                kept.append(rank)
        return tuple(sorted(kept)) or (0,)

    @cached_property
    def columns(self) -> I64:
        """int64[n, num_columns] [ticks], loads of ``kept_ranks``."""
        return np.ascontiguousarray(self.load[:, self.kept_ranks])

    @cached_property
    def base(self) -> I64:
        """int64[num_columns] [ticks], fixed costs of ``kept_ranks``."""
        return np.ascontiguousarray(self.fixed[list(self.kept_ranks)])

    @cached_property
    def by_size(self) -> I64:
        """int64[n], samples by their largest share of a column, descending; ties by number."""
        share = (self.columns / np.maximum(self.columns.max(axis=0), 1)).max(axis=1)
        return np.argsort(-share, kind="stable")

    def of_replica(self, dealt: Dealt, replica: int) -> tuple[AssignmentProblem, Dealt]:
        """The problem of one replica's samples, and where they go, as those of replica 0."""
        own = np.flatnonzero(dealt.replica == replica)

        def _ends(dealt: Dealt, replica: int | None = replica, samples: I64 | None = own) -> F64:
            return self.ends(dealt, replica, samples)

        problem = replace(
            self,
            load=self.load[own],
            encoder=self.encoder[own],
            backbone=self.backbone[own],
            tokens=self.tokens[own],
            dp=1,
            slowdown=self.slowdown[[replica]],
            ends=_ends,
        )
        none = np.zeros(len(own), np.int64)
        return problem, Dealt(none, dealt.microbatch[own], dealt.reader[own], dealt.num_microbatches)

    def times(self, dealt: Dealt) -> F64:
        """End of every replica's pipeline under fitted costs: float64[dp] [s]."""
        return self.ends(dealt)

    def worst_s(self, dealt: Dealt) -> float:
        """The slowest replica under fitted costs [s]."""
        return float(self.times(dealt).max())

"""What execution plans are made of: chunks, stage pairs, messages, actions, estimates; checked when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.checks import check_int32, check_integers, check_range, check_text, check_times
from semu.errors import ScheduleError
from semu.plan.action import KINDS, ActionKind
from semu.records import dataclass
from semu.schedule.stage_plan import STRATEGIES

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
I16 = NDArray[np.int16]
I8 = NDArray[np.int8]
F64 = NDArray[np.float64]

MOST_BYTES = 1 << 44
"""Of a message or a stage [bytes]; the sum of half a million of them is still an int64."""


@dataclass(frozen=True)
class PlanChunk:
    """A model chunk.

    Attributes:
        module: modality module. rank: pipeline rank that holds it. first_layer, num_layers: its layers, counted within
            the module. has_backward: whether gradients pass through it, or are made in it.
        variants: memory strategies of its layers (``semu.schedule.stage_plan.STRATEGIES``), one list per variant.
        flow: which copy of the model it is part of (bidirectional pipelines; pipelines that share a batch).
        gang: number of the gang whose member it is, chunks of the same layers on several ranks; -1: of none.
        repeats: an encoder that another rank has too, and whose forwards nobody reads; it has no backward.
        sources: chunks whose forward results it reads, for every (sub-)microbatch that both run; None: not said.
    Raises:
        ScheduleError: something that is no count, no strategy; a variant for another number of layers.
    """

    module: str
    rank: int
    first_layer: int
    num_layers: int
    has_backward: bool
    variants: tuple[tuple[str, ...], ...]
    flow: int = 0
    sources: tuple[int, ...] | None = None
    gang: int = -1
    repeats: bool = False

    def __post_init__(self) -> None:
        where = "plan.chunks"
        check_text(self.module, f"{where}.module")
        for name in ("rank", "first_layer", "num_layers", "flow"):
            object.__setattr__(self, name, check_int32(getattr(self, name), f"{where}.{name}"))
        object.__setattr__(self, "gang", check_int32(self.gang, f"{where}.gang", least=-1))
        for name in ("has_backward", "repeats"):
            if not isinstance(getattr(self, name), bool):
                raise ScheduleError("neither true nor false", where=f"{where}.{name}", got=repr(getattr(self, name)))
        if not self.variants:
            raise ScheduleError("no variant", where=f"{where}.variants", expected="one list of strategies or more")
        for number, words in enumerate(self.variants):
            if len(words) != self.num_layers:
                raise ScheduleError(
                    "not a strategy for every layer",
                    where=f"{where}.variants[{number}]",
                    expected=f"{self.num_layers} words",
                    got=len(words),
                )
            for its in words:
                if its not in STRATEGIES:
                    expected = ", ".join(STRATEGIES)
                    raise ScheduleError(
                        "unknown memory strategy of a layer",
                        where=f"{where}.variants[{number}]",
                        expected=expected,
                        got=repr(its),
                    )
        if self.sources is not None:
            places = tuple(check_int32(source, f"{where}.sources") for source in self.sources)
            object.__setattr__(self, "sources", places)


@dataclass(frozen=True)
class PlanReduction:
    """Gradients of a layer, summed over the pipelines that share a batch, each times its pipeline's weight.

    Attributes:
        module: modality module. layer: within it; -1: what runs before its first layer (an embedding), the number of
            its layers: what runs behind the last (a norm, a head).
        chunks: that hold it, one in every pipeline. shards: parts into which each of them cuts it (tensor parallelism).
    Raises:
        ScheduleError: numbers that are no counts; not a number of shards for every chunk.
    """

    module: str
    layer: int
    chunks: tuple[int, ...]
    shards: tuple[int, ...]

    def __post_init__(self) -> None:
        where = "plan.reductions"
        check_text(self.module, f"{where}.module")
        object.__setattr__(self, "layer", check_int32(self.layer, f"{where}.layer", least=-1))
        for name, least in (("chunks", 0), ("shards", 1)):
            found = tuple(check_int32(one, f"{where}.{name}", least=least) for one in getattr(self, name))
            object.__setattr__(self, name, found)
        if len(self.shards) != len(self.chunks):
            raise ScheduleError(
                "not a number of shards for every chunk",
                where=f"{where}.shards",
                expected=f"{len(self.chunks)} numbers",
                got=len(self.shards),
            )


@dataclass(frozen=True, eq=False)
class PlanPairs:
    """Stage pairs, n of them.

    Attributes:
        chunk, microbatch, part: int32[n]; part within the microbatch, 0 where its module cuts none.
        variant: int32[n], of its chunk.
        items: int32[num_replicas, n, 2], which of the module's items (images, clips, sequences) of the microbatch it
            runs: first, one past the last. Empty where a replica has fewer parts than another.
    Raises:
        ScheduleError: arrays of other shapes, numbers below 0, items that end before they begin.
    """

    chunk: I32
    microbatch: I32
    part: I32
    variant: I32
    items: I32

    def __post_init__(self) -> None:
        _set_arrays(self, "plan.pairs", ("chunk", "microbatch", "part", "variant"), np.int32)
        _set_items(self, "plan.pairs", len(self.chunk))

    def __len__(self) -> int:
        return len(self.chunk)


@dataclass(frozen=True, eq=False)
class PlanMessages:
    """Messages, m of them.

    Attributes:
        source, target: int32[m], stages: 2 x pair for a forward, 2 x pair + 1 for a backward (of split backwards the
            input gradient's).
        source_rank, target_rank: int16[m]. tag: int32[m], unique among messages of a directed pair of ranks.
        num_bytes: int64[num_replicas, m].
        items: int32[num_replicas, m, 2], items of the module that is cut finer which it carries.
    Raises:
        ScheduleError: arrays of other shapes, numbers below 0, items that end before they begin.
    """

    source: I32
    target: I32
    source_rank: I16
    target_rank: I16
    tag: I32
    num_bytes: I64
    items: I32

    def __post_init__(self) -> None:
        where = "plan.messages"
        _set_arrays(self, where, ("source", "target", "tag"), np.int32)
        _set_arrays(self, where, ("source_rank", "target_rank"), np.int16, len(self.source))
        sizes = check_integers(
            self.num_bytes, np.int64, f"{where}.num_bytes", (None, len(self.source)), most=MOST_BYTES
        )
        object.__setattr__(self, "num_bytes", sizes)
        _set_items(self, where, len(self.source))

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class RankActions:
    """What one rank does, in order; a actions.

    Attributes:
        kind: int8[a], ``ActionKind.code``. target: int32[a], a pair for stages and exchanges, else a message.
        batch: int32[a], consecutive launches (isend, irecv) with the same number >= 0 are one batched operation;
            -1: for itself. A compiled plan numbers all: a message has one number at both its ends, and numbers rise
            along every rank.
    Raises:
        ScheduleError: arrays of other shapes, an unknown kind, numbers out of range, a batch of something else.
    """

    kind: I8
    target: I32
    batch: I32

    def __post_init__(self) -> None:
        where = "plan.actions"
        _set_arrays(self, where, ("kind",), np.int8)
        check_range(self.kind, f"{where}.kind", 0, len(KINDS) - 1)
        _set_arrays(self, where, ("target",), np.int32, len(self.kind))
        _set_arrays(self, where, ("batch",), np.int32, len(self.kind), least=-1)
        wrong = np.flatnonzero(~self.is_launch & (self.batch >= 0))
        if len(wrong):
            at = int(wrong[0])
            raise ScheduleError(
                "a batch of something that is not launched",
                where=f"{where}.batch[{at}]",
                expected="-1: only isend and irecv are batched",
                got=f"{int(self.batch[at])} of {KINDS[int(self.kind[at])]}",
            )

    @property
    def is_launch(self) -> NDArray[np.bool_]:
        """bool[a], whether it is an isend or an irecv."""
        found: NDArray[np.bool_] = (self.kind == ActionKind.ISEND.code) | (self.kind == ActionKind.IRECV.code)
        return found

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class PlanMemory:
    """Memory of stages under the variants of the plan, on the replica that needs most on their rank.

    Attributes:
        held_bytes: int64[n], from the start of the forward to the end of the backward; 0 without a backward.
        forward_peak_bytes, backward_peak_bytes: int64[n], peak of a stage with what arrives for it, on top of what its
            rank held before; of a forward at least ``held_bytes``.
        static_bytes: int64[num_ranks], what is always there.
    Raises:
        ScheduleError: arrays that are none of sizes.
    """

    held_bytes: I64
    forward_peak_bytes: I64
    backward_peak_bytes: I64
    static_bytes: I64

    def __post_init__(self) -> None:
        for item in fields(self):
            where = f"plan.estimates.memory.{item.name}"
            sizes = check_integers(getattr(self, item.name), np.int64, where, (None,), most=MOST_BYTES)
            object.__setattr__(self, item.name, sizes)


@dataclass(frozen=True, eq=False)
class PlanEstimates:
    """What the simulator expects; no decision depends on it.

    Attributes:
        inputs_hash: SHA-256 of the job, its batch and the schedule that it was compiled from.
        iteration_time_s, makespan_s: [s]. peak_memory_bytes: int64[num_ranks].
        start_s, end_s: per rank, float64[a], of every action [s]; launches take no time.
        replica: the data-parallel replica that all times are of, the slowest one.
        transfer_start_s, transfer_end_s: float64[m], of every message [s]; empty: not said.
        buffer_bytes: int64[num_ranks], most that a rank allocates beyond ``peak_memory_bytes``: the simulation takes
            receive buffers and frees sent tensors during a stage, the plan before and after it; empty: not said.
        memory: of stages; None: not said.
    Raises:
        ScheduleError: arrays of other shapes, times that are none.
    """

    inputs_hash: str
    iteration_time_s: float
    makespan_s: float
    peak_memory_bytes: I64
    start_s: tuple[F64, ...]
    end_s: tuple[F64, ...]
    replica: int = 0
    transfer_start_s: F64 = field(default_factory=lambda: np.zeros(0))
    transfer_end_s: F64 = field(default_factory=lambda: np.zeros(0))
    buffer_bytes: I64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    memory: PlanMemory | None = None

    def __post_init__(self) -> None:
        where = "plan.estimates"
        check_text(self.inputs_hash, f"{where}.inputs_hash")
        for name in ("iteration_time_s", "makespan_s"):
            object.__setattr__(self, name, float(check_times(getattr(self, name), f"{where}.{name}", ())))
        object.__setattr__(self, "replica", check_int32(self.replica, f"{where}.replica"))
        for name in ("peak_memory_bytes", "buffer_bytes"):
            object.__setattr__(self, name, check_integers(getattr(self, name), np.int64, f"{where}.{name}", (None,)))
        for name in ("start_s", "end_s"):
            own = tuple(
                check_times(row, f"{where}.{name}[{rank}]", (None,)) for rank, row in enumerate(getattr(self, name))
            )
            object.__setattr__(self, name, own)
        for name in ("transfer_start_s", "transfer_end_s"):
            object.__setattr__(self, name, check_times(getattr(self, name), f"{where}.{name}", (None,)))


def _set_arrays(
    own: object,
    where: str,
    names: Sequence[str],
    kind: type[np.signedinteger[Any]],
    length: int | None = None,
    least: int = 0,
) -> None:
    """Check some vectors of one length, and give them their type."""
    for name in names:
        found = check_integers(getattr(own, name), kind, f"{where}.{name}", (length,), least)
        object.__setattr__(own, name, found)
        length = len(found)


def _set_items(own: PlanPairs | PlanMessages, where: str, length: int) -> None:
    """Check ``items``."""
    found = check_integers(own.items, np.int32, f"{where}.items", (None, length, 2))
    wrong = np.argwhere(found[:, :, 0] > found[:, :, 1])
    if len(wrong):
        replica, at = wrong[0].tolist()
        raise ScheduleError(
            "items that end before they begin",
            where=f"{where}.items[{replica}][{at}]",
            expected="first <= one past the last",
            got=found[replica, at].tolist(),
        )
    object.__setattr__(own, "items", found)

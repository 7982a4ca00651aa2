"""Gathers and reductions inside stages: what blocks exchange with data-parallel peers as a stage runs (ZeRO-2, ZeRO-3).

A unit is a set of parameters that are gathered, or whose gradients are reduced, by one collective: torch FSDP's unit,
or a gradient bucket. Its collectives are operators of the stage (``join`` places them), on a link stream; gathered
parameters and unsharded gradients are storages of it. Their costs are a template of the library like a block's, and so
are those of copies of parameters from the host.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from semu.compile.template import Template, transfer
from semu.graph.operator import Operator, Phase
from semu.graph.tensor import Role
from semu.hardware.device import RELOAD, Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup, wire_factor
from semu.nn.trace.tracing import COMPUTE
from semu.records import dataclass

GATHER_FORWARD, GATHER_BACKWARD, REDUCE, COPY_OUT_FORWARD, COPY_OUT_BACKWARD, COPY_IN, REPLICATE = range(7)
"""Rows of an exchange's template: its operators in order."""
REPLICA_STREAM = "hsdp"
"""Stream of the all-reduces across sharding groups: a communicator of its own."""
FORWARD_PARAMETERS, BACKWARD_PARAMETERS, GRADIENTS = range(3)
"""Storages of an exchange's template."""


@dataclass(frozen=True)
class ExchangeCosts:
    """What the collectives of a unit move; units of equal costs share a template.

    Attributes:
        parameter_bytes: gathered parameters [bytes]. gradient_bytes: unsharded gradients [bytes].
        stream: name of the collectives' stream. group: over which parameters and gradients are sharded; of one rank:
            they are not, and only the all-reduce over ``replicas`` moves anything.
        replicas: over which the shards of the gradients are all-reduced (HSDP); None: nowhere.
        gather_copies, reduce_copies: memory traffic of the copies on the device around a gather and before a reduction
            [bytes] (``semu.parallel.fsdp``).
    """

    parameter_bytes: int
    gradient_bytes: int
    stream: str
    group: CommGroup
    replicas: CommGroup | None = None
    gather_copies: int = 0
    reduce_copies: int = 0

    def template(self) -> Template:
        """The unit as a template of six or seven operators and three storages."""
        link = Stream(Device(DeviceKind.LINK, port=self.group.port, direction=Direction.OUT), self.stream)
        groups = {link: self.group}
        shard = -(-self.gradient_bytes // self.group.num_ranks)
        operators = [
            _collective(OpKind.ALL_GATHER, Phase.FORWARD, link, self.group, self.parameter_bytes),
            _collective(OpKind.ALL_GATHER, Phase.BACKWARD, link, self.group, self.parameter_bytes),
            _collective(OpKind.REDUCE_SCATTER, Phase.REDUCTION, link, self.group, self.gradient_bytes),
            _copy("copy_out", Phase.FORWARD, self.gather_copies),
            _copy("copy_out", Phase.BACKWARD, self.gather_copies),
            _copy("copy_in", Phase.REDUCTION, self.reduce_copies),
        ]
        if self.replicas is not None:
            across = Stream(Device(DeviceKind.LINK, port=self.replicas.port, direction=Direction.OUT), REPLICA_STREAM)
            groups[across] = self.replicas
            operators.append(_collective(OpKind.ALL_REDUCE, Phase.REDUCTION, across, self.replicas, shard))
        gradients = self.gradient_bytes if self.group.num_ranks > 1 else 0
        sizes = (self.parameter_bytes, self.parameter_bytes, gradients)
        return Template.of_transfers(operators, sizes, (Role.PARAMETER, Role.PARAMETER, Role.GRADIENT), groups)


@dataclass(frozen=True)
class HostCopyCosts:
    """What copies of a unit's parameters that live on the host move (``training.offload = "weights"``); units of equal
    costs share a template.

    They come to the device ahead of either pass (``semu.simulation.memory.weights_on_host``), on the stream of all that
    comes from the host, so they take turns with activations that come back.

    Attributes:
        size_bytes: of the parameters, or of the rank's shard of them. group: GPU and host as ends of a transfer.
    """

    size_bytes: int
    group: CommGroup

    def template(self) -> Template:
        """The unit as a template: two operators and two storages, one of each before the forward and the backward."""
        phases = (Phase.FORWARD, Phase.BACKWARD)
        copies = [transfer("weights", OpKind.P2P, phase, RELOAD, self.size_bytes) for phase in phases]
        return Template.of_transfers(copies, (self.size_bytes,) * 2, (Role.PARAMETER,) * 2, {RELOAD: self.group})


@dataclass(frozen=True)
class Exchange:
    """A unit of a chunk.

    Attributes:
        template: number of its template in the library. blocks: positions, in the chunk, of the blocks that it serves,
            ascending.
        gathers: its parameters are sharded: gathered before its first block.
        keeps: they stay gathered from the forward to the backward stage.
        writers: per block of ``blocks``, positions, in the block's backward half, of the operators that write the
            unit's gradients; none anywhere: nothing is reduced.
        replicates: shards are all-reduced too (``ExchangeCosts.replicas``).
        copies_out, copies_in: kernels copy what was gathered, and gradients before they are reduced
            (``ExchangeCosts.gather_copies``).
        beside: it serves the same block as the unit before it, over another communicator, and is gathered when that is.
        is_copied: its parameters live whole on the host: its template is one of ``HostCopyCosts``, and it is copied
            where others are gathered.
        shard: number of the template (``HostCopyCosts``) of the copies that bring the rank's shard from the host before
            each gather; -1: it is on the device.
    """

    template: int
    blocks: tuple[int, ...]
    gathers: bool
    keeps: bool
    writers: tuple[tuple[int, ...], ...]
    replicates: bool = False
    copies_out: bool = False
    copies_in: bool = False
    beside: bool = False
    is_copied: bool = False
    shard: int = -1

    @property
    def reduces(self) -> bool:
        """Whether it has gradients."""
        return any(self.writers)


@dataclass(frozen=True)
class ExchangePlan:
    """The units of a chunk, and which of their collectives hide behind computation.

    Attributes:
        units: in order of their first blocks.
        prefetch: a gather starts when the block of the gather before it starts (Zhao et al. 2304.11277 §3.3.2 and
            §3.4: backward prefetch, at most two gathered units); false: when everything before its own block is done,
            and the block waits.
        overlap_reduce: blocks run on beside reductions; false: they wait.
    """

    units: tuple[Exchange, ...] = ()
    prefetch: bool = True
    overlap_reduce: bool = True

    def turns(
        self, order: Sequence[int], busy: Collection[int], *, is_backward: bool
    ) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Which units are gathered before, and reduced after, each turn of a half: turn -> numbers of units.

        Args:
            order: blocks of the chunk in the order of the half. busy: those with operators in it.
        """
        turn_of = {position: turn for turn, position in enumerate(order)}
        needed: list[tuple[int, int]] = []
        gathers: dict[int, list[int]] = {}
        reductions: dict[int, list[int]] = {}
        for number, unit in enumerate(self.units):
            used = [turn_of[position] for position in unit.blocks if position in busy]
            if unit.gathers and not unit.is_copied and used and not (is_backward and unit.keeps):
                needed.append((min(used), number))
            if is_backward and unit.reduces:
                reductions.setdefault(max(used), []).append(number)
        before = last = 0
        for turn, number in sorted(needed):
            if not self.units[number].beside:
                before, last = last, turn
            gathers.setdefault(before if self.prefetch else turn, []).append(number)
        return gathers, reductions

    def copies(self, order: Sequence[int], busy: Collection[int]) -> dict[int, tuple[int, int]]:
        """The unit that is copied from the host for each turn of a half, and the turn at whose beginning it may come:
        that of the unit before, so that at most two are there.

        Arguments as ``turns``.
        """
        turn_of = {position: turn for turn, position in enumerate(order)}
        needed = [
            (turn_of[unit.blocks[0]], number)
            for number, unit in enumerate(self.units)
            if unit.is_copied and unit.blocks[0] in busy
        ]
        found: dict[int, tuple[int, int]] = {}
        before = 0
        for turn, number in sorted(needed):
            found[turn] = number, before
            before = turn
        return found


def _copy(name: str, phase: Phase, mem_bytes: int) -> Operator:
    """A kernel that copies on the device."""
    return Operator(
        0, name, OpKind.COPY, phase, COMPUTE, 0, mem_bytes, 0, DType.BF16, (mem_bytes,), (), (), (), 0, 0, 1
    )


def _collective(kind: OpKind, phase: Phase, stream: Stream, group: CommGroup, buffer_bytes: int) -> Operator:
    """A collective over a buffer (nccl-tests' sense)."""
    return transfer(kind.value, kind, phase, stream, int(wire_factor(kind, group.num_ranks) * buffer_bytes))

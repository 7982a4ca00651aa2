"""Modality modules of different parallelism for the slow reference: sizes, groups of GPUs, items dealt one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulation.reference.costs import all_streams

from semu.hardware.network import CommGroup
from semu.job import TrainingJob
from semu.nn import Sequences
from semu.nn.rules.reshard import Resharding, TokenLayout
from semu.nn.trace.block import CarrySpec
from semu.workload import Microbatch


@dataclass(frozen=True)
class Sizes:
    """A module's sizes, and the groups of ranks that its items are spread over."""

    name: str
    tp: int
    cp: int
    sp: bool
    groups: int
    blocks: tuple[tuple[int, ...], ...] = ()
    is_own: bool = False

    @property
    def width(self) -> int:
        """GPUs of a replica's pipeline rank."""
        return self.tp * self.cp * self.groups

    @property
    def cuts(self) -> int:
        """Parts of a tensor's tokens over tensor-parallel ranks."""
        return self.tp if self.sp else 1

    @property
    def chunks(self) -> int:
        """Chunks of every sequence."""
        return 2 * self.cp if self.cp > 1 else 1

    def packing(self, stream: str) -> Sequences:
        """Of a stream; a module with several groups, or that pads otherwise than the job, has symbols of its own."""
        return Sequences.of_stream(stream, self.tp * self.chunks, self.cp, self.name if self.is_own else "")

    def part(self, gpu: int) -> int:
        """Which part of a tensor's tokens the GPU with a number within its block has."""
        tensor, others = gpu % self.tp, gpu // self.tp
        return others * self.cuts + (tensor if self.cuts > 1 else 0)


def sizes_of(job: TrainingJob, name: str) -> Sizes:
    """What was told of a module, and else the job's."""
    parallel, told = job.parallel, job.parallel.modules.get(name)
    tp = parallel.tp if told is None or told.tp is None else told.tp
    cp = parallel.cp if told is None or told.cp is None else told.cp
    sp = parallel.sequence_parallel if told is None or told.sequence_parallel is None else told.sequence_parallel
    blocks = blocks_of(job, name)
    groups = len(blocks[0]) // (tp * cp)
    is_own = groups > 1 or (tp, cp) != (parallel.tp, parallel.cp)
    return Sizes(name, tp, cp, sp and tp > 1, groups, blocks, is_own)


def blocks_of(job: TrainingJob, name: str) -> tuple[tuple[int, ...], ...]:
    """GPUs of every replica's pipeline rank that may run a module, rank by rank."""
    told = job.parallel.modules.get(name)
    if told is None or told.gpus is None:
        width, first, count = job.parallel.tp * job.parallel.cp, 0, job.parallel.dp * job.parallel.pp
    else:
        before: dict[int, int] = {}  # places in front, by first pipeline rank: encoders that share one count once
        for other in job.parallel.modules.values():
            assert other.first_rank is not None and other.gpus is not None
            if other.first_rank < (told.first_rank or 0):
                before[other.first_rank] = other.gpus
        assert told.pp is not None
        first, count = sum(before.values()), job.parallel.dp * told.pp
        width = told.gpus // count
    return tuple(tuple(range(first + k * width, first + (k + 1) * width)) for k in range(count))


def block_of(job: TrainingJob, rank: int, replica: int) -> tuple[int, ...]:
    """GPUs of a replica's pipeline rank."""
    for told in job.parallel.modules.values():
        if told.gpus is not None and told.first_rank is not None and told.pp is not None:
            name = next(key for key, value in job.parallel.modules.items() if value is told)
            if told.first_rank <= rank < told.first_rank + told.pp:
                return blocks_of(job, name)[(rank - told.first_rank) * job.parallel.dp + replica]
    width = job.parallel.tp * job.parallel.cp
    first = width * (rank * job.parallel.dp + replica)
    return tuple(range(first, first + width))


def link_across(job: TrainingJob, source: int, target: int, replica: int) -> CommGroup:
    """Of the pairs of neighbours of two pipeline ranks the one that is furthest apart."""
    blocks = [block_of(job, rank, replica) for rank in (source, target)]
    count = max(map(len, blocks))
    pairs = [[block[i * len(block) // count] for block in blocks] for i in range(count)]
    return most_spread(job.cluster.place_group("pp", pair) for pair in pairs)


def gpu_shares(job: TrainingJob) -> list[float]:
    """Of a replica's GPUs, the share that every pipeline rank has."""
    counts = [len(block_of(job, rank, 0)) for rank in range(job.parallel.pp)]
    return [count / sum(counts) for count in counts]


def has_own(job: TrainingJob) -> bool:
    """Whether modules have GPUs of their own."""
    return any(told.gpus is not None for told in job.parallel.modules.values())


def sharers(job: TrainingJob, rank: int, tp: int, usual: int) -> int:
    """Ranks that share the gradients of a module with so many tensor-parallel ranks, on a pipeline rank.

    Args:
        usual: of a module with the job's sizes, where all share the GPUs.
    """
    if has_own(job):
        return len(block_of(job, rank, 0)) * job.parallel.dp // tp
    return usual * (job.parallel.tp // tp)


def most_spread(groups: Iterable[CommGroup]) -> CommGroup:
    """The group on most nodes."""
    return max(groups, key=lambda g: (g.num_nodes, g.local_port.value == "pcie", -g.ranks_per_node))


def group_of(job: TrainingJob, kind: str, sizes: Sizes, parts: int = 1) -> CommGroup:
    """A module's ``tp`` or ``cp`` group, or (``reshard``) the ranks that hold ``parts`` different parts."""
    found = []
    for block in sizes.blocks:
        gpus, width = list(block), len(block)
        if kind == "tp":
            lists = [gpus[first : first + sizes.tp] for first in range(0, width, sizes.tp)]
        elif kind == "cp":
            size = sizes.tp * sizes.cp
            lists = [
                gpus[first + t : first + size : sizes.tp] for first in range(0, width, size) for t in range(sizes.tp)
            ]
        else:
            step = width // parts
            lists = [gpus[first::step] for first in range(step)]
        name = kind if kind != "reshard" or parts == width else f"reshard{parts}"
        found += [job.cluster.place_group(name, own) for own in lists]
    return most_spread(found)


def spread_anew(job: TrainingJob, specs: list[CarrySpec], giver: Sizes, taker: Sizes) -> list[CarrySpec]:
    """What one module hands to another, with the change of layout."""
    if (giver.tp, giver.cp, giver.groups, giver.cuts) == (taker.tp, taker.cp, taker.groups, taker.cuts):
        return specs
    same = (giver.tp, giver.cp, giver.groups) == (taker.tp, taker.cp, taker.groups)

    def layout(side: Sizes, stream: str, held: int = 1) -> TokenLayout:
        if same:
            group = group_of(job, "tp", taker) if side.cuts > 1 else None
            return TokenLayout(side.packing(stream), 1, side.cuts, group)
        parts = side.groups * side.cp
        several = parts * side.cuts // held
        group = group_of(job, "reshard", taker, several) if several > 1 else None
        joint = max(n for n in range(1, side.cuts + 1) if side.cuts % n == 0 and held % n == 0)
        return TokenLayout(side.packing(stream), parts, side.cuts // joint, group, held // joint)

    result = []
    for spec in specs:
        assert spec.sequences is not None
        stream = spec.sequences.stream
        change = Resharding(layout(giver, stream, held_parts(giver, taker)), layout(taker, stream))
        shape, shards = spec.shape, spec.shards
        if not same:
            shape = (change.source.held * spec.sequences.tokens, *spec.shape[1:])
            shards = (change.source.shards, *spec.shards[1:])
        result.append(replace(spec, shape=shape, shards=shards, reshard=change))
    return result


def held_parts(giver: Sizes, taker: Sizes) -> int:
    """Parts that every GPU of the next module gets: so many that all get equally many, as few as that goes."""
    parts, width = giver.groups * giver.cp * giver.cuts, taker.width
    return next(n for n in range(1, parts + 1) if parts % n == 0 and width % (parts // n) == 0)


def messages_of(giver: Sizes, taker: Sizes, phase: str) -> list[tuple[int, int]]:
    """(sender, receiver) of every part, by numbers of GPUs within their pipeline ranks."""
    held, wanted = held_parts(giver, taker), [giver.part(gpu) for gpu in range(giver.width)]
    parts = max(wanted) + 1
    classes = parts // held
    has = [[gpu * classes // taker.width * held + n for n in range(held)] for gpu in range(taker.width)]
    sent: list[tuple[int, int]] = []

    def least(holders: list[int]) -> int:  # the holder that has sent least
        return min(holders, key=lambda g: sum(sender == g for sender, _ in sent))

    if phase == "F":
        for gpu, own in enumerate(has):
            for part in own:
                sent.append((least([g for g, mine in enumerate(wanted) if mine == part]), gpu))
    else:
        for gpu, part in enumerate(wanted):
            sent.append((least([g for g, own in enumerate(has) if part in own]), gpu))
    return sent


def busiest_port(giver: Sizes, taker: Sizes, phase: str) -> tuple[int, int]:
    """Parts that pass the busiest port, one for one GPU and message, and parts that a GPU of the taker has."""
    sent = messages_of(giver, taker, phase)
    ports = [[end[side] for end in sent] for side in (0, 1)]
    return max(own.count(gpu) for own in ports for gpu in own), held_parts(giver, taker)


def card_parts(
    job: TrainingJob, giver: Sizes, taker: Sizes, phase: str, ranks: tuple[int, int]
) -> list[dict[tuple[int, str], int]]:
    """Per replica, parts that leave or enter every network card which GPUs of a node share: (card, "out" or "in").

    Args:
        ranks: pipeline ranks that send and get.
    """
    cluster, found = job.cluster, []
    assert cluster.nics_per_node is not None
    for replica in range(job.parallel.dp):
        blocks = [block_of(job, rank, replica) for rank in ranks]
        counts: dict[tuple[int, str], int] = {}
        for ends in messages_of(giver, taker, phase):
            gpus = [block[number] for block, number in zip(blocks, ends, strict=True)]
            if gpus[0] // cluster.gpus_per_node == gpus[1] // cluster.gpus_per_node:
                continue
            for gpu, way in zip(gpus, ("out", "in"), strict=True):
                place = (card_of(job, gpu), way)
                counts[place] = counts.get(place, 0) + 1
        found.append(counts)
    return found


def card_of(job: TrainingJob, gpu: int) -> int:
    """Of the cluster's cards the one of a GPU; every card has as many GPUs, neighbours of a node."""
    each = job.cluster.gpus_per_node // (job.cluster.nics_per_node or job.cluster.gpus_per_node)
    return gpu // each


def card_slowdown(job: TrainingJob, fullest: int, busiest: int) -> tuple[float, float]:
    """A transfer's time over what it takes where the busiest GPU has its even share of a card, and what of the fullest
    card it takes.

    Args:
        fullest: parts over one card. busiest: over one GPU's port.
    """
    nics = job.cluster.nics_per_node or job.cluster.gpus_per_node
    alone = fullest / busiest * nics / job.cluster.gpus_per_node
    slower = max(alone, job.profile.nic_bytes_per_s.value / job.profile.pcie_bytes_per_s.value)
    return slower, alone / slower


def shares_cards(job: TrainingJob) -> bool:
    """Whether modules have GPUs of their own that share network cards."""
    return has_own(job) and (job.cluster.nics_per_node or job.cluster.gpus_per_node) < job.cluster.gpus_per_node


def dealt(lengths: list[int], groups: int) -> list[list[int]]:
    """Numbers of each group's items: the longest one that is left to the group with the fewest tokens."""
    result: list[list[int]] = [[] for _ in range(groups)]
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        min(result, key=lambda own: sum(lengths[i] for i in own)).append(item)
    return result


def module_symbols(job: TrainingJob, microbatch: Microbatch) -> dict[str, int]:
    """Sizes as the busiest group of every spread module sees them."""
    result: dict[str, int] = {}
    for module in job.model.modules:
        sizes = sizes_of(job, module.name)
        if not sizes.is_own:
            continue
        streams = all_streams(microbatch)
        first = streams[module.inputs[0].stream]
        own = max(
            dealt(first, sizes.groups),
            key=lambda items: (
                sum(first[i] for i in items),
                sum((-(-first[i] // sizes.chunks)) ** 2 for i in items),
            ),
        )
        chunks = {
            name: [-(-lengths[i] // sizes.chunks) for i in own]
            for name, lengths in streams.items()
            if sizes.groups > 1 and len(lengths) == len(first)
        }
        if sizes.groups == 1:  # all of every stream
            chunks = {name: [-(-n // sizes.chunks) for n in lengths] for name, lengths in streams.items()}
        for name, lengths in chunks.items():
            divisor = sizes.tp * sizes.chunks
            result[f"{name}.{module.name}.shard"] = -(-sizes.chunks * sum(lengths) // divisor)
            result[f"{name}.{module.name}.pairs"] = sum(n * n for n in lengths)
            result[f"{name}.{module.name}.sequences"] = len(lengths)
            result |= {f"{name}.{module.name}#{number}": length for number, length in enumerate(lengths)}
            for other, partners in chunks.items():
                if other != name and len(partners) == len(lengths):
                    both = sum(a * b for a, b in zip(lengths, partners, strict=True))
                    result[f"{name}*{other}.{module.name}.pairs"] = both
    return result

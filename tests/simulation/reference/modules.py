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

    @property
    def cuts(self) -> int:
        """Parts of a tensor's tokens over tensor-parallel ranks."""
        return self.tp if self.sp else 1

    @property
    def chunks(self) -> int:
        """Chunks of every sequence."""
        return 2 * self.cp if self.cp > 1 else 1

    def packing(self, stream: str) -> Sequences:
        """Of a stream; a module with several groups has symbols of its own."""
        return Sequences.of_stream(stream, self.tp * self.chunks, self.cp, self.name if self.groups > 1 else "")


def sizes_of(job: TrainingJob, name: str) -> Sizes:
    """What was told of a module, and else the job's."""
    parallel, told = job.parallel, job.parallel.modules.get(name)
    tp = parallel.tp if told is None or told.tp is None else told.tp
    cp = parallel.cp if told is None or told.cp is None else told.cp
    sp = parallel.sequence_parallel if told is None or told.sequence_parallel is None else told.sequence_parallel
    return Sizes(name, tp, cp, sp and tp > 1, parallel.tp * parallel.cp // (tp * cp))


def most_spread(groups: Iterable[CommGroup]) -> CommGroup:
    """The group on most nodes."""
    return max(groups, key=lambda g: (g.num_nodes, g.local_port.value == "pcie", -g.ranks_per_node))


def group_of(job: TrainingJob, kind: str, sizes: Sizes, parts: int = 1) -> CommGroup:
    """A module's ``tp`` or ``cp`` group, or (``reshard``) the ranks that hold ``parts`` different parts."""
    width = job.parallel.tp * job.parallel.cp
    found = []
    for block in range(job.parallel.dp * job.parallel.pp):
        gpus = list(range(block * width, (block + 1) * width))
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
    if (giver.tp, giver.cp, giver.cuts) == (taker.tp, taker.cp, taker.cuts):
        return specs
    same = (giver.tp, giver.cp) == (taker.tp, taker.cp)

    def layout(side: Sizes, stream: str) -> TokenLayout:
        if same:
            group = group_of(job, "tp", side) if side.cuts > 1 else None
            return TokenLayout(side.packing(stream), 1, side.cuts, group)
        parts = side.groups * side.cp
        several = parts * side.cuts
        return TokenLayout(
            side.packing(stream),
            parts,
            side.cuts,
            group_of(job, "reshard", side, several) if several > 1 else None,
        )

    result = []
    for spec in specs:
        assert spec.sequences is not None
        stream = spec.sequences.stream
        result.append(replace(spec, reshard=Resharding(layout(giver, stream), layout(taker, stream))))
    return result


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
        if sizes.groups == 1:
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
            if len(lengths) == len(first)
        }
        for name, lengths in chunks.items():
            divisor = sizes.tp * sizes.chunks
            result[f"{name}.{module.name}.shard"] = -(-sizes.chunks * sum(lengths) // divisor)
            result[f"{name}.{module.name}.pairs"] = sum(n * n for n in lengths)
            result[f"{name}.{module.name}.sequences"] = len(lengths)
            result |= {f"{name}.{module.name}#{number}": length for number, length in enumerate(lengths)}
            for other, partners in chunks.items():
                if other != name:
                    both = sum(a * b for a, b in zip(lengths, partners, strict=True))
                    result[f"{name}*{other}.{module.name}.pairs"] = both
    return result

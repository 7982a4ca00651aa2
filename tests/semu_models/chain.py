"""Traces every block of a model by hand, one after the other, as a pipeline would run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from semu.graph.dim import Dim, DimTable
from semu.graph.operator import Operator, Phase
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn import InputSpec, Model, Sequences
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan


@dataclass(frozen=True)
class Link:
    """One block of a model: its path, its trace, and how many blocks of the model look exactly like it."""

    path: str
    block: TracedBlock

    @property
    def forward(self) -> list[Operator]:
        return self.block.graph.operators[: self.block.num_forward]

    @property
    def backward(self) -> list[Operator]:
        return self.block.graph.operators[self.block.num_forward :]


def data_spec(spec: InputSpec, tp: int) -> CarrySpec:
    """What the data loader gives for an input: whole on every rank."""
    packing = Sequences.of_stream(spec.stream, tp)
    if spec.per_sequence:
        assert spec.features is not None
        return CarrySpec((packing.count, spec.features), (1, 1), DType.BF16, False, None)
    shape: tuple[Dim, ...] = (packing.tokens,) if spec.features is None else (packing.tokens, spec.features)
    return CarrySpec(shape, (1,) * len(shape), spec.dtype(DType.BF16), False, packing)


def trace_model(
    model: Model, *, tp: int = 1, sequence_parallel: bool = True, full_recompute: bool = False
) -> list[Link]:
    """Every block of the model in order; blocks that are alike share one trace."""
    parallel = Parallel(tp=tp, sequence_parallel=sequence_parallel)
    options = TraceOptions(plan=megatron_plan(model, parallel), tp_group=CommGroup("tp", tp, 1))
    known: dict[object, TracedBlock] = {}
    outputs: dict[str, tuple[CarrySpec, ...]] = {}
    links = []
    for modality in model.modules:
        carry = [data_spec(spec, tp) for spec in modality.inputs]
        for source in modality.sources:
            carry += outputs[source]
        for path, module in modality.blocks():
            key = (module.fingerprint(), tuple(carry))
            if key not in known:
                known[key] = trace_block(module, carry, options, root=path, full_recompute=full_recompute)
            links.append(Link(path, known[key]))
            carry = list(known[key].output_specs)
        outputs[modality.name] = tuple(carry)
    return links


def distinct(links: list[Link]) -> list[Link]:
    """One link per trace."""
    return list({id(link.block): link for link in links}.values())


def total(dims: list[Dim], columns: Mapping[str, int]) -> int:
    """Sum of sizes for one shape of the batch."""
    table = DimTable.build(dims)
    values = table.evaluate({name: np.array([value], np.int64) for name, value in columns.items()})
    return sum(int(value) for value in values[:, 0])


def operators_of(links: list[Link]) -> list[Operator]:
    return [operator for link in links for operator in link.block.graph.operators]


def flop(links: list[Link], columns: Mapping[str, int], *, full_attention: bool = False, recompute: bool = True) -> int:
    """FLOP of all blocks on one rank, less what the attention kernel's backward does a second time.

    With ``full_attention`` the masked half of the scores counts as well. Without ``recompute`` the forward that is run
    again in the backward is left out: what remains is model FLOP.
    """
    operators = [op for op in operators_of(links) if recompute or op.phase is not Phase.RECOMPUTE]
    dims = [op.flop - op.recomputed_flop for op in operators]
    if full_attention:
        dims += [op.causal_flop for op in operators]
    return total(dims, columns)


def flop_of_all_ranks(links: list[Link], columns: Mapping[str, int], tp: int) -> int:
    """As ``flop``, over a whole tensor-parallel group: work that ranks do each for themselves counts once."""
    parts: dict[int, list[Dim]] = {}
    for op in operators_of(links):
        parts.setdefault(op.copies, []).append(op.flop - op.recomputed_flop)
    return sum(total(dims, columns) * tp // copies for copies, dims in parts.items())


def packed(stream: str, lengths: list[int], tp: int = 1) -> dict[str, int]:
    """Columns of a stream with sequences of these lengths."""
    tokens = sum(lengths)
    assert tokens % tp == 0
    return {
        f"{stream}.shard": tokens // tp,
        f"{stream}.pairs": sum(length**2 for length in lengths),
        f"{stream}.sequences": len(lengths),
    }

"""``trace_block`` against the slow reference's own tracer: operator by operator, storage by storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from simulation.jobs import (
    attention_encoder,
    carry_along,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
)
from simulation.reference.model import Block, CutModel
from simulation.reference.trace import Written

from semu.graph.operator import Operator
from semu.job import TrainingJob
from semu.nn import MixtureOfExperts, Model, TransformerLayer
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.parallel.modules import ModuleParallel
from semu_models.text.decoder import Decoder, decoder_model


def experts() -> Model:
    def layer(_: int) -> TransformerLayer:
        return TransformerLayer(64, 128, 4, rms_norm=True, bias=False, mlp=MixtureOfExperts(64, 48, 8, 2))

    return decoder_model("experts", Decoder(2, 64, 256, layer, rms_norm=True))


TP = Parallel(tp=2, sequence_parallel=True)
JOBS: dict[str, Callable[..., TrainingJob]] = {
    "text": lambda **o: job_of(gpt(), text_items(2), **o),
    "text, tp2": lambda **o: job_of(gpt(), text_items(2), Parallel(tp=2, sequence_parallel=False), **o),
    "text, tp2 with sp, overlapped": lambda **o: job_of(gpt(), text_items(2), TP, overlap=overlap(tensor=True), **o),
    "text, cp2": lambda **o: job_of(gpt(), text_items(2), Parallel(cp=2), **o),
    "text, several kernels": lambda **o: job_of(gpt(), text_items(2), TP, attention="unfused", **o),
    "text, fp8": lambda **o: job_of(gpt(), text_items(2), TP, precision="fp8", **o),
    "vlm": lambda **o: job_of(vlm(), vlm_items(2), TP, **o),
    "vlm, frozen": lambda **o: job_of(vlm(frozen=("vit.layers", "llm")), vlm_items(2), **o),
    "vlm, modules": lambda **o: job_of(
        vlm(), vlm_items(2), Parallel(tp=2, sequence_parallel=True, modules={"vit": ModuleParallel(tp=1)}), **o
    ),
    "t2v": lambda **o: job_of(t2v(), t2v_items(2), TP, **o),
    "t2v, frozen": lambda **o: job_of(t2v(frozen=("llm",)), t2v_items(2), **o),
    "experts": lambda **o: job_of(experts(), text_items(4), Parallel(dp=2, tp=2, ep=2, etp=1), **o),
    "attention encoder": lambda **o: job_of(attention_encoder(), text_items(2), **o),
    "carried along": lambda **o: job_of(carry_along(), text_items(2), **o),
}


def costs(operator: Operator) -> tuple[Any, ...]:
    """What an operator is and costs."""
    o = operator
    amounts = o.flop, o.mem_bytes, o.net_bytes, o.recomputed_flop, o.causal_flop
    return o.kind, o.phase, o.stream, o.dtype, o.key, o.copies, amounts


def touched(block: TracedBlock) -> tuple[list[Any], list[Any]]:
    """Which storages each operator reads and writes, numbered as they first occur; size and role of each."""
    number: dict[int, int] = {}
    graph = block.graph

    def of(tensors: tuple[int | None, ...]) -> list[int | None]:
        return [None if t is None else number.setdefault(graph.tensors[t].storage, len(number)) for t in tensors]

    ends = of(block.inputs), of(block.outputs), of(block.output_gradients), of(block.input_gradients)
    uses = [(of(operator.inputs), of(operator.outputs)) for operator in graph.operators]
    parameters = [(use.path, use.numel, use.is_sharded, use.is_fp8, use.is_expert) for use in block.parameters]
    held = of(tuple(use.tensor for use in block.parameters)), of(tuple(use.gradient for use in block.parameters))
    return [ends, uses, parameters, held], [
        (graph.storages[storage].size_bytes, graph.storages[storage].role) for storage in number
    ]


def check(block: Block, options: TraceOptions) -> None:
    gradients = [gradient is not None for gradient in block.trace.output_gradients]
    given = None if block.trace.output_specs[0].shape == () else gradients
    found = trace_block(block.body, block.specs, options, root=block.path, full_recompute=block.again, gradients=given)
    assert isinstance(block.trace.graph, Written)
    assert [costs(o) for o in found.graph.operators] == [costs(o) for o in block.trace.graph.operators]
    assert touched(found) == touched(block.trace)
    assert found.num_forward == block.trace.num_forward
    assert found.output_specs == block.trace.output_specs
    assert [use.parameter for use in found.parameters] == [use.parameter for use in block.trace.parameters]
    assert found.groups == block.trace.groups


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("name", JOBS)
def test_blocks_are_traced_alike(name: str, recompute: str) -> None:
    model = CutModel(JOBS[name](recompute=recompute))
    for block in model.blocks:
        check(block, model._own[block.module])

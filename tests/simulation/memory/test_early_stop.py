"""Recomputation under PyTorch ends with the last kernel that is needed: FLOP and time by hand, the reference."""

from __future__ import annotations

from typing import Any

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import attention_encoder, gpt, job_of, overlap, text_items, vlm, vlm_items

import semu
from semu.graph.operator import Phase
from semu.hardware.cluster import Cluster
from semu.hardware.network import CommGroup
from semu.job import Training, TrainingJob
from semu.nn import LayerNorm, Linear, Model, Module
from semu.nn.layers.recompute import Recompute
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.tensor import Tensor
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

SEQ, HIDDEN, HEADS, FFN, LAYERS, MICROBATCHES = 512, 256, 8, 704, 3, 2


def big_gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(LAYERS, HIDDEN, heads=HEADS, vocab=512, positions=SEQ)), name="llm")


def big_llama() -> Model:
    config = LlamaConfig(LAYERS, HIDDEN, FFN, heads=HEADS, kv_heads=HEADS, vocab=512)
    return Model.from_module(Llama(config), name="llm")


def run(model: Model, software: str, **options: Any) -> semu.Report:
    training = Training(1, MICROBATCHES, SEQ, software=software, recompute="full", **options)
    return semu.simulate(TrainingJob(model, Cluster("h100", 1, 1), Parallel(), training))


@pytest.mark.parametrize(("make", "width"), [(big_gpt, 4 * HIDDEN), (big_llama, FFN)])
def test_the_last_product_of_a_layer_is_not_computed_again(make: Any, width: int) -> None:
    whole, early = run(make(), "megatron"), run(make(), "torch")
    assert whole.hardware_flop - early.hardware_flop == LAYERS * MICROBATCHES * 2 * SEQ * HIDDEN * width
    assert whole.model_flop == early.model_flop
    assert whole.ranks[0].activation_bytes == early.ranks[0].activation_bytes  # a layer's input either way


class Body(Module):
    """A norm and two products, of which the second one's output nobody saves."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = LayerNorm(16), Linear(16, 32, bias=False), Linear(32, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(self.norm(x)))


def trace(module: Module, *, stop_early: bool, tp: int = 1) -> TracedBlock:
    model = Model.from_module(module, name="block")
    options = TraceOptions(
        plan=megatron_plan(model, Parallel(tp=tp)), tp_group=CommGroup("tp", tp, 1), stop_early=stop_early
    )
    spec = CarrySpec((8, 16), (1, 1), options.tensor_dtype, True, None)
    block = trace_block(module, [spec], options, root="block")
    block.graph.lint()
    return block


def again(block: TracedBlock) -> list[str]:
    return [operator.path for operator in block.graph.operators if operator.phase is Phase.RECOMPUTE]


def test_where_a_second_run_ends() -> None:
    whole, early = (again(trace(Recompute(Body()), stop_early=stops)) for stops in (False, True))
    assert len(whole) == 3
    assert early == whole[:2]
    kept, left = (trace(Recompute(Body()), stop_early=stops).graph for stops in (False, True))
    dropped = [operator.path for operator in kept.operators if operator.path not in {o.path for o in left.operators}]
    assert dropped == []  # the first run of the last product stays
    assert len(kept.operators) - len(left.operators) == 1
    assert [o.path for o in left.operators if o.phase is not Phase.RECOMPUTE] == [
        o.path for o in kept.operators if o.phase is not Phase.RECOMPUTE
    ]


def test_a_recomputation_inside_another_one() -> None:
    """The outer second run needs nothing behind the inner one's input; the inner one stops in its own."""
    early = again(trace(Recompute(Recompute(Body())), stop_early=True))
    whole = again(trace(Recompute(Recompute(Body())), stop_early=False))
    assert len(whole) == 6
    assert early == whole[3:5]


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.sampled(2)
def test_as_the_reference(pp: int, tp: int) -> None:
    parallel = Parallel(pp=pp, tp=tp)
    options: dict[str, Any] = {"recompute": "full", "software": "torch"}
    assert_tails_equal(job_of(gpt(), text_items(3), parallel, overlap=overlap(tensor=True), **options))
    assert_tails_equal(job_of(gpt(), text_items(3), parallel, offload="activations", **options))
    assert_tails_equal(job_of(vlm(frozen=("vit",)), vlm_items(3), parallel, **options))
    assert_tails_equal(job_of(attention_encoder(), text_items(3), Parallel(pp=pp), **options))

"""Context parallelism of PyTorch's FSDP: a ring of keys of every query head, with sums in fp32."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.simulation import prepare, simulate
from semu.workload import Microbatch
from semu_models.text.bert import BertConfig, make_bert
from semu_models.text.llama import Llama, LlamaConfig

HEADS, KV_HEADS, WIDTH = 8, 2, 16


def bert() -> Model:
    return make_bert("bert", BertConfig(layers=2, hidden=64, ffn=256, heads=4, vocab=512, positions=128))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize("kind", ["text", "vlm", "both ways"])
def test_as_the_reference(kind: str, cp: int, tp: int) -> None:
    """Causal text halves the keys of other ranks, text that is read both ways does not."""
    model, items = {"text": (gpt, text_items), "vlm": (vlm, vlm_items), "both ways": (bert, text_items)}[kind]
    run = job_of(model(), items(2), Parallel(cp=cp, tp=tp, zero=3), software="torch")
    assert_equal(simulate(run), expand(run))


def grouped(cp: int, tokens: int, software: str = "torch") -> TrainingJob:
    config = LlamaConfig(1, hidden=HEADS * WIDTH, ffn=256, heads=HEADS, kv_heads=KV_HEADS, vocab=384)
    model = Model.from_module(Llama(config), name="llm")
    items = [Microbatch({"text": [cp * tokens]}, samples=1)]
    return job_of(model, items, Parallel(cp=cp, zero=3 if software == "torch" else 1), software=software)


def moved(run: TrainingJob) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes in memory and on the wire of the attention's operators, those of one name together."""
    memory: dict[str, int] = defaultdict(int)
    wire: dict[str, int] = defaultdict(int)
    rank = simulate(run).timeline.ranks[0]
    for number in range(len(rank.stages)):
        inner = rank.expand(number)
        columns = inner.table.paths, inner.mem_bytes.tolist(), inner.net_bytes.tolist()
        for path, memory_bytes, net_bytes in zip(*columns, strict=True):
            if found := re.search(r"attention\.(\w+)$", path):
                memory[found[1]] += memory_bytes
                wire[found[1]] += net_bytes
    return memory, wire


@pytest.mark.parametrize("cp", [2, 4])
def test_every_kernel_by_hand(cp: int) -> None:
    """One sequence, causal: every step but the first reads half of another rank's keys. ``e``: elements of queries, and
    of keys and of values once they are repeated."""
    tokens = 128
    e, steps = tokens * HEADS * WIDTH, cp - 1
    memory, wire = moved(grouped(cp, tokens))
    narrow = e * KV_HEADS // HEADS
    assert memory["repeat_heads"] == memory["repeat_heads_bw"] == 2 * (2 * narrow + 2 * e)
    assert memory["join_kv"] == memory["join_kv_bw"] == 2 * e * 4
    assert memory["to_fp32"] == memory["from_fp32"] == memory["to_fp32_bw"] == 6 * e
    assert memory["merge"] == steps * e * (6 + 12 + 8 + 12)
    assert memory["add_grad"] == steps * (e + 2 * e // 2) * (6 + 12)
    assert memory["join_grad_kv"] == 2 * e * (6 + 8) + steps * 2 * e * (8 + 8)
    assert memory["from_fp32_bw"] == 3 * e * 6
    assert wire["pass_kv"] == steps * 2 * e * 2
    assert wire["pass_kv_grad_kv"] == steps * 2 * e * (2 + 4)
    assert wire["pass_grad_kv"] == 2 * e * 4


@pytest.mark.parametrize("cp", [2, 4])
def test_every_kernel_of_text_that_is_read_both_ways(cp: int) -> None:
    """Every step reads all of another rank's keys: nothing is cut, and the gradients that come are one buffer."""
    tokens, layers = 128, 2
    run = job_of(bert(), [Microbatch({"text": [cp * tokens]}, samples=1)], Parallel(cp=cp, zero=3), software="torch")
    e, steps = layers * tokens * 64, cp - 1
    memory, wire = moved(run)
    assert memory["merge"] == steps * e * (6 + 12 + 8 + 12)
    assert memory["add_grad"] == steps * (e + 2 * e) * (6 + 12)
    assert memory["join_grad_kv"] == 2 * e * (6 + 8) + steps * 2 * e * 8
    assert wire["pass_kv"] == steps * 2 * e * 2
    assert wire["pass_kv_grad_kv"] == steps * 2 * e * (2 + 4)
    assert wire["pass_grad_kv"] == 2 * e * 4


def test_what_travels_is_made_of_what_was_there() -> None:
    """The first message holds both gradients of the rank's own keys and values, the next what came and was added to."""
    library = prepare(grouped(4, 128)).layout.library
    (block,) = (t for t in library.templates if any(op.path.endswith("join_grad_kv") for op in t.operators))
    made = {tensor: op.path.rpartition(".")[2] for op in block.operators for tensor in op.outputs}
    joins = [op.inputs for op in block.operators if op.path.endswith("join_grad_kv")]
    found = [[made[tensor] for tensor in inputs] for inputs in joins]
    assert found == [["attention_bw"] * 2, *[["add_grad"]] * 3]


def test_others_send_the_heads_that_there_are() -> None:
    memory, wire = moved(grouped(2, 128, "megatron"))
    assert "repeat_heads" not in memory
    assert wire["pass_kv"] == 128 * 2 * KV_HEADS * WIDTH * 2

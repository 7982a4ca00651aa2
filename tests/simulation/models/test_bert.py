"""BERT: parameters of transformers, the work of its heads by hand, times and memory against the slow reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import job_of, text_items
from simulation.reference.expansion import expand

import semu_models
from semu.errors import ConfigError
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn import LoRA, Sequences, add_lora
from semu.nn.trace.block import CarrySpec, trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.runfile import load_run
from semu.simulation import simulate
from semu_models.text.bert import BERT_BASE, BERT_LARGE, BertConfig, make_bert

TINY = BertConfig(layers=3, hidden=64, ffn=256, heads=4, vocab=512, positions=128)


@pytest.mark.parametrize(
    ("config", "both", "masked"), [(BERT_BASE, 110_106_428, 109_514_298), (BERT_LARGE, 336_226_108, 335_174_458)]
)
def test_parameters(config: BertConfig, both: int, masked: int) -> None:
    """transformers 5.23: BertForPreTraining and BertForMaskedLM on the meta device."""
    assert make_bert("bert", config).num_parameters() == both
    assert make_bert("bert", replace(config, next_sentence=False)).num_parameters() == masked


def test_adapters() -> None:
    """PEFT 0.21 on BertForPreTraining, r = 8, query and value."""
    model = add_lora(semu_models.bert_base(), LoRA(8, ("query", "value")))
    assert model.num_parameters(trainable_only=True) == 294_912


def test_heads_by_hand() -> None:
    tokens, h, v, count = 64, TINY.hidden, TINY.vocab, 4
    head = dict(make_bert("bert", TINY).modules[0].blocks())["bert.head"]
    packing = Sequences.uniform(count, tokens // count)
    block = trace_block(head, [CarrySpec((tokens, h), (1, 1), DType.BF16, True, packing)], TraceOptions())
    forward = [op.flop for op in block.graph.operators[: block.num_forward] if op.kind is OpKind.MATMUL]
    assert forward == [2 * tokens * h * h, 2 * tokens * h * v, 2 * count * h * h, 2 * count * h * 2]
    backward = [op for op in block.graph.operators[block.num_forward :] if op.kind is OpKind.MATMUL]
    assert sum(op.flop for op in backward) == 2 * sum(forward)  # type: ignore[misc, arg-type]
    assert sum(op.phase is Phase.WEIGHT_GRADIENT for op in backward) == 4
    losses = [op for op in block.graph.operators if op.kind is OpKind.CROSS_ENTROPY and op.path.endswith("softmax_bw")]
    assert len(losses) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "parallel",
    [Parallel(), Parallel(tp=2, pp=2), Parallel(tp=2, pp=3, sequence_parallel=False), Parallel(cp=2, pp=2)],
    ids=["one", "tp2_pp2", "tp2_no_sp", "cp2"],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_against_the_reference(parallel: Parallel, recompute: str) -> None:
    job = job_of(make_bert("bert", TINY), text_items(3), parallel, recompute=recompute)
    assert_equal(simulate(job), expand(job))


def test_reductions_against_the_reference() -> None:
    assert_tails_equal(job_of(make_bert("bert", TINY), text_items(4), Parallel(dp=2, pp=2)))


def test_run_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\nname = "bert-large"\n[cluster]\ndevice = "a100-80g"\n[parallel]\ndp = 8\n')
    job = load_run(path, ["training.seq_len=512", "training.micro_batch=8", "training.global_batch=64"])
    assert simulate(job).parameters == 336_226_108


def test_bad_sizes() -> None:
    with pytest.raises(ConfigError, match="not a probability"):
        replace(TINY, dropout=1.0)
    with pytest.raises(ConfigError, match="divide"):
        replace(TINY, heads=5)

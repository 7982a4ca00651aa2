"""The table of flags: every row leads somewhere, every flag has one meaning."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

import semu.imports.megatron
from semu.imports.flags import Grade
from semu.imports.megatron import read_megatron
from semu.imports.megatron.flags import FLAGS
from semu.runfile.schema import SCHEMA

DATA = tomllib.loads((Path(semu.imports.megatron.__file__).parent / "flags.toml").read_text())
UNDERSTOOD = {name: told for table in DATA["understood"].values() for name, told in table.items()}
SMALL = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32"
BATCH = "--micro-batch-size 1 --vocab-size 100"

VARIANTS = [
    "",
    "--multi-latent-attention --qk-layernorm",
    "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall --disable-bias-linear "
    "--moe-shared-expert-intermediate-size 64 --moe-expert-capacity-factor 1.5",
    "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type flex --disable-bias-linear",
    "--bf16 --fp8-format hybrid --use-precision-aware-optimizer --recompute-granularity selective",
    "--fp16 --recompute-granularity full --recompute-method uniform",
    "--use-torch-fsdp2",
    "--use-megatron-fsdp",
    "--swiglu --position-embedding-type rope --group-query-attention",
    "--attention-backend unfused --pipeline-model-parallel-size 2",
    "--context-parallel-size 2 --cross-entropy-loss-fusion --transformer-impl local",
]
"""Together they make every argument count."""


def script(words: str, nodes: int = 1) -> str:
    return f"torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py {SMALL} {BATCH} {words}\n"


def test_a_flag_stands_once() -> None:
    names = Counter(flag.name for flag in FLAGS.flags)
    assert [name for name, count in names.items() if count > 1] == []
    assert len(UNDERSTOOD) >= 100


def test_keys_are_those_of_a_run_file() -> None:
    for name, told in UNDERSTOOD.items():
        for key in filter(None, told["to"].split(", ")):
            table, _, last = key.rpartition(".")
            assert last in SCHEMA[table], f"--{name} leads to {key}"


def test_every_understood_flag_is_asked_for() -> None:
    """None is listed as understood and then forgotten."""
    asked: set[str] = set()
    for words in VARIANTS:
        reading = read_megatron(script(words), allow_unmodelled=True).reading
        asked |= {row.key for row in reading.understood} | {row.key for row in reading.defaulted}
    silent = {
        name for name, told in UNDERSTOOD.items() if "default" not in told and told["type"] not in ("switch", "off")
    }
    without_effect = {f"--{name}" for name in UNDERSTOOD} - asked - {f"--{name}" for name in silent}
    assert without_effect == set()


@pytest.mark.parametrize(
    "words",
    [
        "--world-size 8",
        "--data-parallel-size 8",
        "--q-lora-rank 16 --multi-latent-attention --qk-layernorm",
        "--ffn-hidden-size 100",
        "--kv-channels 32",
        "--tokenizer-type NullTokenizer",
        "--padded-vocab-size 128",
        "--num-experts 4 --moe-ffn-hidden-size 32 --disable-bias-linear",
        "--num-experts 4 --expert-tensor-parallel-size 1 --disable-bias-linear",
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ett|ttL'",
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --global-batch-size 8",
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 8",
        "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2 --global-batch-size 8",
        "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3",
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
        "--num-experts 4 --moe-expert-capacity-factor 1.5 --disable-bias-linear",
    ],
)
def test_arguments_without_a_default_are_asked_for(words: str) -> None:
    reading = read_megatron(script(words), allow_unmodelled=True).reading
    given = [word for word in words.split() if word.startswith("--")]
    assert set(given) <= {row.key for row in reading.understood}


@pytest.mark.parametrize(
    ("name", "grade"),
    [
        ("num-layers", Grade.EXACT),
        ("lr-warmup-iters", Grade.HARMLESS),
        ("moe-permute-fusion", Grade.HARMLESS),
        ("encoder-num-layers", Grade.EXACT),
        ("ddp-bucket-size", Grade.SMALL),
        ("megatron-fsdp-main-grads-dtype", Grade.SMALL),
        ("moe-hybridep-num-sms", Grade.SMALL),
        ("nonsense", None),
    ],
)
def test_grade(name: str, grade: Grade | None) -> None:
    flag = FLAGS.spelt(name)
    assert (None if flag is None else flag.grade) is grade


def test_printed_names() -> None:
    for dest, name in (("add_bias_linear", "disable-bias-linear"), ("fp8", "fp8-format"), ("bf16", "bf16")):
        flag = FLAGS.printed(dest)
        assert flag is not None and flag.name == name

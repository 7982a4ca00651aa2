"""The table of flags: every row leads somewhere, every flag has one meaning."""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from importlib.metadata import PackageNotFoundError, files
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
    "--optimizer muon --bf16 --fp8-format hybrid --first-last-layers-bf16",
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


@pytest.mark.slow
@pytest.mark.extras
def test_arguments_of_the_package() -> None:
    """Every field of megatron-core's configurations that an argument sets is known by its name in a log."""
    try:
        own = files("megatron-core") or []
    except PackageNotFoundError:
        pytest.skip("needs megatron-core (pip install '.[imports]')")
    places = [item for item in own if str(item).endswith(CONFIGURATIONS)]
    assert len(places) == len(CONFIGURATIONS)
    names = {
        field.target.id
        for place in places
        for node in ast.walk(ast.parse(Path(str(place.locate())).read_text()))
        if isinstance(node, ast.ClassDef) and node.name in CLASSES
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    assert len(names) > 300
    unknown = {name for name in names if FLAGS.printed(name) is None and FLAGS.family(name) is None}
    assert unknown <= NOT_ARGUMENTS, sorted(unknown - NOT_ARGUMENTS)


CONFIGURATIONS = (
    "core/transformer/transformer_config.py",
    "core/model_parallel_config.py",
    "core/distributed/distributed_data_parallel_config.py",
    "core/optimizer/optimizer_config.py",
)
CLASSES = {
    "TransformerConfig", "MLATransformerConfig", "ModelParallelConfig", "DistributedDataParallelConfig",
    "OptimizerConfig",
}  # fmt: skip
NOT_ARGUMENTS = {
    # set by other arguments, whose names differ
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "layernorm_zero_centered_gamma",
    "gated_linear_unit", "activation_func", "num_moe_experts", "bias_activation_fusion", "use_te_rng_tracker",
    "use_inference_optimized_layers", "heterogeneous_block_specs", "microbatch_group_size_per_vp_stage",
    "overlap_p2p_comm_warmup_flush", "cpu_offloading", "cpu_offloading_activations", "grad_reduce_in_fp32",
    "bucket_size", "pad_buckets_for_high_nccl_busbw", "reduce_scatter_with_fp32_accumulation",
    "gradient_reduce_div_fusion",
    # set by the program itself
    "init_method", "output_layer_init_method", "embedding_init_method", "clone_scatter_output_in_embedding",
    "mrope_section", "quant_recipe", "timers", "finalize_model_grads_func", "grad_scale_func", "no_sync_func",
    "grad_sync_func", "param_sync_func", "enable_autocast", "autocast_dtype", "pipeline_dtype", "batch_p2p_comm",
    "batch_p2p_sync", "deallocate_pipeline_outputs", "_cpu_offloading_context", "preserve_fp32_weights",
    "num_microbatches_with_partial_activation_checkpoints", "mlp_chunks_for_prefill", "hetereogenous_dist_checkpoint",
    "pin_cpu_grads", "pin_cpu_params",
}  # fmt: skip

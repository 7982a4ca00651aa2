"""What each option changes in the tables, and that the job runs."""

from __future__ import annotations

from typing import Any

import pytest

import semu
from semu.imports.megatron import read_megatron
from semu.runfile import make_job

SIZES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512"
BATCH = "--micro-batch-size 1 --global-batch-size 32 --bf16"
MOE = "--num-experts 8 --disable-bias-linear --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall"
MOE_KEYS = {
    **{"model.transformer.experts": 8, "model.transformer.top_k": 2, "model.transformer.moe_ffn": 2048},
    **{"model.transformer.bias": False, "parallel.ep": 4, "training.moe_grouped_gemm": False},
}
LATENT = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
MUON = {
    **{"training.optimizer": "muon", "training.muon_steps": 5},
    **{"training.muon_split": "blockwise", "training.muon_dtype": "tf32"},
}
DEEPSPEED = {"training.software": "megatron-deepspeed"}
FP8 = {"training.precision": "fp8", "training.fp8_recipe": "tensorwise"}


def tables_of(words: str) -> dict[str, Any]:
    return read_megatron(f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} {words}\n").tables


@pytest.mark.parametrize("line", ["export CUDA_LAUNCH_BLOCKING={}\n", "CUDA_LAUNCH_BLOCKING={} "])
@pytest.mark.parametrize(("value", "blocks"), [("1", True), ("0", None)])
def test_launches_that_block_are_read_from_the_environment(line: str, value: str, blocks: bool | None) -> None:
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH}\n"
    training = read_megatron(f"#!/bin/bash\n{line.format(value)}{command}").tables["training"]
    assert training.get("launch_blocking") is blocks


def flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    keys: dict[str, Any] = {}
    for name, value in table.items():
        keys |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return keys


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--swiglu", {"model.transformer.gated_mlp": True, "model.transformer.ffn": 1344}),
        (
            f"{MOE} --overlap-moe-expert-parallel-comm --delay-wgrad-compute",
            {**MOE_KEYS, "overlap.expert_parallel": True, "overlap.delayed_weight_gradients": True},
        ),
        ("--overlap-moe-expert-parallel-comm", {}),
        ("--cuda-graph-impl local --cuda-graph-scope attn,mlp", {"training.cuda_graphs": ["attn", "mlp"]}),
        ("--external-cuda-graph", {"training.cuda_graphs": ["layer"]}),
        ("--enable-cuda-graph --cuda-graph-scope full_iteration", {"training.cuda_graphs": ["iteration"]}),
        ("--cuda-graph-impl none --cuda-graph-scope attn", {}),
        (
            f"{MOE} --cuda-graph-impl local --cuda-graph-scope full",
            {**MOE_KEYS, "training.cuda_graphs": ["attn"], "training.left_out": ["cuda-graph-scope 0.05"]},
        ),
        ("--ffn-hidden-size 1000", {"model.transformer.ffn": 1000}),
        ("--deepspeed --zero-stage 1 --deepspeed_config d.json", {**DEEPSPEED, "parallel.zero": 1}),
        (
            "--deepspeed --deepspeed-activation-checkpointing",
            {**DEEPSPEED, "parallel.zero": 1},
        ),  # of its bf16 optimizer
        ("--zero-stage 1", {}),  # without DeepSpeed nothing reads it
        ("--checkpoint-activations", {"training.recompute": "full"}),
        ("--kv-channels 32", {"model.transformer.head_dim": 32}),
        ("--group-query-attention --num-query-groups 2", {"model.transformer.kv_heads": 2}),
        ("--group-query-attention", {"model.transformer.kv_heads": 1}),
        ("--num-query-groups 2", {}),
        ("--position-embedding-type rope", {"model.transformer.rotary": True, "model.transformer.positions": None}),
        ("--position-embedding-type none", {"model.transformer.positions": None}),
        (
            "--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-end-in-bf16 2",
            FP8 | {"training.bf16_first_layers": 1, "training.bf16_last_layers": 2},
        ),
        (
            "--fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 --num-layers-at-start-in-bf16 0",
            FP8 | {"training.bf16_last_layers": 1},
        ),
        ("--first-last-layers-bf16", {}),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", FP8 | {"training.fp8_recipe": "mxfp8"}),
        (
            "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 2",
            {"parallel.cp": 4, "parallel.dp": 2, "parallel.cp_kind": "ring", "parallel.cp_inner": 2},
        ),
        ("--qk-layernorm", {"model.transformer.qk_layer_norm": True}),
        (
            "--multi-latent-attention",
            {
                **{f"model.transformer.mla.{key}": size for key, size in LATENT.items()},
                "model.transformer.mla.norms": False,
                "model.transformer.rotary": False,
            },
        ),
        ("--optimizer sgd", {"training.optimizer": "sgd"}),
        ("--optimizer lion --use-distributed-optimizer", {"training.optimizer": "lion", "parallel.zero": 1}),
        ("--optimizer muon", MUON),
        (
            "--optimizer dist_muon --muon-num-ns-steps 3 --muon-tp-mode duplicated --muon-fp32-matmul-prec highest",
            {
                **MUON,
                **{"training.muon_steps": 3, "training.muon_split": "duplicated", "training.muon_dtype": "fp32"},
                "parallel.zero": 1,
            },
        ),
        ("--add-qkv-bias --disable-bias-linear", {"model.transformer.bias": False, "model.transformer.qkv_bias": True}),
        (
            "--normalization RMSNorm --qk-layernorm",
            {"model.transformer.rms_norm": True, "model.transformer.qk_norm": True},
        ),
        ("--vocab-size 1000", {"model.transformer.vocab": 1000}),
        ("--vocab-size 1000 --tokenizer-type NullTokenizer", {"model.transformer.vocab": 1001}),
        ("--vocab-size 1000 --tokenizer-type SentencePieceTokenizer", {"model.transformer.vocab": 1000}),
        (MOE, MOE_KEYS),
        (MOE.replace("alltoall", "allgather"), {**MOE_KEYS, "training.moe_dispatcher": "allgather"}),
        (MOE.replace("alltoall", "flex"), {**MOE_KEYS, "training.moe_dispatcher": "deepep"}),
        (
            MOE.replace("alltoall", "flex --moe-enable-deepep --moe-deepep-num-sms 20"),
            {**MOE_KEYS, "training.moe_dispatcher": "deepep"},
        ),
        (
            "--num-experts 8 --disable-bias-linear --expert-model-parallel-size 4",
            {**MOE_KEYS, "training.moe_dispatcher": "allgather"},
        ),
        (
            "--num-experts 8 --disable-bias-linear",
            {**MOE_KEYS, "parallel.ep": 1},
        ),
        (f"{MOE} --moe-layer-freq 2", {**MOE_KEYS, "model.transformer.moe_layer_freq": 2}),
        (f"{MOE} --moe-layer-freq '([0]*2+[1]*6)'", {**MOE_KEYS, "model.transformer.first_k_dense": 2}),
        (f"{MOE} --moe-layer-freq '([1]+[0])*4'", {**MOE_KEYS, "model.transformer.moe_layer_freq": [1, 0] * 4}),
        (
            f"{MOE} --moe-grouped-gemm --moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity",
            {
                **{**MOE_KEYS, "training.moe_grouped_gemm": True},
                **{"training.moe_capacity_factor": 1.5, "training.moe_pad_to_capacity": True},
            },
        ),
        (
            f"{MOE} --moe-ffn-hidden-size 256 --moe-shared-expert-intermediate-size 512 --moe-shared-expert-gate",
            {
                **{**MOE_KEYS, "model.transformer.moe_ffn": 256},
                **{"model.transformer.shared_ffn": 512, "model.transformer.shared_gate": True},
            },
        ),
        (f"{MOE} --mtp-num-layers 2", {**MOE_KEYS, "model.transformer.mtp_layers": 2}),
        ("--mtp-num-layers 0", {}),
        (f"{MOE} --moe-layer-recompute", {**MOE_KEYS, "training.recompute": ["moe"]}),
        ("--tensor-model-parallel-size 2", {"parallel.tp": 2, "parallel.dp": 4}),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
            {
                **{"parallel.tp": 2, "parallel.dp": 4, "parallel.sequence_parallel": True},
                "overlap.tensor_parallel": True,
            },
        ),
        (
            "--context-parallel-size 2 --cp-comm-type a2a",
            {"parallel.cp": 2, "parallel.dp": 4, "parallel.cp_kind": "all_to_all"},
        ),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
            {
                **{"parallel.pp": 2, "parallel.dp": 4, "parallel.vpp": 2, "parallel.partition": "layers"},
                **{"overlap.pipeline": True, "training.schedule": "interleaved"},
            },
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1 --no-overlap-p2p-communication",
            {
                **{"parallel.pp": 2, "parallel.dp": 4, "parallel.vpp": 4, "parallel.partition": "layers"},
                **{"overlap.pipeline": False, "training.schedule": "interleaved"},
            },
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1 "
            "--decoder-last-pipeline-num-layers 1",
            {
                **{"parallel.pp": 4, "parallel.dp": 2, "overlap.pipeline": False},
                **{"parallel.layout.first": 1, "parallel.layout.last": 1},
            },
        ),
        *(
            (
                f"--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers {first} "
                f"--decoder-last-pipeline-num-layers {last}",
                {
                    **{"parallel.pp": 4, "parallel.dp": 2, "overlap.pipeline": False},
                    **{"parallel.layout.first": first, "parallel.layout.last": last},
                },
            )
            for first, last in ((0, 2), (2, 0))
        ),
        (
            "--num-layers 7 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 "
            "--account-for-embedding-in-pipeline-split",
            {
                **{"model.transformer.layers": 7, "parallel.pp": 4, "parallel.dp": 2, "parallel.vpp": 2},
                **{"overlap.pipeline": True, "training.schedule": "interleaved"},
                "parallel.layout.account_for_embedding": True,
            },
        ),
        ("--use-distributed-optimizer", {"parallel.zero": 1}),
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 2",
            {"parallel.zero": 1, "parallel.zero_group": 4},
        ),
        ("--overlap-grad-reduce", {"overlap.grad_reduce": True}),
        ("--use-torch-fsdp2", {"parallel.zero": 3, "parallel.reshard_after_forward": True}),
        (
            "--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward",
            {"parallel.zero": 3, "parallel.reshard_after_forward": False},
        ),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"parallel.zero": 2}),
        ("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params", {"parallel.zero": 3}),
        ("--grad-reduce-in-bf16", {"training.grad_dtype": "bf16"}),
        (
            "--use-precision-aware-optimizer --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"training.grad_dtype": "bf16", "training.optimizer_state_dtype": "bf16"},
        ),
        ("--fp8-format e4m3", FP8),
        ("--fp8-format hybrid --fp8-recipe blockwise", {**FP8, "training.fp8_recipe": "blockwise"}),
        ("--fp8-format hybrid --fp8-param-gather", {**FP8, "training.fp8_weights": "primary"}),
        ("--recompute-activations", {"training.recompute": "selective"}),
        (
            "--recompute-granularity selective --recompute-modules layernorm mlp",
            {"training.recompute": ["layernorm", "mlp"]},
        ),
        (
            "--recompute-granularity full --recompute-method uniform",
            {
                **{"training.recompute": "full", "training.recompute_method": "uniform"},
                "training.recompute_layers": 1,
            },
        ),
        ("--attention-backend unfused", {"training.attention": "unfused"}),
        ("--transformer-impl local", {"training.attention": "unfused", "training.workspaces": "torch"}),
        ("--transformer-impl local --use-flash-attn", {"training.workspaces": "torch"}),
        ("--cross-entropy-loss-fusion", {"training.cross_entropy": "compiled"}),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", {"training.cross_entropy": "fused"}),
        ("--no-gradient-accumulation-fusion", {"training.gradient_accumulation_fusion": False}),
        ("--activation-func-fp8-input-store", {"training.fp8_gates": True}),
        ("--clip-grad 0", {"training.gradient_clipping": False}),
        ("--optimizer-cpu-offload", {"training.offload": ["optimizer"]}),
        (
            "--cpu-offloading-num-layers 2",
            {"training.offload": ["activations"], "training.offload_layers": ["*layers.0", "*layers.1"]},
        ),
        ("--cpu-offloading-num-layers 8", {"training.offload": ["activations"]}),
    ],
)
def test_option(words: str, changes: dict[str, Any]) -> None:
    tables = tables_of(words)
    before, after = flat(tables_of("")), flat(tables)
    expected = {key: value for key, value in (before | changes).items() if value is not None}
    assert after == expected
    report = semu.evaluate(make_job(tables))
    assert report.iteration_time_s > 0


def test_wide_and_narrow_gradients_without_bf16() -> None:
    sixteen = read_megatron(f"torchrun --nproc_per_node 8 pretrain.py {SIZES} --micro-batch-size 1 --fp16\n").tables
    assert sixteen["training"]["grad_dtype"] == "fp16" and sixteen["training"]["loss_scaling"]
    assert sixteen["training"]["global_batch"] == 8
    wide = read_megatron(
        f"torchrun --nproc_per_node 8 pretrain.py {SIZES} --micro-batch-size 1 --fp16 "
        "--accumulate-allreduce-grads-in-fp32\n"
    ).tables
    assert wide["training"]["grad_dtype"] == "fp32"
    plain = read_megatron(f"torchrun --nproc_per_node 8 pretrain.py {SIZES} --micro-batch-size 1\n").tables
    assert plain["training"]["precision"] == "fp32"


def test_layers_that_do_not_divide_are_balanced_by_parameters() -> None:
    """As in run files and rows; Megatron-LM refuses them without a layout, which is said."""
    words = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --pipeline-model-parallel-size "
    even, uneven = (read_megatron(words.replace("layers 8", f"layers {layers}") + "4\n") for layers in (8, 7))
    assert even.tables["parallel"]["partition"] == "layers" and "partition" not in uneven.tables["parallel"]
    assert any("7 layers do not divide into 4 stages" in note for note in uneven.reading.notes)
    chunks = semu.simulation.prepare(make_job(uneven.tables)).layout.chunks
    layers = [sum(block.is_layer for block in chunk.blocks) for chunk in chunks]
    assert len(layers) == 4 and sum(layers) == 7


def test_up_projections_of_latent_attention_run_again() -> None:
    latent = "--multi-latent-attention --kv-lora-rank 32 --disable-bias-linear --position-embedding-type rope"
    read = tables_of(f"{latent} --recompute-granularity selective --recompute-modules mla_up_proj")
    assert read["training"]["recompute"] == ["mla_up_proj"]
    cost = [
        semu.simulate(make_job({**read, "training": {**read["training"], "recompute": mode}}))
        for mode in ("none", ["mla_up_proj"], ["attention"])
    ]
    assert cost[0].iteration_time_s < cost[1].iteration_time_s < cost[2].iteration_time_s
    assert cost[0].memory[0].activations > cost[1].memory[0].activations > cost[2].memory[0].activations

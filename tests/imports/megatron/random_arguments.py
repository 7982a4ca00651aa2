"""Random legal launch arguments of Megatron-LM, over all arguments that ``flags.toml`` lists but those of another model
or arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable

from semu.imports.flags import Flag, Grade
from semu.imports.megatron.flags import FLAGS

Arguments = dict[str, str]
"""Name without dashes -> value, empty for a switch."""

PATTERN_NAMES = {
    "lr-*": "lr-warmup-iters", "log-*": "log-interval", "no-log-*": "no-log-loss-scale-to-tensorboard",
    "save-*": "save-interval", "load-*": "load-iteration", "eval-*": "eval-interval",
}  # fmt: skip
_TOGETHER = {
    "world-size", "data-parallel-size", "virtual-pipeline-model-parallel-size", "padded-vocab-size",
    "vision-model-type", "img-h", "img-w", "patch-dim", "decoder-seq-length", "fp8", "mtp-num-layers",
    "moe-layer-recompute", "main-params-dtype", "use-mcore-models", "encoder-num-layers", "encoder-seq-length",
    "use-custom-fsdp", "cpu-offloading-num-layers", "deepspeed", "zero-stage", "checkpoint-activations",
}  # fmt: skip
"""Printed names, second spellings, and arguments that have tests of their own."""


def written(flag: Flag) -> str:
    """A name that stands for a pattern."""
    return PATTERN_NAMES.get(flag.name, flag.name.replace("*", "some"))


FREE = [flag for flag in FLAGS.flags if flag.grade in (Grade.HARMLESS, Grade.SMALL) and flag.name not in _TOGETHER]
"""Arguments that may stand beside any others."""


def legal_arguments(draw: random.Random, free: list[Flag]) -> Arguments:
    """A legal command line.

    Args:
        draw: of what is random. free: arguments that stand beside all others, whose values are drawn here.
    """
    tp, pp, cp = draw.choice([(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2), (4, 2, 1), (1, 4, 1)])
    found: Arguments = {
        "num-layers": "8",
        "hidden-size": "256",
        "num-attention-heads": "8",
        "seq-length": "128",
        "max-position-embeddings": "128",
        "micro-batch-size": draw.choice(["1", "2"]),
        "global-batch-size": "128",
        "tensor-model-parallel-size": str(tp),
        "pipeline-model-parallel-size": str(pp),
        "context-parallel-size": str(cp),
    }
    for choose in (_model, _experts, _vocabulary, _precision, _recompute, _kernels, _sharding, _optimizer):
        choose(draw, found)
    _pipeline(draw, found, pp)
    _combined(draw, found, pp)
    _graphs(draw, found)
    if (tp > 1 and draw.random() < 0.7) or ("num-experts" in found and tp > 1):
        found["sequence-parallel"] = ""
        if draw.random() < 0.3:
            found["tp-comm-overlap"] = ""
    if cp > 1:
        found["cp-comm-type"] = draw.choice(["p2p", "all_gather", "a2a", "a2a+p2p"])
        if found["cp-comm-type"] == "a2a+p2p":
            inner = draw.choice([n for n in range(1, cp + 1) if cp % n == 0])
            found["hierarchical-context-parallel-sizes"] = f"{inner} {cp // inner}"
    if draw.random() < 0.2:
        found["use-tp-pp-dp-mapping"] = ""
    for flag in free:
        found.setdefault(written(flag), _value(draw, flag))
    return found


def _maybe(draw: random.Random, found: Arguments, probability: float, **values: str) -> bool:
    if draw.random() < probability:
        found |= {name.replace("_", "-"): value for name, value in values.items()}
        return True
    return False


def _model(draw: random.Random, found: Arguments) -> None:
    activation = draw.choice(["swiglu", "squared-relu", "openai-gelu", "quick-geglu", ""])
    if activation:
        found[activation] = ""
    _maybe(draw, found, 0.5, normalization=draw.choice(["RMSNorm", "LayerNorm"]))
    _maybe(draw, found, 0.5, position_embedding_type=draw.choice(["rope", "yarn", "learned_absolute", "mrope", "none"]))
    _maybe(draw, found, 0.1, use_rotary_position_embeddings="")
    _maybe(draw, found, 0.1, no_position_embedding="")
    _maybe(draw, found, 0.5, disable_bias_linear="")
    _maybe(draw, found, 0.3, add_qkv_bias="")
    _maybe(draw, found, 0.3, qk_layernorm="")
    _maybe(draw, found, 0.4, ffn_hidden_size="512")
    _maybe(draw, found, 0.2, kv_channels="32")
    _maybe(draw, found, 0.5, untie_embeddings_and_output_weights="")
    _maybe(draw, found, 0.5, attention_dropout="0.0")
    _maybe(draw, found, 0.5, hidden_dropout="0.0")
    if _maybe(draw, found, 0.15, multi_latent_attention=""):
        _maybe(draw, found, 0.8, q_lora_rank="64")
        for name in ("kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"):
            _maybe(draw, found, 0.7, **{name: "32"})
    elif _maybe(draw, found, 0.4, group_query_attention=""):
        found["num-query-groups"] = "4"


def _experts(draw: random.Random, found: Arguments) -> None:
    if not _maybe(draw, found, 0.35, num_experts="8"):
        return
    found["disable-bias-linear"] = ""
    ep = draw.choice([1, 2])
    found["expert-model-parallel-size"] = str(ep)
    tp, kind = int(found["tensor-model-parallel-size"]), draw.choice(["alltoall", "allgather", "flex", "alltoall_seq"])
    _maybe(draw, found, 0.5, expert_tensor_parallel_size="1")
    if kind == "flex" and ep * (1 if "expert-tensor-parallel-size" in found else tp) == 1:
        kind = "alltoall"
    found["moe-token-dispatcher-type"] = kind
    if kind == "flex":
        _maybe(draw, found, 0.5, moe_enable_deepep="")
        _maybe(draw, found, 0.5, moe_flex_dispatcher_backend=draw.choice(["deepep", "hybridep"]))
    _maybe(draw, found, 0.7, moe_router_topk="2")
    _maybe(draw, found, 0.5, moe_ffn_hidden_size="128")
    if _maybe(draw, found, 0.3, moe_shared_expert_intermediate_size="128"):
        _maybe(draw, found, 0.3, moe_shared_expert_gate="")
    _maybe(draw, found, 0.3, moe_layer_freq=draw.choice(["2", "([0]*2+[1]*6)", "([0]*1+[1]*1)*4"]))
    _maybe(draw, found, 0.5, moe_grouped_gemm="")
    if kind.startswith("alltoall") and _maybe(draw, found, 0.2, moe_expert_capacity_factor="1.5"):
        _maybe(draw, found, 0.5, moe_pad_expert_input_to_capacity="")


def _vocabulary(draw: random.Random, found: Arguments) -> None:
    kind = draw.choice(["NullTokenizer", "GPT2BPETokenizer", "TikTokenizer", "Llama2Tokenizer", ""])
    if kind:
        found["tokenizer-type"] = kind
    if kind == "NullTokenizer" or draw.random() < 0.3:
        found["vocab-size"] = "1000"
    _maybe(draw, found, 0.3, make_vocab_size_divisible_by="64")
    _maybe(draw, found, 0.2, tokenizer_model="$TOKENIZERS/tokenizer.model")


def _precision(draw: random.Random, found: Arguments) -> None:
    kind = draw.choice(["bf16", "bf16", "fp16", "fp8", ""])
    if kind == "fp8":
        found |= {"bf16": "", "fp8-format": draw.choice(["hybrid", "e4m3"])}
        _maybe(draw, found, 0.6, fp8_recipe=draw.choice(["delayed", "tensorwise", "blockwise", "mxfp8"]))
        _maybe(draw, found, 0.3, fp8_param_gather="")
        if _maybe(draw, found, 0.3, first_last_layers_bf16=""):
            _maybe(draw, found, 0.5, num_layers_at_start_in_bf16=draw.choice(["0", "1", "2"]))
            _maybe(draw, found, 0.5, num_layers_at_end_in_bf16=draw.choice(["0", "1"]))
    elif kind:
        found[kind] = ""
    _maybe(draw, found, 0.3, grad_reduce_in_bf16="")
    _maybe(draw, found, 0.3, accumulate_allreduce_grads_in_fp32="")


def _recompute(draw: random.Random, found: Arguments) -> None:
    kind = draw.choice(["", "", "selective", "full", "activations"])
    if kind == "full":
        method = draw.choice(["uniform", "block"])
        found |= {"recompute-granularity": kind, "recompute-method": method, "recompute-num-layers": "1"}
    elif kind == "activations":
        found["recompute-activations"] = ""
    elif kind:
        found["recompute-granularity"] = kind
        words = ["core_attn", "layernorm", "mlp"] + (["moe", "moe_act"] if "num-experts" in found else [])
        _maybe(draw, found, 0.6, recompute_modules=" ".join(draw.sample(words, 2)))


def _kernels(draw: random.Random, found: Arguments) -> None:
    if found["context-parallel-size"] == "1":  # which only Transformer Engine's fused kernels have
        _maybe(draw, found, 0.3, transformer_impl=draw.choice(["transformer_engine", "local"]))
        _maybe(draw, found, 0.3, attention_backend="unfused")
    _maybe(draw, found, 0.3, attention_backend=draw.choice(["auto", "flash", "fused"]))
    for name in ("use-flash-attn", "deterministic-mode", "no-masked-softmax-fusion", "no-bias-gelu-fusion"):
        _maybe(draw, found, 0.2, **{name: ""})
    for name in (
        *("no-bias-swiglu-fusion", "no-rope-fusion", "no-gradient-accumulation-fusion"),
        "activation-func-fp8-input-store",
    ):
        _maybe(draw, found, 0.2, **{name: ""})
    if _maybe(draw, found, 0.3, cross_entropy_loss_fusion=""):
        _maybe(draw, found, 0.5, cross_entropy_fusion_impl=draw.choice(["native", "te"]))


def _sharding(draw: random.Random, found: Arguments) -> None:
    is_plain = found["pipeline-model-parallel-size"] == "1" and not {"num-experts", "fp8-format"} & found.keys()
    kind = draw.choice(["ddp", "zero", "fsdp2", "mfsdp"] if is_plain else ["ddp", "zero"])
    if kind == "zero":
        found["use-distributed-optimizer"] = ""
        _maybe(draw, found, 0.5, overlap_grad_reduce="")
        if "overlap-grad-reduce" in found:
            _maybe(draw, found, 0.5, overlap_param_gather="")
        if "num-experts" not in found:
            _maybe(draw, found, 0.2, num_distributed_optimizer_instances="2")
    elif kind == "fsdp2":
        found["use-torch-fsdp2"] = ""
        _maybe(draw, found, 0.3, torch_fsdp2_no_reshard_after_forward="")
    elif kind == "mfsdp":
        found |= {"use-megatron-fsdp": "", "use-distributed-optimizer": ""}
        _maybe(draw, found, 0.8, data_parallel_sharding_strategy=draw.choice(["optim", "optim_grads"]))


def _optimizer(draw: random.Random, found: Arguments) -> None:
    kinds = ["adam", "sgd", "lion"]
    is_whole = not {"use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp"} & set(found)
    _maybe(draw, found, 0.3, optimizer=draw.choice([*kinds, "muon", "dist_muon"] if is_whole else kinds))
    if "muon" in found.get("optimizer", ""):
        _maybe(draw, found, 0.5, muon_num_ns_steps=draw.choice(["1", "5", "8"]))
        _maybe(draw, found, 0.5, muon_tp_mode=draw.choice(["blockwise", "duplicated", "distributed"]))
        _maybe(draw, found, 0.3, muon_fp32_matmul_prec=draw.choice(["medium", "highest"]))
        _maybe(draw, found, 0.3, muon_momentum="0.9")
    _maybe(draw, found, 0.3, clip_grad=draw.choice(["1.0", "0.0"]))
    if "use-distributed-optimizer" in found and "bf16" in found and "use-megatron-fsdp" not in found:
        if _maybe(draw, found, 0.3, use_precision_aware_optimizer=""):
            _maybe(draw, found, 0.5, main_grads_dtype=draw.choice(["fp32", "bf16"]))
            _maybe(draw, found, 0.5, exp_avg_dtype=draw.choice(["fp32", "bf16", "fp8"]))
            _maybe(draw, found, 0.5, exp_avg_sq_dtype=draw.choice(["fp32", "bf16", "fp16"]))
        elif "num-experts" not in found:
            _maybe(draw, found, 0.1, optimizer_cpu_offload="")


def _pipeline(draw: random.Random, found: Arguments, pp: int) -> None:
    if pp == 1:
        return
    kind = draw.choice(["plain", "chunks", "stages", "uneven", "layout", "accounts"])
    layers = 8
    if kind == "chunks":
        found["num-layers-per-virtual-pipeline-stage"] = str(layers // pp // 2 or 1)
    elif kind == "stages":
        found["num-virtual-stages-per-pipeline-rank"] = "2"
    elif kind == "uneven" and pp == 4:
        found |= {"decoder-first-pipeline-num-layers": "1", "decoder-last-pipeline-num-layers": "1"}
    elif kind == "layout":
        found["pipeline-model-parallel-layout"] = "Et*4|t*4L" if pp == 2 else "Ett|tt|tt|ttL"
    elif kind == "accounts" and pp == 2:
        found |= {"account-for-embedding-in-pipeline-split": "", "account-for-loss-in-pipeline-split": ""}
    _maybe(draw, found, 0.3, no_overlap_p2p_communication="")


def _combined(draw: random.Random, found: Arguments, pp: int) -> None:
    """Forwards and backwards in one (``TransformerConfig``: which of the others it asks for)."""
    exchanges = found.get("expert-model-parallel-size") == "2"
    exchanges &= found.get("moe-token-dispatcher-type") in ("alltoall", "flex")
    virtual = {"num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"} & found.keys()
    is_narrow = bool({"bf16", "fp16"} & found.keys())
    is_legal = exchanges and is_narrow and (pp == 1 or virtual) and found.get("recompute-granularity") != "full"
    if is_legal and _maybe(draw, found, 0.6, overlap_moe_expert_parallel_comm=""):
        _maybe(draw, found, 0.5, delay_wgrad_compute="")


def _graphs(draw: random.Random, found: Arguments) -> None:
    """CUDA graphs (``TransformerConfig``): of parts that the model has, and of all of it only by themselves."""
    if draw.random() < 0.7 or "cpu-offloading-num-layers" in found:
        return
    is_full = found.get("recompute-granularity") == "full"
    has_experts = "num-experts" in found
    words = ["attn"] + (["moe_router"] if has_experts and draw.random() < 0.5 else [])
    words += ["moe_preprocess"] if "moe_router" in words and draw.random() < 0.5 else []
    scopes = [*([] if has_experts else ["full", "mlp"]), " ".join(words)] if not is_full else ["full_iteration"]
    scope = draw.choice(scopes)
    way = draw.choice(["local", "enable", "modules"] + ([] if is_full else ["transformer_engine", "external"]))
    found |= {
        "local": {"cuda-graph-impl": "local", "cuda-graph-scope": scope},
        "transformer_engine": {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": scope},
        "enable": {"enable-cuda-graph": "", "cuda-graph-scope": scope},
        "external": {"external-cuda-graph": "", "cuda-graph-scope": scope},
        "modules": {"cuda-graph-impl": "local", "cuda-graph-modules": scope},
    }[way]
    if is_full and draw.random() < 0.3:
        found["full-iteration-cuda-graph"] = ""


_VALUES: dict[str, Callable[[random.Random], str]] = {
    "cp-comm-type": lambda draw: "p2p",
    "moe-router-load-balancing-type": lambda draw: draw.choice(["sinkhorn", "aux_loss", "none", "seq_aux_loss"]),
    "moe-router-dtype": lambda draw: draw.choice(["fp32", "fp64"]),
    "rotary-percent": lambda draw: draw.choice(["1.0", "0.5"]),
    "vocab-file": lambda draw: "${DATA}/vocab.json",
    "data-path": lambda draw: "$DATA/text $1/other",
    "save": lambda draw: "`pwd`/checkpoints",
}


def _value(draw: random.Random, flag: Flag) -> str:
    """A word for an argument whose value has no bearing, or a small one."""
    if flag.name in _VALUES:
        return _VALUES[flag.name](draw)
    return "" if flag.is_switch else draw.choice(["", "1", "some/path", "0.5"])

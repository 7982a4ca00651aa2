"""``export_megatron``: a run as arguments of Megatron-LM, in a script that starts it.

What the arguments cannot say is found by reading them back: ``unsaid_of`` compares the job of the script with
the run's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from semu.errors import ConfigError
from semu.exports.exported import Exported
from semu.exports.transformer_sizes import transformer_of
from semu.exports.unsaid import unsaid_of
from semu.imports.megatron.flags import ADDED_TOKENS
from semu.imports.megatron.read import read_given
from semu.nn import MixtureOfExperts, TransformerLayer
from semu.parallel.config import PIPELINE_FIRST
from semu.runfile.config import RunConfig
from semu.runfile.transformer import TransformerConfig

Arguments = dict[str, str]
"""Name without dashes -> value as a shell writes it, empty for a switch."""

TOKENIZER = "NullTokenizer"
_RECIPES = {"tensorwise": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}
_CONTEXT = {"ring": "p2p", "all_gather": "all_gather", "all_to_all": "a2a"}
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


def export_megatron(run: RunConfig) -> Exported:
    """A script with Megatron-LM's arguments of a run.

    Raises:
        ConfigError: a model that the arguments cannot describe.
    """
    text = script_of(arguments_of(run), run.config["cluster"], title_of(run))
    return Exported(text, unsaid_of(run, text, "run.sh"))


def title_of(run: RunConfig) -> str:
    """What a file is about, in a line."""
    cluster = run.config["cluster"]
    return f"{run.model.name} on {cluster['device']}:{cluster['nodes']}x{cluster['gpus_per_node']}, written by semu"


def script_of(arguments: Mapping[str, str], cluster: Mapping[str, Any], title: str) -> str:
    """A shell script that starts ``pretrain_gpt.py``. Parameters of the script that values read (``$1``) are not handed
    on as arguments.

    Args:
        arguments: of Megatron-LM. cluster: ``[cluster]``. title: a line for its head.
    """
    words = [f"--{name} {_quoted(value)}".rstrip() for name, value in arguments.items()]
    place = _PLACE if cluster["nodes"] > 1 else ""
    launcher = (
        f"torchrun --nnodes {cluster['nodes']} --nproc_per_node {cluster['gpus_per_node']}{place} pretrain_gpt.py"
    )
    head = [
        "#!/usr/bin/env bash",
        f"# {title}",
        "# parameters: what decides values, such as --data-path, --lr, --train-iters",
    ]
    rest = [] if any(_PARAMETER.search(value) for value in arguments.values()) else ['"$@"']
    return "\n".join([*head, " \\\n    ".join([launcher, *words, *rest]), ""])


_PLACE = " --node_rank ${NODE_RANK:-0} --master_addr ${MASTER_ADDR:-localhost} --master_port ${MASTER_PORT:-6000}"
"""Which of several nodes runs the script, as Megatron-LM's examples have it."""
_PARAMETER = re.compile(r"\$(?:[@*]|\{?\d)")
"""A parameter of a script."""


def _quoted(value: str) -> str:
    """A value as a word of a script; what only running it would tell (``$1``, `pwd`) is told there."""
    if "$" in value or "`" in value:
        return '"' + value.replace('"', '\\"') + '"'
    return f"'{value}'" if any(letter in value for letter in "()|*;&<>") and "'" not in value else value


def arguments_of(run: RunConfig) -> Arguments:
    """Megatron-LM's arguments of a run, in the order of its own help.

    Raises:
        ConfigError: a model that the arguments cannot describe.
    """
    config = run.config
    sizes = sizes_of(run)
    parallel, training = config["parallel"], config["training"]
    length = training.get("seq_len")
    found = dict(_model(sizes, int(length) if length is not None else sizes.positions or 0))
    found |= dict(_experts(sizes))
    found |= dict(_parallel(parallel, sizes))
    found |= dict(_stages(run))
    found |= dict(_sharding(parallel, training.get("optimizer", "adam")))
    found |= dict(_training(training, sizes))
    found |= dict(_optimizer(training, parallel["zero"]))
    found |= dict(_kernels(training))
    found |= dict(_overlap(config["overlap"], parallel, training.get("optimizer", "adam")))
    return found


def sizes_of(run: RunConfig) -> TransformerConfig:
    """The sizes of a run's model, with the vocabulary as it is, or as ``vocab_multiple`` pads it.

    Raises:
        ConfigError: a model that is no plain decoder.
    """
    table = run.config["model"]
    if "transformer" in table:
        return TransformerConfig.from_table(table["transformer"])
    if table.get("lora") or table.get("frozen"):
        raise _cannot("adapters or frozen parts")
    found = transformer_of(run.model)
    if isinstance(found, str):
        raise _cannot(found)
    return found


def _cannot(what: str) -> ConfigError:
    return ConfigError(f"{what} cannot be said in sizes of a decoder", where="model", expected="a decoder", got=what)


def _model(sizes: TransformerConfig, length: int) -> Iterator[tuple[str, str]]:
    yield "num-layers", str(sizes.layers)
    yield "hidden-size", str(sizes.hidden)
    yield "ffn-hidden-size", str(sizes.ffn)
    yield "num-attention-heads", str(sizes.heads)
    if sizes.kv_heads != sizes.heads:
        yield "group-query-attention", ""
        yield "num-query-groups", str(sizes.kv_heads)
    if sizes.mla is None and sizes.head_dim * sizes.heads != sizes.hidden:
        yield "kv-channels", str(sizes.head_dim)
    if sizes.mla is not None:
        yield "multi-latent-attention", ""
        for name in ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"):
            if (size := getattr(sizes.mla, name)) is not None:
                yield name.replace("_", "-"), str(size)
    if sizes.qk_norm or sizes.qk_layer_norm or (sizes.mla is not None and sizes.mla.norms):
        yield "qk-layernorm", ""
    yield "seq-length", str(length)
    yield "max-position-embeddings", str(max(length, sizes.positions or 0))
    yield "tokenizer-type", TOKENIZER
    yield "vocab-size", str(sizes.vocab - ADDED_TOKENS[TOKENIZER])
    yield "make-vocab-size-divisible-by", str(sizes.vocab_multiple or 1)
    if not sizes.tied_embeddings:
        yield "untie-embeddings-and-output-weights", ""
    yield from _style(sizes)


def _style(sizes: TransformerConfig) -> Iterator[tuple[str, str]]:
    if sizes.activation == "squared_relu":
        yield "squared-relu", ""
    elif sizes.gated_mlp:
        yield "quick-geglu" if sizes.activation == "quick_gelu" else "swiglu", ""
    elif sizes.activation == "gelu_tanh":
        yield "openai-gelu", ""
    if sizes.rms_norm:
        yield "normalization", "RMSNorm"
    kind = "rope" if sizes.rotary else "learned_absolute" if sizes.positions is not None else "none"
    yield "position-embedding-type", kind
    if not sizes.bias:
        yield "disable-bias-linear", ""
        if sizes.qkv_bias:
            yield "add-qkv-bias", ""
    yield "attention-dropout", str(sizes.dropout)
    yield "hidden-dropout", str(sizes.dropout)


def _experts(sizes: TransformerConfig) -> Iterator[tuple[str, str]]:
    if sizes.experts is not None:
        yield "num-experts", str(sizes.experts)
        yield "moe-router-topk", str(sizes.top_k)
        yield "moe-ffn-hidden-size", str(sizes.moe_ffn)
        if sizes.shared_ffn:
            yield "moe-shared-expert-intermediate-size", str(sizes.shared_ffn)
        if sizes.shared_gate:
            yield "moe-shared-expert-gate", ""
        if sizes.dense_layers:
            pattern = [int(layer not in sizes.dense_layers) for layer in range(sizes.layers)]
            parts = [f"[{kind}]*{len(list(group))}" for kind, group in groupby(pattern)]
            yield "moe-layer-freq", f"({'+'.join(parts)})"
    if sizes.mtp_layers:
        yield "mtp-num-layers", str(sizes.mtp_layers)


def _parallel(parallel: Mapping[str, Any], sizes: TransformerConfig) -> Iterator[tuple[str, str]]:
    yield "tensor-model-parallel-size", str(parallel["tp"])
    yield "pipeline-model-parallel-size", str(parallel["pp"])
    if parallel.get("rank_order") == PIPELINE_FIRST:
        yield "use-tp-pp-dp-mapping", ""
    if parallel["cp"] > 1:
        yield "context-parallel-size", str(parallel["cp"])
        inner = parallel.get("cp_inner", 1)
        yield "cp-comm-type", "a2a+p2p" if inner > 1 else _CONTEXT.get(parallel.get("cp_kind", "ring"), "p2p")
        if inner > 1:
            yield "hierarchical-context-parallel-sizes", f"{inner} {parallel['cp'] // inner}"
    if parallel["ep"] > 1:
        yield "expert-model-parallel-size", str(parallel["ep"])
    if sizes.experts is not None and parallel.get("etp") is not None:
        yield "expert-tensor-parallel-size", str(parallel["etp"])
    if parallel["sequence_parallel"] and parallel["tp"] > 1:
        yield "sequence-parallel", ""


def _stages(run: RunConfig) -> Iterator[tuple[str, str]]:
    """Where stages end: as the run says it, or as they come out where it balances them."""
    parallel = run.config["parallel"]
    if parallel["pp"] == 1:
        return
    layout: Mapping[str, Any] = parallel.get("layout", {})
    if "stages" in layout:
        yield "pipeline-model-parallel-layout", layout["stages"]
        return
    if layout.keys() & {"layers", "modules"} or (not layout and parallel.get("partition") != "layers"):
        text = _layout_text(run)
        if text is not None:
            yield "pipeline-model-parallel-layout", text
            return
    if parallel["vpp"] > 1:
        yield "num-virtual-stages-per-pipeline-rank", str(parallel["vpp"])
    for name in ("first", "last"):
        if layout.get(name) is not None:
            yield f"decoder-{name}-pipeline-num-layers", str(layout[name])
    for name in ("embedding", "loss"):
        if layout.get(f"account_for_{name}"):
            yield f"account-for-{name}-in-pipeline-split", ""


def _layout_text(run: RunConfig) -> str | None:
    """The stages of a run's job in Megatron-LM's words, ``Et*3|t*4|t*3L``; None: they are even."""
    from semu.simulation.preparation import prepare

    chunks = [chunk for chunk in prepare(run.job()).layout.chunks if chunk.chunk.gang < 0]
    layers = {path for module in run.model.modules for path, block in module.blocks() if _is_layer(block)}
    counts = [sum(block.path in layers for block in chunk.blocks) for chunk in chunks]
    if len(set(counts)) == 1:
        return None
    stages = [f"t*{count}" if count > 1 else "t" * count for count in counts]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"])


def _is_layer(block: object) -> bool:
    return isinstance(block, TransformerLayer | MixtureOfExperts)


def _sharding(parallel: Mapping[str, Any], optimizer: str) -> Iterator[tuple[str, str]]:
    zero = parallel["zero"]
    if zero == 0 or optimizer == "muon":  # which is another word where it is spread
        return
    if zero == 3 and parallel.get("reshard_after_forward") is False:
        yield "use-torch-fsdp2", ""
        yield "torch-fsdp2-no-reshard-after-forward", ""
        return
    yield "use-distributed-optimizer", ""
    if zero in _SHARDING:
        yield "use-megatron-fsdp", ""
        yield "data-parallel-sharding-strategy", _SHARDING[zero]
    group = parallel.get("zero_group")
    if group is not None:
        yield "num-distributed-optimizer-instances", str(parallel["dp"] // group)


def _training(training: Mapping[str, Any], sizes: TransformerConfig) -> Iterator[tuple[str, str]]:
    yield "micro-batch-size", str(training["micro_batch"])
    yield "global-batch-size", str(training["global_batch"])
    precision = training["precision"]
    if precision in ("bf16", "fp16", "fp8"):
        yield "fp16" if precision == "fp16" else "bf16", ""
    if precision == "fp8":
        yield "fp8-format", "hybrid"
        yield "fp8-recipe", _RECIPES.get(training.get("fp8_recipe", ""), "tensorwise")
        yield from _bf16_layers(training)
        if training.get("fp8_weights") == "primary":
            yield "fp8-param-gather", ""
    if training.get("grad_dtype") == "bf16":
        yield "grad-reduce-in-bf16", ""
    elif precision == "fp16" and training.get("grad_dtype") == "fp32":
        yield "accumulate-allreduce-grads-in-fp32", ""
    moments = training.get("optimizer_state_dtype")
    if moments not in (None, "fp32"):
        yield "use-precision-aware-optimizer", ""
        yield "exp-avg-dtype", moments
        yield "exp-avg-sq-dtype", moments
    yield from _recompute(training)
    if not training.get("gradient_clipping", True):
        yield "clip-grad", "0.0"
    offload = training.get("offload", ())
    if "activations" in offload:
        yield "cpu-offloading-num-layers", str(len(training.get("offload_layers", ())) or sizes.layers)
    if "optimizer" in offload:
        yield "optimizer-cpu-offload", ""
    if sizes.experts is not None:
        yield from _dispatch(training)


def _bf16_layers(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    first, last = (training.get(f"bf16_{end}_layers") or 0 for end in ("first", "last"))
    if first or last:
        yield "first-last-layers-bf16", ""
        yield "num-layers-at-start-in-bf16", str(first)
        yield "num-layers-at-end-in-bf16", str(last)


def _optimizer(training: Mapping[str, Any], zero: int) -> Iterator[tuple[str, str]]:
    kind = training.get("optimizer", "adam")
    if kind == "muon":
        yield "optimizer", "dist_muon" if zero else "muon"
        yield "muon-num-ns-steps", str(training.get("muon_steps", 5))
        yield "muon-tp-mode", training.get("muon_split", "blockwise")
        yield "muon-fp32-matmul-prec", "highest" if training.get("muon_dtype") == "fp32" else "medium"
    elif kind != "adam":
        yield "optimizer", kind


def _recompute(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = training.get("recompute", "none")
    if kind == "full":
        yield "recompute-granularity", "full"
        yield "recompute-method", training.get("recompute_method", "uniform")
        yield "recompute-num-layers", str(training.get("recompute_layers", 1))
    elif kind != "none":
        yield "recompute-granularity", "selective"
        if not isinstance(kind, str):
            yield "recompute-modules", " ".join(kind)
        elif kind != "selective":
            yield "recompute-modules", kind


def _dispatch(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = training.get("moe_dispatcher", "alltoall")
    yield "moe-token-dispatcher-type", {"deepep": "flex"}.get(kind, kind)
    if training.get("moe_grouped_gemm", True):
        yield "moe-grouped-gemm", ""
    if training.get("moe_capacity_factor") is not None:
        yield "moe-expert-capacity-factor", str(training["moe_capacity_factor"])
        if training.get("moe_pad_to_capacity"):
            yield "moe-pad-expert-input-to-capacity", ""


def _kernels(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    is_fused = training.get("attention", "fused") == "fused"
    if training.get("workspaces") == "torch":
        yield "transformer-impl", "local"
        if is_fused:
            yield "use-flash-attn", ""
    elif not is_fused:
        yield "attention-backend", "unfused"
    if training.get("attention_deterministic"):
        yield "deterministic-mode", ""
    if graphs := training.get("cuda_graphs"):
        names = {"layer": "full", "iteration": "full_iteration"}
        words = [graphs] if isinstance(graphs, str) else graphs
        yield "cuda-graph-impl", "local" if "iteration" in words else "transformer_engine"
        yield "cuda-graph-scope", " ".join(names.get(word, word) for word in words)
    if (loss := training.get("cross_entropy")) in ("fused", "compiled"):
        yield "cross-entropy-loss-fusion", ""
        yield "cross-entropy-fusion-impl", "te" if loss == "fused" else "native"
    if training.get("fp8_gates"):
        yield "activation-func-fp8-input-store", ""
    if not training.get("gradient_accumulation_fusion", True):
        yield "no-gradient-accumulation-fusion", ""


def _overlap(overlap: Mapping[str, Any], parallel: Mapping[str, Any], optimizer: str) -> Iterator[tuple[str, str]]:
    if overlap.get("grad_reduce"):
        yield "overlap-grad-reduce", ""
    if overlap.get("param_gather") and optimizer != "muon":
        yield "overlap-param-gather", ""
    if overlap.get("tensor_parallel") is True and parallel["tp"] > 1:
        yield "tp-comm-overlap", ""
    if parallel["pp"] > 1 and parallel["vpp"] > 1 and overlap.get("pipeline") is False:
        yield "no-overlap-p2p-communication", ""
    if overlap.get("expert_parallel"):
        yield "overlap-moe-expert-parallel-comm", ""
        if overlap.get("delayed_weight_gradients"):
            yield "delay-wgrad-compute", ""


def changed_script(text: str, source: str, before: RunConfig, after: RunConfig) -> tuple[str, str]:
    """The command of a script, as it is and with what differs between two runs changed in it.

    Arguments that no run file has, of data and learning for example, stay.

    Args:
        text, source: the script and its name. before: the run that it is. after: as changed.
    Raises:
        ConfigError: as ``arguments_of``.
    """
    given = read_given(text, source)
    own: Arguments = {}
    for argument in given.arguments:
        name = argument.written.removeprefix("--").replace("_", "-")
        own.pop(name, None)
        own[name] = " ".join(argument.values)
    changed = dict(own)
    old, new = arguments_of(before), arguments_of(after)
    for name in (*old, *new):
        if old.get(name) == new.get(name):
            continue
        for spelling in _SAME.get(name, ()):
            changed.pop(spelling, None)
        if name in new:
            changed[name] = new[name]
        else:
            changed.pop(name, None)
    title = title_of(after)
    return script_of(own, before.config["cluster"], title), script_of(changed, after.config["cluster"], title)


_SAME: Mapping[str, tuple[str, ...]] = {
    "num-virtual-stages-per-pipeline-rank": ("num-layers-per-virtual-pipeline-stage",),
    "recompute-granularity": ("recompute-activations",),
    "position-embedding-type": ("use-rotary-position-embeddings",),
}
"""Argument -> others that say the same."""

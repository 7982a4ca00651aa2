"""``training_table``: batch, precision, recomputation, kernels and optimizer, as ``[training]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.imports.flags import Effect
from semu.imports.settings import Settings
from semu.job.cuda_graphs import DROPLESS

_UNFUSED = ("unfused", "local")
_RECIPES = {"delayed": "tensorwise", "tensorwise": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}


def training_table(
    settings: Settings, parallel: Mapping[str, Any], layers: int, *, has_experts: bool
) -> dict[str, Any]:
    """The table.

    Args:
        parallel: ``[parallel]``. layers, has_experts: of the model.
    Raises:
        ConfigError: a missing size, a batch that does not divide, values that contradict one another.
    """
    precision = _precision(settings)
    recomputed = _recompute(settings, is_sparse=has_experts and settings.get("moe_layer_freq") == "1")
    table: dict[str, Any] = {
        **_batch(settings, parallel["dp"]),
        "precision": precision,
        **_dtypes(settings, precision),
        **_bf16_layers(settings, precision, is_grouped=recomputed.get("recompute_layers", 1) > 1),
        "schedule": "interleaved" if parallel["vpp"] > 1 else "1f1b",
        "software": _software(settings),
        **({"launch_blocking": True} if settings.given.environment.get("CUDA_LAUNCH_BLOCKING") == "1" else {}),
        **recomputed,
        **_kernels(settings),
        **_cuda_graphs(settings, is_dropless=has_experts and not _is_padded(settings), has_experts=has_experts),
        "gradient_accumulation_fusion": settings.get("gradient_accumulation_fusion"),
        **({"fp8_gates": True} if settings.get("activation_func_fp8_input_store") else {}),
        "gradient_clipping": float(settings.get("clip_grad")) > 0,
        **_offload(settings, layers),
    }
    table |= _optimizer(settings)
    if has_experts:
        if parallel["ep"] * parallel.get("etp", parallel["tp"]) > 1:
            table |= _dispatcher(settings)
        table["moe_grouped_gemm"] = settings.get("moe_grouped_gemm")
        capacity = settings.get("moe_expert_capacity_factor")
        if capacity is not None and capacity > 0:
            table["moe_capacity_factor"] = capacity
            table["moe_pad_to_capacity"] = _is_padded(settings)
    return table


def _software(settings: Settings) -> str:
    """Megatron-DeepSpeed's scripts are Megatron-LM's with ``--deepspeed``."""
    return "megatron-deepspeed" if settings.get("deepspeed") else "megatron"


def _is_padded(settings: Settings) -> bool:
    """Whether every expert computes its whole capacity."""
    is_padded: bool = settings.get("moe_pad_expert_input_to_capacity")
    return is_padded and (settings.get("moe_expert_capacity_factor") or 0) > 0


_GRAPHS = {"full": "layer", "full_iteration": "iteration"}
"""--cuda-graph-scope -> ``training.cuda_graphs``; other words are the same."""


def _cuda_graphs(settings: Settings, *, is_dropless: bool, has_experts: bool) -> dict[str, Any]:
    """What CUDA graphs hold (Megatron-LM, ``TransformerConfig``). Buffers that they keep are not modelled.

    Args:
        is_dropless: experts take any number of tokens, which no graph holds.
    """
    local, external = settings.get("enable_cuda_graph"), settings.get("external_cuda_graph")
    impl, scope = settings.get("cuda_graph_impl"), settings.get("cuda_graph_scope")
    scope = settings.get("cuda_graph_modules") or scope
    is_whole = settings.get("full_iteration_cuda_graph")
    if not (local or external or is_whole or impl != "none"):
        return {}
    asking = ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph", "full_iteration_cuda_graph")
    name = next(name for name in asking if _asks(settings, name))
    settings.approximate(name, "buffers that CUDA graphs keep are not counted", Effect(more=0.1))
    words = ["full_iteration"] if is_whole else list(scope)
    found = [_GRAPHS.get(word, word) for word in words if has_experts or not word.startswith("moe")]
    changing = [word for word in found if word in DROPLESS]
    if is_dropless and changing:
        why = f"graphs of {changing[0]} with experts that take any number of tokens, modelled of attention"
        settings.approximate("cuda_graph_scope", why, Effect(faster=0.05))
        found = ["attn", *(word for word in found if word not in DROPLESS)]
    return {"cuda_graphs": list(dict.fromkeys(found))} if found else {}


def _asks(settings: Settings, name: str) -> bool:
    return settings.get(name) not in (False, "none", None)


def _bf16_layers(settings: Settings, precision: str, *, is_grouped: bool) -> dict[str, int]:
    """Layers at both ends that run in bf16 beside fp8."""
    if precision != "fp8" or not settings.get("first_last_layers_bf16"):
        return {}
    ends = {"first": "num_layers_at_start_in_bf16", "last": "num_layers_at_end_in_bf16"}
    layers = settings.size("num_layers") or 0
    sizes = {f"bf16_{end}_layers": min(settings.size(name, least=0) or 0, layers) for end, name in ends.items()}
    if is_grouped and settings.get("recompute_method") == "uniform":
        why = "layers in bf16 beside groups of recomputed layers, modelled in fp8"
        settings.approximate("first_last_layers_bf16", why, Effect(slower=0.03))
        return {}
    return {key: size for key, size in sizes.items() if size}


_MUON_DTYPES = {"medium": "tf32", "high": "tf32", "highest": "fp32"}
"""--muon-fp32-matmul-prec -> type of products, as ``torch.set_float32_matmul_precision`` has them on NVIDIA's."""


def _optimizer(settings: Settings) -> dict[str, Any]:
    kind = settings.get("optimizer")
    if kind not in ("muon", "dist_muon"):
        return {} if kind == "adam" else {"optimizer": kind}
    return {
        "optimizer": "muon",
        "muon_steps": settings.size("muon_num_ns_steps"),
        "muon_split": settings.get("muon_tp_mode"),
        "muon_dtype": _MUON_DTYPES[settings.get("muon_fp32_matmul_prec")],
    }


def _dispatcher(settings: Settings) -> dict[str, Any]:
    """How tokens reach experts on other ranks (Megatron-LM, ``TransformerConfig``): ``flex`` runs DeepEP's kernels,
    which --moe-enable-deepep and --moe-flex-dispatcher-backend choose in older and in newer versions.

    Raises:
        ConfigError: DeepEP under another dispatcher, which Megatron-LM refuses.
    """
    kind = settings.get("moe_token_dispatcher_type")
    if settings.get("moe_enable_deepep") and kind not in ("flex", None):
        message, expected = f"DeepEP with the dispatcher {kind}", "--moe-token-dispatcher-type flex beside it"
        raise settings.error("moe_enable_deepep", message, expected=expected, got=kind, nearest=expected)
    if kind != "flex":
        return {"moe_dispatcher": "allgather"} if kind == "allgather" else {}
    settings.get("moe_flex_dispatcher_backend")
    return {"moe_dispatcher": "deepep"}


def _batch(settings: Settings, dp: int) -> dict[str, int]:
    micro = settings.required("micro_batch_size")
    size = settings.size("global_batch_size")
    if size is None:
        size = micro * dp
    if size % (micro * dp):
        raise settings.error(
            "global_batch_size",
            f"a global batch of {size} does not divide by micro batch x replicas = {micro} x {dp}",
            expected=f"a multiple of {micro * dp}",
            got=size,
            nearest=max(size // (micro * dp), 1) * micro * dp,
        )
    return {"micro_batch": micro, "global_batch": size, "seq_len": settings.required("seq_length")}


def _precision(settings: Settings) -> str:
    is_bf16, is_fp16 = settings.get("bf16"), settings.get("fp16")
    if is_bf16 and is_fp16:
        raise settings.error("fp16", "--bf16 and --fp16", expected="one of them", got="both")
    if settings.get("fp8") is None:
        return "bf16" if is_bf16 else "fp16" if is_fp16 else "fp32"
    if not is_bf16:
        raise settings.error("fp8", "fp8 without bf16", expected="--bf16 beside it", got="no --bf16")
    return "fp8"


def _dtypes(settings: Settings, precision: str) -> dict[str, Any]:
    """Types of gradients, master weights and moments (Megatron-LM, ``validate_args``)."""
    table: dict[str, Any] = {}
    if precision == "fp8":
        table["fp8_recipe"] = _RECIPES[settings.get("fp8_recipe")]
        if settings.get("fp8_param"):
            if "muon" in settings.get("optimizer"):
                why = "weights in fp8 alone, modelled with 16-bit ones beside them under Muon"
                settings.approximate("fp8_param", why, Effect(less=0.1, faster=0.02))
            else:
                table["fp8_weights"] = "primary"
    is_16 = precision in ("bf16", "fp8")
    is_aware = settings.get("use_precision_aware_optimizer")
    is_narrow = is_16 and (
        settings.get("grad_reduce_in_bf16") or (is_aware and settings.get("main_grads_dtype") == "bf16")
    )
    if precision == "fp16" and not settings.get("accumulate_allreduce_grads_in_fp32"):
        table["grad_dtype"] = "fp16"
    else:
        table["grad_dtype"] = "bf16" if is_narrow else "fp32"
    if precision == "fp16":
        table["loss_scaling"] = True
    if is_aware:
        settings.get("main_params_dtype")
        moments = {settings.get("exp_avg_dtype"), settings.get("exp_avg_sq_dtype")}
        if len(moments) > 1:
            why = "moments of two types, modelled as the wider in both"
            settings.approximate("exp_avg_sq_dtype", why, Effect(less=0.05))
        table["optimizer_state_dtype"] = max(moments)
    return table


def _recompute(settings: Settings, *, is_sparse: bool) -> dict[str, Any]:
    """Which modules run again. ``is_sparse``: every layer has experts, and none a plain feed-forward network."""
    if settings.get("checkpoint_activations"):
        return {"recompute": "full"}
    granularity = settings.get("recompute_granularity")
    if settings.get("recompute_activations"):
        granularity = granularity or "selective"
    modules: tuple[str, ...] = ()
    if granularity == "selective":
        modules = settings.get("recompute_modules")
    if settings.get("moe_layer_recompute"):
        granularity, modules = "selective", tuple(dict.fromkeys((*modules, "moe")))
    if is_sparse and "mlp" in modules:
        settings.notes.append("recompute: mlp is left out, as every layer has experts")
        modules = tuple(name for name in modules if name != "mlp")
        granularity = granularity if modules else None
    if granularity is None:
        return {"recompute": "none"}
    if granularity == "selective":
        return {"recompute": "selective" if modules == ("core_attn",) else list(modules)}
    method, layers = settings.get("recompute_method"), settings.size("recompute_num_layers")
    if method is None:
        raise settings.error(
            "recompute_granularity",
            "full recomputation without a method",
            expected="--recompute-method uniform or block beside it",
            got="none",
            nearest="--recompute-method uniform --recompute-num-layers 1",
        )
    if method == "block" and layers is None:
        message, expected = "block recomputation without a number of layers", "--recompute-num-layers beside it"
        raise settings.error("recompute_method", message, expected=expected, got="none")
    return {"recompute": "full", "recompute_method": method, "recompute_layers": layers or 1}


def _kernels(settings: Settings) -> dict[str, Any]:
    """Attention, token loss and the workspaces of the libraries that run them."""
    is_local = settings.get("transformer_impl") == "local"
    backend = settings.get("attention_backend")
    is_unfused = backend in _UNFUSED or (is_local and not settings.get("use_flash_attn"))
    fused_loss = "fused" if settings.get("cross_entropy_fusion_impl") == "te" else "compiled"
    if is_unfused and not settings.get("masked_softmax_fusion"):
        why = "scale, mask and softmax in separate kernels"
        settings.approximate("masked_softmax_fusion", why, Effect(slower=0.1, more=0.1))
    return {
        "attention": "unfused" if is_unfused else "fused",
        **({"attention_deterministic": True} if settings.get("deterministic_mode") else {}),
        "cross_entropy": fused_loss if settings.get("cross_entropy_loss_fusion") else "in_place",
        "workspaces": "torch" if is_local else "transformer_engine",
    }


def _offload(settings: Settings, layers: int) -> dict[str, Any]:
    words = []
    table: dict[str, Any] = {}
    count = settings.size("cpu_offloading_num_layers", least=0) or 0
    if count:
        words.append("activations")
        if count < layers:
            table["offload_layers"] = [f"*layers.{number}" for number in range(count)]
    if settings.get("optimizer_cpu_offload"):
        words.append("optimizer")
    return {"offload": words, **table} if words else {}

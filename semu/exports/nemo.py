"""``export_nemo``: a run as a YAML configuration of Megatron-Bridge, made of Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.exports.exported import Exported
from semu.exports.megatron import arguments_of, title_of
from semu.exports.unsaid import unsaid_of
from semu.imports.megatron.flags import FLAGS
from semu.runfile.config import RunConfig

_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "train": ("micro_batch_size", "global_batch_size"),
    "tokenizer": ("tokenizer_type", "vocab_size"),
    "ddp": (
        "use_distributed_optimizer",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "use_megatron_fsdp",
        "data_parallel_sharding_strategy",
        "num_distributed_optimizer_instances",
    ),
    "dist": ("use_torch_fsdp2", "torch_fsdp2_reshard_after_forward", "use_tp_pp_dp_mapping"),
    "optimizer": (
        "optimizer",
        "muon_num_ns_steps",
        "muon_tp_mode",
        "muon_fp32_matmul_prec",
        "clip_grad",
        "use_precision_aware_optimizer",
        "exp_avg_dtype",
        "exp_avg_sq_dtype",
        "optimizer_cpu_offload",
    ),
    "mixed_precision": (
        *("bf16", "fp16", "fp8", "fp8_recipe", "fp8_param"),
        *("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"),
    ),
    "comm_overlap": ("tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"),
}
"""Section -> names in Megatron-LM's log that stand in it; the others stand in ``model``."""
_RENAMED = {
    "num_experts": "num_moe_experts",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
_ACTIVATIONS = {
    "swiglu": ("torch.nn.functional.silu", True),
    "quick_geglu": ("megatron.core.fusions.fused_bias_geglu.quick_gelu", True),
    "squared_relu": ("megatron.core.activations.squared_relu", False),
    "openai_gelu": ("megatron.core.activations.openai_gelu", False),
}
"""Switch -> the function of ``activation_func``, and whether it is gated."""


def export_nemo(run: RunConfig) -> Exported:
    """A run's ``ConfigContainer`` as YAML, as far as time and memory need it.

    Raises:
        ConfigError: a model that Megatron-LM's arguments cannot describe.
    """
    import yaml

    document = _document(arguments_of(run))
    text = f"# {title_of(run)}\n" + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
    return Exported(text, unsaid_of(run, text, "run.yaml"))


def _document(arguments: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = {"train": {}, "model": {}}
    function, is_gated = "torch.nn.functional.gelu", False
    is_tied = True
    for name, value in arguments.items():
        flag = FLAGS.spelt(name)
        assert flag is not None
        dest = flag.dest
        if dest in _ACTIVATIONS:
            function, is_gated = _ACTIVATIONS[dest]
        elif dest == "untie_embeddings_and_output_weights":
            is_tied = False
        elif dest == "grad_reduce_in_bf16":
            document.setdefault("mixed_precision", {})["grad_reduce_in_fp32"] = False
        elif dest != "group_query_attention":
            section = next((key for key, names in _SECTIONS.items() if dest in names), "model")
            kept = flag.type != "off" if flag.is_switch else _plain(value)
            document.setdefault(section, {})[_RENAMED.get(dest, dest)] = kept
    document["model"].setdefault("cross_entropy_loss_fusion", False)  # which is true where nothing is said
    document["model"] |= {
        "gated_linear_unit": is_gated,
        "activation_func": {"_target_": function, "_call_": False},
        "share_embeddings_and_output_weights": is_tied,
    }
    return document


def _plain(value: str) -> Any:
    """A number as one."""
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return value.split(" ") if " " in value else value

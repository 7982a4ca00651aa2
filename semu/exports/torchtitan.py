"""``export_torchtitan``: a run as a TOML configuration of torchtitan 0.2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import semu_models
from semu.errors import ConfigError
from semu.exports.exported import Exported
from semu.exports.megatron import title_of
from semu.exports.transformer_sizes import differences
from semu.exports.unsaid import unsaid_of
from semu.imports.torchtitan.tables import MODELS, SCHEDULES
from semu.runfile.config import RunConfig
from semu.runfile.toml_text import format_toml

_LOOPED = ("interleaved", "zb-v")


def export_torchtitan(run: RunConfig) -> Exported:
    """A run as TOML.

    Raises:
        ConfigError: a model that is no flavor of torchtitan's.
    """
    config = run.config
    parallel, training = config["parallel"], config["training"]
    name, flavor = _flavor(run)
    tables: dict[str, dict[str, Any]] = {
        "job": {"description": title_of(run)},
        "model": {"name": name, "flavor": flavor, **_converters(training)},
        "training": _training(run),
        "parallelism": {
            **_parallelism({**parallel, "dp": _replicas(run)}, training, _layers(run)),
            **({"enable_async_tensor_parallel": True} if run.job().overlaps_tensor_parallel else {}),
        },
        "activation_checkpoint": _recompute(training),
        "compile": {"enable": not training.get("eager_modules", False)},
    }
    text = format_toml(tables)
    return Exported(text, unsaid_of(run, text, "run.toml"))


def _converters(training: Mapping[str, Any]) -> dict[str, list[str]]:
    """What makes linears run in fp8."""
    if training.get("precision") != "fp8":
        return {}
    return {"converters": ["quantize.linear.mx" if training.get("fp8_recipe") == "mxfp8" else "quantize.linear.float8"]}


def _flavor(run: RunConfig) -> tuple[str, str]:
    """Model and flavor of a run.

    Raises:
        ConfigError: torchtitan has none with these modules.
    """
    table = run.config["model"]
    flavors = [(name, flavor, shipped) for name, rows in MODELS.items() for flavor, shipped in rows.items()]
    is_plain = not table.get("lora") and not table.get("frozen") and "vocab_multiple" not in table
    for name, flavor, shipped in flavors if is_plain else ():
        if table.get("name") == shipped:
            return name, flavor
    size = run.model.num_parameters()
    for name, flavor, shipped in flavors if is_plain and "name" not in table else ():
        model = semu_models.build(shipped)
        if model.num_parameters() == size and differences(run.model, model) is None:
            return name, flavor
    raise ConfigError(
        "a model that torchtitan has no flavor of",
        where="model",
        expected="one of " + ", ".join(dict.fromkeys(shipped for _, _, shipped in flavors)),
        got=run.model.name,
    )


def _layers(run: RunConfig) -> int:
    return sum("layers." in path for module in run.model.modules for path, _ in module.blocks())


def _replicas(run: RunConfig) -> int:
    parallel, cluster = run.config["parallel"], run.config["cluster"]
    gpus = cluster["nodes"] * cluster["gpus_per_node"]
    return int(gpus // (parallel["tp"] * parallel["pp"] * parallel["cp"]))


def _training(run: RunConfig) -> dict[str, Any]:
    training, parallel = run.config["training"], run.config["parallel"]
    total, replicas = training["global_batch"], _replicas(run)
    table: dict[str, Any] = {
        "local_batch_size": training["micro_batch"] if parallel["pp"] == 1 else total // replicas,
        "global_batch_size": total,
        "seq_len": training.get("seq_len"),
        "max_norm": 1.0 if training.get("gradient_clipping") else 0.0,
        "mixed_precision_param": "float32" if training["precision"] in ("fp32", "tf32") else "bfloat16",
    }
    if training.get("master_dtype") == "bf16":
        table["dtype"] = "bfloat16"
    return {key: value for key, value in table.items() if value is not None}


def _parallelism(parallel: Mapping[str, Any], training: Mapping[str, Any], layers: int) -> dict[str, Any]:
    tp, pp, cp, vpp = parallel["tp"], parallel["pp"], parallel["cp"], parallel["vpp"]
    replicas = parallel["dp"]
    group = parallel.get("zero_group") or replicas
    shard = group if parallel["zero"] else 1
    table: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas // shard,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": tp,
        "pipeline_parallel_degree": pp,
        "context_parallel_degree": cp,
    }
    reshard = parallel.get("reshard_after_forward", True)
    if reshard != (pp == 1):
        table["fsdp_reshard_after_forward"] = "always" if reshard else "never"
    if pp > 1:
        words = {ours: theirs for theirs, ours in SCHEDULES.items()}
        table["pipeline_parallel_schedule"] = words.get(training["schedule"], "1F1B")
        table["pipeline_parallel_microbatch_size"] = training["micro_batch"]
        if vpp != (2 if training["schedule"] in _LOOPED else 1):
            table["pipeline_parallel_layers_per_stage"] = -(-(layers + 2) // (pp * vpp))
    if cp > 1:
        table["context_parallel_rotate_method"] = "allgather" if parallel.get("cp_kind") == "all_gather" else "alltoall"
    if parallel["ep"] > 1:
        table["expert_parallel_degree"] = parallel["ep"]
        table["expert_tensor_parallel_degree"] = parallel.get("etp") or tp
        if training.get("moe_dispatcher") == "deepep":
            table["expert_parallel_comm_backend"] = "deepep"
    return table


def _recompute(training: Mapping[str, Any]) -> dict[str, Any]:
    kind = training.get("recompute", "none")
    if kind != "full":
        return {"mode": "none"}
    if training.get("recompute_policy") == "every_second_matmul":
        return {"mode": "selective", "selective_ac_option": "op"}
    every = training.get("recompute_every")
    return {"mode": "full"} if every is None else {"mode": "selective", "selective_ac_option": str(every)}

"""``export_deepspeed``: a run as a configuration of DeepSpeed, for a program of HuggingFace's Trainer.

The file says the batch, the types, ZeRO, where states live, clipping, and the axes that DeepSpeed has beside data
parallelism: AutoTP and sequence parallelism by all-to-alls. What it does not say is found by reading it back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from semu.errors import SemuError
from semu.exports.exported import Exported
from semu.imports.deepspeed.read import read_deepspeed
from semu.imports.huggingface.parts import Asked
from semu.job import Training
from semu.parallel.config import Overlap, Parallel
from semu.parallel.context import Balance, idle_settings
from semu.runfile.sources import options_table

Config = Mapping[str, Mapping[str, Any]]
_SKIPPED = frozenset({"dp", "left_out", "software_date", "schedule"})
"""Keys that follow from others, or say how sure a prediction is, or when."""
_STAND_IN = "llama3.2-1b"
"""Model with which a file is read back; no key depends on it but the length of sequences."""


def export_deepspeed(config: Config) -> Exported:
    """A run as ``ds_config.json``.

    Args:
        config: tables of a run, resolved (``RunConfig.config``).
    """
    tp, cp = _axes(config)
    document = _document(config, tp, cp)
    text = json.dumps(document, indent=2) + "\n"
    return Exported(text, tuple(_unsaid(config, text, tp * cp)))


def _axes(config: Config) -> tuple[int, int]:
    """Tensor- and context-parallel ranks that the file says."""
    parallel = config["parallel"]
    has_tp = parallel["zero"] < 3 and not parallel["sequence_parallel"]
    return parallel["tp"] if has_tp else 1, parallel["cp"] if _is_ulysses(parallel) else 1


def _is_ulysses(parallel: Mapping[str, Any]) -> bool:
    """Whether all context ranks exchange heads for tokens."""
    return bool(parallel["cp_kind"] == "all_to_all" or parallel.get("cp_inner", 1) == parallel["cp"] > 1)


def _replicas(config: Config) -> int:
    """Data-parallel replicas, which ``[parallel]`` may leave to the cluster."""
    parallel, cluster = config["parallel"], config["cluster"]
    if isinstance(parallel.get("dp"), int):
        return int(parallel["dp"])
    gpus = cluster["nodes"] * cluster["gpus_per_node"]
    return int(gpus // (parallel["tp"] * parallel["pp"] * parallel["cp"]))


def _document(config: Config, tp: int, cp: int) -> dict[str, Any]:
    training = config["training"]
    replicas, micro = _replicas(config), training["micro_batch"]
    precision = training["precision"]
    document: dict[str, Any] = {
        "train_batch_size": training["global_batch"],
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": max(training["global_batch"] // (micro * replicas), 1),
        "bf16": {"enabled": precision in ("bf16", "fp8")},
        "fp16": {"enabled": precision == "fp16", **({"loss_scale": 0} if precision == "fp16" else {})},
        "zero_optimization": _zero(config),
        "optimizer": {"type": "Lion" if training.get("optimizer") == "lion" else "AdamW"},
        "gradient_clipping": 1.0 if training["gradient_clipping"] else 0.0,
    }
    grads = training["grad_dtype"]
    document["communication_data_type"] = grads
    document["data_types"] = {"grad_accum_dtype": grads}
    if precision == "bf16" and training["master_dtype"] == "bf16":
        document["bf16"]["bf16_master_weights_and_grads"] = True
    if training["optimizer_state_dtype"] == "bf16":
        document["bf16"]["bf16_optimizer_states"] = True
    if tp > 1:
        document["tensor_parallel"] = {"autotp_size": tp}
    if cp > 1:
        document["sequence_parallel_size"] = cp
    return document


def _zero(config: Config) -> dict[str, Any]:
    """``zero_optimization``."""
    parallel, overlap = config["parallel"], config.get("overlap", {})
    stage = parallel["zero"]
    table: dict[str, Any] = {"stage": stage}
    if stage:
        table["overlap_comm"] = overlap.get("grad_reduce", True)
    offload = config["training"].get("offload") or ()
    words = [offload] if isinstance(offload, str) else list(offload)
    if "optimizer" in words and stage:
        table["offload_optimizer"] = {"device": "cpu"}
    if "weights" in words and stage == 3:
        table["offload_param"] = {"device": "cpu"}
    if stage == 3:
        if not overlap.get("param_gather", True):
            table["stage3_prefetch_bucket_size"] = 0
        if parallel.get("zero_group") is not None:
            table["mics_shard_size"] = parallel["zero_group"] * (1 if parallel["cp"] == 1 else parallel["cp"])
    return table


def _unsaid(config: Config, text: str, ranks: int) -> Iterator[str]:
    """What differs between the run and the file as it is read, a sentence each."""
    model, cluster = config["model"], config["cluster"]
    name = model.get("name") or model.get("hf_config")
    yield "the model is not part of the file" + (f": {name}" if name else "")
    device = f"{cluster['device']}:{cluster['nodes']}x{cluster['gpus_per_node']}"
    yield f"the device and the nodes are not part of the file: --cluster {device}"
    told = model.get("name") or _STAND_IN
    asked = Asked(f"{cluster['device']}:1x{_replicas(config) * ranks}", {}, True, told)
    try:
        tables = read_deepspeed(text, "ds_config.json", asked).tables
    except SemuError as error:
        yield f"read back, the file is refused: {error}"
        return
    if {"lora", "frozen"} & {key for key, value in model.items() if value}:
        yield "adapters and frozen modules are not part of the file"
    defaults = {
        "parallel": options_table(Parallel(), "parallel"),
        "training": options_table(Training(), "training"),
        "overlap": options_table(Overlap(), "overlap"),
    }
    for table, usual in defaults.items():
        here, there = {**usual, **config.get(table, {})}, {**usual, **tables.get(table, {})}
        for key in dict.fromkeys((*here, *there)):
            one, other = here.get(key), there.get(key)
            if one != other and key not in _SKIPPED and not _is_idle(config, f"{table}.{key}"):
                yield f"{table}.{key}: {_shown(one)} here, {_shown(other)} in the file"


def _is_idle(config: Config, key: str) -> bool:
    """Whether a key has no bearing on a run."""
    parallel, training = config["parallel"], config["training"]
    idle: dict[str, bool] = {
        "parallel.sequence_parallel": parallel["tp"] == 1,
        **{f"parallel.{name}": True for name in idle_settings(parallel["cp"], Balance(parallel["cp_balance"]))},
        "parallel.reshard_after_forward": parallel["zero"] < 3,
        "parallel.partition": parallel["pp"] == 1,
        "overlap.param_gather": parallel["zero"] == 0,
        "overlap.tensor_parallel": parallel["tp"] == 1,
        "overlap.pipeline": parallel["pp"] == 1,
        "training.fp8_recipe": training["precision"] != "fp8",
    }
    return idle.get(key, False)


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)

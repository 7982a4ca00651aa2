"""``read_nanotron``: a YAML configuration of nanotron becomes the tables of a run file.

nanotron trains Llama-like models eagerly in PyTorch: FlashAttention-2, fp32 gradients in buckets of 25 MB, tensor
parallelism with (``REDUCE_SCATTER``) or without sequence parallelism, ZeRO-1.
"""

from __future__ import annotations

import re
from typing import Any

from semu.imports.documents import read_document
from semu.imports.flags import FlagTable, read_table
from semu.imports.reading import ImportedTables, Tables, finish
from semu.imports.settings import Settings
from semu.imports.sizes import cluster_of

FLAGS = FlagTable(read_table("semu.imports.nanotron"), "nanotron")
_OWN = re.compile(r"^(parallelism|tokens|optimizer|model|general)\s*:", re.MULTILINE)
_TOKENS = re.compile(r"^\s+batch_accumulation_per_replica\s*:", re.MULTILINE)
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def is_nanotron(path: str, text: str) -> bool:
    """Whether a file is a YAML configuration of nanotron."""
    is_yaml = path.endswith((".yaml", ".yml"))
    return is_yaml and _TOKENS.search(text) is not None and {"parallelism", "tokens"} <= set(_OWN.findall(text))


def read_nanotron(
    text: str, source: str, cluster: str | None = None, *, allow_unmodelled: bool = False
) -> ImportedTables:
    """Read a configuration.

    Args:
        text: contents of the file. source: its name, for messages.
        cluster: ``DEVICE:NODESxGPUS``; None: nodes of 8 GPUs for dp x tp x pp of them.
        allow_unmodelled: leave out what makes another model or arithmetic, and list it, instead of refusing it.
    Raises:
        ConfigError: text that is no YAML, sizes that are missing, keys that make another model or arithmetic.
    """
    settings = Settings(read_document(text, source).given("configuration of nanotron", FLAGS))
    return finish(settings, _tables(settings, cluster), allow_unmodelled=allow_unmodelled, cluster=cluster)


def _tables(settings: Settings, cluster: str | None) -> Tables:
    dp, tp, pp, cp, ep = (settings.size(f"parallelism.{key}") or 1 for key in _AXES)
    ranks = dp * tp * pp * cp
    where = settings.where("parallelism.dp")
    own = dict(cluster_of(settings, cluster, ranks=ranks, world=None if cluster else ranks, where=where))
    replicas = own["nodes"] * own["gpus_per_node"] // (tp * pp * cp)
    micro, steps = (
        settings.required("tokens.micro_batch_size"),
        settings.required("tokens.batch_accumulation_per_replica"),
    )
    mode = settings.get("parallelism.tp_mode").lower()
    clip = settings.get("optimizer.clip_grad")
    settings.get("optimizer.optimizer_factory.name")
    parallel: dict[str, Any] = {
        "dp": replicas,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "sequence_parallel": tp > 1 and mode == "reduce_scatter",
        "zero": min(settings.size("optimizer.zero_stage", least=0) or 0, 3),
        **({"partition": "layers"} if pp > 1 else {}),
    }
    is_all_forward = settings.get("parallelism.pp_engine") == "afab"
    training = {
        "micro_batch": micro,
        "global_batch": micro * steps * replicas,
        "seq_len": settings.required("tokens.sequence_length"),
        "precision": _PRECISIONS[settings.get("model.dtype")],
        "grad_dtype": "fp32" if settings.get("optimizer.accumulate_grad_in_fp32") == "true" else "bf16",
        "recompute": "full" if settings.get("parallelism.recompute_layer") == "true" else "none",
        "schedule": "gpipe" if is_all_forward and pp > 1 else "1f1b",
        "software": "torch",
        "eager_modules": True,
        "eager_kernels": "flash-attn",
        "attention_kernel": "fa2",
        "cross_entropy": "unfused",
        "gradient_clipping": clip is not None and float(clip) > 0,
    }
    return {"model": {"transformer": _model(settings)}, "cluster": own, "parallel": parallel, "training": training}


_AXES = ("dp", "tp", "pp", "context_parallel_size", "expert_parallel_size")


def _model(settings: Settings) -> dict[str, Any]:
    heads = settings.required(f"{_MODEL}num_attention_heads")
    settings.get(f"{_MODEL}hidden_act")
    settings.get(f"{_MODEL}attention_bias")
    table: dict[str, Any] = {
        "layers": settings.required(f"{_MODEL}num_hidden_layers"),
        "hidden": settings.required(f"{_MODEL}hidden_size"),
        "ffn": settings.required(f"{_MODEL}intermediate_size"),
        "heads": heads,
        "kv_heads": settings.size(f"{_MODEL}num_key_value_heads") or heads,
        "vocab": settings.required(f"{_MODEL}vocab_size"),
        "gated_mlp": True,
        "tied_embeddings": settings.get(f"{_MODEL}tie_word_embeddings") == "true",
    }
    multiple = settings.size("model.make_vocab_size_divisible_by") or 1
    if multiple > 1:
        table["vocab_multiple"] = multiple
    if settings.get(f"{_MODEL}qk_norm") == "true":
        table["qk_norm"] = True
    return table


_MODEL = "model.model_config."

"""``read_llmfoundry``: a YAML configuration of llm-foundry becomes the tables of a run file.

llm-foundry trains MPT models, and those of HuggingFace's hub, under Composer's FSDP: parameters in the type of the
autocast, gradients reduced in fp32 (``DEFAULT``) or in it (``PURE``), FlashAttention, a fused token loss.
"""

from __future__ import annotations

import re
from typing import Any

from semu.checks import LARGEST_COUNT
from semu.errors import ConfigError
from semu.imports.documents import read_document
from semu.imports.flags import Effect, FlagTable, read_table
from semu.imports.hub import hub_model
from semu.imports.reading import ImportedTables, Tables, finish
from semu.imports.settings import Settings
from semu.imports.sizes import cluster_of
from semu.nn.trace.eager import Autocast

FLAGS = FlagTable(read_table("semu.imports.llmfoundry"), "llm-foundry")
WIDEST = 1000
"""Times the width of the model that an MLP may be wide inside."""
_OWN = re.compile(
    r"^(max_seq_len|global_train_batch_size|device_train_microbatch_size|fsdp_config|train_loader)\s*:", re.MULTILINE
)
_PRECISIONS = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32", "amp_fp8": "fp8"}
_ZERO = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 3, "NO_SHARD": 0}


def is_llmfoundry(path: str, text: str) -> bool:
    """Whether a file is a YAML configuration of llm-foundry."""
    return path.endswith((".yaml", ".yml")) and len(set(_OWN.findall(text))) >= 3


def read_llmfoundry(
    text: str, source: str, cluster: str | None = None, *, allow_unmodelled: bool = False
) -> ImportedTables:
    """Read a configuration.

    Args:
        text: contents of the file. source: its name, for messages.
        cluster: ``DEVICE:NODESxGPUS``; None: as ``n_gpus`` says, else one node, or fewer GPUs where the batch needs it.
        allow_unmodelled: leave out what makes another model or arithmetic, and list it, instead of refusing it.
    Raises:
        ConfigError: text that is no YAML, sizes that are missing, keys that make another model or arithmetic.
    """
    settings = Settings(read_document(text, source).given("configuration of llm-foundry", FLAGS))
    return finish(settings, _tables(settings, cluster), allow_unmodelled=allow_unmodelled, cluster=cluster)


def _tables(settings: Settings, cluster: str | None) -> Tables:
    length = settings.required("max_seq_len")
    batch, local = settings.size("global_train_batch_size"), settings.size("device_train_batch_size")
    if batch is None and local is None:
        expected = "global_train_batch_size, or device_train_batch_size"
        raise ConfigError("no batch", where=settings.given.source, expected=expected, got="neither")
    tp = settings.size("tp_config.tensor_parallel_degree") or 1
    micro = _micro(settings)
    own = dict(
        cluster_of(
            settings,
            cluster,
            ranks=tp,
            world=settings.size("n_gpus"),
            where=settings.where("n_gpus"),
            divides=lambda gpus: batch is None or batch % (gpus // tp * micro) == 0,
        )
    )
    dp = own["nodes"] * own["gpus_per_node"] // tp
    total = batch if batch is not None else (local or 1) * dp
    if total % dp:
        expected = f"a multiple of {dp}"
        message = f"a batch of {total} does not divide over {dp} replicas"
        raise settings.error("global_train_batch_size", message, expected=expected, got=total, nearest=dp)
    if total // dp % micro:  # Composer's last microbatch is smaller
        micro = next(size for size in range(min(micro, total // dp), 0, -1) if total // dp % size == 0)
        settings.approximate("device_train_microbatch_size", f"modelled as even ones of {micro}", Effect(faster=0.03))
    parallel: dict[str, Any] = {"dp": dp, "tp": tp, "sequence_parallel": tp > 1, **_sharding(settings, dp, own)}
    clip = settings.get("algorithms.gradient_clipping.clipping_threshold")
    is_lion = "lion" in settings.get("optimizer.name")
    training: dict[str, Any] = {
        "micro_batch": micro,
        "global_batch": total,
        "seq_len": length,
        "precision": _PRECISIONS[settings.get("precision")],
        "recompute": "full" if settings.get("fsdp_config.activation_checkpointing") == "true" else "none",
        "software": "torch",
        "gradient_clipping": clip is not None and float(clip) > 0,
        **({"optimizer": "lion"} if is_lion else {"optimizer_kernels": "foreach"}),
        **({"fsdp": "fsdp1"} if parallel["zero"] == 3 else {}),
        **_autocast(settings),
    }
    mixed = settings.get("fsdp_config.mixed_precision")
    if mixed == "FULL":
        training["precision"] = "fp32"
    is_pure = mixed == "PURE" and training["precision"] in ("bf16", "fp16")
    training["grad_dtype"] = training["precision"] if is_pure else "fp32"
    model, kernels = _model(settings, length)
    return {"model": model, "cluster": own, "parallel": parallel, "training": training | kernels}


def _autocast(settings: Settings) -> dict[str, Any]:
    """What Composer's autocast (``amp_bf16``, ``amp_fp16``) does with norms: MPT's of low precision stay in 16 bits."""
    if settings.get("precision") not in ("amp_bf16", "amp_fp16"):
        return {}
    is_mpt = settings.get("model.name") != "hf_causal_lm"
    is_low = is_mpt and settings.get("model.norm_type").startswith("low_precision")
    return {"autocast": (Autocast.LOW_PRECISION_NORMS if is_low else Autocast.FP32_NORMS).value}


def _micro(settings: Settings) -> int:
    """Samples of a microbatch; where Composer finds them by trying (``auto``), one, with a note."""
    told = settings.get("device_train_microbatch_size")
    if told == "auto":
        settings.notes.append("microbatch: found by trying (auto), taken as 1: --set training.micro_batch= changes it")
        return 1
    if not told.isdigit() or int(told) < 1:
        raise settings.error("device_train_microbatch_size", "not a size", expected="auto or an integer >= 1", got=told)
    return int(told)


def _sharding(settings: Settings, dp: int, cluster: dict[str, Any]) -> dict[str, Any]:
    strategy = settings.get("fsdp_config.sharding_strategy")
    degree = settings.get("fsdp_config.data_parallel_shard_degree")
    if strategy == "NO_SHARD" or dp == 1:
        return {"zero": 0}
    table: dict[str, Any] = {"zero": _ZERO[strategy], "reshard_after_forward": strategy != "SHARD_GRAD_OP"}
    group = cluster["gpus_per_node"] if strategy == "HYBRID_SHARD" else degree
    if 1 <= group < dp:
        table["zero_group"] = group
    return table


def _model(settings: Settings, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """``[model]``, and the kernels that a model of this kind has."""
    kernels: dict[str, Any] = {"attention_kernel": "fa2"}
    if not any(item.written.startswith("compile_config") for item in settings.given.arguments):  # or nothing is
        kernels["eager_modules"] = True
    kernels["cross_entropy"] = "fused" if settings.get("model.loss_fn") == "fused_crossentropy" else "unfused"
    if settings.get("model.name") == "hf_causal_lm":
        name = settings.get("model.pretrained_model_name_or_path")
        if name is None:
            key = "model.pretrained_model_name_or_path"
            raise ConfigError(f"no {key}", where=settings.given.source, expected="an id of the hub, or a folder")
        where = settings.where("model.pretrained_model_name_or_path")
        return hub_model(name, settings.given.source, where), kernels
    if settings.get("model.attn_config.attn_impl") == "torch":
        kernels.pop("attention_kernel")
        kernels["attention"] = "unfused"
    return {"transformer": _mpt(settings, length)}, kernels


def _widened(settings: Settings, hidden: int) -> int:
    """The width inside the MLP that a ratio makes."""
    ratio = float(settings.get("model.expansion_ratio"))
    if not 0 < ratio <= WIDEST:
        expected = f"a number above 0, at most {WIDEST:,}"
        raise settings.error("model.expansion_ratio", "not a ratio of widths", expected=expected, got=ratio)
    return int(ratio * min(hidden, LARGEST_COUNT))  # a larger width is refused with the others


def _mpt(settings: Settings, length: int) -> dict[str, Any]:
    hidden, heads = settings.required("model.d_model"), settings.required("model.n_heads")
    kind = settings.get("model.attn_config.attn_type")
    groups = {"multihead_attention": heads, "multiquery_attention": 1}.get(kind)
    groups = groups if groups is not None else settings.required("model.attn_config.kv_n_heads")
    ffn = settings.size("model.ffn_config.ffn_hidden_size")
    has_rope, has_alibi = (settings.get(f"model.attn_config.{key}") == "true" for key in ("rope", "alibi"))
    has_table = settings.get("model.learned_pos_emb") == "true" and not has_rope and not has_alibi
    has_bias = settings.get("model.no_bias") == "false"
    dropout = float(settings.get("model.resid_pdrop"))
    settings.get("model.emb_pdrop"), settings.get("model.attn_config.qk_ln"), settings.get("model.fc_type")
    is_gated = settings.get("model.ffn_config.ffn_type") != "mptmlp"
    told = settings.get("model.ffn_config.ffn_act_fn.name")
    table: dict[str, Any] = {
        "layers": settings.required("model.n_layers"),
        "hidden": hidden,
        "ffn": ffn or _widened(settings, hidden),
        "heads": heads,
        "kv_heads": groups,
        "vocab": settings.required("model.vocab_size"),
        "gated_mlp": is_gated,
        "tied_embeddings": settings.get("model.tie_word_embeddings") == "true",
        "rms_norm": "rmsnorm" in settings.get("model.norm_type"),
        "rotary": has_rope,
        "bias": has_bias,
        "dropout": dropout,
        "activation": told or "gelu",
    }
    if (width := settings.size("model.head_dim")) is not None:
        table["head_dim"] = width
    if has_table:
        table["positions"] = settings.size("model.max_seq_len") or length
    return table

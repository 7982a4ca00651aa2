"""``read_axolotl``: a configuration of axolotl becomes the tables of a run file."""

from __future__ import annotations

import re
import warnings
from typing import Any

from semu.imports.documents import read_document
from semu.imports.flags import Effect, FlagTable, read_table
from semu.imports.huggingface.engine import Engine, data_parallel, offload_to_host
from semu.imports.huggingface.files import ZERO_KIND, model_table, split_inside, zero_settings
from semu.imports.huggingface.frozen import freeze_by_name
from semu.imports.huggingface.fsdp import fsdp_engine
from semu.imports.huggingface.job import Batch, Job, job_tables, store_in_four_bits
from semu.imports.huggingface.parts import Asked, Parts, top_keys, with_asked
from semu.imports.huggingface.trainer import set_axes, set_narrow, trainable_modules
from semu.imports.huggingface.zero import FLAGS as ZERO_FLAGS
from semu.imports.huggingface.zero import ZeroSettings, zero_engine, zero_optimizer
from semu.imports.reading import ImportedTables
from semu.imports.settings import Settings

FLAGS = FlagTable(read_table("semu.imports.axolotl"), "axolotl")
"""The keys that semu knows."""
_OWN = frozenset({"sequence_len", "micro_batch_size", "datasets", "num_epochs", "adapter", "sample_packing"})
_STRATEGY, _RESHARD = "fsdp_config.sharding_strategy", "fsdp_config.reshard_after_forward"
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "flex_attention": "flex_attention",
    "eager_attention": "eager",
}
_LIGER, _CUT = "axolotl.integrations.liger", "axolotl.integrations.cut_cross_entropy"
_HARMLESS = ("axolotl.integrations.swanlab", "axolotl.integrations.lm_eval", "axolotl.integrations.spectrum")


def is_axolotl(path: str, text: str) -> bool:
    """Whether a file may be axolotl's."""
    keys = top_keys(path, text)
    return "base_model" in keys and bool(keys & _OWN)


def read_axolotl(text: str, source: str, asked: Asked | None = None) -> ImportedTables:
    """Read a configuration of axolotl.

    Args:
        text: contents of the file. source: its name, for messages.
        asked: by the caller; without a cluster a node of 8 ``DEFAULT_DEVICE`` is taken.
    Raises:
        ConfigError: text that is no YAML, a model that is not known, values that contradict one another, settings that
            make another model or arithmetic, all of them at once.
    """
    asked = asked if asked is not None else Asked()
    given = with_asked(read_document(text, source).given("configuration of axolotl", FLAGS), asked, {}, "base_model")
    given, inside = split_inside(given, "deepspeed", ZERO_FLAGS, ZERO_KIND)
    settings = Settings(given)
    parts = Parts(settings)
    zero = zero_settings(settings, "deepspeed") if inside is None else ZeroSettings(inside)
    if zero is not None:
        parts.others[zero.given.source if inside is None else "deepspeed"] = zero
    job = _job(settings, zero)
    return parts.finished(job_tables(job, asked.cluster), asked)


def _job(settings: Settings, zero: ZeroSettings | None) -> Job:
    model = model_table(settings, "base_model")
    precision = _precision(settings)
    engine = zero_engine(zero, precision) if zero is not None else _engine(settings, precision)
    if zero is None:
        _set_axes(settings, engine)
    _adapters(settings, model)
    if settings.is_told("unfrozen_parameters") and "lora" not in model:
        patterns = [word.partition("[:")[0] for word in settings.get("unfrozen_parameters")]
        freeze_by_name(settings, "unfrozen_parameters", model, lambda name: _matches(patterns, name))
    fused, fused_loss = _kernels(settings)
    offloads = settings.get("activation_offloading")
    assert offloads in (None, "false")
    job = Job(
        settings,
        model,
        _batch(settings),
        engine,
        precision,
        narrow=precision in ("bf16", "fp16"),
        recompute=settings.get("gradient_checkpointing") == "true",
        attention=_attention(settings),
        optim=str(settings.get("optimizer")),
        optim_key="optimizer",
        clips=_clips(settings, zero),
        fused=fused,
        compiled=settings.get("torch_compile") == "true",
        fused_loss=fused_loss,
    )
    if settings.get("load_in_4bit"):
        store_in_four_bits(job, "load_in_4bit")
    elif settings.get("adapter") == "qlora":
        store_in_four_bits(job, "adapter")
    if zero is not None:
        set_narrow(job, zero, precision)
        job.optim = zero_optimizer(zero) or job.optim
    return job


def _clips(settings: Settings, zero: ZeroSettings | None) -> bool:
    norm = settings.get("max_grad_norm")
    if zero is not None and "gradient_clipping" not in zero.left:
        norm = zero.get("gradient_clipping")
    return float(norm) > 0


def _precision(settings: Settings) -> str:
    """As axolotl decides: bf16 unless it is switched off, auto where the device has it."""
    is_fp16 = settings.get("fp16")
    word = settings.get("bf16")
    if word in ("true", "full") and is_fp16:
        raise settings.error("fp16", "bf16 and fp16", expected="one of them", got="both")
    if settings.get("bfloat16") or word in ("true", "full") or (word == "auto" and not is_fp16):
        return "bf16"
    if is_fp16:
        return "fp16"
    return "fp32" if settings.get("tf32") == "false" else "tf32"


def _batch(settings: Settings) -> Batch:
    micro = settings.size("micro_batch_size")
    steps = settings.size("gradient_accumulation_steps")
    each = settings.size("batch_size")
    key = "gradient_accumulation_steps"
    if steps is None and each is not None and micro is not None:
        key = "batch_size"
        if each % micro:
            expected = f"a multiple of micro_batch_size = {micro}"
            raise settings.error(key, "no whole number of steps", expected=expected, got=each)
        steps = each // micro
    is_full = settings.get("sample_packing") or settings.get("pad_to_sequence_len")
    keys = ("micro_batch_size", key, key)
    return Batch(
        settings, micro, steps or 1, None, keys, settings.size("sequence_len"), bool(is_full), "sample_packing"
    )


def _engine(settings: Settings, precision: str) -> Engine:
    """FSDP where there is a key of it, else DistributedDataParallel."""
    words = [word.lower() for told in settings.get("fsdp") or () for word in told.split()]
    has_config = any(item.written.startswith("fsdp_config.") for item in settings.given.arguments)
    if not has_config and not [word for word in words if word not in ("false", "none", "", "[]")]:
        return data_parallel(settings)
    version = settings.size("fsdp_version") or 1
    strategy, key = settings.get(_STRATEGY), _STRATEGY
    if strategy is None:
        strategy = next((word for word in words if word not in ("auto_wrap", "offload")), None)
    if settings.is_told(_RESHARD) and (strategy is None or version > 1):
        strategy, key = settings.get(_RESHARD), _RESHARD
    engine = fsdp_engine(
        settings,
        strategy=None if strategy is None else str(strategy),
        keys=(key, "fsdp_config.backward_prefetch"),
        precision=precision,
        version=version,
    )
    if settings.get("fsdp_config.offload_params") or "offload" in words:
        offload_to_host(engine, settings, "fsdp" if "offload" in words else "fsdp_config.offload_params")
    engine.recompute = bool(settings.get("fsdp_config.activation_checkpointing"))
    return engine


def _set_axes(settings: Settings, engine: Engine) -> None:
    names = ("tensor_parallel_size", "context_parallel_size", "dp_replicate_size", "dp_shard_size")
    tp, cp, replicas, shards = (settings.size(name) for name in names)
    set_axes(engine, tp=tp, cp=cp, replicas=replicas, shards=shards)
    if engine.cp > 1:
        usual = "varlen_llama3" if settings.get("sample_packing") else "batch_ring"
        engine.cp_kind = "ring" if (settings.get("ring_attn_func") or usual) == "batch_ring" else "all_gather"
    if engine.tp > 1:
        why = "the token table and the head are not split"
        settings.approximate("tensor_parallel_size", why, Effect(slower=0.03, more=0.05))


def _adapters(settings: Settings, model: dict[str, Any]) -> None:
    kind = settings.get("adapter")
    if settings.get("load_in_8bit"):
        settings.refuse("load_in_8bit", "weights of 8 bits")
    if kind is None:
        return
    targets = list(settings.get("lora_target_modules") or ())
    if settings.get("lora_target_linear"):
        targets = ["all-linear"]
    model["lora"] = {
        "rank": settings.size("lora_r"),
        "targets": targets or ["q_proj", "v_proj"],
        "dropout": settings.get("lora_dropout"),
        "alpha": float(settings.get("lora_alpha")),
    }
    if settings.is_told("lora_modules_to_save"):
        model["lora"]["trainable"] = trainable_modules(settings, "lora_modules_to_save")


def _attention(settings: Settings) -> str:
    told = [name for key, name in _ATTENTION.items() if settings.get(key)]
    word = settings.get("attn_implementation")
    return str(word or (told[0] if told else "sdpa"))


def _kernels(settings: Settings) -> tuple[bool, bool]:
    """Whether modules are Liger's, and whether the loss is one kernel."""
    plugins = settings.get("plugins") or ()
    has_liger = any(name.startswith(_LIGER) for name in plugins)
    has_cut = any(name.startswith(_CUT) for name in plugins)
    for name in plugins:
        if not name.startswith((_LIGER, _CUT, *_HARMLESS)) and name not in ("[]", ""):
            settings.refuse("plugins", f"{name}: another model or arithmetic")
    names = ("liger_rope", "liger_rms_norm", "liger_glu_activation")
    told = [bool(settings.get(name)) and has_liger for name in names]
    if any(told) and not all(told):
        name = names[told.index(True)]
        settings.approximate(name, "some of Liger's kernels, taken as none", Effect(faster=0.05, less=0.05))
    linear = has_liger and settings.get("liger_fused_linear_cross_entropy")
    cut = has_cut and (settings.get("cut_cross_entropy") or not settings.is_told("cut_cross_entropy"))
    for key, is_on in (("liger_fused_linear_cross_entropy", linear), ("plugins", cut)):
        if is_on:
            why = "logits are made piece by piece and not kept"
            settings.approximate(key, why, Effect(slower=0.02, less=0.1))
    whole = (has_liger and settings.get("liger_cross_entropy")) or settings.get("flash_attn_cross_entropy")
    return all(told), bool(linear or cut or whole)


def _matches(patterns: list[str], name: str) -> bool:
    """Whether a parameter's name fits one of axolotl's regular expressions."""
    for pattern in patterns:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of characters that may mean sets some day
                found = re.match(pattern, name) is not None
        except re.error:
            found = name == pattern
        if found:
            return True
    return False

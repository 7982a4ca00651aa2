"""``trainer_job``: settings of TrainingArguments, with those of DeepSpeed beside them -> ``Job``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semu.imports.arguments import Argument, Given
from semu.imports.flags import FlagTable, read_table
from semu.imports.huggingface.engine import Engine, data_parallel, offload_to_host
from semu.imports.huggingface.fsdp import fsdp_engine
from semu.imports.huggingface.job import Batch, Job, store_in_four_bits
from semu.imports.huggingface.zero import ZeroSettings, is_narrow, zero_engine, zero_optimizer, zero_precision
from semu.imports.settings import Settings

DATA = read_table("semu.imports.huggingface")
FLAGS = FlagTable(DATA, "TrainingArguments")
"""The keys that semu knows."""
ALIASES = {"micro_batch": "per_device_train_batch_size"}
_WIDE = ("float32", "fp32", "auto")
SFT_LENGTH = 1024
"""``max_length`` of TRL's SFTConfig."""
_SFT = frozenset(
    {
        *("max_length", "packing", "packing_strategy", "dataset_text_field", "completion_only_loss", "use_peft"),
        *("assistant_only_loss", "padding_free", "dataset_train_split", "truncation_mode", "dataset_kwargs"),
    }
)
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_SIZES = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
)
_STRATEGY, _PREFETCH = "fsdp_config.sharding_strategy", "fsdp_config.backward_prefetch"


def trainer_job(
    settings: Settings,
    model: dict[str, Any],
    zero: ZeroSettings | None,
    *,
    precision: str | None = None,
    engine: Engine | None = None,
) -> Job:
    """The run of some arguments.

    Args:
        settings: of TrainingArguments. model: ``[model]``, which gets adapters. zero: of DeepSpeed; None: without it.
        precision: as accelerate says; None: as the arguments do. engine: as accelerate says.
    Raises:
        ConfigError: values that contradict one another, or of wrong types.
    """
    word = precision or trainer_precision(settings, zero)
    if engine is None:
        engine = zero_engine(zero, word) if zero is not None else _engine(settings, word)
    if zero is None:
        _set_axes(settings, engine)
    add_adapters(settings, model)
    told = settings.get("torch_dtype")
    compiled = settings.get("torch_compile") or settings.is_told("torch_compile_backend")
    if compiled and settings.is_told("torch_compile_backend"):
        compiled = settings.get("torch_compile_backend") == "inductor"
    if compiled and settings.is_told("torch_compile_mode"):
        settings.get("torch_compile_mode")
    is_left = zero is None or "gradient_clipping" in zero.left
    clips = settings.get("max_grad_norm") if is_left or zero is None else zero.get("gradient_clipping")
    is_liger = bool(settings.get("use_liger_kernel"))
    job = Job(
        settings,
        model,
        _batch(settings, zero),
        engine,
        word,
        narrow=told not in _WIDE,
        recompute=bool(settings.get("gradient_checkpointing")),
        attention=str(settings.get("attn_implementation")),
        optim=str(settings.get("optim")) if zero is None else zero_optimizer(zero) or str(settings.get("optim")),
        optim_key="optim",
        clips=float(clips) > 0,
        deterministic=bool(settings.get("full_determinism")),
        fused=is_liger,
        compiled=bool(compiled),
        fused_loss=is_liger,
    )
    if settings.get("load_in_4bit"):
        store_in_four_bits(job, "load_in_4bit")
    if zero is not None:
        set_narrow(job, zero, word)
    return job


def note_types(job: Job) -> None:
    """Say of which type parameters are where no engine decides it, and the program loads them as the file says."""
    if job.engine.has_master or job.narrow or job.precision not in ("bf16", "fp16"):
        return
    is_told = job.settings.is_told("torch_dtype")
    if "lora" not in job.model:
        told = "" if is_told else ", as the file names no dtype"
        way_out = "--define torch_dtype=bfloat16 for 16 bits"
        job.settings.notes.append(f"parameters are fp32 under autocast{told} ({way_out})")
    elif is_told:
        job.settings.refuse("torch_dtype", "frozen weights in fp32 under autocast")
    else:
        job.settings.notes.append("torch_dtype: not said, frozen weights are taken as 16 bits")


def with_trl(given: Given) -> Given:
    """What a file says, with the defaults of TRL's SFTConfig where it has arguments of it.

    TRL before 0.16 says ``max_seq_length`` and has the defaults of transformers.
    """
    names = {item.flag.dest if item.flag is not None else item.written for item in given.arguments}
    written = {item.written.removeprefix("--define ") for item in given.arguments}
    if not written & _SFT or "max_seq_length" in written:
        return given
    added = {"gradient_checkpointing": "true", "max_length": str(SFT_LENGTH)}
    if "fp16" not in names:
        added["bf16"] = "true"
    told = {name: value for name, value in added.items() if name not in names}
    arguments = [Argument(given.flags.spelt(name), f"SFTConfig's {name}", (value,), 0) for name, value in told.items()]
    shown = ", ".join(f"{name} = {value}" for name, value in told.items())
    note = f"arguments of TRL's SFTConfig: its defaults are taken: {shown}"
    return replace(given, arguments=(*given.arguments, *arguments), notes=(*given.notes, note) if told else given.notes)


def trainer_precision(settings: Settings, zero: ZeroSettings | None) -> str:
    """bf16, fp16, tf32 or fp32.

    Raises:
        ConfigError: bf16 and fp16 at once.
    """
    is_bf16, is_fp16 = settings.get("bf16"), settings.get("fp16")
    if is_bf16 and is_fp16:
        raise settings.error("fp16", "bf16 and fp16", expected="one of them", got="both")
    own = "bf16" if is_bf16 else "fp16" if is_fp16 else None
    told = None if zero is None else zero_precision(zero)
    if told is not None and own is not None and told != own and zero is not None:
        key = "fp16" if is_fp16 else "bf16"
        raise settings.error(key, f"DeepSpeed's configuration says {told}", expected=told, got=own, nearest=told)
    if (word := told or own) is not None:
        return word
    if zero is not None and {"bf16.enabled", "fp16.enabled"} & zero.left:
        settings.notes.append("precision: left to the Trainer and not said, taken as bf16 (--define fp16=true)")
        return "bf16"
    return "tf32" if settings.get("tf32") else "fp32"


def _batch(settings: Settings, zero: ZeroSettings | None) -> Batch:
    """Sizes of a batch: as DeepSpeed's configuration says, where it does, else as the arguments do."""
    micro, steps = (settings.size(name) for _, name in _SIZES)
    seq_len, is_full = settings.size("max_length"), bool(settings.get("packing"))
    own = (_SIZES[0][1], _SIZES[1][1], _SIZES[0][1])
    if zero is None:
        return Batch(settings, micro, steps, None, own, seq_len, is_full)
    sizes: list[int | None] = []
    left = zero.left
    whole = zero.size("train_batch_size")
    for (key, name), value in zip(_SIZES, (micro, steps), strict=True):
        told = zero.size(key)
        if told is not None and settings.is_told(name) and told != value:
            message = f"{zero.where(key)} says {told}"
            raise settings.error(name, message, expected=str(told), got=value, nearest=told)
        is_open = settings.is_told(name) or key in left or (whole is None and not _says(zero))
        sizes.append(value if told is None and is_open else told)
    if sizes[0] is None and whole is None:
        sizes[0] = micro
    if _says(zero):
        keys = (_SIZES[0][0], _SIZES[1][0], "train_batch_size")
        return Batch(zero, sizes[0], sizes[1], whole, keys, seq_len, is_full)
    return Batch(settings, sizes[0], sizes[1], whole, own, seq_len, is_full)


def _says(zero: ZeroSettings) -> bool:
    """Whether a configuration of DeepSpeed has a size of the batch."""
    return any(zero.is_told(key) for key in ("train_batch_size", *(key for key, _ in _SIZES)))


def _engine(settings: Settings, precision: str) -> Engine:
    """FSDP where it is asked for, else DistributedDataParallel."""
    words = [word.lower() for told in settings.get("fsdp") or () for word in told.replace(",", " ").split()]
    words = [word for word in words if word not in ("false", "none", "", "[]")]
    if not words:
        return data_parallel(settings)
    strategy = next((word for word in words if word in _STRATEGIES), None)
    version = settings.size("fsdp_config.fsdp_version") or 1
    key = _STRATEGY
    if strategy is None and settings.is_told(_STRATEGY):
        strategy = str(settings.get(_STRATEGY))
    if settings.is_told("fsdp_config.reshard_after_forward") and strategy in (None, "full_shard"):
        key = "fsdp_config.reshard_after_forward"
        strategy = str(settings.get(key))
    engine = fsdp_engine(settings, strategy=strategy, keys=(key, _PREFETCH), precision=precision, version=version)
    if settings.get("fsdp_config.offload_params") or "offload" in words:
        offload_to_host(engine, settings, "fsdp" if "offload" in words else "fsdp_config.offload_params")
    engine.recompute = bool(settings.get("fsdp_config.activation_checkpointing"))
    if settings.get("accelerator_config.gradient_accumulation_kwargs.sync_each_batch"):
        engine.defers = False
    return engine


def _set_axes(settings: Settings, engine: Engine) -> None:
    """``parallelism_config`` of accelerate."""
    names = ("tp_size", "cp_size", "sp_size", "dp_replicate_size", "dp_shard_size")
    tp, cp, ulysses, replicas, shards = (settings.size(f"parallelism_config.{name}", least=-1) for name in names)
    set_axes(engine, tp=tp, cp=cp, ulysses=ulysses, replicas=replicas, shards=shards)


def set_axes(
    engine: Engine,
    *,
    tp: int | None,
    cp: int | None,
    ulysses: int | None = None,
    replicas: int | None = None,
    shards: int | None = None,
) -> None:
    """Give an engine the sizes of a mesh; None, 0 or -1: not told.

    Args:
        ulysses: ranks of DeepSpeed's sequence parallelism. replicas, shards: sharding groups, and ranks of one.
    """
    engine.tp = max(engine.tp, tp or 1)
    sequence, ring = max(ulysses or 1, 1), max(cp or 1, 1)
    if sequence > 1 or ring > 1:
        engine.cp = max(sequence, ring)
        engine.cp_kind = "all_to_all" if sequence > 1 else "all_gather"
    engine.replicas = max(engine.replicas, replicas or 1)
    if shards is not None and shards > 1:
        engine.world = engine.replicas * shards * engine.cp * engine.tp


def add_adapters(settings: Settings, model: dict[str, Any]) -> None:
    """``[model.lora]``, where adapters are asked for; 8 bits of the other weights are not modelled."""
    if settings.get("load_in_8bit"):
        settings.refuse("load_in_8bit", "weights of 8 bits")
    if not settings.get("use_peft"):
        return
    model["lora"] = lora = {
        "rank": settings.size("lora_r"),
        "targets": list(settings.get("lora_target_modules") or ("q_proj", "v_proj")),
        "dropout": settings.get("lora_dropout"),
        "alpha": float(settings.get("lora_alpha")),
    }
    if settings.is_told("lora_modules_to_save"):
        lora["trainable"] = trainable_modules(settings, "lora_modules_to_save")


def trainable_modules(settings: Settings, key: str) -> list[str]:
    """Module paths of a language model that names of transformers stand for.

    Raises:
        ConfigError: a name that is not known.
    """
    names = {"embed_tokens": "*.embedding.weight", "lm_head": "*.head.projection.weight", "norm": "*.head.norm.weight"}
    found = []
    for word in settings.get(key) or ():
        if word in names:
            found.append(names[word])
        else:
            settings.refuse(key, f"{word} trains beside the adapters")
    return found


def set_narrow(job: Job, zero: ZeroSettings, precision: str) -> None:
    """bf16 in place of the fp32 copy and of the moments, as DeepSpeed's configuration says."""
    masters, moments = is_narrow(zero)
    if masters and precision == "bf16":
        job.training |= {"master_dtype": "bf16", "grad_dtype": "bf16"}
    if moments:
        job.training["optimizer_state_dtype"] = "bf16"

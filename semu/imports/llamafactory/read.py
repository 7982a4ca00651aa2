"""``read_llamafactory``: a configuration of LLaMA-Factory becomes the tables of a run file.

LLaMA-Factory's arguments stand beside those of TrainingArguments. It computes every layer again in the backward unless
``disable_gradient_checkpointing`` is set, and trains fp32 copies of what trains unless ``pure_bf16`` is.
"""

from __future__ import annotations

from typing import Any

from semu.errors import ConfigError
from semu.imports.documents import read_document
from semu.imports.flags import FlagTable, read_table
from semu.imports.huggingface.files import ZERO_KIND, model_table, split_inside, with_file, zero_settings
from semu.imports.huggingface.frozen import freeze_layers, model_of
from semu.imports.huggingface.job import Job, job_tables, store_in_four_bits
from semu.imports.huggingface.parts import Asked, Parts, merged_flags, top_keys, with_asked
from semu.imports.huggingface.trainer import DATA, trainable_modules, trainer_job
from semu.imports.huggingface.zero import FLAGS as ZERO_FLAGS
from semu.imports.huggingface.zero import ZeroSettings
from semu.imports.reading import ImportedTables
from semu.imports.settings import Settings
from semu.nn import ModalityRole

FLAGS = FlagTable(merged_flags(DATA, read_table("semu.imports.llamafactory")), "LLaMA-Factory")
"""The keys that semu knows."""
_OWN = frozenset({"finetuning_type", "cutoff_len", "template", "stage", "dataset_dir", "lora_target"})
_OTHERWISE = frozenset({"export_dir", "infer_backend"})
_NEXT = frozenset({"train_dataset", "dist_config", "kernel_config", "quant_config", "peft_config", "sample_backend"})
"""Keys that files of LLaMA-Factory's next trainer (``USE_V1``) have."""
_ATTENTION = {
    "auto": "sdpa",
    "sdpa": "sdpa",
    "disabled": "eager",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
}
_ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def is_llamafactory(path: str, text: str) -> bool:
    """Whether a file may be LLaMA-Factory's."""
    keys = top_keys(path, text)
    if "model" in keys and len(keys & _NEXT) >= 2:
        return True
    return "model_name_or_path" in keys and len(keys & (_OWN | _OTHERWISE)) >= 2


def read_llamafactory(text: str, source: str, asked: Asked | None = None) -> ImportedTables:
    """Read a configuration of LLaMA-Factory.

    Args:
        text: contents of the file. source: its name, for messages.
        asked: by the caller; without a cluster a node of 8 ``DEFAULT_DEVICE`` is taken.
    Raises:
        ConfigError: text that is no YAML, a model that is not known, values that contradict one another, settings that
            make another model or arithmetic, all of them at once.
    """
    asked = asked if asked is not None else Asked()
    _check_format(text, source)
    given = with_asked(read_document(text, source).given("configuration of LLaMA-Factory", FLAGS), asked, {})
    given, inside = split_inside(given, "deepspeed", ZERO_FLAGS, ZERO_KIND)
    settings = Settings(with_file(given, "fsdp_config"))
    _check_purpose(settings)
    parts = Parts(settings)
    zero = zero_settings(settings, "deepspeed") if inside is None else ZeroSettings(inside)
    if zero is not None:
        parts.others[zero.given.source if inside is None else "deepspeed"] = zero
    model = model_table(settings)
    job = trainer_job(settings, model, zero)
    _complete(job, settings)
    return parts.finished(job_tables(job, asked.cluster), asked)


def _check_format(text: str, source: str) -> None:
    """Refuse files of the next trainer."""
    keys = top_keys(source, text)
    if "model_name_or_path" not in keys and len(keys & _NEXT) >= 2:
        raise ConfigError(
            "a configuration of LLaMA-Factory's next trainer (USE_V1), which is not read",
            where=source,
            expected="the keys of TrainingArguments beside model_name_or_path",
            got=", ".join(sorted(keys & _NEXT)),
        )


def _check_purpose(settings: Settings) -> None:
    """Refuse files that train nothing."""
    trains = settings.get("do_train")
    for key, what in (("export_dir", "exports"), ("infer_backend", "answers with"), ("do_predict", "evaluates")):
        if settings.get(key) and not trains:
            message = f"trains nothing: the file {what} a model"
            raise settings.error(key, message, expected="a file with do_train: true", got=key)


def _complete(job: Job, settings: Settings) -> None:
    """What LLaMA-Factory's own arguments say."""
    stage = settings.get("stage")
    job.batch.seq_len = settings.size("cutoff_len")
    packing = settings.get("packing")
    is_packed = packing == "true" or settings.get("neat_packing") or (packing is None and stage == "pt")
    job.batch.is_full, job.batch.packing = bool(is_packed), "packing"
    job.narrow = bool(settings.get("pure_bf16"))
    job.recompute = not settings.get("disable_gradient_checkpointing")
    job.attention = _ATTENTION[settings.get("flash_attn")]
    if settings.get("enable_liger_kernel"):
        job.fused = job.fused_loss = True
    if settings.get("use_muon"):
        _use_muon(job, settings)
    kind = settings.get("finetuning_type")
    bits = settings.size("quantization_bit")
    if kind == "lora":
        _add_adapters(settings, job.model)
    elif kind == "freeze":
        count = settings.get("freeze_trainable_layers")
        settings.get("freeze_trainable_modules")
        freeze_layers(job.model, lambda at, layers: at >= layers - count if count > 0 else at < -count)
    elif kind == "full":
        _freeze_modalities(settings, job.model)
    method = settings.get("quantization_method")
    if bits == 4 and method in ("bnb", "bitsandbytes"):
        store_in_four_bits(job, "quantization_bit")
    elif bits is not None:
        settings.refuse("quantization_bit", f"weights of {bits} bits by {method}")


def _use_muon(job: Job, settings: Settings) -> None:
    """Every rank orthogonalises whole matrices, in bf16."""
    if job.engine.zero or settings.get("finetuning_type") != "full":
        settings.refuse("use_muon", "Muon of parameters or gradients that are not whole, or of adapters")
        return
    job.training |= {"optimizer": "muon", "muon_dtype": "bf16"}


def _encoders(model: dict[str, Any]) -> list[str]:
    return [module.name for module in model_of(model).modules if module.role is ModalityRole.ENCODER]


def _freeze_modalities(settings: Settings, model: dict[str, Any]) -> None:
    """Encoders stay as they are unless the file says otherwise; their projector lies in the same module."""
    encoders = _encoders(model)
    frozen = []
    if encoders:
        tower, projector = (settings.get(f"freeze_{name}") for name in ("vision_tower", "multi_modal_projector"))
        if tower != projector:
            key = f"freeze_{'vision_tower' if tower == 'false' else 'multi_modal_projector'}"
            settings.refuse(key, "the encoder and its projector are frozen together or not at all")
        frozen = encoders if tower == "true" else []
    if settings.get("freeze_language_model"):
        frozen.append("backbone")
    if frozen:
        model["frozen"] = frozen


def _add_adapters(settings: Settings, model: dict[str, Any]) -> None:
    rank = settings.size("lora_rank")
    targets = [word for told in settings.get("lora_target") for word in told.replace(",", " ").split()]
    if encoders := _encoders(model):
        names = _ALL if targets == ["all"] else tuple(targets)
        backbones = [module.name for module in model_of(model).modules if module.name not in encoders]
        targets = [f"{backbone}.*.{name}" for backbone in backbones for name in names]
    elif targets == ["all"]:
        targets = ["all-linear"]
    alpha = settings.get("lora_alpha")
    model["lora"] = {
        "rank": rank,
        "targets": targets,
        "dropout": settings.get("lora_dropout"),
        "alpha": float(alpha if alpha is not None else 2 * (rank or 1)),
    }
    if settings.is_told("additional_target"):
        model["lora"]["trainable"] = trainable_modules(settings, "additional_target")

"""``read_trainer``: a file of TrainingArguments becomes the tables of a run file."""

from __future__ import annotations

from semu.imports.documents import read_document
from semu.imports.huggingface.files import ZERO_KIND, model_table, split_inside, with_file, zero_settings
from semu.imports.huggingface.job import job_tables
from semu.imports.huggingface.parts import Asked, Parts, top_keys, with_asked
from semu.imports.huggingface.trainer import ALIASES, FLAGS, note_types, trainer_job, with_trl
from semu.imports.huggingface.zero import FLAGS as ZERO_FLAGS
from semu.imports.huggingface.zero import ZeroSettings
from semu.imports.reading import ImportedTables
from semu.imports.settings import Settings

_OWN = frozenset({"per_device_train_batch_size", "gradient_checkpointing", "num_train_epochs", "output_dir"})
_OTHERS = frozenset(
    {
        *("architectures", "model_type", "zero_optimization", "distributed_type", "base_model"),
        *("finetuning_type", "cutoff_len", "stage", "template", "trainer", "recipe", "recipes"),
    }
)


def is_trainer(path: str, text: str) -> bool:
    """Whether a file may hold TrainingArguments."""
    keys = top_keys(path, text)
    return len(keys & _OWN) >= 2 and not keys & _OTHERS


def read_trainer(text: str, source: str, asked: Asked | None = None) -> ImportedTables:
    """Read TrainingArguments of transformers, JSON or YAML, with the arguments of a script beside them.

    Args:
        text: contents of the file. source: its name, for messages.
        asked: by the caller; without a cluster a node of 8 ``DEFAULT_DEVICE`` is taken.
    Raises:
        ConfigError: text that is neither, a model that is not known, values that contradict one another, settings that
            make another model or arithmetic, all of them at once.
    """
    asked = asked if asked is not None else Asked()
    given = with_asked(read_document(text, source).given("TrainingArguments", FLAGS), asked, ALIASES)
    given, inside = split_inside(given, "deepspeed", ZERO_FLAGS, ZERO_KIND)
    settings = Settings(with_file(with_trl(given), "fsdp_config"))
    parts = Parts(settings)
    zero = zero_settings(settings, "deepspeed") if inside is None else ZeroSettings(inside)
    if zero is not None:
        parts.others[zero.given.source if inside is None else "deepspeed"] = zero
    job = trainer_job(settings, model_table(settings), zero)
    note_types(job)
    return parts.finished(job_tables(job, asked.cluster), asked)

"""``read_deepspeed``: a configuration of DeepSpeed becomes the tables of a run file.

The file has no model: it lies beside a config.json, or is given by ``--define model=``. So are the arguments of the
Trainer, which what is ``auto`` in the file is taken from.
"""

from __future__ import annotations

from semu.imports.arguments import Given
from semu.imports.documents import read_document
from semu.imports.huggingface.files import ZERO_KIND, model_table
from semu.imports.huggingface.job import job_tables
from semu.imports.huggingface.parts import Asked, Parts, top_keys, with_asked
from semu.imports.huggingface.trainer import ALIASES, trainer_job
from semu.imports.huggingface.trainer import FLAGS as TRAINER_FLAGS
from semu.imports.huggingface.zero import FLAGS, ZeroSettings
from semu.imports.reading import ImportedTables
from semu.imports.settings import Settings

_OWN = frozenset(
    {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "zero_allow_untested_optimizer"}
)
_OTHERS = frozenset({"architectures", "model_type", "base_model", "distributed_type", "output_dir", "model", "trainer"})


def is_deepspeed(path: str, text: str) -> bool:
    """Whether a file may be a configuration of DeepSpeed."""
    keys = top_keys(path, text)
    return bool(keys & _OWN) and not keys & _OTHERS


def read_deepspeed(text: str, source: str, asked: Asked | None = None) -> ImportedTables:
    """Read a configuration of DeepSpeed.

    Args:
        text: contents of the file. source: its name, for messages.
        asked: by the caller; without a cluster as many GPUs as the three sizes of the batch say, else a node of 8.
    Raises:
        ConfigError: text that is no JSON, no model, sizes that contradict one another, settings that make another model
            or arithmetic, all of them at once.
    """
    asked = asked if asked is not None else Asked()
    zero = ZeroSettings(read_document(text, source).given(ZERO_KIND, FLAGS))
    beside = Given(source, "arguments of the Trainer", TRAINER_FLAGS, ())
    trainer = Settings(with_asked(beside, asked, ALIASES))
    parts = Parts(zero, {"TrainingArguments": trainer})
    job = trainer_job(trainer, model_table(trainer, near=source), zero)
    if not trainer.is_told("gradient_checkpointing"):
        zero.notes.append("recomputation: not said in this file (--set training.recompute=full)")
    return parts.finished(job_tables(job, asked.cluster), asked)

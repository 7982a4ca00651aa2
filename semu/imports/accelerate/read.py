"""``read_accelerate``: what ``accelerate config`` wrote becomes the tables of a run file.

The file has no model and no batch: these are the script's, given by ``--define``, else TrainingArguments' defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from semu.imports.arguments import Argument, Given
from semu.imports.documents import read_document
from semu.imports.flags import FlagTable, read_table
from semu.imports.huggingface.engine import Engine, data_parallel, offload_to_host
from semu.imports.huggingface.files import ZERO_KIND, model_table, open_named
from semu.imports.huggingface.fsdp import fsdp_engine
from semu.imports.huggingface.job import job_tables
from semu.imports.huggingface.parts import Asked, Parts, top_keys, with_asked
from semu.imports.huggingface.trainer import ALIASES, note_types, set_axes, trainer_job
from semu.imports.huggingface.trainer import FLAGS as TRAINER_FLAGS
from semu.imports.huggingface.zero import FLAGS as ZERO_FLAGS
from semu.imports.huggingface.zero import ZeroSettings
from semu.imports.reading import ImportedTables
from semu.imports.settings import Settings

FLAGS = FlagTable(read_table("semu.imports.accelerate"), "accelerate")
"""The keys that semu knows."""
_OWN = frozenset({"compute_environment", "num_processes", "num_machines", "mixed_precision", "machine_rank"})
_STRATEGY, _RESHARD = "fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward"
_SAME = {
    "zero_optimization.stage": "zero_stage",
    "zero_optimization.offload_optimizer.device": "offload_optimizer_device",
    "zero_optimization.offload_param.device": "offload_param_device",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
"""Key of a configuration of DeepSpeed -> key below accelerate's ``deepspeed_config``."""


def is_accelerate(path: str, text: str) -> bool:
    """Whether a file may be accelerate's."""
    keys = top_keys(path, text)
    return "distributed_type" in keys and bool(keys & _OWN)


def read_accelerate(text: str, source: str, asked: Asked | None = None) -> ImportedTables:
    """Read a file of ``accelerate config``.

    Args:
        text: contents of the file. source: its name, for messages.
        asked: by the caller; without a cluster the file's machines and processes are taken.
    Raises:
        ConfigError: text that is no YAML, no model, sizes that do not divide, settings that make another model or
            arithmetic, all of them at once.
    """
    asked = asked if asked is not None else Asked()
    given = read_document(text, source).given("configuration of accelerate", FLAGS)
    is_auto = {item.flag.dest: item.line for item in given.arguments if item.flag and item.values == ("auto",)}
    given = replace(given, arguments=tuple(item for item in given.arguments if item.values != ("auto",)))
    settings = Settings(given)
    beside = Given(source, "arguments of the Trainer", TRAINER_FLAGS, ())
    trainer = Settings(with_asked(beside, asked, ALIASES))
    parts = Parts(settings, {"TrainingArguments": trainer})
    kind = settings.get("distributed_type")
    mixed = settings.get("mixed_precision")
    precision = None if mixed in (None, "no") else str(mixed)
    zero = _zero(settings, precision, is_auto) if kind == "DEEPSPEED" else None
    if zero is not None:
        parts.others[zero.given.source if zero.given.source != source else "deepspeed_config"] = zero
    engine = None if zero is not None else _engine(settings, str(kind), precision or "fp32")
    model = model_table(trainer, near=source)
    job = trainer_job(trainer, model, zero, precision=precision if zero is None else None, engine=engine)
    job.compiled = job.compiled or settings.get("dynamo_config.dynamo_backend") == "INDUCTOR"
    note_types(job)
    machines, processes = settings.size("num_machines") or 1, settings.size("num_processes")
    if kind == "NO":
        machines = processes = 1
    if processes is not None and processes % machines:
        expected = f"a multiple of {machines} machines"
        raise settings.error("num_processes", "processes that machines do not share", expected=expected, got=processes)
    per_node = None if processes is None else processes // machines
    return parts.finished(job_tables(job, asked.cluster, processes, per_node), asked)


def _zero(settings: Settings, precision: str | None, is_auto: Mapping[str, int]) -> ZeroSettings:
    """Settings of DeepSpeed: of the file that is named, else of the keys of ``deepspeed_config``.

    Args:
        is_auto: keys that are left to the Trainer -> line.
    """
    key = "deepspeed_config.deepspeed_config_file"
    name = settings.get(key)
    if name is not None:
        document = open_named(settings, key, str(name), f"the {ZERO_KIND}")
        return ZeroSettings(document.given(ZERO_KIND, ZERO_FLAGS))
    found = []
    for dest, own in _SAME.items():
        key = f"deepspeed_config.{own}"
        value = "auto" if key in is_auto else settings.get(key)
        if value is not None:
            line = is_auto.get(key, settings.line(key))
            found.append(Argument(ZERO_FLAGS.spelt(dest), f"deepspeed_config.{own}", (str(value),), line))
    if precision is not None:
        line = settings.line("mixed_precision")
        found.append(Argument(ZERO_FLAGS.spelt(f"{precision}.enabled"), "mixed_precision", ("true",), line))
    return ZeroSettings(Given(settings.given.source, ZERO_KIND, ZERO_FLAGS, tuple(found)))


def _engine(settings: Settings, kind: str, precision: str) -> Engine:
    """FSDP or DistributedDataParallel, with the axes of ``parallelism_config``."""
    engine = data_parallel(settings)
    if kind == "FSDP":
        strategy = settings.get(_STRATEGY)
        key = _STRATEGY
        if strategy is None or settings.is_told(_RESHARD):
            strategy, key = settings.get(_RESHARD), _RESHARD
        engine = fsdp_engine(
            settings,
            strategy=None if strategy is None else str(strategy),
            keys=(key, "fsdp_config.fsdp_backward_prefetch"),
            precision=precision,
            version=settings.size("fsdp_config.fsdp_version") or 1,
        )
        if settings.get("fsdp_config.fsdp_offload_params"):
            offload_to_host(engine, settings, "fsdp_config.fsdp_offload_params")
        engine.recompute = bool(settings.get("fsdp_config.fsdp_activation_checkpointing"))
    names = ("tp", "cp", "sp", "dp_replicate", "dp_shard")
    below = "parallelism_config.parallelism_config"
    tp, cp, ulysses, replicas, shards = (settings.size(f"{below}_{name}_size", least=-1) for name in names)
    set_axes(engine, tp=tp, cp=cp, ulysses=ulysses, replicas=replicas, shards=shards)
    return engine

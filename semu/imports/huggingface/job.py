"""``Job``: a run of HuggingFace's Trainer -> tables of a run file.

What holds for all of them: modules of transformers run operator by operator unless they are compiled or replaced by
Liger's; the loss is taken of fp32 copies of the logits, by PyTorch's own kernels; attention is PyTorch's
``scaled_dot_product_attention`` unless the file says another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from semu.errors import ConfigError
from semu.hardware.packed import FrozenWeights
from semu.imports.flags import Effect
from semu.imports.hub import sequence_length
from semu.imports.huggingface.engine import NODE, Engine
from semu.imports.huggingface.frozen import model_of
from semu.imports.reading import Tables
from semu.imports.settings import Settings
from semu.imports.sizes import cluster_of
from semu.job.experts import mixtures
from semu.job.kinds import OptimizerKernels
from semu.nn.trace.eager import Autocast
from semu.records import dataclass

ATTENTION: Mapping[str, Mapping[str, str]] = {
    "sdpa": {"attention_kernel": "sdpa"},
    "eager": {"attention": "unfused"},
    "flash_attention_2": {"attention_kernel": "fa2"},
    "flash_attention_3": {"attention_kernel": "fa3"},
    "flex_attention": {"attention_kernel": "flex"},
}
"""transformers' name of an attention -> keys of ``[training]``."""
_EIGHT_BIT = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "ademamix_8bit")
_LION = ("lion", "lion_32bit", "paged_lion_32bit", "lion_pytorch")
_LION_EIGHT_BIT = ("lion_8bit", "paged_lion_8bit")
_ADAM = (
    *("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla", "adamw_torch_npu_fused"),
    *("adamw", "adam", "paged_adamw_32bit", "paged_adamw", "adamw_anyprecision", "stable_adamw", "adamw_bnb_32bit"),
)
_BY_OPERATION = ("adamw_torch", "adamw_hf", "adamw_anyprecision", "stable_adamw")
"""Those that run a kernel for each operation: PyTorch's without ``fused``, and such as are written in Python."""


@dataclass
class Batch:
    """Sizes of a batch.

    Attributes:
        settings: that tell it, for messages.
        micro: sequences of a rank and step; None: ``whole`` / replicas. accumulation: steps of an iteration; None: what
            ``whole`` needs, else 1. whole: sequences of an iteration; None: as the others say.
        keys: what tells each of these, for messages. seq_len: tokens of a sequence; None: not said.
        is_full: whether sequences are filled with several texts. packing: key that says so; None: none does.
    """

    settings: Settings
    micro: int | None
    accumulation: int | None
    whole: int | None
    keys: tuple[str, str, str]
    seq_len: int | None
    is_full: bool
    packing: str | None = None


@dataclass
class Job:
    """A run.

    Attributes:
        settings: of the file, for notes and messages.
        model: ``[model]``. batch, engine: of the run. precision: bf16, fp16, tf32 or fp32.
        narrow: parameters are held in the 16-bit type, with the moments in it and no fp32 copy.
        recompute: whether every layer is computed again in the backward.
        attention: a name of ``ATTENTION``. deterministic: its backward adds in a fixed order.
        fused: modules are fused kernels (Liger). compiled: by torch.compile. fused_loss: the loss is one kernel.
        optim: the optimizer. optim_key: what tells it. clips: gradients are clipped.
        training: further keys of ``[training]``.
    """

    settings: Settings
    model: dict[str, Any]
    batch: Batch
    engine: Engine
    precision: str
    narrow: bool
    recompute: bool
    attention: str
    optim: str
    optim_key: str
    clips: bool
    deterministic: bool = False
    fused: bool = False
    compiled: bool = False
    fused_loss: bool = False
    training: dict[str, Any] = field(default_factory=dict)


def store_in_four_bits(job: Job, key: str) -> None:
    """Frozen weights as bitsandbytes' NF4, which transformers' ``load_in_4bit`` makes of them beside adapters.

    Args:
        key: of the file, that asks for it.
    """
    if "lora" not in job.model:
        job.settings.refuse(key, "weights of 4 bits without adapters")
    elif job.engine.zero >= 3:
        job.settings.refuse(key, "weights of 4 bits in shards")
    elif job.precision not in ("bf16", "fp16"):
        job.settings.refuse(key, f"weights of 4 bits unpacked to {job.precision}")
    else:
        job.training["frozen_weights"] = FrozenWeights.NF4.value
        why = "bitsandbytes unpacks weights by a lookup, modelled as a plain cast, with scales of scales"
        job.settings.approximate(key, why, Effect(slower=0.05, more=0.02))


def job_tables(job: Job, cluster: str | None, world: int | None = None, gpus_per_node: int | None = None) -> Tables:
    """The tables of a run.

    Args:
        cluster: ``DEVICE:NODESxGPUS`` by the caller. world, gpus_per_node: as a file says.
    Raises:
        ConfigError: sizes that are missing or do not divide one another.
    """
    engine, batch = job.engine, job.batch
    if world is None and None not in (batch.whole, batch.micro, batch.accumulation):
        ranks, rest = divmod(batch.whole or 0, (batch.micro or 1) * (batch.accumulation or 1))
        world = None if rest or cluster is not None else ranks * engine.ranks
    world = engine.world if world is None else world
    own = cluster_of(
        job.settings,
        cluster,
        ranks=engine.ranks,
        world=world,
        gpus_per_node=gpus_per_node,
        divides=lambda gpus: _divides(batch, engine, gpus),
    )
    gpus = own["nodes"] * own["gpus_per_node"]
    _check_ranks(job, gpus)
    dp = gpus // engine.ranks
    sizes = _batch(job, dp)
    parallel = _parallel(job, own["gpus_per_node"], dp)
    _check_accumulation(job, sizes["global_batch"] // (sizes["micro_batch"] * dp))
    tables: Tables = {
        "model": job.model,
        "cluster": dict(own),
        "parallel": parallel,
        "training": {**sizes, "seq_len": _seq_len(job), **_training(job), **job.training},
    }
    if mixtures(model_of(job.model)):
        job.settings.notes.append("experts are taken as grouped products, as transformers 5 computes them")
    if engine.overlap:
        tables["overlap"] = dict(engine.overlap)
    return tables


def _divides(batch: Batch, engine: Engine, gpus: int) -> bool:
    if batch.whole is None:
        return True
    replicas = gpus // engine.ranks
    return batch.whole % ((batch.micro or 1) * (batch.accumulation or 1) * replicas) == 0


def _check_ranks(job: Job, gpus: int) -> None:
    if gpus % job.engine.ranks:
        raise job.batch.settings.error(
            job.batch.keys[0],
            f"{gpus} GPUs do not divide by tensor x context = {job.engine.ranks}",
            expected=f"a multiple of {job.engine.ranks}",
            got=gpus,
            nearest=max(gpus // job.engine.ranks, 1) * job.engine.ranks,
        )


def _batch(job: Job, dp: int) -> dict[str, int]:
    batch = job.batch
    micro, steps, whole = batch.micro, batch.accumulation, batch.whole
    if whole is None:
        micro = micro or 1
        return {"micro_batch": micro, "global_batch": micro * (steps or 1) * dp}
    each = dp * (steps or 1) if micro is None else dp * micro * (steps or 1)
    is_exact = steps is not None and micro is not None
    if whole % each or (is_exact and whole != each):
        told = f"{micro or 'any'} x {steps or 'any'} x {dp}"
        raise batch.settings.error(
            batch.keys[2],
            f"a batch of {whole} is not micro batch x accumulation x replicas = {told}",
            expected=str(each) if is_exact else f"a multiple of {each}",
            got=whole,
            nearest=each if is_exact else max(whole // each, 1) * each,
        )
    return {"micro_batch": whole // each if micro is None else micro, "global_batch": whole}


def _seq_len(job: Job) -> int:
    if not job.batch.is_full and job.batch.packing is not None:
        why = "texts are not packed; every sequence is taken as full, which is the longest that an iteration lasts"
        job.settings.approximate(job.batch.packing, why, Effect(faster=0.1, less=0.1))
    elif not job.batch.is_full:
        job.settings.notes.append("sequences are taken as full; shorter texts take less time")
    if job.batch.seq_len is not None:
        return job.batch.seq_len
    length, why = sequence_length(job.model)
    job.settings.notes.append(f"training.seq_len: not said, taken as {why} (--set training.seq_len=)")
    return length


def _parallel(job: Job, per_node: int, dp: int) -> dict[str, Any]:
    engine = job.engine
    table: dict[str, Any] = {"zero": engine.zero}
    for name, size in (("tp", engine.tp), ("cp", engine.cp)):
        if size > 1:
            table[name] = size
    if engine.tp > 1:
        table["sequence_parallel"] = False
    if engine.cp > 1:
        table["cp_kind"] = engine.cp_kind or "all_gather"
    if not engine.reshard:
        table["reshard_after_forward"] = False
    group = per_node // engine.tp if engine.group == NODE else engine.group
    if engine.replicas > 1 and engine.zero == 3:
        group = _shards(engine, dp * engine.cp)
    if group is not None and engine.zero == 3 and group < dp * engine.cp:
        if group == 1:
            return {**table, "zero": 0}
        if group // engine.cp < 2 or group % engine.cp:
            message = f"sharding groups of {group} ranks do not hold whole context groups of {engine.cp}"
            expected = f"a multiple of {engine.cp}, at least {2 * engine.cp}"
            raise ConfigError(message, where=engine.settings.given.source, expected=expected, got=group)
        table["zero_group"] = group // engine.cp
    if engine.copies > 1 and engine.zero == 3:
        _add_copies(job, dp)
    return table


def _shards(engine: Engine, ranks: int) -> int:
    """Ranks of each of several sharding groups."""
    if ranks % engine.replicas:
        message = f"{ranks} ranks do not divide into {engine.replicas} sharding groups"
        expected = f"a multiple of {engine.replicas}"
        raise ConfigError(message, where=engine.settings.given.source, expected=expected, got=ranks)
    return ranks // engine.replicas


def _add_copies(job: Job, dp: int) -> None:
    """ZeRO++'s second copy of the parameters (2306.10209 §3.2): more memory, fewer transfers between nodes."""
    key, engine = "zero_optimization.zero_hpz_partition_size", job.engine
    if engine.copies >= dp:
        why = "a second copy of the parameters, sharded as the first"
        engine.settings.approximate(key, why, Effect(more=0.12))
    else:
        engine.settings.refuse(key, "the backward gathers parameters from a second copy inside groups")


def _check_accumulation(job: Job, steps: int) -> None:
    """Gradients of FSDP that stay whole between the microbatches of an iteration."""
    engine = job.engine
    if not engine.defers or steps == 1:
        return
    key = job.batch.keys[1]
    if "lora" in job.model:
        job.batch.settings.approximate(
            key, "gradients stay whole until the last microbatch", Effect(faster=0.03, more=0.02)
        )
    else:
        why = "under FSDP accelerate keeps whole gradients on every rank until the last microbatch"
        job.batch.settings.refuse(key, f"{why}, unless sync_each_batch is set")


def _training(job: Job) -> dict[str, Any]:
    table: dict[str, Any] = {"precision": job.precision}
    if job.precision == "fp16":
        table["loss_scaling"] = True
    is_narrow = job.narrow and not job.engine.has_master and job.precision in ("bf16", "fp16")
    if is_narrow:
        table |= {"master_dtype": job.precision, "grad_dtype": job.precision}
        table["optimizer_state_dtype"] = "bf16"
    else:
        table["grad_dtype"] = job.engine.grad_dtype or "fp32"
    table |= {
        "software": "torch",
        "recompute": "full" if job.recompute or job.engine.recompute else "none",
        **ATTENTION[job.attention],
        "cross_entropy": "fused" if job.fused_loss else "unfused",
        "gradient_clipping": job.clips,
    }
    if job.engine.fsdp is not None:
        table["fsdp"] = job.engine.fsdp
    if job.engine.autocasts and job.precision in ("bf16", "fp16") and not is_narrow:
        table["autocast"] = Autocast.FP32_NORMS.value
    if job.deterministic:
        table["attention_deterministic"] = True
    if not job.compiled and not job.fused:
        table["eager_modules"] = True
    elif not job.compiled:
        table["launch"] = True
    if job.engine.offload:
        table["offload"] = list(job.engine.offload)
    return table | _optimizer(job)


def _optimizer(job: Job) -> dict[str, Any]:
    """What another optimizer than Adam with fp32 moments changes."""
    word = job.optim.lower()
    if word in _ADAM:
        return {"optimizer_kernels": OptimizerKernels.FOREACH.value} if word in _BY_OPERATION else {}
    has_lora = "lora" in job.model
    if word in _LION:
        return {"optimizer": "lion"}
    if word in _EIGHT_BIT or word in _LION_EIGHT_BIT:
        why = "moments of 8 bits, taken as bf16"
        job.settings.approximate(job.optim_key, why, Effect(slower=0.01, less=0.01 if has_lora else 0.15))
        return {"optimizer_state_dtype": "bf16"} | ({"optimizer": "lion"} if word in _LION_EIGHT_BIT else {})
    if has_lora:
        job.settings.approximate(job.optim_key, f"{job.optim} of the adapters", Effect(slower=0.01, faster=0.01))
    else:
        job.settings.refuse(job.optim_key, f"{job.optim}: another optimizer than Adam and Lion")
    return {}

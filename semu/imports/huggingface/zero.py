"""``zero_engine``: a configuration of DeepSpeed -> ``Engine``.

DeepSpeed keeps 16-bit parameters, an fp32 copy with fp32 moments, and reduces gradients in the parameters' type unless
``communication_data_type`` says another; without ZeRO, in bf16, gradients are added up in fp32 (runtime/engine.py,
``get_data_types``).
"""

from __future__ import annotations

from dataclasses import replace

from semu.imports.arguments import Given
from semu.imports.flags import Effect, FlagTable, read_table
from semu.imports.huggingface.engine import HOST_EFFECT, HOST_STEP, Engine
from semu.imports.settings import Settings
from semu.parallel.fsdp import Fsdp

FLAGS = FlagTable(read_table("semu.imports.deepspeed"), "DeepSpeed")
"""The keys that semu knows."""
OPTIMIZERS = ("adam", "adamw", "fusedadam", "fused_adam", "cpuadam", "deepspeedcpuadam", "cpu_adam")
_ZERO = "zero_optimization"


class ZeroSettings(Settings):
    """Settings of a configuration.

    Args:
        given: the configuration.
    Attributes:
        left: keys with the value ``auto``, which the Trainer sets.
    """

    def __init__(self, given: Given) -> None:
        kept = tuple(argument for argument in given.arguments if argument.values != ("auto",))
        names = [argument.written for argument in given.arguments if argument.values == ("auto",)]
        flags = [argument.flag for argument in given.arguments if argument.values == ("auto",)]
        notes = (f"{given.source}: left to the Trainer (auto): {', '.join(names)}",) if names else ()
        super().__init__(replace(given, arguments=kept, notes=(*given.notes, *notes)))
        self.left = frozenset(flag.dest for flag in flags if flag is not None)


def zero_engine(settings: Settings, precision: str) -> Engine:
    """The engine of a configuration.

    Args:
        settings: of the configuration. precision: of the run.
    Raises:
        ConfigError: a stage that there is not, values of wrong types.
    """
    stage = settings.size(f"{_ZERO}.stage", least=0) or 0
    if stage > 3:
        key = f"{_ZERO}.stage"
        raise settings.error(key, "no such stage of ZeRO", expected="0, 1, 2 or 3", got=stage, nearest=3)
    engine = Engine(
        settings,
        zero=stage,
        has_master=True,
        fsdp=Fsdp.NONE.value if stage == 3 else None,
        autocasts=False,
        grad_dtype=_grad_dtype(settings, precision, stage),
        overlap=_overlap(settings, stage),
        offload=_offload(settings, stage),
        tp=max(settings.size("tensor_parallel.autotp_size", least=0) or 1, 1),
        cp=max(settings.size("sequence_parallel_size", least=0) or 1, 1),
    )
    if engine.cp > 1:
        engine.cp_kind = "all_to_all"
    if engine.tp > 1:
        why = "the token table and the head are not split"
        settings.approximate("tensor_parallel.autotp_size", why, Effect(slower=0.03, more=0.05))
    if 0 < stage < 3:
        settings.get(f"{_ZERO}.reduce_scatter")
        settings.get(f"{_ZERO}.allgather_partitions")
    if stage == 3:
        _set_groups(settings, engine)
    _check_optimizer(settings)
    return engine


def zero_precision(settings: ZeroSettings) -> str | None:
    """Arithmetic that the configuration says; None: it is left to the Trainer.

    Raises:
        ConfigError: two at once.
    """
    is_bf16, is_fp16 = settings.get("bf16.enabled"), settings.get("fp16.enabled")
    if is_bf16 and is_fp16:
        raise settings.error("fp16.enabled", "bf16 and fp16", expected="one of them", got="both")
    if is_bf16 or is_fp16:
        return "bf16" if is_bf16 else "fp16"
    is_told = settings.is_told("bf16.enabled") or settings.is_told("fp16.enabled")
    return "fp32" if is_told and not {"bf16.enabled", "fp16.enabled"} & settings.left else None


def is_narrow(settings: Settings) -> tuple[bool, bool]:
    """Whether master weights and gradients, and whether the moments, are in bf16."""
    return settings.get("bf16.bf16_master_weights_and_grads"), settings.get("bf16.bf16_optimizer_states")


def _grad_dtype(settings: Settings, precision: str, stage: int) -> str:
    wire = settings.get("communication_data_type")
    sums = settings.get("data_types.grad_accum_dtype")
    own = "fp32" if precision in ("fp32", "tf32") else precision
    if sums is None:
        sums = "fp32" if own == "bf16" and stage == 0 else own
    if wire is None:
        wire = sums if stage == 0 else own
    wire = "bf16" if wire == "bfp16" else wire
    if wire == sums:
        return str(wire)
    key = "communication_data_type" if settings.is_told("communication_data_type") else "data_types.grad_accum_dtype"
    why = f"gradients travel as {wire} and are added up as {sums}; taken as {wire}"
    settings.approximate(key, why, Effect(slower=0.02, faster=0.02, more=0.1, less=0.1))
    return str(wire)


def _overlap(settings: Settings, stage: int) -> dict[str, bool]:
    """``overlap_comm`` is on by default in stage 3 only; parameters are gathered behind the step in stages 1 and 2."""
    told = settings.is_told(f"{_ZERO}.overlap_comm")
    is_on = settings.get(f"{_ZERO}.overlap_comm") if told else stage == 3
    fetches = stage == 3 and settings.get(f"{_ZERO}.stage3_prefetch_bucket_size") > 0
    return {"grad_reduce": bool(is_on), "param_gather": fetches}


def _offload(settings: Settings, stage: int) -> tuple[str, ...]:
    words = []
    if settings.get(f"{_ZERO}.offload_param.device") == "cpu" or settings.get(f"{_ZERO}.cpu_offload_param"):
        if stage == 3:
            words.append("weights")
        else:
            settings.notes.append(f"{_ZERO}.offload_param: without effect below stage 3")
    is_out = settings.get(f"{_ZERO}.offload_optimizer.device") == "cpu" or settings.get(f"{_ZERO}.cpu_offload")
    if is_out and stage:
        words.append("optimizer")
        key = f"{_ZERO}.offload_optimizer.device"
        settings.approximate(key if settings.is_told(key) else f"{_ZERO}.cpu_offload", HOST_STEP, HOST_EFFECT)
    return tuple(words)


def _set_groups(settings: Settings, engine: Engine) -> None:
    """MiCS shards in groups; ZeRO++ keeps a second copy of the parameters in groups, for the backward."""
    group = settings.size(f"{_ZERO}.mics_shard_size", least=-1) or -1
    if group > 0:
        engine.group = group
    engine.copies = max(settings.size(f"{_ZERO}.zero_hpz_partition_size", least=0) or 1, 1)


def zero_optimizer(settings: Settings) -> str | None:
    """The optimizer of a configuration, by the Trainer's name of its kind; None: it says none."""
    if not settings.is_told("optimizer.type"):
        return None
    if is_lion(settings.get("optimizer.type")):
        return "lion"
    return "adamw_torch" if settings.get("optimizer.params.torch_adam") else "adamw"


def is_lion(kind: object) -> bool:
    """Whether an optimizer's name is one of Lion's: Lion, FusedLion, DeepSpeedCPULion."""
    return str(kind).lower().endswith("lion")


def _check_optimizer(settings: Settings) -> None:
    kind = str(settings.get("optimizer.type"))
    if kind.lower() not in OPTIMIZERS and not is_lion(kind):
        settings.refuse("optimizer.type", f"{kind}: another optimizer than Adam and Lion")

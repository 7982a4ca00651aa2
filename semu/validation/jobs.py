"""A row in the words of a run file: ``run_tables``. The one place that says what a published setting means to semu.

Settings that run files do not have keep their names in the tables; ``make_job`` refuses them by name. What a row
leaves open follows rules that hold for every row:

* attention: a closed form of 2205.05198 keeps the s x s matrices, so does a kernel that the row calls ``unfused`` or
  ``local``, and one that the row does not tell: of before FlashAttention, or where Megatron-LM trains a model with
  learned positions in fp16, or in bf16 on a device without fp8, as it did before Transformer Engine and FlashAttention
  (NeMo 23.08 still has ``use_flash_attention: False``; not with context parallelism); anything else is semu's default,
  a fused kernel.
* recomputed modules that the model has none of are left out, as Megatron-LM does.
* selective recomputation: Megatron-LM's (the attention core); with FSDP, torchtitan's policy of every second product.
* token loss: with FSDP and a whole vocabulary PyTorch's own, unfused; else Megatron-LM's, in place.
* dropout, where the row has none: 0.1 with unfused attention (Megatron-LM's default of that time, and what 34 s b h and
  5 a s^2 b of 2205.05198 count), else 0.
* layers per pipeline chunk: as the row's ``layout`` says (keys of ``[parallel.layout]``), where it has one, else
  equally many; where that does not go, one fewer in the first and the last, which hold the tables (Megatron-LM's
  ``account-for-embedding-in-pipeline-split``; 2401.10241 §5.1); where neither goes, balanced by simulated times, which
  is what those who write a layout by hand aim at (parameters would be wrong by far where a layer has experts).
* vocabulary: padded as the row says, else with tensor or pipeline parallelism, which is Megatron-LM's, to a multiple
  of 128 tp (its ``make-vocab-size-divisible-by``); FSDP does not pad.
* gradients: fp32, but fp16 under fp16 unless the row says otherwise (Megatron-LM sets
  ``accumulate-allreduce-grads-in-fp32`` for bf16 only); a closed form counts 18 bytes per parameter.
* library workspaces: where the row tells the attention kernel, which only Megatron-LM's rows do, or Megatron-LM's
  allocated bytes, Transformer Engine's and PyTorch's, PyTorch's alone with ``local`` layers; else none.
* modules run operator by operator where the row says ``torch_compile: false``, and under PyTorch's FSDP where it says
  nothing, since nothing is compiled unless one asks; else norms, gated activations and rotary embeddings are fused.
* optimizer: PyTorch's, operation by operation, under its FSDP (torchtitan and Composer take no fused one unless told);
  else fused.
* experts that drop tokens have the capacity of balanced routing and are padded to it (NeMo's token-drop recipes).
* overlap: what the row does not tell is semu's default; sharded parameters that are fetched ahead are
  ``param_gather``.
* FSDP under a pipeline keeps parameters gathered from the first forward on and reduces once (torchtitan): the traffic
  and the memory of ZeRO-1.
* ZeRO-2 in a pipeline reduces gradients once, behind the last microbatch, and is ZeRO-1: a reduction per microbatch is
  what its definition asks for, and what nobody runs (DeepSpeed refuses it).
* ZeRO-2 of PyTorch's FSDP is its SHARD_GRAD_OP: parameters are sharded too, and stay gathered until the backward.
* software: the row's; where it has none, PyTorch's where parameters are sharded by FSDP (or gradients, ZeRO-2), unless
  the row tells ``dp_grad_reduce``, which is Megatron-LM's word (its own FSDP); else Megatron-LM's.
* launches: they block (``launch_blocking``) under Megatron-DeepSpeed up to 2022 on 384 GPUs and more, where its authors
  had to disable asynchronous launches, as pipelines deadlocked with them (2211.05100 §3.2).
* attention kernel: the row's; where it has none, what the software called at its date
  (``semu.hardware.attention_kernels``).
* transfers between pipeline ranks: not hidden unless the row says so.
* tensor parallelism without communication overlap: what Megatron-LM of that date always hides stays hidden, whatever
  ``tp_comm`` says of the fused kernels.
* exchanges of experts' tokens: DualPipe hides them, which is what it is for (2412.19437 §3.2.1); else they hide where
  the row says so (``moe_a2a``), and where it says nothing and Megatron-LM could (``may_hide_exchanges``), as is faster.
* zero-bubble schedules (zb-*): ranks step apart, as their authors' implementation does (2401.10241 §4), unless sharded
  parameters are gathered ahead of the next forward; zb-v has two
  chunks per rank in a V.
* fp8 with a distributed optimizer or Megatron's FSDP: primary weights in fp8 (``--fp8-param-gather``, what NeMo and
  Megatron-Bridge set); under FSDP not in MXFP8, which semu does not model there.
* closed forms count transformer layers only: their model has a vocabulary of tp tokens and no position table. Nor do
  they depend on how many microbatches there are: 2 pp of them are run, which fill a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from semu.checks import find_named
from semu.errors import ConfigError
from semu.hardware.kinds import DType
from semu.hardware.profile import load_profile
from semu.hardware.software import Software
from semu.records import dataclass
from semu.schedule.family import ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.registry import ALL_SCHEDULES, NEAREST
from semu.validation.row import Measure, Row
from semu.validation.row_model import transformer_table

Tables: TypeAlias = dict[str, dict[str, Any]]

UNFUSED = frozenset({"unfused", "local"})
"""Attention kernels that write the s x s matrices."""
DEADLOCKS_UNTIL, DEADLOCKS_FROM_GPUS = "2023-01", 384
"""Where pipelines of Megatron-DeepSpeed ran with synchronous launches (2211.05100 §3.2)."""
FUSED_LOSS_SINCE = "2025-05"
"""Megatron-Core 0.12, whose ``--cross-entropy-fusion-impl te`` is Transformer Engine's kernel; the recipes of
Megatron-Bridge, which came after it, set it."""
HIDES_SINCE = "2025-09"
"""Megatron-Core 0.14, which NeMo's container 25.09 has."""
FUSED_SINCE = "2022-06"
"""Month after FlashAttention was published (2205.14135); nobody trained with a fused kernel before."""
PARTIAL = "partial"
"""What a row says for a recomputation of some layers, it does not tell of how many."""
_TORCH = frozenset(item.value for item in Software if item.kernels is Software.TORCH)
_ZERO: Mapping[str, int] = MappingProxyType({"none": 0, "zero1": 1, "zero2": 2, "fsdp": 3})
_FLASH_ATTN = frozenset({"fa2", "fa3"})
"""Attention kernels of the package flash-attn. A framework that calls them is taken to call its other kernels too, as
nanotron does; HuggingFace's models do not, which their run files say."""
_KERNELS: Mapping[str, str | None] = MappingProxyType(
    {"xformers": "fa1", **dict.fromkeys(("flash", "flash-attn", "flash-attention", "flash_attention"))}
)
"""What sources call attention kernels -> a word of ``training.attention_kernel``; None: whichever was current."""
_DISPATCHERS: Mapping[str, str] = MappingProxyType({"hybridep": "deepep"})
"""Dispatchers that send as another one does: a row once to every node."""
_OVERLAP: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "grad_reduce": ("dp_grad_reduce",),
        "param_gather": ("dp_param_gather", "fsdp_prefetch"),
        "tensor_parallel": ("tp_comm",),
        "pipeline": ("pp_p2p",),
        "expert_parallel": ("moe_a2a",),
    }
)
"""Key of ``[overlap]`` -> the row's switches that say it; the first that the row has counts."""


@dataclass(frozen=True)
class Settings:
    """What a source may leave open, decided.

    Attributes:
        micro_batch: sequences. vp: model chunks per pipeline rank. recompute: a word of ``training.recompute``.
        grad_dtype: of the gradient buffers; None: semu's default. layers: recomputed of each chunk; None: all.
        sharding: a word of ``sharding_kind``; None: that of the row. fp8_gates: as in ``[training]``.
        hides_exchanges: of experts' tokens, behind another microbatch.
    """

    micro_batch: int
    vp: int
    recompute: str
    grad_dtype: str | None = None
    layers: int | None = None
    sharding: str | None = None
    fp8_gates: bool = False
    hides_exchanges: bool = False


def run_tables(row: Row, settings: Settings, device: str) -> Tables:
    """The run file of a row.

    Args:
        row: the run. settings: those of the row, or what was decided for it.
        device: profile name or file.
    Raises:
        ConfigError: a word that semu does not know.
    """
    if settings.sharding is not None:
        row = replace(row, sharding=settings.sharding)
    is_unfused, is_torch_fsdp = _is_unfused(row), _is_torch_fsdp(row)
    nodes = max(row.gpus // row.gpus_per_node, 1)
    is_analytic = row.measure is Measure.ANALYTIC
    grouped = (row.shape.moe or {}).get("grouped_gemm")
    is_eager = row.compiled is False or (row.compiled is None and is_torch_fsdp)
    decided = {
        "recompute_layers": settings.layers,
        "offload": "activations" if row.offloaded_layers else None,
        "offload_layers": [f"*layers.{number}" for number in range(row.offloaded_layers)] or None,
        "activation_limit": row.activation_limit,
        "workspaces": _workspaces(row),
        "grad_dtype": settings.grad_dtype or _grad_dtype(row),
        "moe_dispatcher": _DISPATCHERS.get(row.moe_dispatcher or "", row.moe_dispatcher),
        "moe_capacity_factor": 1.0 if row.drops_tokens else None,
        "moe_pad_to_capacity": row.drops_tokens or None,
        "moe_grouped_gemm": grouped if isinstance(grouped, bool) else None,
        "optimizer_post_validation": True if _steps_apart(row) else None,
        "attention": "unfused" if is_unfused else None,
        "attention_kernel": None if is_unfused else _attention_kernel(row),
        "attention_deterministic": row.attention_deterministic,
        "software_date": row.software_date,
        "gradient_accumulation_fusion": row.gradient_accumulation_fusion,
        "launch_blocking": True if _blocks(row) else None,
        "eager_modules": True if is_eager else None,
        "eager_kernels": "flash-attn" if is_eager and row.attention_kernel in _FLASH_ATTN else None,
        "optimizer_kernels": "foreach" if is_torch_fsdp else None,
        "fp8_recipe": row.fp8_recipe,
        "fp8_gates": settings.fp8_gates or None,
        "fp8_weights": "primary" if _has_fp8_weights(row) else None,
        "cross_entropy": row.cross_entropy or _cross_entropy(row),
    }
    tables: Tables = {
        "model": {
            "transformer": transformer_table(row, is_unfused=is_unfused),
        },
        "cluster": {
            "device": device,
            "nodes": nodes,
            "gpus_per_node": row.gpus // nodes,
            **_links(row, device),
        },
        "parallel": _parallel(row, settings.vp),
        "training": {
            "micro_batch": settings.micro_batch,
            "global_batch": 2 * row.pp * row.dp * settings.micro_batch if is_analytic else row.global_batch,
            "seq_len": row.shape.seq_len,
            "precision": row.precision,
            "recompute": _recompute(row, settings),
            "schedule": _schedule(row, settings.vp),
            "software": _software(row),
            **{name: value for name, value in decided.items() if value is not None},
        },
        "overlap": _overlaps(row, settings),
    }
    if settings.recompute == "selective" and is_torch_fsdp:
        tables["training"] |= {"recompute": "full", "recompute_policy": "every_second_matmul"}
    if row.lora is not None:
        tables["model"]["lora"] = row.lora
    return tables if row.run is None else _with_run(row, tables, row.run)


def _with_run(row: Row, tables: Tables, run: Mapping[str, Mapping[str, Any]]) -> Tables:
    """What a row's ``run`` says, completed by the row's own fields; a model in it is the whole model."""
    if "model" in run:
        tables["model"] = {"lora": row.lora} if row.lora is not None else {}
        for name in ("seq_len", "cross_entropy"):
            tables["training"].pop(name, None)
        tables["parallel"].pop("layout", None)
    return {name: {**tables.get(name, {}), **run.get(name, {})} for name in (*tables, *run)}


def _links(row: Row, device: str) -> dict[str, Any]:
    """What the row's network has otherwise than the device's profile: a node of more GPUs than NVLink joins in the
    profile is an NVLink domain."""
    links: dict[str, Any] = {"fabric": row.fabric, "nvlink_domain": row.nvlink_domain}
    if row.nvlink_domain is None and row.gpus_per_node > load_profile(device).nvlink_gpus.value:
        links["nvlink_domain"] = row.gpus_per_node
    if row.nic_bytes_per_s is not None:
        links["override"] = {"nic_bytes_per_s": row.nic_bytes_per_s}
    return {name: value for name, value in links.items() if value is not None}


def _recompute(row: Row, settings: Settings) -> str | list[str]:
    """The mode, or what selective recomputation covers."""
    if settings.recompute != "selective" or not row.recompute_modules:
        return settings.recompute
    shape = row.shape
    moe = shape.moe or {}
    lacks = {
        "mla_up_proj": not shape.mla,
        "shared_experts": not moe.get("shared_expert_ffn"),
        **dict.fromkeys(("moe", "moe_act"), not moe),
        "mlp": bool(moe) and not moe.get("dense_layers") and moe.get("layer_freq") in (None, 1),
    }
    return [module for module in row.recompute_modules if not lacks.get(module)] or "none"


def _attention_kernel(row: Row) -> str | None:
    """The kernel that a row names; None: what its software called at its date."""
    told = row.attention_kernel
    return told if told is None else _KERNELS.get(told.lower(), told)


def _is_unfused(row: Row) -> bool:
    """Whether attention keeps the s x s matrices."""
    told = row.attention_kernel or row.attention
    if row.measure is Measure.ANALYTIC or told:
        return row.measure is Measure.ANALYTIC or told in UNFUSED
    if row.software_date is not None and row.software_date < FUSED_SINCE:
        return row.cp == 1
    is_early = row.precision == "fp16" or (row.precision == "bf16" and not _has_fp8(row.profile))
    return is_early and row.shape.has_learned_positions and row.cp == 1 and _software(row) == "megatron"


def _has_fp8(device: str) -> bool:
    """Whether a device has fp8 products, for which Megatron-LM takes Transformer Engine and its attention."""
    try:
        return DType.FP8 in load_profile(device).flop_per_s
    except ConfigError:
        return True


def _software(row: Row) -> str:
    return row.software or ("torch" if _is_torch_fsdp(row) else "megatron")


def _has_fp8_weights(row: Row) -> bool:
    is_megatron_fsdp = row.sharding == "fsdp" and _software(row) == "megatron" and row.fp8_recipe != "mxfp8"
    return row.precision == "fp8" and (row.sharding == "zero1" or is_megatron_fsdp)


def _cross_entropy(row: Row) -> str | None:
    """The loss of a row that does not say it; None: semu's default."""
    if row.compiled is False or (_is_torch_fsdp(row) and row.sharding == "fsdp" and row.tp == 1):
        return "unfused"
    is_new = row.software_date is not None and row.software_date >= FUSED_LOSS_SINCE
    return "fused" if is_new and _software(row) == "megatron" else None


def _blocks(row: Row) -> bool:
    """Whether launches of kernels were synchronous."""
    is_early = row.software_date is None or row.software_date < DEADLOCKS_UNTIL
    return _software(row) == Software.MEGATRON_DEEPSPEED.value and is_early and row.gpus >= DEADLOCKS_FROM_GPUS


def _is_torch_fsdp(row: Row) -> bool:
    told = row.overlap or {}
    is_torch = told.get("dp_grad_reduce") is None if row.software is None else row.software in _TORCH
    return is_torch and row.sharding in ("fsdp", "zero2")


def layers_of_chunks(layers: int, chunks: int) -> list[int]:
    """Layers of each chunk, in order of data flow; the first also holds the embedding, the last the head.

    Raises:
        ConfigError: they cannot be shared out evenly, nor with one fewer in the first and the last.
    """
    if not divides(layers, chunks):
        raise ConfigError(
            f"{layers} layers do not divide into {chunks} chunks",
            where="model.layers",
            expected=f"a multiple of {chunks}, or two fewer",
            got=layers,
        )
    if layers % chunks == 0:
        return [layers // chunks] * chunks
    each = (layers + 2) // chunks
    return [each - 1, *[each] * (chunks - 2), each - 1]


def divides(layers: int, chunks: int) -> bool:
    """Whether ``layers_of_chunks`` can share them out."""
    return layers % chunks == 0 or (layers + 2) % chunks == 0


def _workspaces(row: Row) -> str | None:
    is_megatron = _software(row) == "megatron" and row.measure is Measure.ALLOCATED
    if row.measure is Measure.ANALYTIC or not (row.attention or is_megatron):
        return None
    return "torch" if row.attention == "local" else "transformer_engine"


def _grad_dtype(row: Row) -> str | None:
    """Type of the gradient buffers where it is not semu's default."""
    if row.grad_dtype in ("fp32", "bf16", "fp16"):
        return row.grad_dtype
    return "fp16" if row.precision == "fp16" and row.measure is not Measure.ANALYTIC else None


def _parallel(row: Row, vp: int) -> dict[str, Any]:
    table: dict[str, Any] = {
        "dp": row.dp,
        "tp": row.tp,
        "pp": row.pp,
        "vpp": vp,
        "cp": row.cp,
        "ep": row.ep,
        "sequence_parallel": row.sequence_parallel,
        "zero": find_named("sharding", row.sharding, _ZERO, where="sharding_kind"),
    }
    if _is_torch_fsdp(row):
        table |= {"zero": 3, "reshard_after_forward": row.sharding == "fsdp" and row.pp == 1}
    elif row.sharding == "zero2" and row.pp > 1:
        table["zero"] = 1
    if row.zero_group is not None and row.zero_group != row.dp:
        table["zero_group"] = row.zero_group
    if row.shape.moe is not None and row.etp is not None:
        table["etp"] = row.etp
    if is_v_shaped(row):
        table["placement"] = "v-shape"
    if row.layout is not None:
        table["layout"] = dict(row.layout)
    elif row.pp > 1 and divides(row.shape.layers, row.pp * vp):
        table["layout"] = {"layers": layers_of_chunks(row.shape.layers, row.pp * vp)}
    elif row.pp > 1:
        table["partition"] = "latency"
    return table


def is_v_shaped(row: Row) -> bool:
    """Whether a row's schedule has two chunks per rank, placed in a V."""
    family = _family(row)
    return family is not None and family.placement is Placement.V_SHAPE


def _family(row: Row) -> ScheduleFamily | None:
    name = row.schedule or ""
    return ALL_SCHEDULES.get(NEAREST.get(name, name))


def _schedule(row: Row, vp: int) -> str:
    """semu's name of the schedule: interleaved as soon as a rank holds several chunks."""
    if row.schedule in (None, "1f1b", "interleaved"):
        return "interleaved" if vp > 1 else "1f1b"
    return str(row.schedule)


def _steps_apart(row: Row) -> bool:
    """Whether ranks step one by one, which needs parameters that are not gathered before the first forwards."""
    gathers = row.sharding != "none" and _overlap(row, "param_gather") is not False
    return (row.schedule or "").startswith("zb-") and (row.dp * row.cp == 1 or not gathers)


def _overlaps(row: Row, settings: Settings) -> dict[str, Any]:
    table = {name: value for name in _OVERLAP if (value := _overlap(row, name)) is not None}
    is_dual = row.shape.moe is not None and row.ep > 1 and _family(row) is ALL_SCHEDULES["dualpipe-v"]
    if is_dual or settings.hides_exchanges:
        table["expert_parallel"] = True
    return table


def may_hide_exchanges(row: Row, vp: int) -> bool:
    """Whether exchanges of experts' tokens may have been hidden without the row's saying so: Megatron-LM can since
    ``HIDES_SINCE`` (``--overlap-moe-expert-parallel-comm``), in a pipeline with virtual stages, which it asks for."""
    is_open = _overlap(row, "expert_parallel") is None and row.software == Software.MEGATRON.value
    is_new = row.software_date is None or row.software_date >= HIDES_SINCE
    return is_open and is_new and row.shape.moe is not None and row.ep > 1 < min(row.pp, vp)


def _overlap(row: Row, name: str) -> object:
    told = row.overlap or {}
    if name == "tensor_parallel" and not told.get("tp_comm"):
        return None
    if name == "pipeline" and row.pp > 1 and told.get("pp_p2p") is None:
        return False
    return next((told[switch] for switch in _OVERLAP[name] if told.get(switch) is not None), None)

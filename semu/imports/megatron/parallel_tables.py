"""``parallel_table``: how the job is spread, as ``[cluster]``, ``[parallel]`` and ``[overlap]``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from semu.checks import nearest_divisor
from semu.errors import ConfigError
from semu.imports.flags import Effect
from semu.imports.settings import Settings
from semu.imports.sizes import cluster_of
from semu.parallel.config import PIPELINE_FIRST
from semu.parallel.layout_text import expand_stages

_CONTEXT_KINDS = {"p2p": "ring", "all_gather": "all_gather", "a2a": "all_to_all", "a2a+p2p": "ring"}
_ZERO = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def cluster_table(settings: Settings, asked: str | None, *, has_experts: bool) -> Mapping[str, Any]:
    """``[cluster]``: as the caller asks, else as the launcher or the log says, else the fewest nodes.

    Args:
        asked: ``DEVICE:NODESxGPUS`` by the caller; None: nothing. has_experts: of the model.
    Raises:
        ConfigError: as ``cluster_of``.
    """
    given = settings.given
    world = settings.size("world_size")
    if world is None and given.nodes is not None and given.gpus_per_node is not None:
        world = given.nodes * given.gpus_per_node
    tp = settings.size("tensor_model_parallel_size") or 1
    ranks = tp * (settings.size("pipeline_model_parallel_size") or 1) * (settings.size("context_parallel_size") or 1)
    stage = settings.size("pipeline_model_parallel_size") or 1
    experts = 1
    if has_experts:
        experts = settings.size("expert_model_parallel_size") or 1
        experts *= settings.size("expert_tensor_parallel_size") or (tp if experts * tp > 1 else 1)
    micro, batch = settings.size("micro_batch_size"), settings.size("global_batch_size")

    def _divides(gpus: int) -> bool:
        divides_batch = micro is None or batch is None or batch % (micro * (gpus // ranks)) == 0
        return divides_batch and gpus // stage % experts == 0

    is_script = settings.size("world_size") is None
    return cluster_of(
        settings,
        asked,
        may_grow=is_script,
        ranks=ranks,
        world=world,
        where=settings.where("world_size"),
        gpus_per_node=given.gpus_per_node,
        divides=_divides,
    )


def parallel_table(settings: Settings, gpus: int, where: str, *, has_experts: bool) -> dict[str, Any]:
    """``[parallel]``.

    Args:
        gpus: of the cluster. where: what says so, for messages. has_experts: of the model.
    Raises:
        ConfigError: GPUs that the parallel sizes do not divide, layers that the stages do not.
    """
    tp = settings.size("tensor_model_parallel_size") or 1
    pp = settings.size("pipeline_model_parallel_size") or 1
    cp = settings.size("context_parallel_size") or 1
    _check_heads(settings, tp)
    table: dict[str, Any] = {
        "dp": _data_parallel(settings, gpus, where, tp * pp * cp),
        "tp": tp,
        "pp": pp,
        **_stages(settings, pp),
        "cp": cp,
        "ep": settings.size("expert_model_parallel_size") or 1,
        "sequence_parallel": settings.get("sequence_parallel") and tp > 1,
    }
    if settings.get("use_tp_pp_dp_mapping"):
        table["rank_order"] = PIPELINE_FIRST
    etp = settings.size("expert_tensor_parallel_size")
    if etp is not None and has_experts:
        table["etp"] = etp
    if cp > 1:
        kinds = Counter(settings.get("cp_comm_type"))
        if len(kinds) > 1:
            why = "layers that differ in how they exchange keys and values, modelled as most do"
            settings.approximate("cp_comm_type", why, Effect(slower=0.03, faster=0.03))
        kind = min(kinds, key=lambda kind: (-kinds[kind], kind))
        table["cp_kind"] = _CONTEXT_KINDS[kind]
        if kind == "a2a+p2p":
            table["cp_inner"] = _inner_ranks(settings, cp)
    return table | _sharding(settings, table["dp"])


def _inner_ranks(settings: Settings, cp: int) -> int:
    """Neighbours that exchange heads for tokens, where rings run between groups of them.

    Raises:
        ConfigError: not two sizes whose product is cp.
    """
    sizes = settings.get("hierarchical_context_parallel_sizes") or ()
    numbers = [int(word) for word in sizes if word.isdecimal()]
    if len(numbers) != len(sizes) or len(numbers) != 2 or numbers[0] * numbers[1] != cp:
        inner = nearest_divisor(cp, 2)
        raise settings.error(
            "cp_comm_type" if not sizes else "hierarchical_context_parallel_sizes",
            "a2a+p2p needs the sizes of its two levels",
            expected=f"--hierarchical-context-parallel-sizes with two numbers whose product is {cp}",
            got=" ".join(sizes) or "nothing",
            nearest=f"--hierarchical-context-parallel-sizes {inner} {cp // inner}",
        )
    return numbers[0]


def _check_heads(settings: Settings, tp: int) -> None:
    """Megatron-LM wants whole heads, and whole groups of them, on every tensor-parallel rank."""
    names = ["num_attention_heads", *(("num_query_groups",) if settings.get("group_query_attention") else ())]
    for name in names:
        size = settings.size(name) or 1
        if size % tp:
            message = f"{settings.name(name)} = {size} does not divide by {tp}"
            raise _not_a_divisor(settings, "tensor_model_parallel_size", message, size, tp)


def _not_a_divisor(settings: Settings, name: str, message: str, total: int, got: int) -> ConfigError:
    nearest = nearest_divisor(total, min(total, got))
    return settings.error(name, message, expected=f"a divisor of {total}", got=got, nearest=nearest)


def _data_parallel(settings: Settings, gpus: int, where: str, ranks: int) -> int:
    """Replicas of ``ranks`` GPUs."""
    if gpus % ranks:
        raise ConfigError(
            f"{gpus} GPUs do not divide by tensor x pipeline x context = {ranks}",
            where=where,
            expected=f"a multiple of {ranks}",
            got=gpus,
            nearest=max(gpus // ranks, 1) * ranks,
        )
    told, replicas = settings.size("data_parallel_size"), gpus // ranks
    if told is not None and told != replicas and gpus == settings.size("world_size"):
        message = f"{gpus} GPUs / {ranks} are {replicas} replicas"
        raise settings.error("data_parallel_size", message, expected=str(replicas), got=told, nearest=replicas)
    return replicas


def _stages(settings: Settings, pp: int) -> dict[str, Any]:
    """``vpp``, and where the stages end."""
    text = settings.get("pipeline_model_parallel_layout")
    if text is not None:
        stages = len(expand_stages(text, settings.where("pipeline_model_parallel_layout")))
        if stages % pp:
            message, nearest = f"{stages} stages on {pp} pipeline ranks", max(stages // pp, 1) * pp
            expected = f"a multiple of {pp}"
            raise settings.error(
                "pipeline_model_parallel_layout", message, expected=expected, got=stages, nearest=nearest
            )
        return {"vpp": stages // pp, "layout": {"stages": text}}
    first = settings.size("decoder_first_pipeline_num_layers", least=0)
    last = settings.size("decoder_last_pipeline_num_layers", least=0)
    layout: dict[str, Any] = {name: size for name, size in (("first", first), ("last", last)) if size is not None}
    for name in ("embedding", "loss"):
        if settings.get(f"account_for_{name}_in_pipeline_split"):
            layout[f"account_for_{name}"] = True
    extra = sum(value is True for value in layout.values())
    table: dict[str, Any] = {"vpp": _virtual_stages(settings, pp, extra)}
    if layout and pp > 1:
        return table | {"layout": layout}
    layers, stages = settings.required("num_layers"), pp * table["vpp"]
    if pp > 1 and layers % stages == 0:
        return table | {"partition": "layers"}
    if pp > 1:
        settings.notes.append(
            f"{layers} layers do not divide into {stages} stages, which Megatron-LM refuses without a layout: balanced"
            " by parameters"
        )
    return table


def _virtual_stages(settings: Settings, pp: int, extra: int) -> int:
    """Megatron-LM, ``validate_args``; ``extra``: embedding and loss that count as layers."""
    direct = settings.size("num_virtual_stages_per_pipeline_rank")
    printed = settings.size("virtual_pipeline_model_parallel_size")
    each = settings.size("num_layers_per_virtual_pipeline_stage")
    if direct is not None and each is not None:
        expected = f"one of it and {settings.name('num_layers_per_virtual_pipeline_stage')}"
        name = "num_virtual_stages_per_pipeline_rank"
        raise settings.error(name, "virtual stages are given twice", expected=expected, got="both")
    if direct is not None or printed is not None:
        return direct or printed or 1
    if each is None:
        return 1
    layers = settings.required("num_layers") + extra
    if layers % (pp * each):
        raise settings.error(
            "num_layers_per_virtual_pipeline_stage",
            f"{layers} layers do not divide into {pp} ranks and chunks of {each}",
            expected=f"a divisor of {layers}/{pp}",
            got=each,
            nearest=1 if layers % pp == 0 else None,
        )
    return layers // (pp * each)


def _sharding(settings: Settings, dp: int) -> dict[str, Any]:
    is_sharded = settings.get("use_distributed_optimizer")
    table: dict[str, Any] = {"zero": 1 if is_sharded else _deepspeed_stage(settings)}
    optimizer = settings.get("optimizer")
    if optimizer in ("muon", "dist_muon"):
        if is_sharded:
            why = "Muon's parameters are dealt whole, as --optimizer dist_muon does"
            settings.approximate("use_distributed_optimizer", why, Effect(slower=0.02, faster=0.02))
        for name in ("use_torch_fsdp2", "use_megatron_fsdp"):
            if settings.get(name):
                message = f"{settings.name(name)} with --optimizer {optimizer}, which Megatron-LM refuses"
                raise settings.error(
                    name, message, expected=f"--optimizer {optimizer} without it", got=settings.name(name)
                )
        return {"zero": 1 if is_sharded or optimizer == "dist_muon" else 0}
    if settings.get("use_torch_fsdp2"):
        table = {"zero": 3, "reshard_after_forward": settings.get("torch_fsdp2_reshard_after_forward")}
    elif settings.get("use_megatron_fsdp"):
        table = {"zero": _ZERO[settings.get("data_parallel_sharding_strategy")]}
    instances = settings.size("num_distributed_optimizer_instances") or 1
    if instances > 1:
        if dp % instances:
            name, message = "num_distributed_optimizer_instances", f"{dp} replicas in {instances} instances"
            raise _not_a_divisor(settings, name, message, dp, instances)
        if dp == instances:  # an instance of one rank shards nothing
            return table | {"zero": 0}
        table["zero_group"] = dp // instances
    return table


def _deepspeed_stage(settings: Settings) -> int:
    """ZeRO's stage under Megatron-DeepSpeed; its optimizer for bf16 shards its states without ZeRO, too."""
    stage: int = settings.size("zero_stage", least=0) or 0
    if not settings.get("deepspeed"):
        return 0
    return max(stage, 1) if settings.get("bf16") else stage


def overlap_table(settings: Settings, vpp: int, pp: int) -> dict[str, Any]:
    """``[overlap]``; without ``--tp-comm-overlap`` what Megatron-LM hides always, semu's default, stays."""
    table: dict[str, Any] = {
        "grad_reduce": settings.get("overlap_grad_reduce"),
        "param_gather": settings.get("overlap_param_gather"),
    }
    if settings.get("tp_comm_overlap"):
        table["tensor_parallel"] = True
    delays, hides = settings.get("delay_wgrad_compute"), settings.get("overlap_moe_expert_parallel_comm")
    if delays and not hides:
        message, expected = "delayed weight gradients that hide nothing", "--overlap-moe-expert-parallel-comm beside it"
        raise settings.error("delay_wgrad_compute", message, expected=expected, got="none", nearest=expected)
    if hides and settings.size("num_experts"):
        table |= {"expert_parallel": True} | ({"delayed_weight_gradients": True} if delays else {})
    if pp > 1:
        table["pipeline"] = settings.get("overlap_p2p_comm") and vpp > 1
    return table

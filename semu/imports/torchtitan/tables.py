"""``tables_of``: settings of torchtitan become the tables of a run file.

torchtitan shards parameters, gradients and optimizer state over the data-parallel ranks of a sharding group
(``fully_shard``: ZeRO-3), keeps them gathered under a pipeline, and runs tensor parallelism with sequence parallelism.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import semu_models
from semu.errors import ConfigError, unknown_name
from semu.imports.flags import Effect, read_table
from semu.imports.huggingface.frozen import model_of
from semu.imports.reading import Tables
from semu.imports.settings import Settings
from semu.imports.sizes import cluster_of

_DATA = read_table("semu.imports.torchtitan")
MODELS: dict[str, dict[str, str]] = _DATA["models"]
SIZES: dict[str, dict[str, dict[str, Any]]] = _DATA["sizes"]
CONFIGS: dict[str, dict[str, str]] = _DATA["configs"]
UNMODELLED: dict[str, str] = _DATA["unmodelled"]
_KERNELS = {"_flex": "flex", "_flex_attn": "flex", "_varlen": "sdpa", "_varlen_attn": "sdpa"}
"""End of a flavor's name -> its attention kernel; varlen is FlashAttention-2 in PyTorch."""
_BACKENDS = {"flex": "flex", "varlen": "sdpa", "sdpa": "sdpa"}
"""model.attn_backend -> attention kernel."""
_APART = "_non_fused_qkv"
"""End of a flavor whose queries, keys and values come from products of their own."""
_FURTHER = "-mtp"
"""End of a shipped model that predicts one further token."""
_ASYNC = ("hybridep", "minimal_async_ep")
"""Exchanges of experts' tokens that CUDA graphs can hold."""
SCHEDULES = {"1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved", "ZBVZeroBubble": "zb-v"}
"""torchtitan's name of a schedule -> semu's."""
_LOOPED = ("Interleaved1F1B", "ZBVZeroBubble")
"""Schedules with several stages on a rank; two where the file does not say how many."""


def tables_of(settings: Settings, cluster: str | None) -> Tables:
    """The tables.

    Args:
        cluster: ``DEVICE:NODESxGPUS`` by the caller; None: the fewest whole nodes.
    Raises:
        ConfigError: an unknown model, sizes that do not divide.
    """
    model, kernel, layers = _model(settings)
    shard = settings.size("parallelism.data_parallel_shard_degree", least=-1) or -1
    copies = settings.size("parallelism.data_parallel_replicate_degree") or 1
    tp = settings.size("parallelism.tensor_parallel_degree") or 1
    pp = settings.size("parallelism.pipeline_parallel_degree") or 1
    cp = settings.size("parallelism.context_parallel_degree") or 1
    peers = tp * pp * cp * copies
    local, batch = _batch(settings)

    def _divides(gpus: int) -> bool:
        return batch is None or batch % (local * (gpus // (tp * pp * cp))) == 0

    world = settings.size("comm.world_size")
    own = dict(
        cluster_of(settings, cluster, ranks=peers * max(shard, 1), world=world, divides=_divides)
        if shard < 1 or world is not None or cluster is not None
        else cluster_of(settings, None, ranks=peers * shard, world=peers * shard)
    )
    gpus = own["nodes"] * own["gpus_per_node"]
    if gpus % peers or (shard > 0 and gpus != peers * shard):
        need = peers * max(shard, 1)
        raise ConfigError(
            f"{gpus} GPUs, and the degrees of parallelism are for {'' if shard > 0 else 'a multiple of '}{need}",
            where=settings.where("parallelism.data_parallel_shard_degree"),
            expected=f"{need} GPUs" if shard > 0 else f"a multiple of {need} GPUs",
            got=gpus,
            nearest=need,
        )
    dp = gpus // (tp * pp * cp)
    parallel: dict[str, Any] = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "sequence_parallel": tp > 1}
    parallel |= _sharding(settings, dp, copies, pp, cp)
    if cp > 1:
        is_gathered = settings.get("parallelism.context_parallel_rotate_method") == "allgather"
        parallel["cp_kind"] = "all_gather" if is_gathered else "ring"
    parallel |= _experts(settings, model)
    training: dict[str, Any] = {
        "seq_len": settings.required("training.seq_len"),
        "software": "torch",
        **_precision(settings),
        **_recompute(settings),
        **_kernels(settings, tp),
        "gradient_clipping": float(settings.get("training.max_norm")) > 0,
    }
    if kernel is not None:
        training["attention_kernel"] = kernel
    if "ep" in parallel and settings.get("parallelism.expert_parallel_comm_backend") == "deepep":
        training["moe_dispatcher"] = "deepep"
    if _has_graphs(settings, pp, parallel.get("ep", 1)):
        training["launch"] = False
    training |= _microbatches(settings, pp, local, batch, dp)
    stages = _stages(settings, pp, layers)
    parallel |= stages
    training["schedule"] = SCHEDULES[settings.get("parallelism.pipeline_parallel_schedule")] if pp > 1 else "1f1b"
    settings.get("optimizer.name"), settings.get("optimizer.implementation")
    tables: Tables = {"model": model, "cluster": own, "parallel": parallel, "training": training, "overlap": {}}
    if tp > 1 and settings.get("parallelism.enable_async_tensor_parallel") == "true":
        tables["overlap"]["tensor_parallel"] = True
    return tables


def _model(settings: Settings) -> tuple[dict[str, Any], str | None, int]:
    """``[model]``, its attention kernel, and the number of layers."""
    name, flavor = settings.get("model.name"), settings.get("model.flavor")
    plain, kernel = flavor.removesuffix(_APART), None
    for end, its in _KERNELS.items():
        if flavor.endswith(end):
            plain, kernel = flavor.removesuffix(end), its
    known = {**MODELS.get(name, {}), **SIZES.get(name, {}), **CONFIGS.get(name, {})}
    if plain not in known and name in UNMODELLED:
        message = f"{name} {flavor} of torchtitan is not modelled: {UNMODELLED[name]}"
        expected = f"a model among {', '.join(MODELS)}"
        raise settings.error("model.name", message, expected=expected, got=f"{name} {flavor}")
    if name not in MODELS:
        raise unknown_name("model of torchtitan", name, MODELS, where=settings.where("model.name"))
    if plain not in known:
        raise unknown_name(f"flavor of {name}", flavor, known, where=settings.where("model.flavor"))
    if flavor.endswith(_APART):
        why = "queries, keys and values come from three products"
        settings.approximate("model.flavor", why, Effect(slower=0.02, faster=0.02))
    if (backend := settings.get("model.attn_backend")) is not None:
        kernel = _BACKENDS[backend]
    model = _table(name, plain)
    return _with_mtp(settings, model), kernel, _layers_of(model)


def _table(name: str, flavor: str) -> dict[str, Any]:
    if flavor in MODELS[name]:
        return {"name": MODELS[name][flavor]}
    if flavor in CONFIGS.get(name, {}):
        return {"hf_config": str(files("semu.imports.torchtitan").joinpath(CONFIGS[name][flavor]))}
    return {"transformer": dict(SIZES[name][flavor])}


def _with_mtp(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    """The model with as many further tokens predicted as the file says."""
    count = settings.size("model.num_mtp_layers", least=0) or 0
    if "transformer" in model and count:
        return {"transformer": {**model["transformer"], "mtp_layers": count}}
    if count == 1 and f"{model.get('name')}{_FURTHER}" in semu_models.MODELS:
        return {"name": f"{model['name']}{_FURTHER}"}
    if count:
        settings.refuse("model.num_mtp_layers", f"{count} further tokens are predicted")
    return model


def _layers_of(model: dict[str, Any]) -> int:
    """Transformer layers of a model."""
    if "transformer" in model:
        return int(model["transformer"]["layers"])
    from semu.nn import TransformerLayer

    return sum(isinstance(item, TransformerLayer) for part in model_of(model).modules for item in part.body.modules())


def _batch(settings: Settings) -> tuple[int, int | None]:
    """Samples of a rank, and of all; None: as many as the ranks have."""
    local, batch = settings.required("training.local_batch_size"), settings.get("training.global_batch_size")
    if batch < 1:
        return local, None
    return local, batch


def _microbatches(settings: Settings, pp: int, local: int, batch: int | None, dp: int) -> dict[str, int]:
    """Under a pipeline a rank's samples are cut into microbatches; else they are one, and several add up."""
    total = local * dp if batch is None else batch
    if total % (local * dp):
        raise settings.error(
            "training.global_batch_size",
            f"a global batch of {total} does not divide by local batch x replicas = {local} x {dp}",
            expected=f"a multiple of {local * dp}",
            got=total,
            nearest=max(total // (local * dp), 1) * local * dp,
        )
    if pp == 1:
        return {"micro_batch": local, "global_batch": total}
    size = settings.required("parallelism.pipeline_parallel_microbatch_size")
    if local % size:
        name, message = "parallelism.pipeline_parallel_microbatch_size", f"{local} samples in microbatches of {size}"
        raise settings.error(name, message, expected=f"a divisor of {local}", got=size, nearest=1)
    if total > local * dp:
        why = f"{total // (local * dp)} pipelines one after the other, modelled as one"
        settings.approximate("training.global_batch_size", why, Effect(slower=0.1))
    return {"micro_batch": size, "global_batch": total}


def _sharding(settings: Settings, dp: int, copies: int, pp: int, cp: int) -> dict[str, Any]:
    reshard = settings.get("parallelism.fsdp_reshard_after_forward")
    if dp * cp == copies:
        return {"zero": 0}
    table: dict[str, Any] = {
        "zero": 3,
        "reshard_after_forward": reshard == "always" or (reshard == "default" and pp == 1),
    }
    if copies > 1:
        table["zero_group"] = dp // copies
    return table


def _experts(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    ep = settings.size("parallelism.expert_parallel_degree") or 1
    etp = settings.required("parallelism.expert_tensor_parallel_degree")
    return {"ep": ep, "etp": etp} if ep > 1 else {}


def _precision(settings: Settings) -> dict[str, Any]:
    converters = settings.get("model.converters") or ()
    parameters = settings.get("training.mixed_precision_param")
    settings.get("training.mixed_precision_reduce")
    table: dict[str, Any] = {"precision": "bf16" if parameters == "bfloat16" else "fp32", "grad_dtype": "fp32"}
    for name in converters:
        if name in ("float8", "quantize.linear.float8"):
            table |= {"precision": "fp8", "fp8_recipe": "tensorwise"}
            settings.get("quantize.linear.float8.recipe_name")
        elif name in ("mx", "quantize.linear.mx"):
            table |= {"precision": "fp8", "fp8_recipe": "mxfp8"}
        elif name.endswith(("grouped_mm.mx", "grouped_mm.float8")):
            if table["precision"] != "fp8":
                settings.approximate("model.converters", f"{name}: products of experts in fp8", Effect(faster=0.3))
        elif name not in ("[]", "none"):
            settings.refuse("model.converters", f"{name} is not modelled")
    if settings.get("training.dtype") == "bfloat16" and table["precision"] == "bf16":
        table |= {"master_dtype": "bf16", "optimizer_state_dtype": "bf16", "grad_dtype": "bf16"}
    return table


def _recompute(settings: Settings) -> dict[str, Any]:
    mode = settings.get("activation_checkpoint.mode")
    if mode != "selective":
        return {"recompute": mode}
    option = settings.get("activation_checkpoint.selective_ac_option")
    if option == "op":
        return {"recompute": "full", "recompute_policy": "every_second_matmul"}
    if not option.isdigit() or int(option) < 1:
        name = "activation_checkpoint.selective_ac_option"
        raise settings.error(name, "neither op nor a number of layers", expected='"op" or a number >= 1', got=option)
    return {"recompute": "full", **({"recompute_every": int(option)} if int(option) > 1 else {})}


def _has_graphs(settings: Settings, pp: int, ep: int) -> bool:
    """Whether CUDA graphs hold forward and backward, which then do not wait for the host."""
    told = settings.told.get("parallelism.expert_parallel_comm_backend")
    is_async = told is not None and told.values[:1] and told.values[0] in _ASYNC
    return settings.get("training.disable_cuda_graphs") == "false" and pp == 1 and (ep == 1 or bool(is_async))


def _kernels(settings: Settings, tp: int) -> dict[str, Any]:
    is_compiled = settings.get("compile.enable") == "true" and "model" in settings.get("compile.components")
    table: dict[str, Any] = {} if is_compiled else {"eager_modules": True}
    if tp == 1 or not is_compiled:
        table["cross_entropy"] = "unfused"
    return table


def _stages(settings: Settings, pp: int, layers: int) -> dict[str, Any]:
    """Virtual stages, and the layers of each: shared out evenly, the embedding and the head counting as layers
    (``generate_llm_fqn_per_model_part``)."""
    if pp == 1:
        return {}
    before = settings.size("parallelism.pipeline_parallel_first_stage_less_layers", least=0) or 0
    behind = settings.size("parallelism.pipeline_parallel_last_stage_less_layers", least=0) or 0
    is_looped = settings.get("parallelism.pipeline_parallel_schedule") in _LOOPED
    points = settings.get("parallelism.pipeline_parallel_split_points")
    each = settings.size("parallelism.pipeline_parallel_layers_per_stage")
    if points and points != ("[]",):
        ends = [*(_number(settings, point) for point in points), layers]
        counts = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    else:
        total = layers + before + behind
        stages = pp * (2 if is_looped else 1) if each is None else -(-total // each)
        if stages > min(total, layers + 2):  # each but the first and the last has a layer
            name = "parallelism.pipeline_parallel_degree"
            message = f"{stages} stages of {layers} layers, the embedding and the head"
            raise settings.error(name, message, expected=f"at most {min(total, layers + 2)} stages", got=pp)
        share, extra = divmod(total, stages)
        counts = [share + (number < extra) for number in range(stages)]
        counts[0] -= before
        counts[-1] -= behind
    if len(counts) % pp or min(counts) < 0:
        name = "parallelism.pipeline_parallel_layers_per_stage"
        message = f"{layers} layers in {len(counts)} stages on {pp} ranks"
        raise settings.error(name, message, expected=f"a multiple of {pp} stages", got=len(counts))
    vpp = len(counts) // pp
    return {"vpp": vpp, "layout": {"layers": counts}}


def _number(settings: Settings, point: str) -> int:
    """The layer at which a stage begins, ``layers.8``."""
    _, _, number = point.rpartition(".")
    if not number.isdigit():
        name = "parallelism.pipeline_parallel_split_points"
        raise settings.error(name, "not a layer", expected="layers.NUMBER", got=point)
    return int(number)

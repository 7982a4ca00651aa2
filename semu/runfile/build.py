"""Resolved tables become a model, a batch and a ``TrainingJob``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import semu_models
from semu import memo
from semu.checks import check_integer
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import LoRA, Model, add_lora
from semu.nn.vocabulary import pad_vocabulary
from semu.parallel.config import Overlap, Parallel
from semu.runfile.multimodal import is_own, own_model
from semu.runfile.networks import network_model, network_of
from semu.runfile.transformer import TransformerConfig
from semu.workload import AbstractBatch, BatchKind, make_batch
from semu.workload.options import kind_for
from semu_models import hf

if TYPE_CHECKING:
    from semu_models.hf import HfModel

    ModelWithReading = tuple[Model, HfModel | None, list[str]]

Tables = Mapping[str, Mapping[str, Any]]
VOCAB_MULTIPLE = 128
"""Megatron-LM's ``--make-vocab-size-divisible-by``."""


def read_hf(config: Tables) -> HfModel:
    """The model of ``model.hf_config``.

    Token tables have the rows that the file says, as in transformers; ``vocab_multiple`` rounds them up to a multiple
    of itself x tp, as Megatron-LM's ``--make-vocab-size-divisible-by`` does.

    Raises:
        ConfigError: as ``semu_models.hf.load_hf``; a multiple below 1.
    """
    table = config["model"]
    return hf.load_hf(table["hf_config"], ignore=table.get("hf_ignore", ()), vocab_step=_vocab_step(config))


def _vocab_step(config: Tables) -> int:
    """Of what number token tables have a multiple of rows; 1: they stay as they are."""
    multiple = config["model"].get("vocab_multiple")
    if multiple is None:
        return 1
    return check_integer(multiple, "model.vocab_multiple", "a size") * int(config.get("parallel", {}).get("tp", 1))


_SHARED: memo.Table[ModelWithReading] = memo.Table("models that jobs share, by [model] and tensor-parallel size", 16)


def build_with_reading(config: Tables, *, is_shared: bool = False, named: Model | None = None) -> ModelWithReading:
    """The model of ``[model]``, its frozen parts frozen; beside it, what was read of its file, where it has one, and
    what to say about a model of parts.

    Args:
        config: resolved tables. is_shared: the model of equal tables is one object, which nobody may change; a model
            of a file is read anew all the same. named: a new model of ``model.name``; None: it is made.
    Raises:
        ConfigError: an unknown model or module path, sizes of a transformer that do not fit together.
    """
    if not is_shared or "hf_config" in config["model"]:
        return _build(config, named)
    return _SHARED.get(repr((config["model"], config["parallel"]["tp"])), lambda: _build(config, named))


def _build(config: Tables, named: Model | None) -> ModelWithReading:
    """``build_with_reading`` without what is shared.

    ``frozen`` names modality modules, roles and module paths; everything below them is frozen, an encoder's adapter
    too: ``["vit.embedding", "vit.layers"]`` instead of ``["encoder"]`` keeps the adapter of a vision-language model.
    With ``[model.lora]`` everything but the adapters of low rank, and what it names as trainable, is frozen before.
    """
    table = config["model"]
    read: HfModel | None = None
    notes: list[str] = []
    if is_own(table):
        model, notes = own_model(table, config["parallel"]["tp"], _vocab_step(config))
    elif network_of(table) is not None:
        model = network_model(table)
    elif "name" in table:
        model = named if named is not None else semu_models.build(table["name"], where="model.name")
        pad_vocabulary(model, _vocab_step(config))
    elif "hf_config" in table:
        read = read_hf(config)
        model = read.model
    else:
        model = TransformerConfig.from_table(table["transformer"]).model(config["parallel"]["tp"])
    if "lora" in table:
        add_lora(model, read_lora(table["lora"]))
    return model.freeze(table["frozen"]), read, notes


def read_lora(table: Mapping[str, Any]) -> LoRA:
    """``[model.lora]``; keys as ``LoRA``'s attributes.

    Raises:
        ConfigError: no rank, and as the class.
    """
    if "rank" not in table:
        raise ConfigError("missing key", where="model.lora.rank", expected="an integer >= 1")
    options: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    return LoRA(**options)


def build_batch(config: Tables, model: Model) -> AbstractBatch:
    """The batch of ``[batch]``; what a file without ``contents`` holds is what the model reads.

    Raises:
        ConfigError: an unknown key, a value out of range, a bad file.
    """
    return make_batch(config["batch"], streams=streams_read(model), mergings=model.mergings)


def build_job(config: Tables, model: Model, batch: AbstractBatch) -> TrainingJob:
    """The job that resolved tables describe.

    Args:
        config: as ``RunConfig.config``. model, batch: made of it.
    Raises:
        ConfigError: values out of range or that do not fit together; ``where`` is the dotted key, or a file's line.
    """
    cluster = Cluster(**config["cluster"])
    parallel = Parallel(**config["parallel"])
    training = Training(**config["training"], overlap=Overlap(**config["overlap"]))
    try:
        return TrainingJob(model, cluster, parallel, training, batch)
    except ConfigError as error:
        if error.where == "parallel" and error.nearest is None:
            error.nearest = nearest_size(model, cluster, parallel)
        raise


def kind_read(model: Model) -> BatchKind:
    """The kind of generated batch that a model reads."""
    return BatchKind.PAIRS if model.reads_replicas else kind_for(streams_read(model))


def streams_read(model: Model) -> tuple[str, ...]:
    """Streams of the batch that some module of the model reads."""
    return tuple(dict.fromkeys(spec.stream for module in model.modules for spec in module.inputs))


def nearest_size(model: Model, cluster: Cluster, parallel: Parallel) -> str | None:
    """One change after which the ranks are as many as the GPUs; None where no single change does it.

    In this order: another dp, another pp (with a block for every rank), another cluster.
    """
    need, have = parallel.num_gpus, cluster.num_gpus
    if need == have:
        return None
    blocks = sum(len(module.blocks()) for module in model.modules)
    for name, size, limit in (("dp", parallel.dp, have), ("pp", parallel.pp, blocks)):
        others = need // size
        if have % others == 0 and have // others <= limit:
            return f"{name} = {have // others}"
    per_node = cluster.gpus_per_node
    if need % per_node == 0:
        return f"nodes = {need // per_node}"
    return f"nodes = 1, gpus_per_node = {need}" if need < per_node else None

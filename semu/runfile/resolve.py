"""``resolve_run``: a run file or setup, the command line's overrides and the defaults become one set of tables.

Later sources win: the file or setup; ``--cluster``, ``--parallel``, ``--profile``, ``--seed``; ``--set``.
Relative paths in a file start from the file's folder, those on the command line from the current one.

``training.global_batch``, where neither the file nor ``--set`` gives it, is microbatches x dp x micro_batch: a setup
keeps its items per replica when its parallelism or its micro_batch is changed (rounded down to whole microbatches); a
file without a global batch gets ``semu_models.setups.default_microbatches``. With vpp > 1 either is rounded down to a
multiple of pp microbatches. ``training.seq_len`` becomes the batch's context length, and the ``contents`` of a
metadata file what the model reads, where nobody gives them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import semu_models
from semu.checks import is_integer
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.job.modules import named_modules
from semu.nn import Model
from semu.nn.vocabulary import vocabulary_rows
from semu.parallel.axes import FOLLOWING, MESH
from semu.parallel.config import Overlap, Parallel
from semu.parallel.own_gpus import on_own_gpus
from semu.runfile.build import build_batch, build_with_reading, kind_read, streams_read
from semu.runfile.complete import complete_run, keep_heads_whole, pad_for
from semu.runfile.config import RunConfig, ordered
from semu.runfile.limits import refuse_unmodelled
from semu.runfile.multimodal import complete_parts, is_own, own_model
from semu.runfile.networks import NETWORKS
from semu.runfile.overrides import Changes, Overrides, SaidCluster, SaidParallel
from semu.runfile.places import Places
from semu.runfile.schedules import named_rules, set_cut
from semu.runfile.schema import TABLES, check_schema
from semu.runfile.sources import options_table, read_source
from semu.runfile.transformer import TransformerConfig
from semu.schedule.placement import Placement
from semu.workload import AbstractBatch, BatchKind, FileBatch
from semu_models import Setup
from semu_models.setups import default_microbatches

if TYPE_CHECKING:
    from semu_models.hf import HfModel


def load_run(
    name_or_path: str | os.PathLike[str],
    overrides: Changes = (),
    *,
    cluster: SaidCluster | None = None,
    parallel: SaidParallel | None = None,
    profile: str | None = None,
    seed: int | None = None,
) -> TrainingJob:
    """The training job of a run file or of a shipped setup.

    Args:
        name_or_path: a name of ``semu_models.SETUPS`` or of a model, in any spelling; a TOML file, a config.json of
            HuggingFace transformers or a file of another program (``semu.imports``).
        overrides, cluster, parallel, profile, seed: see ``Overrides``.
    Raises:
        ConfigError: an unknown name or key, a wrong type, sizes that do not fit together, or something that this
            version does not model; ``where`` is ``FILE:LINE key``, ``setup NAME key`` or the flag.
    """
    return resolve_run(name_or_path, Overrides(overrides, cluster, parallel, profile, seed)).job()


def resolve_run(name_or_path: str | os.PathLike[str], overrides: Overrides | None = None) -> RunConfig:
    """Read a run, apply overrides, fill in defaults; arguments and errors as ``load_run``."""
    changes = overrides if overrides is not None else Overrides()
    config, places, setup, is_open, follows = read_source(os.fspath(name_or_path), changes.reading)
    before, written = deepcopy(config), dict(places.flags)
    changes.apply(config, places)
    said = {key for key, flag in places.flags.items() if written.get(key) != flag}
    followed = [] if is_open else _let_sizes_follow(config, places, before, said, follows)
    decided = complete_run(config, places, resolve_tables) if is_open else ()
    run = resolve_tables(config, places, setup)
    run = replace(run, notes=(*places.notes, *followed, *decided, *run.notes))
    if changes.seed is not None and run.config["batch"]["kind"] == "text":
        return replace(run, notes=(*run.notes, "--seed has no effect: a batch of text sequences draws nothing"))
    return run


def _let_sizes_follow(
    config: dict[str, Any],
    places: Places,
    before: Mapping[str, Mapping[str, Any]],
    said: Collection[str],
    follows: Collection[str],
) -> list[str]:
    """Leave replicas, and the batch of all of them, to the sizes that the command line says, where a setup or a file of
    another program has them from its own.

    Args:
        config: tables with the command line's changes. before: without them. said: keys that the command line sets.
        follows: keys that may follow.
    Returns:
        What was decided, a sentence each.
    Raises:
        ConfigError: GPUs that make no whole number of replicas.
    """
    notes = _let_replicas_follow(config, places, said) if "parallel.dp" in follows else []
    if "training.global_batch" not in follows or "training.global_batch" in said:
        return notes
    batch, old, now = before["training"].get("global_batch"), _samples(before), _samples(config)
    if batch is None or old is None or now in (None, old) or batch % math.prod(old):
        return notes
    count = batch // math.prod(old)
    config["training"]["global_batch"] = count * math.prod(now)
    product = f"{count} microbatch{'es' * (count > 1)} per replica x dp {now[0]} x micro_batch {now[1]}"
    return [*notes, f"training.global_batch: {batch} -> {count * math.prod(now)} = {product}"]


def _samples(config: Mapping[str, Mapping[str, Any]]) -> tuple[int, int] | None:
    """Replicas, and sequences of a microbatch; None: something is no size."""
    cluster, parallel = config["cluster"], config["parallel"]
    rest = [parallel.get(axis, 1) for axis in MESH if axis != "dp"]
    sizes = [cluster.get("nodes"), cluster.get("gpus_per_node"), *rest, config["training"].get("micro_batch", 1)]
    if not all(is_integer(size) and size > 0 for size in sizes):
        return None
    dp = parallel.get("dp", sizes[0] * sizes[1] // math.prod(rest))
    return (dp, sizes[-1]) if is_integer(dp) and dp > 0 else None


def _let_replicas_follow(config: dict[str, Any], places: Places, said: Collection[str]) -> list[str]:
    """Leave the number of replicas to the GPUs where another cluster or other sizes are said and dp is not; arguments,
    result and errors as ``_let_sizes_follow``."""
    asked = {"cluster.nodes", "cluster.gpus_per_node", *(f"parallel.{axis}" for axis in MESH)} & {*said}
    cluster, parallel = config["cluster"], config["parallel"]
    rest = [parallel.get(axis, 1) for axis in MESH if axis != "dp"]
    numbers = [cluster["nodes"], cluster["gpus_per_node"], *rest]
    if not asked or "parallel.dp" in asked or not all(is_integer(number) and number > 0 for number in numbers):
        return []  # what is no size is refused with the others
    before, gpus, replica = parallel.pop("dp", None), cluster["nodes"] * cluster["gpus_per_node"], math.prod(rest)
    if gpus % replica:
        width, pp = replica // parallel.get("pp", 1), parallel.get("pp", 1)
        depths = [depth for depth in range(1, 2 * pp) if gpus % (width * depth) == 0]
        nearest = f"{max(gpus // replica, 1) * replica} GPUs"
        if depths:
            nearest = f"pp = {min(depths, key=lambda depth: abs(depth - pp))}"
        sizes = " x ".join(f"{axis} {parallel.get(axis, 1)}" for axis in MESH if parallel.get(axis, 1) > 1)
        raise ConfigError(
            f"a replica takes {replica} GPUs ({sizes}), and {gpus} are no whole number of replicas",
            where=places.flags[min(asked)],
            expected=f"a multiple of {replica} GPUs, or other sizes (--tp, --pp, --parallel)",
            got=f"{gpus} GPUs",
            nearest=nearest,
        )
    after = gpus // replica
    return (
        [] if before in (None, after) else [f"parallel.dp: {before} -> {after}, as many replicas as there are GPUs for"]
    )


def resolve_tables(
    config: Mapping[str, Any], places: Places, setup: Setup | None = None, *, shares_model: bool = False
) -> RunConfig:
    """Check tables and fill in defaults.

    Args:
        config: tables of a run file. places: where they came from. setup: the setup they were, if they were one.
        shares_model: as ``build_with_reading``'s ``is_shared``.
    Raises:
        ConfigError: as ``load_run``.
    """
    config, named = named_rules(config, places)
    check_schema(config, places)
    refuse_unmodelled(config, places)
    _require(config, places)
    resolved = _with_defaults(config, places)
    written = config.get("parallel", {})
    notes: list[str | None] = [
        *named,
        *set_cut(resolved, written, places, lambda v: _count(resolved, places, setup, v)),
    ]
    divides = _divides_ranks(resolved)
    if not divides:
        notes.append(_set_global_batch(resolved, places, setup))
    with places.located():
        padded, named_model = _pad_named(resolved)
        notes += padded
        model, read, told = build_with_reading(resolved, is_shared=shares_model, named=named_model)
        notes += told
        if divides:
            _place_modules(resolved, model, is_dp_written="dp" in written)
            notes.append(_set_global_batch(resolved, places, setup))
        notes += keep_heads_whole(resolved, model)
        notes.append(_set_kind(resolved, model))
        batch = build_batch(resolved, model)
    _set_from_batch(resolved, batch)
    notes += _doubts(model, batch)
    if read is not None:
        notes += [read.reading.summary(), *read.reading.notes, *_doubts_of_file(resolved, read)]
    reading = read.reading if read is not None else None
    said = tuple(note for note in notes if note is not None)
    keys = frozenset(f"{table}.{key}" for table, values in config.items() for key in values)
    return RunConfig(resolved, places, model, batch, said, reading, keys)


def _pad_named(config: dict[str, dict[str, Any]]) -> tuple[list[str], Model | None]:
    """Round the token table of a shipped model, or of one of parts, up where tp does not divide it.

    Returns:
        What to say; the shipped model, where it was made for that.
    """
    table = config["model"]
    if config["parallel"]["tp"] == 1 or "vocab_multiple" in table or not ("name" in table or is_own(table)):
        return [], None
    if "name" not in table:
        return pad_for(config, vocabulary_rows(own_model(table)[0])), None
    model = semu_models.build(table["name"], where="model.name")
    return pad_for(config, vocabulary_rows(model)), model


def _require(config: Mapping[str, Any], places: Places) -> None:
    """What has no default: one model, one device."""
    model = config.get("model", {})
    ways = [f"model.{key}" for key in ("name", "hf_config", "transformer", *NETWORKS) if key in model]
    ways += ["its parts (encoder, projector, llm)"] if is_own(model) else []
    if len(ways) != 1:
        raise ConfigError(
            "the model is given twice" if ways else "no model",
            where=places.where("model"),
            expected="exactly one of model.name, model.hf_config, [model.transformer], or model.encoder with model.llm",
            got=" and ".join(ways) or "none of them",
        )
    if "hf_ignore" in model and "hf_config" not in model and not is_own(model):
        raise ConfigError(
            "hf_ignore without hf_config",
            where=places.where("model.hf_ignore"),
            expected="hf_ignore beside model.hf_config",
        )
    if "vocab_multiple" in model and "transformer" in model:
        raise ConfigError(
            "vocab_multiple beside [model.transformer]",
            where=places.where("model.vocab_multiple"),
            expected="vocab_multiple in [model.transformer]",
        )
    if "device" not in config.get("cluster", {}):
        raise ConfigError(
            "no device", where=places.where("cluster.device"), expected="a device name, see: semu list devices"
        )


_ASKED = ("cost", "resilience", "assignment")
"""Tables about more than an iteration, which are there only where they are given."""


def _with_defaults(config: Mapping[str, Any], places: Places) -> dict[str, dict[str, Any]]:
    """All tables, complete but for ``training.global_batch``."""
    defaults: dict[str, dict[str, Any]] = {
        "model": {"frozen": []},
        "cluster": {"nodes": 1, "gpus_per_node": 8},
        "parallel": options_table(Parallel(), "parallel"),
        "training": options_table(Training(), "training"),
        "overlap": options_table(Overlap(), "overlap"),
        "batch": {},
        **{name: {} for name in _ASKED},
    }
    del defaults["training"]["global_batch"]
    defaults["parallel"]["dp"] = _replicas(defaults, config)
    names = [name for name in TABLES if name not in _ASKED or name in config]
    resolved = {name: ordered(defaults[name] | config.get(name, {}), name) for name in names}
    if is_own(resolved["model"]):
        with places.located():
            resolved["model"] = complete_parts(resolved["model"])
    if "transformer" in resolved["model"]:
        with places.located():
            resolved["model"]["transformer"] = TransformerConfig.from_table(resolved["model"]["transformer"]).to_table()
    return resolved


def _replicas(defaults: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> int:
    """dp where it is not given: as many replicas as the GPUs hold; 1 where they do not come out even."""
    cluster, parallel = (defaults[name] | config.get(name, {}) for name in ("cluster", "parallel"))
    gpus = cluster["nodes"] * cluster["gpus_per_node"]
    rest = math.prod(parallel[name] for name in MESH if name != "dp")
    return int(gpus // rest) if rest > 0 and gpus > 0 and gpus % rest == 0 else 1


def _divides_ranks(config: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether modules say which pipeline ranks or GPUs are theirs, so that pp and dp follow from the model."""
    modules = config["parallel"].get("modules") or {}
    return any(isinstance(own, Mapping) and own.keys() & {"gpus", "pp"} for own in modules.values())


def _place_modules(config: dict[str, dict[str, Any]], model: Model, *, is_dp_written: bool) -> None:
    """Decide pp, and dp where it is not given, by the modules that have ranks or GPUs of their own."""
    parallel = config["parallel"]
    told = Parallel(**(parallel if is_dp_written else parallel | {"dp": FOLLOWING}))
    names = [module.name for module in model.modules]
    gpus = Cluster(**config["cluster"]).num_gpus
    found = on_own_gpus(named_modules(model, told), names, model.encoders, gpus)
    parallel |= {"dp": int(found.dp), "pp": found.pp}


def _set_global_batch(config: dict[str, dict[str, Any]], places: Places, setup: Setup | None) -> str | None:
    """Decide the global batch where it is not given; returns what to tell the user."""
    training, parallel = config["training"], config["parallel"]
    if training["micro_batch"] < 1 or _is_batch_given(config, places, setup):
        return None  # sizes below one are refused with the others
    before, count = training.get("global_batch"), _count(config, places, setup, parallel["vpp"])
    training["global_batch"] = count * parallel["dp"] * training["micro_batch"]
    config["training"] = ordered(training, "training")
    if before == training["global_batch"]:
        return None
    change = "not given, taken as" if before is None else f"{before} ->"
    product = f"{count} microbatches per replica x dp {parallel['dp']} x micro_batch {training['micro_batch']}"
    return f"training.global_batch: {change} {training['global_batch']} = {product}"


def _is_batch_given(config: Mapping[str, Mapping[str, Any]], places: Places, setup: Setup | None) -> bool:
    is_written = config["training"].get("global_batch") is not None
    return is_written and (setup is None or "training.global_batch" in places.flags)


def _count(config: Mapping[str, Mapping[str, Any]], places: Places, setup: Setup | None, vpp: int) -> int:
    """Microbatches of a replica with so many virtual stages per rank."""
    training, parallel = config["training"], config["parallel"]
    micro_batch = max(training["micro_batch"], 1)
    if _is_batch_given(config, places, setup):
        return int(training["global_batch"] // max(parallel["dp"] * micro_batch, 1))
    if setup is None:
        count = default_microbatches(parallel["pp"])
    else:
        count = max(setup.num_microbatches * setup.training.micro_batch // micro_batch, 1)
    if parallel["placement"] == Placement.BIDIRECTIONAL.value:
        return max(count - count % 2, 2)  # half of them from either end
    return max(count // parallel["pp"], 1) * parallel["pp"] if vpp > 1 else count


def _set_kind(config: dict[str, dict[str, Any]], model: Model) -> str | None:
    """Decide the kind of the batch where it is not given; returns what to tell the user."""
    if "kind" in config["batch"]:
        return None
    kind = kind_read(model)
    config["batch"] = {"kind": kind.value, **config["batch"]}
    is_usual = kind is BatchKind.TEXT
    return None if is_usual else f"batch.kind: not given, taken as {kind.value!r}, which {model.name} reads"


def _set_from_batch(config: dict[str, dict[str, Any]], batch: AbstractBatch) -> None:
    """Write what the batch decided: the context length, the kind of samples that a file holds."""
    seq_len = batch.context_length(config["training"].get("seq_len"))
    if seq_len is not None:
        config["training"] = ordered({**config["training"], "seq_len": seq_len}, "training")
    if isinstance(batch, FileBatch):
        config["batch"]["contents"] = batch.metadata.contents.value


def _doubts(model: Model, batch: AbstractBatch) -> Iterator[str]:
    """What is legal but hardly meant."""
    read = streams_read(model)
    for stream in batch.input_streams:
        if stream not in read:
            yield f"batch.kind: no module of {model.name} reads the stream {stream!r}, so that it costs nothing"
    if not model.is_trained:
        yield "model.frozen: every parameter is frozen, so that nothing is trained: there is no backward pass"


def _doubts_of_file(config: Mapping[str, Mapping[str, Any]], read: HfModel) -> Iterator[str]:
    """What the file of the model says against the run."""
    seq_len, tp = config["training"].get("seq_len"), config["parallel"]["tp"]
    if seq_len is not None and read.context is not None and seq_len > read.context:
        yield f"training.seq_len: {seq_len} is more than the {read.context} tokens that {read.reading.source} names"
    if read.vocab is not None and read.vocab % tp:
        yield (
            f"parallel.tp: {tp} does not divide the {read.vocab} rows of the token table, which are those of the file; "
            "model.vocab_multiple = 128 pads them as Megatron-LM does"
        )

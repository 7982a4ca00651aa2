"""A model alone as a RUN, by a shipped name or a config.json: what is left open is decided by rules, ``complete_run``.

The batch is of the kind that the model reads (``mixed`` where it hears, ``vlm`` where it only sees, ``t2v`` for video,
else text). Text sequences are as long as those that the model was trained on (``semu_models.contexts``), where that is
not published ``SEQ_LEN`` tokens, or the longest context that a file names where that is shorter. Cluster and
parallelism: ``semu.runfile.choose``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import semu_models
from semu.job.experts import mixtures
from semu.nn import ModalityModule, ModalityRole, Model, SelfAttention, add_lora
from semu.nn.vocabulary import vocabulary_rows
from semu.runfile.build import VOCAB_MULTIPLE, kind_read, read_hf, read_lora
from semu.runfile.choose import choose_layout
from semu.runfile.config import RunConfig
from semu.runfile.places import Places
from semu.runfile.schema import check_schema
from semu.runfile.transformer import TransformerConfig
from semu_models.contexts import CAPTION, CONTEXTS, LATENTS

SEQ_LEN = 4096
"""Length of a text sequence where neither the user nor the model decides it [tokens]."""


class OpenModel(NamedTuple):
    """A model for which a run is to be found.

    Attributes:
        model: as the tables say, no parallelism. vocab: rows of its token table; None: it has none.
        seq_len: tokens of a sequence. why: where that comes from.
    """

    model: Model
    vocab: int | None
    seq_len: int
    why: str


def complete_run(
    config: dict[str, Any], places: Places, resolve: Callable[[Mapping[str, Any], Places], RunConfig]
) -> tuple[str, ...]:
    """Write into the tables what a model alone leaves open; what they hold already stays.

    Args:
        config: tables with a model and what the command line set. places: where they came from.
        resolve: tables -> run, to see what fits.
    Returns:
        What was decided, a sentence each.
    Raises:
        ConfigError: a file that cannot be read. MemoryLimitError: no layout fits.
    """
    check_schema(config, places)
    if not {"hf_config", "name", "transformer"} & config.get("model", {}).keys():
        return ()
    notes = []
    with places.located():
        read = _open_model(config)
        if "lora" in config["model"]:
            add_lora(read.model, read_lora(config["model"]["lora"]))
    batch = config.setdefault("batch", {})
    latents = LATENTS.get(read.model.name)
    if "kind" not in batch and latents is not None:
        batch |= {"kind": "fixed", "text": CAPTION, "video": latents}
        notes.append(f"batch: not given, taken as latents of {latents} pixels and captions of {CAPTION} tokens")
    if "kind" not in batch:
        batch["kind"] = kind_read(read.model).value
        if batch["kind"] != "text":
            notes.append(f"batch.kind: not given, taken as {batch['kind']}, which has what the model reads")
    training = config.setdefault("training", {})
    if "seq_len" not in training and batch["kind"] == "text":
        training["seq_len"] = read.seq_len
        notes.append(f"training.seq_len: not given, taken as {read.seq_len}{read.why}")
    notes += pad_for(config, read.vocab)
    is_any_size = places.flags.get("cluster.device") == "--cluster"
    notes += choose_layout(
        config, lambda tables: resolve(tables, places), read.model, read.vocab, is_any_size=is_any_size
    )
    return tuple(notes)


def _open_model(config: Mapping[str, Any]) -> OpenModel:
    table = config["model"]
    if "hf_config" in table:
        read = read_hf({**config, "parallel": {}})
        is_shorter = read.context is not None and read.context < SEQ_LEN
        why = ", the longest context that the file names" if is_shorter else ""
        return OpenModel(read.model, read.vocab, min(SEQ_LEN, read.context or SEQ_LEN), why)
    if "transformer" in table:
        transformer = TransformerConfig.from_table(table["transformer"])
        context = min(SEQ_LEN, transformer.positions or SEQ_LEN)
        return OpenModel(transformer.model(1), transformer.vocab, context, "")
    entry = semu_models.find_model(table["name"], where="model.name")
    model = entry.builder()
    length = CONTEXTS.get(entry.name)
    why = f", on which {entry.name} was trained" if length is not None else ""
    return OpenModel(model, vocabulary_rows(model), length or SEQ_LEN, why)


def keep_heads_whole(config: dict[str, Any], model: Model) -> list[str]:
    """Give encoders and decoders whose heads the tensor parallelism does not divide a tp of 1; returns what to say.

    Nothing where it does not divide the backbone's either, nor where modules cannot differ (``refuse_modules``).

    Args:
        config: resolved tables. model: of them.
    """
    parallel = config["parallel"]
    tp, given = parallel["tp"], parallel.get("modules", {})
    if tp < 2 or parallel.get("zero", 1) >= 2 or parallel.get("zero_group") or mixtures(model):
        return []
    modules = {module.name: module for module in model.modules if not given.keys() & {module.name, module.role.value}}
    uncut = {
        name: heads for name, module in modules.items() for heads in [_heads(module)] if any(n % tp for n in heads)
    }
    if not uncut or any(modules[name].role is ModalityRole.BACKBONE for name in uncut):
        return []
    parallel["modules"] = {**given, **{name: {"tp": 1} for name in uncut}}
    return [
        f"parallel.modules.{name}.tp: not given, taken as 1, as tp = {tp} does not divide its "
        f"{' and '.join(map(str, heads))} heads"
        for name, heads in uncut.items()
    ]


def _heads(module: ModalityModule) -> list[int]:
    """Heads of a module's attention layers, each number once."""
    layers = (layer for layer in module.body.modules() if isinstance(layer, SelfAttention))
    return sorted({layer.heads for layer in layers})


def pad_for(config: dict[str, Any], vocab: int | None) -> list[str]:
    """Round a token table up where the tensor parallelism does not divide it; returns what to tell the user.

    Args:
        config: tables. vocab: rows of the table; None: there is none.
    """
    tp = config.get("parallel", {}).get("tp", 1)
    if vocab is None or not isinstance(tp, int) or tp < 1 or vocab % tp == 0 or "vocab_multiple" in config["model"]:
        return []
    config["model"]["vocab_multiple"] = VOCAB_MULTIPLE
    return [
        f"model.vocab_multiple: not given, taken as {VOCAB_MULTIPLE} (Megatron-LM's), as tp = {tp} does not divide the "
        f"{vocab} rows of the token table"
    ]

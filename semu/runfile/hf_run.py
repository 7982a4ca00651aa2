"""A config.json as a RUN: what it does not say about the training is decided by stated rules, ``complete_hf_run``.

The batch is of the kind that the model reads (``mixed`` where it hears, ``vlm`` where it only sees, ``t2v`` for video,
else text); text sequences have ``SEQ_LEN`` tokens, or the longest context that the file names where that is shorter.
Cluster and parallelism: ``semu.runfile.choose``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from semu.nn import add_lora
from semu.runfile.build import kind_read, read_hf, read_lora
from semu.runfile.choose import choose_layout
from semu.runfile.config import RunConfig
from semu.runfile.places import Places
from semu.runfile.schema import check_schema

SEQ_LEN = 4096
"""Length of a text sequence where neither the user nor a shorter context decides it [tokens]."""
VOCAB_MULTIPLE = 128
"""Megatron-LM's ``--make-vocab-size-divisible-by``."""


def complete_hf_run(
    config: dict[str, Any], places: Places, resolve: Callable[[Mapping[str, Any], Places], RunConfig]
) -> tuple[str, ...]:
    """Write into the tables what a config.json leaves open; what they hold already stays.

    Args:
        config: tables with ``model.hf_config`` and what the command line set. places: where they came from.
        resolve: tables -> run, to see what fits.
    Returns:
        What was decided, a sentence each.
    Raises:
        ConfigError: a file that cannot be read, no layout that fits.
    """
    check_schema(config, places)
    if "hf_config" not in config.get("model", {}):
        return ()
    notes = []
    with places.located():
        read = read_hf({**config, "parallel": {}})
        if "lora" in config["model"]:
            add_lora(read.model, read_lora(config["model"]["lora"]))
    batch = config.setdefault("batch", {})
    if "kind" not in batch:
        batch["kind"] = kind_read(read.model).value
        if batch["kind"] != "text":
            notes.append(f"batch.kind: not given, taken as {batch['kind']}, which has what the model reads")
    training = config.setdefault("training", {})
    if "seq_len" not in training and batch["kind"] == "text":
        training["seq_len"] = SEQ_LEN if read.context is None else min(SEQ_LEN, read.context)
        why = "" if training["seq_len"] == SEQ_LEN else ", the longest context that the file names"
        notes.append(f"training.seq_len: not given, taken as {training['seq_len']}{why}")
    _pad(config, read.vocab, notes)
    notes += choose_layout(config, lambda tables: resolve(tables, places), read)
    return tuple(notes)


def _pad(config: dict[str, Any], vocab: int | None, notes: list[str]) -> None:
    """Round a token table up where the tensor parallelism that is asked for does not divide it."""
    tp = config.get("parallel", {}).get("tp", 1)
    if vocab is None or not isinstance(tp, int) or tp < 1 or vocab % tp == 0 or "vocab_multiple" in config["model"]:
        return
    config["model"]["vocab_multiple"] = VOCAB_MULTIPLE
    notes.append(
        f"model.vocab_multiple: not given, taken as {VOCAB_MULTIPLE} (Megatron-LM's), as tp = {tp} does not divide the "
        f"{vocab} rows of the token table"
    )

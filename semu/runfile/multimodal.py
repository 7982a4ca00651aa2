"""``[model.encoder]``, ``[model.projector]`` and ``[model.llm]``: a vision-language model of one's own.

Encoder and language model are tables of sizes, names of shipped models, or config.json files, in any mixture.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import semu_models
from semu.checks import check_integer
from semu.errors import ConfigError
from semu.nn import Model
from semu.nn.vocabulary import pad_vocabulary
from semu.runfile.transformer import TransformerConfig
from semu_models import hf

if TYPE_CHECKING:
    from semu_models.multimodal.own import EncoderConfig, ProjectorConfig, Tower

PARTS = ("encoder", "llm")
"""Keys of ``[model]`` that hold a name, a path or a table."""
_NEEDED = ("layers", "hidden", "heads", "patch", "image_size")


def is_own(table: Mapping[str, Any]) -> bool:
    """Whether ``[model]`` has a part of such a model."""
    return any(key in table for key in (*PARTS, "projector"))


def complete_parts(table: Mapping[str, Any]) -> dict[str, Any]:
    """``[model]`` with the tables of its parts complete; what they leave open is filled in.

    Raises:
        ConfigError: a part that is missing, a missing key, sizes that do not fit together.
    """
    for part in PARTS:
        if part not in table:
            example = '"siglip-so400m"' if part == "encoder" else '"mistral-7b"'
            raise ConfigError(
                f"a model of parts without {part}",
                where=f"model.{part}",
                expected=f'[model.{part}] with sizes, or {part} = "NAME" of a shipped model or "config.json"',
                got="nothing",
                nearest=f"{part} = {example}",
            )
    result = dict(table)
    if isinstance(table["encoder"], Mapping):
        result["encoder"] = _changed(_encoder(table["encoder"]))
    if isinstance(table["llm"], Mapping):
        with _at("model.transformer", "model.llm"):
            result["llm"] = TransformerConfig.from_table(table["llm"]).to_table()
    if "projector" in table:
        result["projector"] = _changed(_projector(table))
    return result


def own_model(table: Mapping[str, Any], tp: int = 1, vocab_step: int = 1) -> tuple[Model, list[str]]:
    """The model of complete tables, and what was read and left out, a sentence each.

    Args:
        table: ``[model]`` as ``complete_parts`` gives it. tp: tensor-parallel size, for the padding of the vocabulary.
        vocab_step: the token table gets a multiple of so many rows.
    Raises:
        ConfigError: an unknown name, a file that cannot be read, parts that do not fit together.
    """
    from semu_models.multimodal.own import decoder_of, make_own, tower_of

    notes: list[str] = []
    projector = _projector(table)
    if isinstance(table["encoder"], Mapping):
        tower, encoder = _encoder(table["encoder"]).tower(), "encoder"
    else:
        source = _read(table, "encoder", notes)
        tower, encoder = tower_of(source, "model.encoder"), source.name
        notes += _left_out(source, tower)
    if isinstance(table["llm"], Mapping):
        with _at("model.transformer", "model.llm"):
            language = _transformer(table["llm"]).model(tp)
    else:
        language = _read(table, "llm", notes)
    model = make_own(f"{encoder}+{language.name}", tower, projector, decoder_of(language, "model.llm"))
    pad_vocabulary(model, vocab_step)
    tokens = tower.num_patches // projector.merge**2
    notes.append(f"model.projector: an image of {tower.num_patches} patches becomes {tokens} tokens")
    return model, notes


def _transformer(table: Mapping[str, Any]) -> TransformerConfig:
    config = TransformerConfig.from_table(table)
    if config.mtp_layers:
        raise ConfigError(
            "further predicted tokens behind an encoder are not modelled",
            where="model.llm.mtp_layers",
            expected="0",
            got=config.mtp_layers,
            nearest=0,
        )
    return config


def _encoder(table: Mapping[str, Any]) -> EncoderConfig:
    """What a table leaves open: ``ffn`` is 4 x hidden (a gated network must give it), ``kv_heads`` is heads,
    ``head_dim`` hidden / heads, ``qkv_bias`` as ``bias``."""
    from semu_models.multimodal.own import EncoderConfig

    gated = table.get("gated_mlp", False)
    for name in (*_NEEDED, "ffn") if gated else _NEEDED:
        if name not in table:
            raise ConfigError("missing key", where=f"model.encoder.{name}", expected="an integer >= 1")
    hidden, heads = (check_integer(table[name], f"model.encoder.{name}", "a size") for name in ("hidden", "heads"))
    if "head_dim" not in table and hidden % heads:
        raise ConfigError(
            f"hidden = {hidden} does not divide into heads = {heads}",
            where="model.encoder.heads",
            expected=f"a divisor of {hidden}",
            got=heads,
            nearest=max(n for n in range(1, min(hidden, heads) + 1) if hidden % n == 0),
        )
    follows = {"ffn": 4 * hidden, "kv_heads": heads, "head_dim": hidden // heads, "qkv_bias": table.get("bias", True)}
    with _at("EncoderConfig", "model.encoder"):
        return EncoderConfig(**(follows | dict(table)))


def _projector(table: Mapping[str, Any]) -> ProjectorConfig:
    from semu_models.multimodal.own import ProjectorConfig

    with _at("ProjectorConfig", "model.projector"):
        return ProjectorConfig(**table.get("projector", {}))


def _changed(config: EncoderConfig | ProjectorConfig) -> dict[str, Any]:
    """Every key that has a value."""
    return {name: value for name, value in vars(config).items() if value is not None}


def _read(table: Mapping[str, Any], part: str, notes: list[str]) -> Model:
    """The model of a name or of a file."""
    source = str(table[part])
    is_file = source.endswith(".json") or "/" in source or os.path.exists(source)
    if source in semu_models.MODELS or not is_file:
        return semu_models.build(source, where=f"model.{part}")
    fields = hf.read_document(source).fields
    read = hf.load_hf(source, ignore=[key for key in table.get("hf_ignore", ()) if key.partition(".")[0] in fields])
    notes += [read.reading.summary(), *read.reading.notes]
    return read.model


def _left_out(source: Model, tower: Tower) -> list[str]:
    """What the user is told of an encoder's parts that a tower does not have."""
    kept = {parameter for block in tower.blocks.values() for parameter in block.parameters()}
    encoder = next(m for m in source.modules if not kept.isdisjoint(p for p in m.body.parameters()))
    left = encoder.body.num_parameters() - sum(parameter.numel for parameter in kept)
    what = "model.encoder: {:,} parameters behind the layers of {} are left out (head, pooling, projector)"
    return [what.format(left, source.name)] if left else []


@contextmanager
def _at(written: str, table: str) -> Iterator[None]:
    """A block whose errors name a table instead of the class that found them."""
    try:
        yield
    except ConfigError as error:
        if error.where is not None and error.where.startswith(written):
            error.where = table + error.where.removeprefix(written)
        raise

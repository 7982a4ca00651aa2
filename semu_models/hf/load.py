"""``load_hf``: a config.json of HuggingFace transformers becomes a model and a report of what was understood."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from semu.errors import ConfigError
from semu.nn import Model
from semu.records import dataclass
from semu_models.hf.dialect import Dialect
from semu_models.hf.document import Document, read_document
from semu_models.hf.reader import Reader
from semu_models.hf.reading import Reading
from semu_models.hf.refused import refuse, way_out
from semu_models.hf.registry import find_dialect


@dataclass(frozen=True)
class HfModel:
    """A model that was read.

    Attributes:
        model: as ``semu_models.build`` makes them. reading: the report. model_type, family: of the model.
        config: the family's frozen configuration. context: longest context that the file names [tokens].
        vocab: rows of the token table, None where there is none at the top level.
    """

    model: Model
    reading: Reading
    model_type: str
    family: str
    config: Any
    context: int | None = None
    vocab: int | None = None


def load_hf(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    ignore: Sequence[str] = (),
    vocab_step: int = 1,
    name: str = "config",
) -> HfModel:
    """Read a configuration and build its model.

    Sizes that the file leaves out are transformers' defaults of its ``model_type`` and are listed as such. An unknown
    key is refused unless it is null, false or empty, or is in ``ignore``.

    Args:
        source: path of a config.json, or its object.
        ignore: keys of the file to leave out.
        vocab_step: token tables are padded to a multiple of this many rows; 1: no padding.
        name: what messages call an object.
    Raises:
        ConfigError: no such file, no JSON, no model's configuration, an unknown model type or key, a quantised
            checkpoint, sizes that contradict one another.
    """
    document = read_document(source, name=name)
    written = document.fields["model_type"]
    if not isinstance(written, str):
        raise ConfigError("not a string", where=document.place("model_type"), expected="a string", got=repr(written))
    refuse(document, written)
    with way_out(document):
        dialect = find_dialect(written, document.place("model_type"), top=True)
    return _build(document, dialect, written, Reader(document, find_dialect, ignore, vocab_step))


def _build(document: Document, dialect: Dialect, model_type: str, reader: Reader) -> HfModel:
    part = reader.read(dialect, model_type)
    assert dialect.model is not None
    label = document.label if document.text else model_type
    with reader.located(part.values):
        model = dialect.model(label, part.config)
    reading = Reading(
        document.name,
        "config.json of HuggingFace transformers",
        model_type,
        tuple(reader.understood),
        tuple(reader.defaulted),
        tuple(reader.ignored),
        tuple(reader.notes),
    )
    inner = [part, *part.values.sections.values()]
    context = next((item.values.get("context") for item in inner if item.values.get("context") is not None), None)
    vocab = next((item.values.get("vocab") for item in inner if item.values.get("vocab") is not None), None)
    return HfModel(model, reading, model_type, dialect.family, part.config, context, vocab)

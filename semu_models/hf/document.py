"""``Document``: a config.json file; files that configure something else than a model are recognised and named."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semu.errors import ConfigError
from semu.files import checked_levels, read_bounded
from semu.records import dataclass

_LAST_TOKEN = re.compile(r"[\w.+\\-]*\s*")
"""What a file that ends too early may still have where reading stopped: the beginning of a number or a word."""

_EXPECTED = "a config.json of HuggingFace transformers, with model_type"
_NOT_MODELS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("tokenizer_class", "added_tokens_decoder"), "a tokenizer's configuration (tokenizer_config.json)"),
    (("added_tokens_decoder",), "a tokenizer's configuration (tokenizer_config.json)"),
    (("tokenizer_class", "chat_template"), "a tokenizer's configuration (tokenizer_config.json)"),
    (("tokenizer_class", "model_max_length"), "a tokenizer's configuration (tokenizer_config.json)"),
    (("added_tokens", "pre_tokenizer"), "a tokenizer (tokenizer.json)"),
    (("image_processor_type",), "a processor's configuration (preprocessor_config.json)"),
    (("feature_extractor_type",), "a processor's configuration (preprocessor_config.json)"),
    (("processor_class",), "a processor's configuration (processor_config.json)"),
    (("weight_map",), "an index of weights (model.safetensors.index.json)"),
    (("peft_type",), "an adapter's configuration (adapter_config.json of PEFT), which has no model in it"),
    (("_class_name", "_diffusers_version"), "a configuration of diffusers"),
    (("_from_model_config",), "a generation configuration (generation_config.json)"),
    (("do_sample",), "a generation configuration (generation_config.json)"),
    (("max_new_tokens",), "a generation configuration (generation_config.json)"),
    (("temperature",), "a generation configuration (generation_config.json)"),
    (("tokenizer_class",), "a tokenizer's configuration (tokenizer_config.json)"),
    (("dim", "n_layers", "n_heads"), "the params.json of an original checkpoint, not of transformers"),
)
"""Keys of files that have no ``model_type`` and are often given in place of a config.json, and what those are."""


@dataclass(frozen=True)
class Document:
    """A configuration.

    Attributes:
        name: path as the user wrote it, or what stands for it in messages.
        fields: the JSON object. text: what the file holds; empty where a program gave the fields.
    """

    name: str
    fields: Mapping[str, Any]
    text: str = ""

    @property
    def label(self) -> str:
        """A name for the model: the file's, or that of its folder where the file is called config.json."""
        path = Path(self.name)
        return path.absolute().parent.name if path.name == "config.json" else path.stem

    def place(self, key: str) -> str:
        """Where a dotted key stands: ``config.json:12 text_config.hidden_size``; the line where it is beyond doubt."""
        lines = [n for n, line in enumerate(self.text.split("\n"), 1) if _holds(line, key.rpartition(".")[2])]
        return f"{self.name}:{lines[0]} {key}" if len(lines) == 1 else f"{self.name} {key}"


def read_document(source: str | os.PathLike[str] | Mapping[str, Any], *, name: str = "config") -> Document:
    """Read a configuration.

    Args:
        source: path of a file, or the object itself. name: for messages about an object.
    Raises:
        ConfigError: a file that cannot be read, is no JSON (with the byte where it ends to be), or belongs to a
            tokenizer, a generation, a processor or another library.
    """
    if isinstance(source, Mapping):
        document = Document(name, source)
    else:
        path = os.fspath(source)
        path = os.path.join(path, "config.json") if os.path.isdir(path) else path
        text = _read_text(path)
        document = Document(path, _parse(text, path), text)
    if "model_type" not in document.fields:
        raise _not_a_model(document)
    return document


def _holds(line: str, key: str) -> bool:
    return re.match(rf'\s*[{{,]?\s*"{re.escape(key)}"\s*:', line) is not None


def _read_text(path: str) -> str:
    try:
        data = read_bounded(path, _EXPECTED)
    except ValueError as error:  # a null character
        raise ConfigError("not a path", where=repr(path), expected=_EXPECTED) from error
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error.strerror}", where=path, expected=_EXPECTED) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"not UTF-8 text: byte {error.start}", where=path, expected=_EXPECTED, got=error.reason
        ) from error


def _parse(text: str, path: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        total = len(text.encode())
        cut = error.msg.startswith("Unterminated string") or _LAST_TOKEN.fullmatch(text, error.pos) is not None
        raise ConfigError(
            f"not valid JSON: {error.msg} at byte {offset}" + (" (the file looks truncated)" if cut else ""),
            where=f"{path}:{error.lineno}",
            expected=_EXPECTED,
            got=f"{total} bytes" if cut else (text.split("\n")[error.lineno - 1].strip()[:80] or None),
        ) from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"not valid JSON: {error}", where=path, expected=_EXPECTED) from error
    except RecursionError as error:
        raise ConfigError("not valid JSON: nested too deeply", where=path, expected=_EXPECTED) from error
    except _TwiceError as error:
        raise ConfigError(
            f"a key is there twice: {error.args[0]}", where=path, expected="every key once", got=error.args[0]
        ) from error
    if not isinstance(value, dict):
        raise ConfigError("not a JSON object", where=path, expected=_EXPECTED, got=type(value).__name__)
    return checked_levels(value, path, _EXPECTED)


class _TwiceError(Exception):
    """An object has a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ."""
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return result


def _not_a_model(document: Document) -> ConfigError:
    for keys, what in _NOT_MODELS:
        if all(key in document.fields for key in keys):
            return ConfigError(
                f"this is {what}, not a model's config.json", where=document.name, expected=_EXPECTED, got=keys[0]
            )
    return ConfigError(
        "no model_type", where=document.name, expected=_EXPECTED, got=", ".join(list(document.fields)[:6]) or "nothing"
    )

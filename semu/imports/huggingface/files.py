"""What a file of the Trainer names: its model, and further files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from semu.errors import ConfigError
from semu.imports.arguments import Argument, Given
from semu.imports.documents import Document, read_document
from semu.imports.flags import FlagTable
from semu.imports.hub import config_in, hub_model, is_quantized
from semu.imports.huggingface.zero import FLAGS as ZERO_FLAGS
from semu.imports.huggingface.zero import ZeroSettings
from semu.imports.settings import Settings

ZERO_KIND = "configuration of DeepSpeed"


def model_table(settings: Settings, key: str = "model", near: str | None = None) -> dict[str, Any]:
    """``[model]`` of what a file calls its model, or of a config.json beside it.

    Args:
        key: that names the model. near: the file that was asked for; None: that of the settings.
    Raises:
        ConfigError: no model, or one that is not known.
    """
    source = settings.given.source if near is None else near
    name = settings.get(key)
    if name is None:
        beside = config_in(os.path.join(os.path.dirname(source), "config.json"))
        if beside is None or os.path.abspath(beside) == os.path.abspath(source):
            raise ConfigError(
                "no model",
                where=source,
                expected="--set model.name=NAME or --set model.hf_config=FOLDER/config.json, or"
                " a config.json of the model beside the file",
            )
        settings.notes.append(f"model: {beside}, which lies beside {source}")
        return {"hf_config": beside}
    if is_quantized(str(name)):
        settings.refuse(key, "weights of 8 bits or fewer")
    return hub_model(str(name), source, settings.where(key))


def open_named(settings: Settings, key: str, name: str, what: str) -> Document:
    """A file that another file names, as ``find_named`` finds it.

    Args:
        key: that names it. name: as it stands there. what: it is, for messages.
    Raises:
        ConfigError: it is not there, or cannot be read.
    """
    found = find_named(settings, key, name, what)
    if found is None:
        folder = os.path.dirname(settings.given.source) or "the current folder"
        raise settings.error(key, f"{what} is not there", expected=f"a file in {folder}", got=name[:80])
    return found


def find_named(settings: Settings, key: str, name: str, what: str) -> Document | None:
    """A file that another file names, relative to that, to the current folder, or to a folder around that file; None:
    it is in none of them. Arguments as ``open_named``.

    Raises:
        ConfigError: it cannot be read.
    """
    folder = os.path.dirname(settings.given.source)
    try:
        around = [str(place / name) for place in Path(os.path.abspath(folder)).parents] if os.path.dirname(name) else []
        for place in (os.path.join(folder, name), name, *around):
            if os.path.isfile(place):
                return read_document(Path(place).read_text("utf-8", "replace"), place)
    except (OSError, ValueError) as error:
        raise settings.error(key, f"{what} cannot be read", expected="a file", got=str(error)[:80]) from error
    return None


def zero_settings(settings: Settings, key: str) -> ZeroSettings | None:
    """Settings of the configuration of DeepSpeed that a file names; None: it names none. Of a file that is not there,
    such as those in the repositories of axolotl and LLaMA-Factory, what its name says.

    Raises:
        ConfigError: a file that cannot be read, or is not there and has another name.
    """
    name = settings.get(key)
    if name is None or name in ("{}", ""):
        return None
    what = f"the {ZERO_KIND}"
    document = find_named(settings, key, str(name), what) or _zero_by_name(str(name))
    if document is None:
        document = open_named(settings, key, str(name), what)
    elif document.source == _BY_NAME:
        told = json.dumps(document.data["zero_optimization"])
        settings.notes.append(f"{key}: {name} is not there; by its name taken as zero_optimization = {told}")
    return ZeroSettings(document.given(ZERO_KIND, ZERO_FLAGS))


_BY_NAME = "the name of a configuration of DeepSpeed"
_STAGE = re.compile(r"(?:zero|z|stage)[-_]?([0123])(?![0-9])", re.IGNORECASE)


def _zero_by_name(name: str) -> Document | None:
    """What ``zero3_bf16_cpuoffload_all.json`` or ``ds_z3_offload_config.json`` say by their names: the stage, and
    whether optimizer and parameters are on the host; None: no stage."""
    words = os.path.basename(name).lower()
    match = _STAGE.search(words)
    if match is None:
        return None
    stage = int(match[1])
    table: dict[str, Any] = {"stage": stage}
    if "offload" in words:
        host = {"device": "cpu"}
        is_only_parameters = "offload_params" in words
        table |= {} if is_only_parameters else {"offload_optimizer": host}
        table |= {"offload_param": host} if stage == 3 else {}
    return read_document(json.dumps({"zero_optimization": table}), _BY_NAME)


def split_inside(given: Given, key: str, flags: FlagTable, kind: str) -> tuple[Given, Given | None]:
    """What a file says without a table of another program that it holds, and that table; None: there is none.

    Args:
        key: of the table. flags, kind: of the other program.
    """
    inside = tuple(item for item in given.arguments if item.written.startswith(f"{key}."))
    if not inside:
        return given, None
    kept = tuple(item for item in given.arguments if not item.written.startswith(f"{key}."))
    own = tuple(replace(item, flag=flags.spelt(item.written.removeprefix(f"{key}."))) for item in inside)
    return replace(given, arguments=kept), Given(given.source, kind, flags, own)


def with_file(given: Given, key: str) -> Given:
    """What a file says, with what stands in a further file that ``key`` names, below that key.

    Raises:
        ConfigError: a file that cannot be read.
    """
    named = [item for item in given.arguments if item.written == key and item.values != ("None",)]
    if not named or not named[-1].values or named[-1].values[0] in ("{}", ""):
        return given
    document = open_named(Settings(given), key, named[-1].values[0], f"the file of {key}")
    added = [
        Argument(given.flags.spelt(f"{key}.{item.written}"), f"{key}.{item.written}", item.values, named[-1].line)
        for item in document.arguments(given.flags)
    ]
    kept = [item for item in given.arguments if item.written != key]
    return replace(given, arguments=(*kept, *added))

"""``PROGRAMS``: the programs whose files semu reads, one row each; ``program_of`` tells whose a file is.

A reader is imported where the end of a file's name and a word in it let it be one of its own: most runs are none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from semu.records import dataclass

if TYPE_CHECKING:
    from semu.imports.huggingface.parts import Asked
    from semu.imports.reading import ImportedTables

_YAML = (".yaml", ".yml")
_EITHER = (*_YAML, ".json")


@dataclass(frozen=True)
class ReadOptions:
    """How a file is read.

    Attributes:
        cluster: ``DEVICE:NODESxGPUS`` as the caller asks; None: as the file says, or the fewest nodes.
        defined: variables that the file takes from outside.
        allow_unmodelled: leave out what makes another model or arithmetic, instead of refusing it.
        model: a shipped name or a config.json that the caller puts in the place of the file's model; None: nothing.
        vocab: entries of the vocabulary that the caller gives; None: nothing.
    """

    cluster: str | None = None
    defined: Mapping[str, str] = field(default_factory=dict)
    allow_unmodelled: bool = False
    model: str | None = None
    vocab: str | None = None


@dataclass(frozen=True)
class Program:
    """A program that trains.

    Attributes:
        word: short for it, as ``semu export --to`` has it. kind: what its files are, for messages.
        example: what such a file is called.
        recognises: (path, text) -> whether it is one.
        read: (text, path, options) -> tables of a run file; raises ConfigError.
    """

    word: str
    kind: str
    example: str
    recognises: Callable[[str, str], bool]
    read: Callable[[str, str, ReadOptions], ImportedTables]


def _is_torchtitan(path: str, text: str) -> bool:
    if not (path.endswith(".toml") and ("flavor" in text or "[job]" in text)) and not path.endswith(".py"):
        return False
    from semu.imports.torchtitan import is_torchtitan

    return is_torchtitan(path, text)


def _read_torchtitan(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.torchtitan import read_torchtitan

    name, lax = options.defined.get("config"), options.allow_unmodelled
    return read_torchtitan(text, path, options.cluster, name=name, allow_unmodelled=lax)


def _is_nemo(path: str, text: str) -> bool:
    if not path.endswith(_YAML) or "_model_parallel_size" not in text:
        return False
    from semu.imports.nemo import is_nemo

    return is_nemo(path, text)


def _read_nemo(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.nemo import read_nemo

    lax = options.allow_unmodelled
    return read_nemo(text, path, options.cluster, vocab=options.vocab, allow_unmodelled=lax)


def _is_llmfoundry(path: str, text: str) -> bool:
    if not path.endswith(_YAML) or "max_seq_len" not in text:
        return False
    from semu.imports.llmfoundry import is_llmfoundry

    return is_llmfoundry(path, text)


def _read_llmfoundry(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.llmfoundry import read_llmfoundry

    return read_llmfoundry(text, path, options.cluster, allow_unmodelled=options.allow_unmodelled)


def _is_nanotron(path: str, text: str) -> bool:
    if not path.endswith(_YAML) or "batch_accumulation_per_replica" not in text:
        return False
    from semu.imports.nanotron import is_nanotron

    return is_nanotron(path, text)


def _read_nanotron(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.nanotron import read_nanotron

    return read_nanotron(text, path, options.cluster, allow_unmodelled=options.allow_unmodelled)


def _is_megatron(path: str, text: str) -> bool:
    if path.endswith(".toml"):
        return False
    from semu.imports.megatron import is_megatron

    return is_megatron(path, text)


def _read_megatron(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.megatron import read_arguments

    lax = options.allow_unmodelled
    return read_arguments(
        text, path, options.cluster, defined=options.defined, vocab=options.vocab, allow_unmodelled=lax
    )


def _asked(options: ReadOptions) -> Asked:
    from semu.imports.huggingface.parts import Asked

    return Asked(options.cluster, options.defined, options.allow_unmodelled, options.model)


def _is_deepspeed(path: str, text: str) -> bool:
    if not path.endswith(_EITHER):
        return False
    from semu.imports.deepspeed.read import is_deepspeed

    return is_deepspeed(path, text)


def _read_deepspeed(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.deepspeed.read import read_deepspeed

    return read_deepspeed(text, path, _asked(options))


def _is_accelerate(path: str, text: str) -> bool:
    if not path.endswith(_EITHER):
        return False
    from semu.imports.accelerate.read import is_accelerate

    return is_accelerate(path, text)


def _read_accelerate(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.accelerate.read import read_accelerate

    return read_accelerate(text, path, _asked(options))


def _is_axolotl(path: str, text: str) -> bool:
    if not path.endswith(_EITHER):
        return False
    from semu.imports.axolotl.read import is_axolotl

    return is_axolotl(path, text)


def _read_axolotl(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.axolotl.read import read_axolotl

    return read_axolotl(text, path, _asked(options))


def _is_llamafactory(path: str, text: str) -> bool:
    if not path.endswith(_EITHER):
        return False
    from semu.imports.llamafactory.read import is_llamafactory

    return is_llamafactory(path, text)


def _read_llamafactory(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.llamafactory.read import read_llamafactory

    return read_llamafactory(text, path, _asked(options))


def _is_trainer(path: str, text: str) -> bool:
    if not path.endswith(_EITHER):
        return False
    from semu.imports.huggingface.read import is_trainer

    return is_trainer(path, text)


def _read_trainer(text: str, path: str, options: ReadOptions) -> ImportedTables:
    from semu.imports.huggingface.read import read_trainer

    return read_trainer(text, path, _asked(options))


PROGRAMS: tuple[Program, ...] = (
    Program("torchtitan", "configuration of torchtitan", "llama3_8b.toml", _is_torchtitan, _read_torchtitan),
    Program("nemo", "configuration of NeMo or Megatron-Bridge", "run_config.yaml", _is_nemo, _read_nemo),
    Program("llmfoundry", "configuration of llm-foundry", "mpt-7b.yaml", _is_llmfoundry, _read_llmfoundry),
    Program("nanotron", "configuration of nanotron", "config.yaml", _is_nanotron, _read_nanotron),
    Program("megatron", "arguments of Megatron-LM", "pretrain.sh or a log", _is_megatron, _read_megatron),
    Program("deepspeed", "configuration of DeepSpeed", "ds_config.json", _is_deepspeed, _read_deepspeed),
    Program("accelerate", "configuration of accelerate", "accelerate.yaml", _is_accelerate, _read_accelerate),
    Program("axolotl", "configuration of axolotl", "axolotl.yaml", _is_axolotl, _read_axolotl),
    Program(
        "llamafactory", "configuration of LLaMA-Factory", "llamafactory.yaml", _is_llamafactory, _read_llamafactory
    ),
    Program("transformers", "TrainingArguments of transformers", "training_args.yaml", _is_trainer, _read_trainer),
)
"""In the order in which they are tried."""


def program_of(path: str, text: str) -> Program | None:
    """The program whose file it is; None: of none."""
    return next((program for program in PROGRAMS if program.recognises(path, text)), None)

"""``PROGRAMS``: the programs whose files semu reads, one row each; ``program_of`` tells whose a file is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from semu.imports.accelerate.read import is_accelerate, read_accelerate
from semu.imports.axolotl.read import is_axolotl, read_axolotl
from semu.imports.deepspeed.read import is_deepspeed, read_deepspeed
from semu.imports.huggingface.parts import Asked
from semu.imports.huggingface.read import is_trainer, read_trainer
from semu.imports.llamafactory.read import is_llamafactory, read_llamafactory
from semu.imports.llmfoundry import is_llmfoundry, read_llmfoundry
from semu.imports.megatron import is_megatron, read_arguments
from semu.imports.nanotron import is_nanotron, read_nanotron
from semu.imports.nemo import is_nemo, read_nemo
from semu.imports.reading import ImportedTables
from semu.imports.torchtitan import is_torchtitan, read_torchtitan


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


def _read_megatron(text: str, path: str, options: ReadOptions) -> ImportedTables:
    lax = options.allow_unmodelled
    return read_arguments(
        text, path, options.cluster, defined=options.defined, vocab=options.vocab, allow_unmodelled=lax
    )


def _read_torchtitan(text: str, path: str, options: ReadOptions) -> ImportedTables:
    name, lax = options.defined.get("config"), options.allow_unmodelled
    return read_torchtitan(text, path, options.cluster, name=name, allow_unmodelled=lax)


def _read_nemo(text: str, path: str, options: ReadOptions) -> ImportedTables:
    lax = options.allow_unmodelled
    return read_nemo(text, path, options.cluster, vocab=options.vocab, allow_unmodelled=lax)


def _read_nanotron(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_nanotron(text, path, options.cluster, allow_unmodelled=options.allow_unmodelled)


def _read_llmfoundry(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_llmfoundry(text, path, options.cluster, allow_unmodelled=options.allow_unmodelled)


def _asked(options: ReadOptions) -> Asked:
    return Asked(options.cluster, options.defined, options.allow_unmodelled, options.model)


def _read_accelerate(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_accelerate(text, path, _asked(options))


def _read_axolotl(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_axolotl(text, path, _asked(options))


def _read_deepspeed(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_deepspeed(text, path, _asked(options))


def _read_llamafactory(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_llamafactory(text, path, _asked(options))


def _read_trainer(text: str, path: str, options: ReadOptions) -> ImportedTables:
    return read_trainer(text, path, _asked(options))


PROGRAMS: tuple[Program, ...] = (
    Program("torchtitan", "configuration of torchtitan", "llama3_8b.toml", is_torchtitan, _read_torchtitan),
    Program("nemo", "configuration of NeMo or Megatron-Bridge", "run_config.yaml", is_nemo, _read_nemo),
    Program("llmfoundry", "configuration of llm-foundry", "mpt-7b.yaml", is_llmfoundry, _read_llmfoundry),
    Program("nanotron", "configuration of nanotron", "config.yaml", is_nanotron, _read_nanotron),
    Program("megatron", "arguments of Megatron-LM", "pretrain.sh or a log", is_megatron, _read_megatron),
    Program("deepspeed", "configuration of DeepSpeed", "ds_config.json", is_deepspeed, _read_deepspeed),
    Program("accelerate", "configuration of accelerate", "accelerate.yaml", is_accelerate, _read_accelerate),
    Program("axolotl", "configuration of axolotl", "axolotl.yaml", is_axolotl, _read_axolotl),
    Program("llamafactory", "configuration of LLaMA-Factory", "llamafactory.yaml", is_llamafactory, _read_llamafactory),
    Program("transformers", "TrainingArguments of transformers", "training_args.yaml", is_trainer, _read_trainer),
)
"""In the order in which they are tried."""


def program_of(path: str, text: str) -> Program | None:
    """The program whose file it is; None: of none."""
    return next((program for program in PROGRAMS if program.recognises(path, text)), None)

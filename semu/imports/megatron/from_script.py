"""``read_script``: the arguments of the command in a shell script that starts training, and its cluster's size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from semu.errors import ConfigError
from semu.imports.arguments import Argument, Given
from semu.imports.flags import Grade
from semu.imports.megatron.flags import FLAGS
from semu.imports.megatron.shell_run import Command, Script, follow_script
from semu.imports.megatron.shell_words import Field, Shell

_NODES = ("--nnodes", "--nodes", "-N")
_RANKS = ("--nproc_per_node", "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node")
_TRAINING = re.compile(r"(pretrain|train|finetune|main)\w*\.py")

_OTHERS = re.compile(r"(pretrain|train)_(bert|t5|mamba|hybrid|retro|ict|realm|vlm|vision\w*)\.py")
"""Programs of Megatron-LM whose models are not GPTs, although most of their arguments have the same names."""
MODEL_ALONE = "sizes of a model for Megatron-LM"
_WAYS_OUT = {"pretrain_vlm.py": "a run file with [model.encoder] and [model.llm], as docs/guides/models.md has it"}
"""Program -> how its model is described instead."""


def read_script(text: str, source: str, defined: Mapping[str, str] | None = None) -> Given:
    """Read a script.

    Args:
        text: the script, or nothing but arguments. source: the file, for messages.
        defined: variables that its caller sets; ``"1"`` is its first parameter.
    Raises:
        ConfigError: no command that starts training, or several, or one of another model; text that is no script; a
            word that cannot be told and may hold arguments.
    """
    script = follow_script(text, source, defined)
    shell = script.shell
    if not any(_trains(command) for command in script.commands) and (words := _sizes_alone(shell)):
        arguments = tuple(_arguments(words, shell, source))
        notes = (*shell.notes, "no command that starts training: taken as the sizes of a model")
        return Given(source, MODEL_ALONE, FLAGS, arguments, notes=notes)
    command = _training_command(script, source)
    begin = next((at for at, field in enumerate(command.fields) if field.text.endswith(".py")), -1)
    program = command.program
    names_encoder = any(field.text.startswith("--vision-model-type") for field in command.fields)
    if _OTHERS.fullmatch(program) is not None and not (program == "pretrain_vlm.py" and names_encoder):
        raise ConfigError(
            f"{program} trains another model than a GPT, which is not read from its arguments",
            where=f"{source}:{command.fields[begin].line}",
            expected="pretrain_gpt.py, or a program of one's own that trains its models",
            got=command.fields[begin].text,
            nearest=_WAYS_OUT.get(program, "a model of semu list models"),
        )
    launcher = command.fields[: max(begin, 0)]
    nodes, ranks = _size(launcher, _NODES, script), _size(launcher, _RANKS, script)
    uses_torchrun = any("torchrun" in field.text or "torch.distributed" in field.text for field in launcher)
    arguments = tuple(_arguments(command.fields[begin + 1 :], shell, source))
    told = list(shell.notes)
    if uses_torchrun and ranks is not None and not any(field.text.startswith(_NODES) for field in launcher):
        nodes = (1, ranks[1])
        told.append("torchrun without --nnodes starts one node")
    return Given(
        source,
        "script of Megatron-LM",
        FLAGS,
        arguments,
        nodes=None if nodes is None else nodes[0],
        gpus_per_node=None if ranks is None else ranks[0],
        cluster_line=(nodes or ranks or (0, 0))[1],
        notes=tuple(told),
        environment={name: " ".join(word.text for word in words) for name, words in shell.variables.items()},
    )


def _sizes_alone(shell: Shell) -> Sequence[Field]:
    """The words of a variable that holds the sizes of a model; of several the longest."""
    found = []
    for fields in shell.variables.values():
        words = [Field(word, field.line) for field in fields for word in field.text.split()]
        if {"--num-layers", "--hidden-size"} <= {word.text for word in words}:
            found.append(words)
    return max(found, key=len, default=())


def _training_command(script: Script, source: str) -> Command:
    found = [command for command in script.commands if _trains(command)]
    if not found:
        raise ConfigError(
            "no command that starts training",
            where=source,
            expected="torchrun or python with pretrain_gpt.py and its arguments",
            got="; ".join(f"line {command.line}: {command.fields[0].text}" for command in script.commands) or "none",
        )
    words = {tuple(field.text for field in command.fields) for command in found}
    if len(words) > 1:
        raise ConfigError(
            f"{len(words)} commands that start training",
            where=source,
            expected="one of them",
            got=", ".join(f"line {command.line}" for command in found),
        )
    return found[0]


def _trains(command: Command) -> bool:
    sizes = ("--num-layers", "--hidden-size", "--use-checkpoint-args")
    return any(field.text in sizes for field in command.fields) or _TRAINING.fullmatch(command.program) is not None


def _size(launcher: Sequence[Field], names: Sequence[str], script: Script) -> tuple[int, int] | None:
    """A number of the launcher's arguments, and its line; None: there is none, or a variable hides it."""
    words: list[Field] = []
    for field in launcher:
        head, equals, tail = field.text.partition("=")
        words += [Field(head, field.line), Field(tail, field.line)] if equals and head in names else [field]
    for at, word in enumerate(words):
        if word.text in names and at + 1 < len(words) and words[at + 1].text.isdigit():
            return int(words[at + 1].text), word.line
    for name in names:
        option = script.batch_options.get(name)
        if option is not None and option.text.isdigit():
            return int(option.text), option.line
    return None


def _arguments(fields: Sequence[Field], shell: Shell, source: str) -> list[Argument]:
    """Arguments with the words behind them."""
    found: list[Argument] = []
    for field in fields:
        gap = shell.gap_of(field.text)
        told = "" if gap is None else str(gap)
        if field.text.startswith("--"):
            name, equals, value = field.text.partition("=")
            own = (shell.shown(value),) if equals else ()
            found.append(Argument(FLAGS.spelt(name), shell.shown(name), own, field.line, told))
            continue
        if gap is not None and (not found or not _takes_another(found[-1])):
            if gap.is_unset and shell.gap_alone(field.text):
                shell.note_empty(gap)
                continue
            raise ConfigError(
                f"words that cannot be told from the script and may hold arguments: {gap}",
                where=f"{source}:{field.line}",
                expected="--define NAME=VALUE, empty where it holds none",
                got=gap.what,
            )
        if not found:
            raise ConfigError(
                "a value without an argument",
                where=f"{source}:{field.line}",
                expected="--NAME before it",
                got=shell.shown(field.text),
            )
        last = found[-1]
        found[-1] = replace(last, values=(*last.values, shell.shown(field.text)), gap=last.gap or told)
    return found


def _takes_another(argument: Argument) -> bool:
    """Whether a word that is not known can be the argument's value, not further arguments."""
    flag = argument.flag
    if flag is None or flag.is_switch:
        return False
    return not argument.values or flag.type == "words" or flag.grade is Grade.HARMLESS

"""``PROGRAMS``: the programs to whose files a run can be exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import unified_diff

from semu.errors import ConfigError, unknown_name
from semu.exports.deepspeed import export_deepspeed
from semu.exports.exported import Exported
from semu.exports.megatron import changed_script, export_megatron
from semu.exports.nemo import export_nemo
from semu.exports.torchtitan import export_torchtitan
from semu.records import dataclass
from semu.runfile.config import RunConfig


@dataclass(frozen=True)
class Target:
    """A program.

    Attributes:
        name: for people. file_name: what its file is called by default.
        export: run -> file. changed: (text, source, before, after) -> a file of this program with what differs between
            two runs changed in it, and the same file without; None: nothing but a whole file can be written.
    """

    name: str
    file_name: str
    export: Callable[[RunConfig], Exported]
    changed: Callable[[str, str, RunConfig, RunConfig], tuple[str, str]] | None = None


PROGRAMS: Mapping[str, Target] = {
    "megatron": Target("Megatron-LM", "run.sh", export_megatron, changed_script),
    "torchtitan": Target("torchtitan", "run.toml", export_torchtitan),
    "nemo": Target("Megatron-Bridge", "run.yaml", export_nemo),
    "deepspeed": Target("DeepSpeed", "ds_config.json", lambda run: export_deepspeed(run.config)),
}
"""Word -> program."""


def target_of(word: str) -> Target:
    """The program of a word.

    Raises:
        ConfigError: an unknown one.
    """
    if word not in PROGRAMS:
        raise unknown_name("program", word, PROGRAMS, where="--to")
    return PROGRAMS[word]


def export(run: RunConfig, word: str) -> Exported:
    """A run as a file of a program.

    Args:
        run: resolved. word: of ``PROGRAMS``.
    Raises:
        ConfigError: an unknown program, a model that its files cannot describe.
    """
    return target_of(word).export(run)


def difference(word: str, text: str, source: str, before: RunConfig, after: RunConfig) -> tuple[str, str]:
    """A program's own file with the changes of a run, and the changes as a unified diff.

    Args:
        word: of ``PROGRAMS``. text, source: the file and its name. before: the run that it is. after: as changed.
    Raises:
        ConfigError: a program whose files are only written whole.
    """
    target = target_of(word)
    if target.changed is None:
        raise ConfigError("its files are only written whole", where=f"--to {word}", expected="no --diff", got="--diff")
    old, new = target.changed(text, source, before, after)
    lines = unified_diff(old.splitlines(), new.splitlines(), source, f"{source} (changed)", lineterm="", n=0)
    return new, "\n".join(lines)

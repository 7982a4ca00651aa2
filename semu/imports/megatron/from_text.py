"""``read_log`` and ``read_config``: the printed block of arguments in a log, and ``MODEL_ARGS`` of a YAML file.

    ------------------------ arguments ------------------------
      num_layers ...................................... 32
    -------------------- end of arguments ---------------------

A log prints every argument, so that what is off or left at its default stands there too (``_print_args`` of
megatron/training/arguments.py). The YAML files are those of Megatron-LM's functional tests: ``--num-layers: 12``.
"""

from __future__ import annotations

import re

from semu.errors import ConfigError
from semu.imports.arguments import Argument, Given
from semu.imports.megatron.flags import FLAGS

_BEGIN = re.compile(r"-{4,} arguments -{4,}")
_END = re.compile(r"-{4,} end of arguments -{4,}")
_LINE = re.compile(r"(?:^|\s)(\w+) \.{2,} ?(.*?)\s*$")
_PADDED = re.compile(r"padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: (\d+)\)")
_YAML = re.compile(r"""^\s+["']?(--[\w-]+)["']?\s*:\s*(.*?)\s*$""")


def is_log(text: str) -> bool:
    """Whether a text has a printed block of arguments."""
    return _BEGIN.search(text) is not None


def is_config(text: str) -> bool:
    """Whether a text is a YAML file of arguments."""
    return re.search(r"^MODEL_ARGS\s*:", text, re.MULTILINE) is not None


def read_log(text: str, source: str) -> Given:
    """Read a log, the first block where there are several.

    Args:
        text: the log. source: the file, for messages.
    Raises:
        ConfigError: a block without an end.
    """
    found: list[Argument] = []
    begin = 0
    for number, row in enumerate(text.splitlines(), start=1):
        if not begin and _BEGIN.search(row):
            begin = number
        elif begin and _END.search(row):
            break
        elif begin and (match := _LINE.search(row)) is not None:
            flag = FLAGS.printed(match[1])
            found.append(Argument(flag, match[1], (match[2],), number, is_printed=True))
    else:
        raise ConfigError(
            "a block of arguments without an end",
            where=f"{source}:{begin}",
            expected='a line "---- end of arguments ----"',
            got="the end of the text",
        )
    told = {argument.written: argument for argument in found}
    padded = _PADDED.search(text)
    if padded is not None and (told.get("padded_vocab_size") is None or told["padded_vocab_size"].is_nothing):
        line = text.count("\n", 0, padded.start()) + 1
        found.append(Argument(FLAGS.printed("padded_vocab_size"), "padded vocab", (padded[2],), line, is_printed=True))
    return Given(source, "log of Megatron-LM", FLAGS, tuple(found), cluster_line=begin)


def read_config(text: str, source: str) -> Given:
    """Read the ``MODEL_ARGS`` of a YAML file: one argument a line.

    Args:
        text: the file. source: its name, for messages.
    """
    found: list[Argument] = []
    is_inside = False
    for number, row in enumerate(text.splitlines(), start=1):
        if re.match(r"\S", row):
            is_inside = re.match(r"MODEL_ARGS\s*:", row) is not None
        match = _YAML.match(row)
        if not is_inside or match is None:
            continue
        value = re.sub(r"\s+#.*$", "", match[2])
        plain = value[1:-1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else value
        gap = f"{plain} (line {number}: not set in the file)" if "${" in plain else ""
        if value == "false":
            continue
        values = () if value in ("true", "") else tuple(plain.split()) if value == plain else (plain,)
        found.append(Argument(FLAGS.spelt(match[1]), match[1], values, number, gap))
    return Given(source, "arguments of a functional test of Megatron-LM", FLAGS, tuple(found))

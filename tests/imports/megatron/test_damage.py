"""Damaged files are read or refused, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.imports.megatron import read_megatron

FILES = Path(__file__).parent / "files"
TEXTS = [(FILES / name).read_text() for name in ("llama3_8b_fp8.sh", "deepseek_v3.sh", "gpt_7b.log")]
SNIPPETS = [
    "'",
    '"',
    "(",
    ")",
    "((",
    "))",
    "$",
    "${",
    "}",
    "`",
    "\\",
    "\n",
    "if ",
    "fi\n",
    "case x in",
    "esac\n",
    "[[ ",
    "]]",
]
SNIPPETS += [
    "; ",
    "&&",
    "|",
    "&",
    "<<E\n",
    "<",
    "#",
    "=",
    "$(",
    "$((1/0))",
    "{",
    "done\n",
    "for i in",
    "f() {",
    ";;",
    "0",
    "-",
]
SNIPPETS += [
    "${#A[@]}",
    "${A[9",
    "${!A}",
    "eval ",
    "exit\n",
    "None",
    "--",
    "--x",
    " .... ",
    "é",
    "\t",
    "2**9999",
    "[0]*",
]


@pytest.mark.slow
@settings(max_examples=120)
@given(st.data())
def test_damage(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.sampled_from([0, 0, 1, 3, 40]))
        text = text[:at] + data.draw(st.sampled_from(["", *SNIPPETS])) + text[at + gone :]
    try:
        run = read_megatron(text + "\n", allow_unmodelled=data.draw(st.booleans()))
    except ConfigError as error:
        assert error.where and error.expected
    else:
        assert run.tables["model"]["transformer"]["layers"] >= 1


@pytest.mark.parametrize(
    "text", ["\n", "#!/bin/bash\n", "if\n", "fi\n", "case\n", "for\n", "f()\n", "(\n", "[[\n", "((\n", ")\n"]
)
def test_hardly_anything(text: str) -> None:
    with pytest.raises(ConfigError):
        read_megatron(text + "pretrain_gpt.py\n")

"""Damaged files of the programs around the Trainer are read or refused, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semu.errors import ConfigError
from semu.imports.accelerate.read import read_accelerate
from semu.imports.axolotl.read import read_axolotl
from semu.imports.deepspeed.read import read_deepspeed
from semu.imports.huggingface.parts import Asked
from semu.imports.huggingface.read import read_trainer
from semu.imports.kinds import program_of
from semu.imports.llamafactory.read import read_llamafactory

FOLDER = Path(__file__).parents[1]
FILES = {
    path: read
    for name, read in (
        ("deepspeed", read_deepspeed),
        ("huggingface", read_trainer),
        ("accelerate", read_accelerate),
        ("axolotl", read_axolotl),
        ("llamafactory", read_llamafactory),
    )
    for path in sorted((FOLDER / name / "files").iterdir())
    if path.name != "config.json"
}
SNIPPETS = ["'", '"', "{", "}", "[", "]", ":", "\n", "- ", "&a ", "*a", "!!python/object:x ", "null", "true", "-1", "0"]
SNIPPETS += ["1e400", "nan", ".inf", "${x.y}", "${", "\t", "é", "\0", ",", "#", "|", ">", "auto", "999999999999", "? "]
SNIPPETS += ["<<: *a\n", "---\n", "%YAML 9\n", "2026-99-99", "0x", "1_0", "x: " * 50, "[" * 200, "model.layers.(", "\\"]


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(st.data())
def test_damage(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(FILES)))
    text = path.read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.sampled_from([0, 0, 1, 3, 40]))
        text = text[:at] + data.draw(st.sampled_from(["", *SNIPPETS])) + text[at + gone :]
    program_of(str(path), text)
    asked = Asked(allow_unmodelled=data.draw(st.booleans()), model="gpt2")
    try:
        read = FILES[path](text, str(path), asked)
    except ConfigError as error:
        assert error.where and error.expected
    else:
        assert read.tables["training"]["micro_batch"] >= 1
        assert read.tables["cluster"]["nodes"] >= 1


@pytest.mark.parametrize(
    "text", ["", "\n", "{}", "[]", "3", "a", "null", "a: [", '{"a": 1', "a: {b: {c: [1, {d: 2}]}}"]
)
@pytest.mark.parametrize("read", dict.fromkeys(FILES.values()))
def test_hardly_anything(text: str, read: object) -> None:
    assert callable(read)
    try:
        tables = read(text, "x.yaml", Asked(model="gpt2")).tables
    except ConfigError as error:
        assert error.where
    else:
        assert tables["model"]["name"] == "gpt2"

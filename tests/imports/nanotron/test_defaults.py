"""Defaults of nanotron's keys, compared with those of its dataclasses, where it is installed."""

from __future__ import annotations

import pytest
from imports.dataclass_defaults import class_defaults, package_folder, told

from semu.imports.nanotron.read import FLAGS

pytestmark = pytest.mark.extras
ROOT = package_folder("nanotron")
TABLES = {
    "parallelism": ("parallelism_config.py", "ParallelismArgs"),
    "model": ("config.py", "ModelArgs"),
    "tokens": ("config.py", "TokensArgs"),
    "optimizer": ("config.py", "OptimizerArgs"),
    "model.model_config": ("models_config.py", "LlamaConfig"),
}
"""Table of a file -> file and class of nanotron."""
WORDS = {"AllForwardAllBackwardPipelineEngine": "afab", "num_attention_heads": None}
"""What nanotron's source says -> what ``flags.toml`` does; None: what another key says."""


@pytest.mark.skipif(ROOT is None, reason="nanotron is not installed (extra imports)")
@pytest.mark.parametrize("table", TABLES)
def test_defaults(table: str) -> None:
    assert ROOT is not None
    file, name = TABLES[table]
    theirs = class_defaults(ROOT / "config" / file, name)
    ours = {key.rpartition(".")[2]: flag for key, flag in FLAGS.understood.items() if key.rpartition(".")[0] == table}
    shared = theirs.keys() & ours.keys()
    assert shared or table in ("tokens", "optimizer")  # whose fields have no defaults
    expected = {key: WORDS.get(str(theirs[key]), told(theirs[key])) for key in shared}
    assert {key: ours[key].default for key in shared} == expected

"""``[parallel.layout]`` and ``vocab_multiple`` in run files and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import semu
import semu_models
from semu.cli import main
from semu.errors import ConfigError
from semu.runfile import load_run
from semu.runfile.overrides import Overrides
from semu.runfile.resolve import resolve_run

TEXT = """\
[model.transformer]
layers = 6
hidden = 256
heads = 4
vocab = 1000
vocab_multiple = 128

[cluster]
device = "h100"
nodes = 1
gpus_per_node = 6

[parallel]
tp = 2
pp = 3

[parallel.layout]
{layout}

[training]
global_batch = 6
seq_len = 512
"""
VLM = """\
[model]
name = "vlm-s"

[cluster]
device = "h800"
nodes = 2

[parallel]
tp = 4
pp = 2
dp = 2
vpp = 2

[parallel.layout.modules]
vit = [{vit}, {rest}]
llm = [{half}, {half}]

[training]
recompute = "full"
global_batch = 8

[batch]
kind = "vlm"
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return str(path)


def vlm_text() -> str:
    built = semu_models.build("vlm-s")
    layers = [sum(".layers." in path for path, _ in module.blocks()) for module in built.modules]
    return VLM.format(vit=layers[0] - 1, rest=1, half=layers[1] // 2)


@pytest.mark.parametrize(
    "layout",
    [
        'stages = "Et|t*3|t*2L"',
        "layers = [1, 3, 2]",
        "modules.llm = [1, 3, 2]",
        "first = 1\nlast = 2",
        "account_for_embedding = true\naccount_for_loss = false\n",
        "",
    ],
)
def test_a_run_file_comes_back(layout: str, tmp_path: Path) -> None:
    text = TEXT.format(layout=layout)
    if "account" in layout:
        text = text.replace("layers = 6", "layers = 5")
    run = resolve_run(written(tmp_path, text))
    again = written(tmp_path, run.to_toml())
    assert resolve_run(again).config == run.config
    first, second = semu.simulate(run.job()), semu.simulate(load_run(again))
    assert first.to_json() == second.to_json()


def test_a_vision_language_run_file_comes_back(tmp_path: Path) -> None:
    run = resolve_run(written(tmp_path, vlm_text()))
    again = written(tmp_path, run.to_toml())
    job = load_run(again)
    assert job.parallel == run.job().parallel
    chunks: Any = semu.simulate(job).job["chunks"]
    assert [(c["rank"], c["virtual_stage"], c["module"]) for c in chunks] == [
        (0, 0, "vit"),
        (1, 0, "vit"),
        (0, 1, "llm"),
        (1, 1, "llm"),
    ]


def test_result_json_says_the_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, TEXT.format(layout="layers = [1, 3, 2]"))
    assert main(["simulate", path, "--json"]) == 0
    job = json.loads(capsys.readouterr().out)["job"]
    assert job["parallel"]["layout"] == {"layers": [1, 3, 2]}
    assert [chunk["blocks"] for chunk in job["chunks"]] == [[0, 2], [2, 5], [5, 8]]


def test_the_command_line_changes_a_layout(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.format(layout="layers = [1, 3, 2]"))
    assert load_run(path, ["parallel.layout.layers=[2, 2, 2]"]).parallel.layout == semu.PipelineLayout(layers=(2, 2, 2))
    assert load_run(path, ["parallel.layout={}"]).parallel.layout is None
    assert load_run("lm-7b", ["parallel.layout.first=7", "parallel.layout.last=7"]).parallel.layout is not None


@pytest.mark.parametrize(
    ("layout", "where", "expected"),
    [
        ("layer = [1, 3, 2]", ":18 parallel.layout.layer", "one of"),
        ("layers = [1, 3, 3]", ":18 parallel.layout.layers", "6 layers"),
        ('layers = "1, 3, 2"', ":18 parallel.layout.layers", "a list of integers"),
        ('stages = "Et|t*3"', ":18 parallel.layout.stages", "one L, last of all"),
        ('stages = "Et|t*5L"', ":18 parallel.layout.stages", "3 stages"),
        ("modules.vit = [1, 3, 2]", ":18 parallel.layout.modules.vit", "one of llm"),
        ('first = "1"', ":18 parallel.layout.first", "an integer"),
        ("first = 1", ":18 parallel.layout.first", "a multiple of 2"),
        ("account_for_loss = true", ":17 parallel.layout", "a multiple of 3"),
    ],
)
def test_mistakes_are_found_in_the_file(layout: str, where: str, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.format(layout=layout))
    with pytest.raises(ConfigError) as caught:
        load_run(path)
    assert caught.value.where == path + where
    assert expected in str(caught.value.expected)


def test_an_even_cut_that_does_not_go_is_found(tmp_path: Path) -> None:
    path = written(tmp_path, TEXT.format(layout="").replace("layers = 6", "layers = 7"))
    with pytest.raises(ConfigError) as caught:
        load_run(path, ["parallel.partition=layers"])
    assert caught.value.where == "--set parallel.partition"
    with pytest.raises(ConfigError) as caught:
        load_run(path, ["parallel.partition=layer"])
    assert "layers" in str(caught.value.expected)
    assert "did you mean 'layers'" in str(caught.value)


# -- padded vocabularies --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tp", "rows"), [(1, 1024), (2, 1024), (3, 1152), (6, 1536)])
def test_a_vocabulary_is_padded(tp: int, rows: int, tmp_path: Path) -> None:
    """1000 tokens to a multiple of 128 tp: both tables grow."""
    text = TEXT.format(layout="").replace("heads = 4", "heads = 12\nhead_dim = 16").replace("tp = 2\npp = 3", "")
    path = written(tmp_path, text)
    sizes = Overrides(parallel=f"tp{tp}-dp{6 // tp}")
    model = resolve_run(path, sizes).model
    plain = resolve_run(path, Overrides(["model.transformer.vocab_multiple=1"], parallel="dp6")).model
    assert model.num_parameters() - plain.num_parameters() == 2 * (rows - 1000) * 256
    written_out = resolve_run(path, sizes).config["model"]["transformer"]
    assert (written_out["vocab"], written_out["vocab_multiple"]) == (1000, 128)


def test_a_bad_multiple_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(written(tmp_path, TEXT.format(layout="")), ["model.transformer.vocab_multiple=0"])
    assert caught.value.where == "--set model.transformer.vocab_multiple"

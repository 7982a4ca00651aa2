"""``semu.prepare``, ``evaluate``, ``search``, ``grid`` and others of names and files, on other clusters too."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.runfile import Overrides, choose, load_run, resolve_run
from semu.searcher.what_if.changes import Change

FUNCTIONS = (
    *(semu.prepare, semu.evaluate, semu.search, semu.grid),
    *(semu.what_if, semu.compare_schedules, semu.explore_schedules),
)
SMALL: dict[str, Any] = {"vary": {"micro_batch": (1, 2)}, "top": 1}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"cluster": "a100-80g:1x8", "parallel": "tp2"}),
        ("vlm-s", {"overrides": ["training.global_batch=16"]}),
        ("llama3-8b", {"cluster": "h100:2x8", "parallel": "tp4-pp2", "overrides": ["training.global_batch=32"]}),
    ],
)
def test_a_name_with_changes_is_the_job_of_load_run(name: str, changes: dict[str, Any]) -> None:
    job = load_run(name, **changes)
    assert semu.evaluate(name, **changes) == semu.evaluate(job) == semu.evaluate(job=job)
    assert semu.prepare(name, **changes).problem().shape == semu.prepare(job).problem().shape
    assert semu.grid(name, **SMALL, **changes).to_dicts() == semu.grid(job, **SMALL).to_dicts()
    doubled = [Change.of(training__global_batch="x2")]
    assert semu.what_if(name, doubled, **changes).to_dicts() == semu.what_if(job, doubled).to_dicts()
    two = ["1f1b", "gpipe"]
    assert semu.compare_schedules(name, two, **changes).to_dicts() == semu.compare_schedules(job, two).to_dicts()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cluster"), [("gpt2", "h100:1x4"), ("llama3-8b", "h200:1x8")])
def test_a_search_of_a_name_on_a_cluster(name: str, cluster: str) -> None:
    found = semu.search(name, rollouts=0, cluster=cluster, parallel="tp2-pp2")
    assert found.to_dicts() == semu.search(load_run(name, cluster=cluster, parallel="tp2-pp2"), rollouts=0).to_dicts()


def test_files_are_read_too(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[model]\nname = "gpt2"\n[cluster]\ndevice = "h100"\n[parallel]\ndp = 8\n[training]\nglobal_batch = 8\n'
    )
    assert semu.evaluate(file) == semu.evaluate(str(file)) == semu.evaluate(load_run(file))
    assert semu.evaluate(file, parallel="tp2") != semu.evaluate(file)


@pytest.mark.parametrize("name", ["lm-7b", pytest.param("vlm-s", marks=pytest.mark.slow)])
def test_a_grid_on_a_cluster_that_the_run_itself_does_not_fit(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As ``semu grid --cluster``: the axes vary before a layout has to be legal."""
    with pytest.raises(ConfigError):
        load_run(name, cluster="h100:1x2")
    found = semu.grid(name, {"pp": (1, 2)}, fix={"micro_batch": 1, "tp": 1}, cluster="h100:1x2", top=1)
    words = ("--cluster", "h100:1x2", "--vary", "pp=1:2", "--fix", "micro_batch=1,tp=1", "--top", "1", "--json")
    main(["grid", name, *words])
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == json.loads(json.dumps(found.to_json()))["rows"]
    more = semu.grid(name, {"pp": (1, 2)}, fix={"micro_batch": 1, "tp": 1}, gpus=2, top=1)
    assert {row.point.dp * row.point.pp for row in more.rows} == {2}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_same_errors(function: Any) -> None:
    for job, changes, where in (
        (5, {}, "job"),
        ("gtp2", {}, "RUN"),
        ("llama3-8b", {"parallel": "tpx"}, "--parallel"),
        ("lm-7b", {"overrides": ["parallel.tq=2"]}, "--set parallel.tq"),
        (load_run("lm-7b"), {"cluster": "h100:1x8"}, "cluster"),
        (load_run("lm-7b"), {"overrides": ["parallel.tp=2"]}, "overrides"),
    ):
        with pytest.raises(ConfigError) as caught:
            function(job, **changes)
        assert caught.value.where == where
        with pytest.raises(ConfigError) as other:
            semu.simulate(job, **changes)
        assert str(caught.value) == str(other.value)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_signature_says_so(function: Any) -> None:
    assert [*inspect.signature(function).parameters][-3:] == ["overrides", "cluster", "parallel"]
    assert "semu.load_run" in (function.__doc__ or "")


@pytest.mark.parametrize("name", ["gpt2", "bert-base"])
@pytest.mark.parametrize("least", [3, 8, 9, 11, 13, 17, 31, 45])
def test_every_number_of_nodes_is_considered(name: str, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing fitted on fewer nodes than ``least``."""
    tried = set()

    def _seconds(tables: dict[str, Any], resolve: Any) -> float:
        tried.add(tables["cluster"]["nodes"])
        return 1.0 if tables["cluster"]["nodes"] >= least else math.inf

    monkeypatch.setattr(choose, "_seconds", _seconds)
    run = resolve_run(name)
    assert run.config["cluster"]["nodes"] == least
    (note,) = (note for note in run.notes if note.startswith("cluster"))
    assert f"none fits on {least - 1}x8, the next smaller" in note and least - 1 in tried
    assert resolve_run(name, Overrides(cluster="h100:50x8")).config["cluster"]["nodes"] == 50


@pytest.mark.slow
def test_an_encoder_that_tp_cannot_cut_gets_a_tp_of_its_own() -> None:
    run = resolve_run("internvl3-78b")
    assert run.config["parallel"]["tp"] > 1 and run.job().parallel.of_module("vision").tp == 1
    assert any(note.startswith("parallel.modules.vision.tp: not given, taken as 1") for note in run.notes)
    assert semu.evaluate(run.job()).fits
    given = semu.evaluate("internvl3-78b", cluster="h100:8x8")
    assert given.fits

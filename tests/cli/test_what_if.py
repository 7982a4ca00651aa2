"""``semu what-if``: table, document, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import semu
from semu.cli import main
from semu.present.estimate import Estimate
from semu.runfile import load_run
from semu.simulation.estimate import evaluate

RUN = """
[model.transformer]
layers = 2
hidden = 256
ffn = 512
heads = 4
vocab = 512
[cluster]
device = "h100"
gpus_per_node = 4
[parallel]
dp = 2
tp = 2
[training]
global_batch = 8
seq_len = 128
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def test_the_document_holds_what_simulations_say(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["what-if", str(run), "--set", "cluster.nvlink_bytes_per_s=x0.5", "--set", "training.recompute=full"]
    assert main([*words, "--json", "--out", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((out / "what_if.json").read_text())
    assert (out / "what_if.png").read_bytes().startswith(b"\x89PNG")
    job = load_run(run)
    assert document["base"]["iteration_time_s"] == semu.simulate(job).iteration_time_s
    rate = job.cluster.profile.nvlink_bytes_per_s.value
    others = [f"cluster.override.nvlink_bytes_per_s={rate / 2}", "training.recompute=full"]
    for answer, other in zip(document["answers"], others, strict=True):
        assert answer["iteration_time_s"] == semu.simulate(load_run(run, [other])).iteration_time_s


@pytest.mark.parametrize("named", [(), ("cluster.nics_per_node=2", "cluster.nic_gbit=100")])
def test_network_cards(named: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["cluster.nodes=2", "parallel.dp=4", *named]
    changes = [
        "cluster.nics_per_node=1 cluster.nic_gbit=50",
        "cluster.nics_per_node=x0.5",
        "cluster.oversubscription=4",
    ]
    words = [word for one in base for word in ("--base", one)] + [word for one in changes for word in ("--set", one)]
    assert main(["what-if", str(run), *words, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    half = 1 if named else 2
    others = [changes[0].split(), [f"cluster.nics_per_node={half}"], [changes[2]]]
    for answer, other in zip(answers, others, strict=True):
        assert answer["iteration_time_s"] == semu.simulate(load_run(run, [*base, *other])).iteration_time_s
    assert main(["what-if", str(run), "--set", "cluster.nic_gbit=x2"]) == 0  # the profile tells its bytes a second
    assert "cluster.nic_gbit=x2: cluster.nic_gbit: a factor of what is no" in capsys.readouterr().out


def test_the_table_and_its_reasons(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", str(run), "--set", "parallel.tp=8", "--set", "parallel.zero=1"]) == 0
    text = capsys.readouterr().out
    assert "(as it is)" in text
    assert "parallel.zero" in text
    assert "cannot run: parallel.tp=8" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "training.recompte=full"], "training.recompute"),
        (["--set", "nonsense"], "KEY=xFACTOR"),
        (["--set", "batch.seed=1"], "another run"),
        (["--factor", "0.5"], "a finite number > 1"),
        (["--factor", "3", "--set", "parallel.zero=1"], "without --set"),
        (["--set", "cluster.nvlink_byte_per_s=x2"], "--set cluster.nvlink_byte_per_s=x2"),
    ],
)
def test_what_is_refused(run: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", str(run), *words]) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_keeps_the_answers_so_far(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def some(job: semu.TrainingJob) -> Estimate:
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return evaluate(job)

    monkeypatch.setattr("semu.searcher.what_if.sensitivity.evaluate", some)
    out = tmp_path / "out"
    words = ["--set", "training.recompute=full", "--set", "parallel.zero=0", "--json", "--out", str(out)]
    assert main(["what-if", str(run), *words]) == 130
    captured = capsys.readouterr()
    assert "interrupted" in captured.err
    document = json.loads(captured.out)
    assert document == json.loads((out / "what_if.json").read_text())
    assert document["is_interrupted"]
    assert [answer["change"][0]["key"] for answer in document["answers"]] == ["training.recompute"]

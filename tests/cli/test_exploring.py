"""``semu schedules --explore``, ``--program``, ``--explain``, ``--rule-of``; ``semu grid --explore``; in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulation.jobs import gpt, job_of, text_items

import semu
from semu.cli import main
from semu.parallel.config import Parallel
from semu.plan.torch_schedule import schedule_from_torch_csv
from semu.schedule.registry import REGISTRY

RUN = """
[model.transformer]
layers = 8
hidden = 512
ffn = 2048
heads = 8
vocab = 1024
[cluster]
device = "h100"
nodes = 1
gpus_per_node = 4
[parallel]
pp = 4
[training]
global_batch = 8
seq_len = 1024
"""
RULES = '[schedule.mine]\nin_flight = "p - r"\n[schedule.late]\ntext = "separated inner={priority in-flight=p-r}"\n'


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return str(path)


@pytest.mark.slow
def test_exploration_of_a_job_is_never_worse_than_what_ships() -> None:
    job = job_of(gpt(), text_items(8), Parallel(pp=2))
    plain = semu.explore_schedules(job, top=3)
    found = semu.explore_schedules(job, top=3, split=True)
    shipped = semu.compare_schedules(job, "all")
    assert shipped.best is not None
    for one in (plain, found):
        assert one.best is not None
        assert one.best_shipped is not None
        assert one.best.estimate.iteration_time_s <= shipped.best.estimate.iteration_time_s
        assert one.best_shipped.estimate.iteration_time_s == shipped.best.estimate.iteration_time_s
        rules = [row for row in one.rows if row.name not in REGISTRY]
        assert rules
        for row in rules[:2]:  # every figure is the one of simulate
            assert semu.simulate(row.job).iteration_time_s == row.estimate.iteration_time_s
    times = [row.estimate.iteration_time_s for row in found.rows if row.estimate.fits]
    assert times == sorted(times)
    assert "run it: --set" in repr(found)
    assert found.to_json()["rules"] == found.num_rules > 50


@pytest.mark.slow
def test_the_command_explores_and_writes_files(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["schedules", run_file, "--explore", "--split", "--top", "2", "--explain", "--out", str(out), "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schedules"][0]["name"] == said["best"].partition("-vpp")[0]
    assert said["explained"]
    assert json.loads((out / "result.json").read_text())["rules"] == said["rules"]
    assert (out / "separation.png").read_bytes().startswith(b"\x89PNG")
    schedule_from_torch_csv((out / "torch.csv").read_text())


@pytest.mark.slow
def test_plain_numbers_are_explored(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["schedules", "--ranks", "4", "--microbatches", "8", "--explore", "--split", "--top", "2", "--json"]) == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert [row["makespan_s"] for row in said["schedules"]] == [24.5, 24.5]
    assert main(["schedules", "--ranks", "3", "--microbatches", "6", "--explore", "--explain"]) == 0
    assert "bubbles between stages" in capsys.readouterr().out


def test_a_program_is_compared(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(RULES, encoding="utf-8")
    assert main(["schedules", run_file, "--program", str(path), "--json", "--out", str(tmp_path / "out")]) == 0
    said = json.loads(capsys.readouterr().out)
    names = [row["name"] for row in said["schedules"]]
    assert names == ["1f1b", "priority in-flight=p-r", "separated inner={priority in-flight=p-r}"]
    assert (tmp_path / "out" / "priority-in-flight-p-r.csv").exists()
    assert main(["schedules", "--ranks", "4", "--microbatches", "8", "--program", str(path)]) == 0
    assert "priority in-flight=p-r" in capsys.readouterr().out


def test_the_rule_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from semu.schedule import ALL_SCHEDULES, write_schedule

    family = ALL_SCHEDULES["zb-v"]
    write_schedule(tmp_path / "order.csv", family(family.shape(4, 8, 2)))
    assert main(["schedules", "--rule-of", str(tmp_path / "order.csv")]) == 0
    assert "reproduces it: zb-v" in capsys.readouterr().out
    (tmp_path / "odd.csv").write_text("0F0,0F1,0B1,0B0\n1F1,1F0,1B0,1B1\n", encoding="utf-8")
    assert main(["schedules", "--rule-of", str(tmp_path / "odd.csv"), "--json"]) == 4


def test_a_grid_varies_rules(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["grid", run_file, "--explore", "--vary", "vpp=1:2", "--fix", "micro_batch=1", "--top", "40", "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    names = {row["schedule"] for row in said["rows"]}
    assert any(name.startswith("separated") for name in names)
    assert {"1f1b"} < names
    rule = ["--fix", "schedule=priority in-flight=p-r", "--framework", "any"]
    assert main(["grid", run_file, "--vary", "vpp=1", *rule]) == 0


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["--ranks", "2", "--microbatches", "4", "--top", "3"], "--top"),
        (["--ranks", "2", "--microbatches", "4", "--explore", "--top", "0"], "--top"),
        (["--ranks", "2", "--microbatches", "4", "--explore", "--compare", "1f1b"], "--compare"),
        (["--ranks", "2", "--microbatches", "4", "--program", "missing.toml"], "missing.toml"),
        (["--rule-of", "missing.csv"], "missing.csv"),
    ],
)
def test_bad_options_name_the_place(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", *words, "--json"]) == 2
    assert where in json.loads(capsys.readouterr().out)["error"]["where"]


@pytest.mark.parametrize(
    ("rule", "more", "code", "where", "words"),
    [
        ('rule = "prioritty"', "", 2, "schedule.mine", "priority"),
        ('prefer = "backwards"', "", 2, "run.toml:19 schedule.mine.prefer", "backward"),
        ("modules = {vison = {in_flight = 1}}", "", 2, "schedule.mine.modules", "vison"),
        ('forward = "depth(0)"', "", 2, "forward.run", ">= 1"),
        ("units = [0, 1]", "", 2, "run.toml:19 schedule.mine.units", ">= 1"),
        ("in_flight = 0", "", 2, "run.toml:19 schedule.mine.in_flight", ">= 1"),
        ("in_flight = [1, 2]", "", 2, "schedule.mine.in_flight", "one per virtual stage"),
        ('in_flight = "p - q"', "", 2, "in_flight", "p, r, v, m"),
        (
            'forward = "depth"\nin_flight = "(p * v) // (p * v)"',
            "placement",
            4,
            "run.toml:23 schedule.mine.in_flight, rank",
            "in_flight",
        ),
        ('placement = "bidirectional"', "pp3", 2, "parallel.pp", "even"),
        (
            'instructions = {sync = {after = [":B"], before = [":F"]}}',
            "",
            2,
            "instructions",
            "module:F",
        ),
    ],
)
def test_bad_rules_of_a_run_file_name_the_place(
    rule: str, more: str, code: int, where: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = RUN.replace("pp = 4", "pp = 3\n").replace("gpus_per_node = 4", "gpus_per_node = 3") if more == "pp3" else RUN
    text = text.replace("layers = 8", "layers = 9") if more == "pp3" else text
    place = 'placement = "v-shape"\nvpp = 2\nadmission = "stage"\n' if more == "placement" else ""
    path = tmp_path / "run.toml"
    path.write_text(f'{text}schedule = "mine"\n[schedule.mine]\n{place}{rule}\n', encoding="utf-8")
    assert main(["simulate", str(path), "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert where in error["where"]
    assert words in json.dumps(error)

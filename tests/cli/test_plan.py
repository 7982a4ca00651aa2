"""``semu plan``: compiled, written, shown, drawn; and every exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.cli import main
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.rules import verify

SMALL = ("lm-7b", "--set", "training.global_batch=8", "--parallel", "dp1-tp1-pp4", "--cluster", "h800:1x4")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main(["plan", *SMALL, "-o", str(path)]) == 0
    return path


def test_a_plan_is_written_and_shown(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ExecutionPlan.read(written)
    assert (plan.num_ranks, plan.num_microbatches, plan.name) == (4, 8, "1f1b")
    code, out, _ = run(capsys, "--show", str(written), "--rank", "2")
    assert code == 0
    assert out == plan.to_text(2) + "\n" + verify(plan).to_text() + "\n"
    code, out, _ = run(capsys, "--show", str(written), "--json")
    assert code == 0
    assert json.loads(out) == json.loads(written.read_text())


def test_the_document(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SMALL, "--json")
    assert code == 0
    table: dict[str, Any] = json.loads(out)
    plan = ExecutionPlan.read(written)
    assert plan.estimates is not None
    assert table["model_hash"] == plan.model_hash
    assert table["inputs_hash"] == plan.estimates.inputs_hash
    assert table["num_actions"] == plan.num_actions == table["verified"]["num_actions"]
    assert main(["simulate", *SMALL, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for key in ("iteration_time_s", "peak_memory_bytes"):
        assert table[key] == report[key]


def test_schedules_by_name_and_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SMALL, "--schedule", "zb-h1", "--rank", "0")
    assert code == 0
    assert "input_backward_stage" in out and "weight_backward_stage" in out
    order = tmp_path / "order.csv"
    order.write_text(
        "\n".join(",".join([f"{r}F{i}" for i in range(8)] + [f"{r}B{i}" for i in range(8)]) for r in range(4))
    )
    code, out, _ = run(capsys, *SMALL, "--schedule", str(order))
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "plan order.csv")
    order.write_text("0F0\n")
    assert run(capsys, *SMALL, "--schedule", str(order))[0] == 4


@pytest.mark.slow
def test_a_search_and_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("vlm-s", "--set", "training.global_batch=4")
    one, two, again = (tmp_path / f"{name}.json" for name in ("one", "two", "again"))
    planned = [run(capsys, *words, "--rollouts", "10", "--workers", "1", "-o", str(path)) for path in (one, again)]
    assert [code for code, _, _ in planned] == [0, 0]
    assert one.read_bytes() == again.read_bytes()
    assert main(["search", *words, "--rollouts", "10", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = next(line for line in lines if "x Megatron-LM's speed; " in line)
    assert all(said in out.splitlines() for _, out, _ in planned)  # plans say what the search says
    schedule = tmp_path / "out" / "schedule.json"
    assert run(capsys, *words, "--schedule", str(schedule), "-o", str(two))[0] == 0
    assert two.read_bytes() == one.read_bytes()
    assert run(capsys, "vlm-s", "--schedule", str(schedule))[0] == 4


def test_a_picture(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.png"
    code, _, err = run(capsys, "--show", str(written), "--picture", str(picture))
    assert code == 0 and f"wrote {picture}" in err
    assert picture.read_bytes().startswith(b"\x89PNG")
    odd = tmp_path / "odd.json"
    odd.write_text(written.read_text().replace('"module": "llm"', '"module": "$x^{$"'))
    picture.unlink()
    assert run(capsys, "--show", str(odd), "--picture", str(picture))[0] == 0  # names are no formulas
    assert picture.exists()
    code, out, err = run(capsys, "--show", str(written), "--rank", "4", "--json")
    assert code == 2 and json.loads(out)["error"]["where"] == "rank"


def test_a_job_that_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("--set", "training.recompute=none", "--set", "training.micro_batch=8", "--set", "training.global_batch=64")
    code, out, err = run(capsys, *SMALL, *words)
    assert code == 3
    assert "it does not fit in memory" in err
    assert out.startswith("plan 1f1b")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "nothing to plan"),
        (("--show", "none.json"), 2, "cannot read the plan"),
        (("vlm-s", "--show", "none.json"), 2, "a run beside a plan that is there"),
        (("--show", "none.json", "--time", "1"), 2, "got --time"),
        (("lm-7b", "--schedule", "zb-h9"), 2, "did you mean"),
        (("lm-7b", "--schedule", "none.json"), 2, "cannot read"),
        (("lm-7b", "--schedule", "1f1b", "--time", "1"), 2, "a schedule and a search"),
        (("lm-7b", "--workers", "1"), 2, "threads of no search"),
        (("lm-7b", "-o", "none/plan.json"), 2, "no such folder"),
        (("lm-7b", "--picture", "none/plan.png"), 2, "no such folder"),
        (("lm-7b", "-o", "."), 2, "a folder is there"),
        ((*SMALL, "--rank", "4"), 2, "no such rank"),
        (("--show", "none.json", "--rollouts", "0"), 2, "got --rollouts"),
        (("lm-7b", "--deadline", "0"), 2, "--deadline is an option of a training loop"),
        (("lm-7b", "--iterations", "2", "--rank", "0"), 2, "--rank is an option of one plan"),
        (("lm-7b", "--ranks", "1"), 2, "--rank"),
        (("lm-7b", "--deadline", "1"), 2, "--deadline is an option of a training loop"),
        (("lm-7b", "--iterations", "2", "--output", "a"), 2, "--output is an option of one plan"),
        (("--iterations", "2"), 2, "nothing to plan"),
    ],
)
def test_bad_words(words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = run(capsys, *words)
    assert (found, out) == (code, "")
    assert said in err


def test_bad_plans(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = written.read_text()
    bad = tmp_path / "bad.json"
    for before, after, code, said in (
        ('"semu plan 1"', '"semu plan 7"', 4, "a later version"),
        ('"limit_bytes"', '"limits"', 2, "unknown key 'limits'"),
        ('"F0 s0@0', '"s0@0 F0', 4, "1f1b: rank 0, action 0"),  # sent before it is made
        ('"F0 s0@0', '"F1 s0@0', 4, "0F1"),  # a stage that does not run, and one that runs twice
        ('"num_ranks": 4', '"num_ranks": 5', 4, "another shape"),
    ):
        bad.write_text(text.replace(before, after, 1))
        assert run(capsys, "--show", str(bad))[0] == code
        found, out, err = run(capsys, "--show", str(bad), "--json")
        assert (found, said in err) == (code, True)
        assert "message" in json.loads(out)["error"]
    bad.write_text(text[: len(text) // 2])
    assert run(capsys, "--show", str(bad))[0] == 4
    assert run(capsys, "--show", str(written), "--rank", "4")[0] == 2

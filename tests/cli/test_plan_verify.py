"""``semu plan --verify`` and ``--torch-csv``: what is printed, and exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from plan.legal_plans import Module, build_plan, chain_in_order, random_plan, spelled

from semu.cli import main
from semu.plan.plan import ExecutionPlan
from semu.plan.torch_schedule import plan_to_torch_csv, schedule_from_torch_csv
from semu.plan.verification.rules import verify


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def written(plan: ExecutionPlan, folder: Path) -> str:
    path = folder / "plan.json"
    plan.write(path)
    return str(path)


def test_what_a_plan_needs_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = random_plan(5)
    file = written(plan, tmp_path)
    code, out, _ = run(capsys, "--verify", file)
    assert code == 0
    assert out == "random can run\n" + verify(plan).to_text() + "\n"
    code, out, _ = run(capsys, "--verify", file, "--json")
    assert code == 0
    assert json.loads(out)["verified"] == verify(plan).to_json()


def test_a_plan_that_cannot_run_ends_with_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = spelled(chain_in_order(2, 2), ["F0 s0 S0 F1 s2 S2 r1 R1 B0 r3 R3 B1", "r0 R0 F2 B2 s1 S1 r2 R2 F3 B3 s3 S3"])
    file = written(plan, tmp_path)
    code, out, err = run(capsys, "--verify", file)
    assert (code, out) == (4, "")
    assert "the plan deadlocks" in err and "cycle: rank 0 is at wait_isend" in err
    code, out, _ = run(capsys, "--verify", file, "--json")
    error = json.loads(out)["error"]
    assert (code, error["kind"], error["fault"], error["rank"], error["action"]) == (4, "PlanError", "deadlock", 0, 5)
    short = replace(plan, limit_bytes=plan.limit_bytes * 0 + 1)
    early = spelled(short, ["F0 s0 F1 s2 r1 R1 B0 r3 R3 B1 S0 S2", "r0 r2 R0 F2 B2 s1 S1 R2 F3 B3 s3 S3"])
    code, _, err = run(capsys, "--verify", written(early, tmp_path))
    assert code == 4 and "more memory than the rank has" in err


def test_microbatches_that_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However many a damaged file says there are: the first of them is named, at once."""
    plan = random_plan(3)
    for count in (plan.num_microbatches + 1, 2**31 - 1):
        code, out, _ = run(capsys, "--verify", written(replace(plan, num_microbatches=count), tmp_path), "--json")
        assert (code, json.loads(out)["error"]["fault"]) == (4, "stage missing")
        assert f"nothing runs microbatch {plan.num_microbatches}" in json.loads(out)["error"]["message"]


def test_options_that_do_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(random_plan(1), tmp_path)
    for words in (
        ("lm-7b",),
        ("--show", file),
        ("--rank", "0"),
        ("--picture", "x.png"),
        ("--schedule", "1f1b"),
        ("--seed", "0"),
        ("--strict",),
        ("--dump-config",),
    ):
        code, out, _ = run(capsys, "--verify", file, *words, "--json")
        assert (code, json.loads(out)["error"]["where"]) == (2, "--verify")
    assert run(capsys, "--verify", str(tmp_path / "none.json"))[0] == 2


def test_the_order_as_torch_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = chain_in_order(2, 3, 1)
    file, order = written(plan, tmp_path), tmp_path / "order.csv"
    for flag in ("--verify", "--show"):
        order.unlink(missing_ok=True)
        code, _, err = run(capsys, flag, file, "--torch-csv", str(order))
        assert code == 0 and "order.csv" in err
        assert order.read_text() == plan_to_torch_csv(plan)
    words = ("lm-7b", "--set", "training.global_batch=8", "--parallel", "dp1-tp1-pp4", "--cluster", "h800:1x4")
    assert run(capsys, *words, "--schedule", "zb-h1", "--torch-csv", str(order))[0] == 0
    schedule, shape = schedule_from_torch_csv(order.read_text())
    assert (shape.num_ranks, shape.num_microbatches, schedule.splits_backward) == (4, 8, True)
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    assert run(capsys, *words, "--schedule", "zb-h1", "-o", str(one))[0] == 0
    assert run(capsys, *words, "--schedule", str(order), "-o", str(two))[0] == 0
    named, read = ExecutionPlan.read(one), ExecutionPlan.read(two)
    for own, its in zip(named.actions, read.actions, strict=True):
        stages = [
            [(k, t) for k, t in zip(a.kind.tolist(), a.target.tolist(), strict=True) if k < 4] for a in (own, its)
        ]
        assert stages[0] == stages[1]


def test_a_plan_that_is_no_schedule_of_torchs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frozen = [Module("vit", [0], [1, 1], False), Module("lm", [1], [1, 1], True, ["vit"])]
    file = written(build_plan(Random(0), frozen, 2), tmp_path)
    code, out, _ = run(capsys, "--verify", file, "--torch-csv", str(tmp_path / "order.csv"), "--json")
    error = json.loads(out)["error"]
    assert (code, error["where"]) == (4, "random: chunk 0 (vit)")
    assert "a backward for every microbatch of every stage" in error["message"]
    assert not (tmp_path / "order.csv").exists()

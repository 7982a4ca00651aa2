"""``semu goodput`` and ``semu.goodput``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli.command import main
from semu.errors import ConfigError
from semu.resilience.closed_forms import best_interval, expected_goodput
from semu.resilience.options import CheckpointOptions
from semu.resilience.strategies.registry import STRATEGIES

WORDS = ("lm-7b", "--cluster", "h100:4x8", "--parallel", "dp8-tp2-pp2")
RUN = """
[model]
name = "lm-7b"
[cluster]
device = "h100"
nodes = 4
[parallel]
tp = 2
pp = 2
[resilience]
days = 5
seeds = 3
strategies = ["checkpoint", "spares"]
spares = 2
[resilience.checkpoint]
every_s = "5min"
save_s = 10
restart_s = "1min"
[resilience.failures]
mtbf = "1h"
repair = "30min"
[resilience.price]
gpu_hour_usd = 2.5
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["goodput", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_every_strategy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--mtbf", "3h", "--days", "20", "--seeds", "2", "--tokens", "1T", "--gpu-hour-usd", "2")
    code, found = run(capsys, *WORDS, *options, "--out", str(tmp_path))
    assert code == 0
    assert [row["name"] for row in found["strategies"]] == list(STRATEGIES)
    for row in (row for row in found["strategies"] if row["refusal"] is None):
        for wall, spent in zip(row["wall_us"], row["gpu_us"], strict=True):
            assert sum(spent.values()) == wall * row["gpus"] == 20 * 86400 * 10**6 * row["gpus"]
        assert row["goodput_90"][0] <= row["goodput"] <= row["goodput_90"][1]
        assert row["budget"]["usd"] == pytest.approx(row["budget"]["days"] * 24 * row["gpus"] * 2)
        assert row["tokens_per_s"] * row["budget"]["days"] * 86400 == pytest.approx(1e12)
    assert json.loads((tmp_path / "goodput.json").read_text())["best"] == found["best"]
    assert (tmp_path / "goodput.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "goodput_mtbf.png").read_bytes().startswith(b"\x89PNG")
    for row in found["strategies"]:
        if row["refusal"] is not None:
            assert row["name"] not in found["against_mtbf"]
            continue
        times, goodputs = zip(*found["against_mtbf"][row["name"]], strict=True)
        assert times[4] == found["mtbf_s"] and times == tuple(found["mtbf_s"] * 2.0**k for k in range(-4, 5))
        assert goodputs[4] == pytest.approx(row["goodput"], abs=0.1) and goodputs[0] <= goodputs[-1]
    assert main(["goodput", *WORDS, *options]) == 0
    assert "what helps" in capsys.readouterr().out


def test_the_best_interval_and_its_goodput(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the closed form, through the command line."""
    options = ("--mtbf", "1h", "--save", "20", "--restart", "2min", "--days", "100", "--seeds", "40")
    _, found = run(capsys, *WORDS, *options, "--strategy", "checkpoint")
    (row,) = found["strategies"]
    every = row["settings"]["storage_every_s"]
    assert every == pytest.approx(best_interval(20.0, 3600.0))
    assert row["goodput"] == pytest.approx(expected_goodput(every, 20.0, 120.0, 3600.0), rel=0.01)


def test_a_run_file_and_the_python_door_agree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    code, found = run(capsys, str(path))
    assert code == 0 and found["days"] == 5 and found["seeds"] == 3 and found["mtbf_s"] == 3600
    checkpoint, spares = found["strategies"]
    assert checkpoint["settings"]["storage_every_s"] == 300 and spares["nodes"] == 6
    assert spares["goodput"] > checkpoint["goodput"]  # which waits for repairs
    assert checkpoint["shares"]["waiting"] == pytest.approx(30 / 90, abs=0.08)  # 60 min up, 30 down, 1 restarting
    again = semu.goodput(path)
    assert json.loads(json.dumps(again.to_json()))["strategies"] == found["strategies"]
    other = semu.goodput(path, failures="2h", strategies="checkpoint", checkpoint=CheckpointOptions(600, 5, 5), seed=1)
    assert other.mtbf_s == 7200 and other.strategies[0].settings["storage_every_s"] == 600
    assert len(other.to_dicts()) == 1
    assert main(["goodput", str(path), "--dump-config"]) == 0
    dumped = tmp_path / "dumped.toml"
    dumped.write_text(capsys.readouterr().out)
    assert run(capsys, str(dumped))[1]["strategies"] == found["strategies"]


def test_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time_s,node,event,notice_s\n3600,0,fail,0\n7200,0,join,0\n")
    options = ("--save", "0", "--restart", "0", "--days", "0.125", "--strategy", "checkpoint")
    _, found = run(capsys, *WORDS, "--trace", str(path), *options)
    (row,) = found["strategies"]
    assert row["failures"] == 1 and found["seeds"] == 1
    assert row["shares"]["waiting"] == pytest.approx(24 / 32 * 3600 / 10800)
    assert row["shares"]["down"] == pytest.approx(8 / 32 * 3600 / 10800)


def test_no_progress_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--mtbf", "10s", "--restart", "1h", "--days", "3", "--seeds", "1", "--strategy", "checkpoint")
    code, found = run(capsys, *WORDS, *options)
    assert code == 0
    assert found["strategies"][0]["goodput"] < 0.001
    assert "reconfigure" in found["strategies"][0]["reason"]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--mtbf", "nan"), "--mtbf resilience.failures.mtbf"),
        (("--mtbf", "0"), "resilience.failures.mtbf"),
        (("--mtbf", "3 parsecs"), "resilience.failures.mtbf"),
        (("--failures", "419"), "resilience.failures.rate"),
        (("--failures", "0/54d"), "resilience.failures.rate"),
        (("--failures", "nan/54d"), "resilience.failures.rate"),
        (("--mtbf", "3h", "--failures", "1/1d"), "resilience.failures"),
        (("--gpu-hour-usd", "-1"), "resilience.price.gpu_hour_usd"),
        (("--save=-1s",), "resilience.checkpoint.save_s"),
        (("--every", "never"), "resilience.checkpoint.every_s"),
        (("--days", "0"), "resilience.days"),
        (("--seeds", "0"), "resilience.seeds"),
        (("--strategy", "checkpiont"), "resilience.strategies"),
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--set", "resilience.failures.shape=0"), "--set resilience.failures.shape"),
        (("--set", "resilience.checkpoint.evry_s=3"), "--set resilience.checkpoint.evry_s"),
    ],
)
def test_refused(options: tuple[str, ...], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run(capsys, *WORDS, *options)
    assert code == 2
    assert where in found["error"]["where"]
    assert found["error"]["expected"]


def test_a_bad_value_of_a_file_is_placed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(RUN.replace('mtbf = "1h"', "mtbf = -1"))
    with pytest.raises(ConfigError, match="not a time"):
        semu.goodput(path)

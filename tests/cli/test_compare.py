"""``semu compare``: runs, results and logs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import semu
from semu.cli import main
from semu.errors import ConfigError
from semu.present.comparison import Comparison, Side

LOG = Path(__file__).parents[1] / "imports" / "megatron" / "files" / "gpt_7b.log"


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    main([*words, "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_beside_a_changed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times, parts and memory are those of ``semu simulate``, differences those of the settings."""
    other = tmp_path / "other.toml"
    words = ["lm-7b", "--set", "parallel.tp=4", "--set", "parallel.pp=2", "--set", "training.global_batch=72"]
    assert main(["simulate", *words, "--dump-config"]) == 0
    other.write_text(capsys.readouterr().out)
    one = document(capsys, "simulate", "lm-7b")
    two = document(capsys, "simulate", str(other))
    found = document(capsys, "compare", "lm-7b", str(other))
    sides = found["sides"]
    assert isinstance(sides, list)
    for side, alone in zip(sides, (one, two), strict=True):
        assert side["iteration_time_s"] == alone["iteration_time_s"]
        assert side["peak_memory_bytes"] == alone["peak_memory_bytes"]
        assert sum(side["breakdown_s"].values()) == pytest.approx(side["iteration_time_s"], rel=1e-6)
    ratio = two["iteration_time_s"] / one["iteration_time_s"] - 1  # type: ignore[operator]
    assert found["time_difference_percent"] == [0.0, pytest.approx(100 * ratio)]
    settings = found["settings"]
    assert isinstance(settings, dict)
    assert settings["parallel.tp"] == [2, 4] and settings["parallel.pp"] == [4, 2]
    assert settings["training.global_batch"] == [73, 72] and "training.seq_len" not in settings


@pytest.mark.slow
def test_results_and_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "lm-7b", "--out", str(tmp_path / "out"), "--trace", "none"]) == 0
    capsys.readouterr()
    picture = tmp_path / "compared.png"
    words = ["compare", str(tmp_path / "out"), "lm-7b", str(LOG), "--picture", str(picture)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"(a) {tmp_path / 'out'}, result" in text.replace("\n  ", " ") and "log of Megatron-LM" in text
    assert "beside (a)" in text and "+0.0%" in text
    assert picture.read_bytes()[:4] == b"\x89PNG"
    found = document(capsys, *words)
    sides = found["sides"]
    assert isinstance(sides, list)
    assert [side["kind"] for side in sides] == ["result", "simulated", "log of Megatron-LM"]
    assert sides[2]["iteration_time_s"] == pytest.approx(10.0, rel=1e-3) and sides[2]["breakdown_s"] == {}


def test_a_tolerance_decides_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "lm-7b", "lm-7b", "--tolerance", "0"]) == 0
    assert "no setting differs" in capsys.readouterr().out
    assert main(["compare", "lm-7b", "vlm-s", "--tolerance", "5"]) == 7
    assert "vlm-s differs from lm-7b by more than 5 %" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lm-7b"], "nothing to compare with"),
        (["lm-7b", "no-such-run"], "unknown setup or model"),
        (["lm-7b", "lm-7b", "--tolerance", "-1"], "not a tolerance"),
        (["lm-7b", "lm-7b", "--picture", "no/such/folder.png"], "no such folder"),
    ],
)
def test_bad_input(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err


def test_in_python() -> None:
    job = semu.load_run("lm-7b")
    found = semu.compare(job, semu.simulate("lm-7b"), "lm-7b")
    assert found.changes == [0.0, 0.0, 0.0] and not found.exceeds(0.0)
    with pytest.raises(ConfigError, match="not a result"):
        Side.of_document({"iteration_time_s": 1.0}, "x", "result")


def test_settings_of_sides_that_do_not_say_them() -> None:
    """A log says few settings; what it does not say is no difference to it."""
    sides = (
        Side("a", "simulated", 1.0, settings={"parallel.tp": 2, "parallel.pp": 4}),
        Side("b", "simulated", 2.0, settings={"parallel.tp": 4, "parallel.pp": 4}),
        Side("c", "log", 3.0),
    )
    found = Comparison(sides)
    assert found.differences == {"parallel.tp": (2, 4, None)}
    assert found.changes == [0.0, 1.0, 2.0]
    assert [side.name for side in found.exceeds(100)] == ["c"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("iteration_time_s", -1),
        ("iteration_time_s", 0),
        ("mfu", float("nan")),
        ("tokens_per_s_per_gpu", -2.0),
        ("peak_memory_bytes", [1.0, -1.0]),
        ("iteration_time_interval_s", [-1.0, 2.0]),
        ("breakdown_s", {"compute": float("inf")}),
        ("breakdown_s", {"exposed_communication": {"tp": -1.0}}),
    ],
)
def test_a_result_with_numbers_that_cannot_be(key: str, value: object) -> None:
    whole = {
        "iteration_time_s": 1.0,
        "tokens_per_s_per_gpu": 2.0,
        "mfu": 0.5,
        "breakdown_s": {"compute": 1.0, "other": -1e-18},
        "peak_memory_bytes": [1.0],
    }
    assert Side.of_document(whole, "a", "result").time_s == 1.0
    with pytest.raises(ConfigError, match="not a result of semu"):
        Side.of_document({**whole, key: value}, "a", "result")

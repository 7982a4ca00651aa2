"""The first screen of every shipped setup and of models of all families: short, narrow, in plain words."""

from __future__ import annotations

import re

import pytest

from semu.cli import main
from semu_models import MODELS, SETUPS

NAMES = [*SETUPS, *[name for name in MODELS if name not in SETUPS][::4]]
LABELS = ("iteration", "throughput", "MFU", "memory", "time goes to", "assumed", "coefficients")
JARGON = re.compile(
    r"cluster\.\w+_per_s +\d|\b\d+[FBIW]\d+\b|\+-\d|nearest legal|refuted|(without|no) bearing|not a count"
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("lm-7b", "gpt2") else [pytest.mark.slow]) for name in NAMES]
)
def test_a_first_screen(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code = main(["simulate", name])
    screen = capsys.readouterr().out.rstrip("\n").split("\n")
    assert code == 0
    assert len(screen) <= 24
    assert max(map(len, screen)) <= 80
    assert [label for label in LABELS if not any(line.startswith(f"{label} ") for line in screen)] == []
    assert JARGON.search("\n".join(screen)) is None
    assert "..." not in "".join(screen)

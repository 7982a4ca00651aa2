"""The tables of reports, as a terminal of 110 columns shows them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")

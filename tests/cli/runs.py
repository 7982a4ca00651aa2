"""Run files that tests of commands share."""

from __future__ import annotations

from pathlib import Path

SMALL_VLM = str(Path(__file__).with_name("small-vlm.toml"))
"""A vision-language model of few layers: a search of it takes a quarter of the time that one of vlm-s takes."""

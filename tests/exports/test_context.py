"""What programs' files do not say of context ranks is said beside them, and nothing that has no bearing."""

from __future__ import annotations

import pytest

from semu.exports import PROGRAMS, export
from semu.parallel.context import Balance
from semu.runfile import Overrides, resolve_run

SAID = [
    *((f"parallel.cp_kind={kind}",) for kind in ("needed", "auto")),
    *((f"parallel.cp_balance={policy.value}",) for policy in Balance if policy is not Balance.ZIGZAG),
    ("parallel.cp_balance=lpt", "parallel.cp_block=256"),
    ("parallel.cp_balance=hybrid", "parallel.cp_slack=0.2"),
    ("parallel.cp_kind=all_gather", "parallel.cp_overlap=heads"),
    ("parallel.attention_split=2",),
    ("training.attention_mask=document",),
]
IDLE = [
    ("cp4", "parallel.cp_block=256"),
    ("cp4", "parallel.cp_slack=0.2"),
    ("cp1", "parallel.cp_kind=needed"),
    ("cp1", "parallel.cp_balance=hybrid"),
]


def _unsaid(program: str, parallel: str, *words: str) -> str:
    run = resolve_run("llama3-8b", Overrides([*words, "training.seq_len=8192"], "h100:1x8", parallel))
    return "\n".join(export(run, program).unsaid)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("words", SAID, ids=lambda words: words[-1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_no_program_has_is_said(program: str, words: tuple[str, ...]) -> None:
    key, value = words[-1].split("=")
    assert f"{key}: {value} here" in _unsaid(program, "cp4", *words)


@pytest.mark.parametrize(("parallel", "word"), IDLE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_has_no_bearing_is_not_said(program: str, parallel: str, word: str) -> None:
    assert word.split("=")[0] not in _unsaid(program, parallel, word)

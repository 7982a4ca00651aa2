"""Random legal arguments import and simulate: what is not modelled is small, and said."""

from __future__ import annotations

import random
import re

import pytest

import semu
from semu.imports.flags import Grade
from semu.imports.megatron import read_megatron
from semu.imports.megatron.flags import FLAGS
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables

from .random_arguments import _TOGETHER, FREE, legal_arguments, written

CASES = 400
AT_ONCE = 12
"""Arguments of any value beside the others of a case."""


_IS_PLAIN = re.compile(r"[^|()]*").fullmatch


def command_line(case: int) -> dict[str, str]:
    draw = random.Random(case)
    free = [FREE[(case * AT_ONCE + number) % len(FREE)] for number in range(AT_ONCE)]
    return legal_arguments(draw, free)


def script(arguments: dict[str, str]) -> str:
    words = [f"    --{name} {value if _IS_PLAIN(value) else repr(value)} \\" for name, value in arguments.items()]
    return "\n".join(["torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\", *words, "", ""])


def test_every_argument_is_used() -> None:
    used = {name for case in range(CASES) for name in command_line(case)}
    wanted = {
        written(flag) for flag in FLAGS.flags if flag.grade is not Grade.STRUCTURAL and flag.name not in _TOGETHER
    }
    assert wanted - used == set()


@pytest.mark.sampled(28)
@pytest.mark.parametrize("case", range(CASES))
def test_random_arguments_simulate(case: int) -> None:
    arguments = command_line(case)
    read = read_megatron(script(arguments))
    run = resolve_tables(read.tables, Places(""))
    report = semu.simulate(run.job())
    assert report.iteration_time_s > 0
    near = {row.key.removeprefix("--") for row in read.reading.small}
    told = {item.rpartition(" ")[0] for item in read.tables["training"].get("left_out", ())}
    assert told <= near

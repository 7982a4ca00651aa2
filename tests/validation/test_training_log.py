"""Training logs of Megatron-LM and torchtitan: what is read, what is left out, what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.validation.logs.log_reader import read_log
from semu.validation.logs.training_log import LogFormat, LoggedMemory, TrainingLog
from tests.validation.own_runs import megatron_line, memory_line, titan_line

GIB, MIB = 2.0**30, 2.0**20


def log_of(path: Path, *lines: str) -> TrainingLog:
    path.write_text("\n".join(lines) + "\n")
    return read_log(path)


def test_megatron_lines(tmp_path: Path) -> None:
    log = log_of(
        tmp_path / "log",
        "using world size: 16, data-parallel size: 2, context-parallel size: 1, hierarchical context-parallel sizes: "
        "None, tensor-model-parallel size: 4, pipeline-model-parallel size: 2",
        "  micro_batch_size ................................ 3",
        "  seq_length ...................................... 4096",
        "  some_other_size ................................. 7",
        megatron_line(1, 9000.5),
        memory_line(0, 10.5, 20.25, 30),
        memory_line(8, 11, 21, 31),
        megatron_line(2, 1234.5),
        memory_line(0, 10, 22, 30.5),
    )
    assert log.format is LogFormat.MEGATRON
    assert [(one.number, one.time_s, one.global_batch) for one in log.iterations] == [(1, 9.0005, 8), (2, 1.2345, 8)]
    assert log.settings == {"gpus": 16, "dp": 2, "cp": 1, "tp": 4, "pp": 2, "micro_batch": 3, "seq_len": 4096}
    assert log.memory == {
        (0, LoggedMemory.ALLOCATED): 10.5 * MIB,
        (0, LoggedMemory.MAX_ALLOCATED): 22 * MIB,
        (0, LoggedMemory.MAX_RESERVED): 30.5 * MIB,
        (8, LoggedMemory.ALLOCATED): 11 * MIB,
        (8, LoggedMemory.MAX_ALLOCATED): 21 * MIB,
        (8, LoggedMemory.MAX_RESERVED): 31 * MIB,
    }
    assert log.notes == ()


def test_megatron_variants(tmp_path: Path) -> None:
    seconds = " iteration       10/     100 | elapsed time per iteration (s): 2.50 | TFLOPs: 101.5 |"
    one = log_of(tmp_path / "a", seconds).iterations[0]
    assert (one.time_s, one.tflop_per_s, one.global_batch) == (2.5, 101.5, None)
    rate = megatron_line(5, 100.0).replace("learning", "throughput per GPU (TFLOP/s/GPU): 412.3 | learning")
    assert log_of(tmp_path / "b", rate).iterations[0].tflop_per_s == 412.3
    # without the batch size, consumed samples tell it
    lines = [megatron_line(n, 100.0, batch=None, samples=n * 48) for n in (10, 20, 30)]
    assert [one.global_batch for one in log_of(tmp_path / "c", *lines).iterations] == [None, 48, 48]


@pytest.mark.parametrize("word", ["tps", "wps"])
def test_torchtitan_lines(word: str, tmp_path: Path) -> None:
    log = log_of(
        tmp_path / "log",
        "[rank0]:[titan] - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
        "[rank0]:Training starts at step 1, with local batch size 8, global batch size 64, sequence length 8192, total",
        titan_line(1, 812, word=word, memory=12.5),
        titan_line(10, 5726, word=word, memory=45.67),
    )
    assert log.format is LogFormat.TORCHTITAN
    assert [(one.number, one.tokens_per_s, one.time_s) for one in log.iterations] == [(1, 812, None), (10, 5726, None)]
    assert log.settings == {"gpus": 8, "tp": 2, "global_batch": 64, "seq_len": 8192}
    assert log.memory == {(0, LoggedMemory.MAX_RESERVED): 45.67 * GIB}


def test_several_ranks_in_one_log_give_medians(tmp_path: Path) -> None:
    lines = [titan_line(n, 1000 * n + 10 * rank, rank=rank, memory=10.0 + rank) for n in (1, 2) for rank in (2, 0, 1)]
    log = log_of(tmp_path / "log", *lines)
    assert [(one.number, one.tokens_per_s) for one in log.iterations] == [(1, 1010), (2, 2010)]
    assert log.memory == {(rank, LoggedMemory.MAX_RESERVED): (10.0 + rank) * GIB for rank in range(3)}
    assert log.notes == ()


def test_the_last_of_several_runs_counts(tmp_path: Path) -> None:
    first = [megatron_line(n, 100.0) for n in range(1, 6)]
    again = [megatron_line(n, 200.0) for n in range(3, 7)]
    log = log_of(tmp_path / "log", *first, memory_line(0, 1, 99, 99), *again, memory_line(0, 1, 2, 3))
    assert [(one.number, one.time_s) for one in log.iterations] == [(n, 0.2) for n in range(3, 7)]
    assert log.memory[0, LoggedMemory.MAX_ALLOCATED] == 2 * MIB
    assert log.notes == ("the log holds 2 runs (restarts on line 7): the last one counts",)


def test_broken_lines_are_counted(tmp_path: Path) -> None:
    cut = megatron_line(2, 100.0)[:90]
    log = log_of(tmp_path / "log", megatron_line(1, 100.0), cut, megatron_line(3, 0.0), megatron_line(4, 100.0))
    assert [one.number for one in log.iterations] == [1, 4]
    assert log.notes == ("2 iteration lines without a time left out (line 2, 3)",)


def test_gzip_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(gzip.compress(megatron_line(1, 100.0).encode()))
    assert read_log(path).iterations[0].time_s == 0.1


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(ConfigError, match="cannot read the file") as error:
        read_log(path)
    assert error.value.where == str(path)
    cases: list[tuple[bytes, str, str]] = [
        (b"", "the file is empty", "no text"),
        (b"hello\nworld\n", "no iteration lines", '2 lines, the first is "hello"'),
        (b'{"traceEvents": []}', "no iteration lines", "a JSON file: a trace goes with --trace"),
        (gzip.compress(megatron_line(1, 1.0).encode() * 9)[:-20], "truncated", "bytes"),
        (b"\x1f\x8b" + b"not gzip at all", "damaged", "bytes"),
        (bytes(range(256)), "no iteration lines", "lines"),
        (f"{megatron_line(1, 1.0)}\n{titan_line(1, 10)}\n".encode(), "two frameworks", "on line 2"),
    ]
    for content, message, got in cases:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as error:
            read_log(path)
        assert error.value.where == str(path)
        assert error.value.expected
        assert got in str(error.value.got)

"""What commands print fits the terminal, says each thing once and in plain words, and can be pasted."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.cli.options.every import COMMANDS, LISTS, parse_arguments
from semu.frames import Tabular
from semu.present.estimate import Estimate
from semu.runfile import load_run
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.study import PipelineStudy
from semu.units import GIB, fit_columns, fit_lines, fit_options, format_time

FILES = Path(__file__).parents[2] / "benchmarks" / "instances" / "first_minutes"
SMALL = "--set cluster.override.memory_bytes=1.5e10"
EXAMPLES: dict[str, tuple[str, ...]] = {
    "simulate": (
        "lm-7b",
        "vlm-s --details --provenance",
        f"lm-7b --details {SMALL}",
        "lm-7b --set training.jitter=0.05 --samples 4 --contention --details",
        "lm-7b --set parallel.tp=5",
        "lm-7x",
        "gpt2-xl --cluster a100-80g:1x8 --parallel tp2",
        "lm-7b --dump-config",
    ),
    "schedules": ("lm-7b --csv one.csv --compare zb-h1", "vlm-s --compare all", "--ranks 4 --microbatches 8"),
    "search": (
        "lm-7b --set training.global_batch=4 --rollouts 8 --out found",
        "lm-7b --batches 2 --rollouts 8 --set training.global_batch=4",
    ),
    "grid": ("lm-7b --vary tp=1:2,pp=2:4", f"lm-7b --vary tp=1:2,pp=2:4 {SMALL}"),
    "what-if": ("lm-7b", "vlm-s --set training.recompute_every=2 --set training.gradient_accumulation_fusion=false"),
    "context": (
        "lm-7b --cluster h100:1x8 --parallel cp4-tp2 --policies zigzag,lpt,snake --set training.global_batch=2",
        "lm-7b --cp 3",
    ),
    "assign": (
        "lm-7b --samples samples.jsonl --method all --set training.global_batch=4 --out assigned",
        "lm-7b --samples samples.jsonl --count 3",
        "lm-7b",
    ),
    "templates": (
        "lm-7b --cluster h100:5x1 --parallel pp5 --set parallel.zero=0 --nodes 5",
        "lm-7b --cluster h100:5x1 --parallel pp5",
    ),
    "drill": ("lm-7b --kill 1", "lm-7b --cluster h100:2x1 --parallel pp2 --set parallel.zero=0 --backend none"),
    "goodput": ("lm-7b --mtbf 3h --days 2 --seeds 2 --tokens 1T --gpu-hour-usd 2", "lm-7b --mtbf nan"),
    "workload": ("lm-7b --samples samples.jsonl --set training.global_batch=4", "lm-7b"),
    "compare": ("lm-7b llama3-8b", "lm-7b"),
    "plan": ("lm-7b -o plan.json", "vlm-s --rank 0", "--show plan.json --rank 1", "--verify plan.json"),
    "run": ("nothing.json --demo",),
    "validate": ("--group a100", "--group nothing"),
    "calibrate": ("gemm.csv --device h100 -o mine.toml", "all_reduce_perf.log --device h100", "nothing.csv"),
    "list": ("", *LISTS),
    "import": ("config.json", "config.json -o imported.toml", "megatron_vlm.sh"),
    "export": ("llama3-8b --to megatron", "vlm-s --to megatron", "lm-7b --to megatron -o run.sh"),
    "init": ("", "llama3-8b"),
    "doctor": ("",),
    "completion": ("nothing",),
}
CASES = [f"{command} {words}".strip() for command in COMMANDS for words in ("--help", *EXAMPLES.get(command, ()))]
PLAIN = re.compile(
    r"cluster\.\w+_per_s +\d|\b\d+[FBIW]\d+\b|\+-\d|nearest legal|refuted|(without|no) bearing|not a count"
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "gemm.csv", "all_reduce_perf.log", "megatron_vlm.sh"):
        shutil.copy(FILES / name, tmp_path)
    (tmp_path / "samples.jsonl").write_text('{"text_tokens": 700}\n{"text_tokens": 90}\n' * 40)
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], words: str) -> tuple[str, str]:
    main(shlex.split(words))
    captured = capsys.readouterr()
    return captured.out, captured.err


def as_shell(text: str) -> list[str]:
    """The words that a shell makes of a text: a backslash at the end of a line goes on, a hash begins a comment."""
    return shlex.split(text.replace("\\\n", ""), comments=True)


def test_every_command_is_tried() -> None:
    assert {*EXAMPLES} == {*COMMANDS}


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("words", ["--help", "--version", *CASES])
@pytest.mark.sampled(3)
def test_it_fits(
    words: str, columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    if "plan.json" in words and "-o" not in words:
        printed(capsys, "plan lm-7b -o plan.json")
    out, err = printed(capsys, words)
    shown = (out + err).replace(str(tmp_path), ".")  # a path stays whole
    wide = [line for line in shown.split("\n") if len(line) > columns]
    assert not wide
    assert out or err
    assert PLAIN.search(err if words.startswith("plan") else out + err) is None
    said = [text for line in err.split("semu: ") if len(text := " ".join(line.split())) > 20]
    notes = re.findall(r"^(?:note|warning)[ :]+((?:.|\n +)*)", out, re.MULTILINE)
    assert not [text for note in notes for text in said if text in " ".join(note.split())]


def test_lines_lose_no_word() -> None:
    text = "label         " + "many words " * 20 + "\n  short\n" + "x" * 100
    shown = fit_lines(text, width=60)
    assert shown.split() == text.split()
    assert max(len(line) for line in shown.split("\n")[:-1]) <= 60
    assert shown.split("\n")[1].startswith(" " * 14 + "many")
    rows = [("name", "said", "n"), ("one", "words and " * 10, "1"), ("two", "few", "2")]
    lines = fit_columns(rows, (False, False, True), width=40)
    assert max(map(len, lines)) <= 40 and " ".join(lines).split().count("words") == 10
    assert fit_columns(rows, (True, True, True), width=40)[-1].endswith("said, n)")


@pytest.mark.parametrize("width", [30, 40, 80])
def test_options_are_pasted(width: int) -> None:
    options = [
        "--set parallel.tp=4",
        "--set 'training.offload=[\"optimizer\"]'",
        "--set training.recompute=full",
    ]
    lines = fit_options(options, "a comment of several words", first="try  ", width=width)
    text = "\n".join(lines).removeprefix("try  ")
    assert as_shell(text) == shlex.split(" ".join(options))
    assert all(len(line) <= max(width, 5 + 2 + max(map(len, options))) for line in lines)


# -- what is told to try -------------------------------------------------------------------------------------------
def told(screen: str, label: str) -> list[str]:
    """The entries of a label of the first screen, with their lines."""
    entries = re.split(r"\n(?=\S)|\n\n", screen)
    return [entry.removeprefix(label).strip() for entry in entries if entry.startswith(label)]


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("lm-7b --set training.recompute=full", "try"),
        ("vlm-s", "try"),
        (f"lm-7b {SMALL}", "fits with"),
        ("vlm-s --set cluster.override.memory_bytes=2.2e10", "fits with"),
    ],
)
@pytest.mark.sampled(2)
def test_what_to_try_is_pasted(words: str, label: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(printed(capsys, f"simulate {words}")[0], label)
    assert found
    before = json.loads(printed(capsys, f"simulate {words} --json")[0])
    for entry in found:
        pasted = as_shell(entry)
        assert parse_arguments(["simulate", *shlex.split(words), *pasted]).assignments
        after = json.loads(printed(capsys, shlex.join(["simulate", *shlex.split(words), *pasted, "--json"]))[0])
        said = " ".join(entry.partition("#")[2].split())
        assert after["fits"]
        if label == "try":
            assert said == f"{1 - after['iteration_time_s'] / before['iteration_time_s']:.0%} less time"
        else:
            peak = max(after["peak_memory_bytes"]) / GIB
            assert said == f"{peak:.1f} GiB allocated, {format_time(after['iteration_time_s'])}"


@pytest.mark.parametrize(
    "words",
    [
        "search lm-7b --set training.global_batch=4 --rollouts 8 --out found",
        "schedules lm-7b --compare zb-v --csv a.csv",
    ],
)
@pytest.mark.sampled(2)
def test_what_runs_again_is_pasted(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = printed(capsys, words)[1]
    pasted = as_shell(err.partition("it runs again with:\n")[2])
    run = re.split(" --(?:rollouts|compare)", words)[0].split()[1:]
    again = json.loads(printed(capsys, shlex.join(["simulate", *run, *pasted, "--json"]))[0])
    assert again["iteration_time_s"] > 0


# -- one number for one thing --------------------------------------------------------------------------------------
MODELS = [
    "lm-7b",
    "lm-7b --set training.schedule=zb-h1",
    "lm-7b --set training.schedule=interleaved --set training.global_batch=72",
    "lm-7b --set training.recompute=full",
    f"lm-7b {SMALL}",
    "vlm-s",
    "vlm-s --set parallel.partition=latency",
    "t2v-s",
    "llama3-8b --cluster h100:2x8 --parallel tp2-pp2",
    "gpt2-xl --cluster h100:1x8",
]


@pytest.mark.parametrize("words", MODELS)
@pytest.mark.sampled(2)
def test_text_and_json_agree(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(printed(capsys, f"simulate {words} --json")[0])
    screen, _, details = printed(capsys, f"simulate {words} --details")[0].partition("\n\niteration time")
    flat, table = " ".join(screen.split()), " ".join(details.split())
    seconds, gpus = document["iteration_time_s"], document["job"]["cluster"]
    rate = document["tokens_per_s_per_gpu"]
    for text in (f"iteration {format_time(seconds)}", f"MFU {document['mfu']:.1%}", f"HFU {document['hfu']:.1%}"):
        assert text in flat
    assert f"{rate:,.0f} tokens/s per GPU, {rate * gpus['nodes'] * gpus['gpus_per_node']:,.0f} on" in flat
    assert table.startswith(format_time(seconds)) and f"tokens/s/GPU {rate:,.1f}" in table
    assert f"MFU {document['mfu']:.1%} " in table and f"HFU {document['hfu']:.1%}" in table
    assert f"bubble ratio {document['bubble_ratio']:.1%} of the" in table
    held = document["reserved_memory_bytes"]
    rank = held.index(max(held))
    peak = document["peak_memory_bytes"][rank]
    memory = re.search(r"memory ((?:fits|does not fit): .*?\))", flat)
    assert memory is not None and memory[1] in table
    assert f"rank {rank} needs" in memory[1]
    assert f"allocated {peak / GIB:.2f}, reserved {held[rank] / GIB:.2f}," in memory[1]
    assert f"rank {rank} at its peak (GiB)" in flat
    for number, size in enumerate(document["peak_memory_bytes"]):
        assert document["ranks"][number]["peak_bytes"] == size
        assert sum(value for name, value in document["memory"][number].items() if name in KINDS) == size
        if len(document["ranks"]) <= 4:
            assert re.search(rf"\n +{number}  .* {size / GIB:.2f} ", details)
    for name in ("compute", "bubble", "optimizer"):
        value = document["breakdown_s"].get(name)
        if value and document["num_distinct_replicas"] == 1:
            share = f"{value / seconds:.1%}"
            assert re.search(rf"\b{name} +(?:\S+ \S+) +{share}", table)
            assert value < 1e-3 * seconds or f"{name} {share}" in flat


KINDS = ("parameters", "gradients", "optimizer", "activations", "workspace", "communication")


@pytest.mark.parametrize("name", ["lm-7b", "vlm-s"])
def test_commands_agree(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def _read(words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(printed(capsys, f"{words} --json")[0])
        return found

    simulated, compared = _read(f"simulate {name}"), _read(f"schedules {name} --compare 1f1b")
    changed, planned = _read(f"what-if {name} --set training.recompute=full")["base"], _read(f"plan {name}")
    figures = ("iteration_time_s", "bubble_ratio", "mfu", "peak_memory_bytes")
    for other in (compared["schedules"][0], changed, planned):
        shared = [key for key in figures if key in other]
        assert len(shared) >= 2
        assert {key: other[key] for key in shared} == {key: simulated[key] for key in shared}


# -- results in Python -----------------------------------------------------------------------------------------------
class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm-7b", "vlm-s"])
def test_results_are_tables(name: str) -> None:
    job = load_run(name, ["training.global_batch=8"])
    study = PipelineStudy.of(ALL_SCHEDULES["1f1b"].shape(2, 4), forward_s=1.0, input_s=1.0)
    results = [
        semu.simulate(job),
        semu.evaluate(job),
        semu.grid(job, vary={"tp": (1, 2), "pp": (2, 4)}, top=1),
        semu.search(job, rollouts=4),
        semu.compare_schedules(job, ["gpipe"]),
        semu.what_if(job, [semu.searcher.what_if.changes.Change.of(training__recompute="none")]),
        study.evaluate(ALL_SCHEDULES["1f1b"].on(study)),
    ]
    assert len({type(one) for one in results}) == len(results)
    for result in results:
        assert isinstance(result, Tabular)
        rows = result.to_dicts()
        assert rows and all(not isinstance(value, list | dict | tuple) for row in rows for value in row.values())
        reader = _Cells()
        reader.feed(result._repr_html_())
        assert reader.rows == (len(rows) + 1) or isinstance(result, semu.Report)
    assert results[0].to_dicts()[0]["mfu"] == results[1].to_dicts()[0]["mfu"]
    assert isinstance(results[1], Estimate)


def test_every_result_is_a_table() -> None:
    from semu.fitting.calibration import Calibration
    from semu.searcher.many import SearchTable
    from semu.searcher.planner.training_report import TrainingReport
    from semu.validation.logs.log_result import LogComparison
    from semu.validation.own_site import OwnSite
    from semu.validation.profiles import ProfileComparison
    from semu.validation.result import ValidationResult
    from semu.validation.site import SiteCalibration
    from semu.validation.traces.trace_result import TraceComparison

    for kind in (
        *(Calibration, SearchTable, TrainingReport, LogComparison, OwnSite, ProfileComparison),
        *(ValidationResult, SiteCalibration, TraceComparison),
    ):
        assert issubclass(kind, Tabular) and not getattr(kind, "__abstractmethods__", None)
    with pytest.raises(TypeError, match="abstract"):
        type("Nothing", (Tabular,), {})()

"""Every command that README.md and docs/ print ends as they say, and every run file that they show runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from validation.nsys_reports import write_gpu_trace

from benchmarks.readme._weave import PAGES, ROOT, WALKED
from semu.cli import main
from semu.cli.options.every import COMMANDS

INSTANCES = ROOT / "benchmarks" / "instances" / "first_minutes"
MEGATRON = ROOT / "tests" / "imports" / "megatron" / "files"

EXIT_CODES = {
    "semu simulate llama3-70b --cluster h100:1x8 --parallel tp8": 3,
    "semu simulate RUN --strict-interval 20": 5,
    "semu simulate examples/runs/deepseek-v3.toml": 3,
}
"""Commands whose text says that they do not end with 0 (the interval of vlm-s, more than text, is wider than 20 %)."""
WORDS = {
    "RUN": "vlm-s",
    "SETUP": "t2v-s",
    "DIR": "out",
    "PATH": "cache",
    "RUNS.json": "runs.json",
    "[NAME]": "",
    "path/to/config.json": "config.json",
    "../shared/data/runs/runs.json": "runs.json",
    "examples/mixtral_8x7b.sh": "pretrain.sh",
    "examples/runs/deepseek-v3.toml": "deepseek-v3.toml",
    "--iterations 100": "--iterations 2",
    "--iterations 20": "--iterations 2",
    "--iterations N": "--iterations 2",
    "--time 10": "--time 1",
    "--trace FILE": "--trace trace.csv --iterations 2",
    "--samples FILE": "--samples samples.jsonl",
    "--samples metadata.jsonl": "--samples samples.jsonl",
    "--assign METHOD": "--assign coupled --time 1",
}
"""What stands for a file or a name of the reader's, and what runs in its place; long searches are cut short."""
AFTER = {
    "semu plan --show": "semu plan vlm-s --search --set training.global_batch=8 -o plan.json --time 1",
    "semu simulate vlm-s --set training.schedule_file": "semu search vlm-s --time 1 --out out",
    "semu calibrate --score FILES": "semu calibrate all_reduce_perf.log --device h100 -o mine.toml",
    "semu validate --run ": "semu import train.log -o run.toml",
    "semu simulate run.toml": "semu import pretrain.sh -o run.toml",
    "semu compare pretrain.sh best.sh": "semu grid pretrain.sh --export megatron:best.sh",
}
"""Begin of a command -> the one that the page has the reader type before it."""


def printed_commands() -> list[str]:
    """Commands between backticks and in blocks of shell, each once; alternatives (``a|b``) and NAMEs one by one."""
    found = []
    for page in PAGES:
        if page in WALKED:  # what it types is run there, what it mentions is read there
            continue
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
        lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
        found += [line for line in (*lines, *inline) if line.startswith("semu ")]
    return [own for command in dict.fromkeys(found) for own in alternatives(command)]


def alternatives(command: str) -> list[str]:
    """``list a | b`` as two commands; ``semu validate`` alone is a mention, and as good as its help."""
    words = command.replace(" | ", "|").split()
    if words[-1] in COMMANDS and len(words) == 2:
        return [f"{command} --help"]
    at = next((i for i, word in enumerate(words) if "|" in word), None)
    if at is None:
        return [command]
    return [" ".join([*words[:at], word, *words[at + 1 :]]) for word in words[at].split("|")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's folder."""
    place = tmp_path_factory.mktemp("reader") / "own"
    shutil.copytree(INSTANCES, place)
    shutil.copy(ROOT / "examples" / "mixtral_8x7b.sh", place / "pretrain.sh")
    shutil.copy(ROOT / "examples" / "runs" / "deepseek-v3.toml", place)
    shutil.copy(MEGATRON / "gpt_7b.log", place / "train.log")
    shutil.copy(MEGATRON / "gpt_7b.log", place / "training.log")
    kernels = [("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", 1000 * number, 800) for number in range(20)]
    write_gpu_trace(place / "trace.csv", kernels)
    sizes = [(40 + 7 * number % 400, 1 + number % 4) for number in range(2000)]
    samples = ({"text_tokens": text, "images": [{"patches": 256 * k, "tokens": 16 * k}]} for text, k in sizes)
    (place / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return place


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type a command that may hold ``&&``."""
    words = f'"{sys.executable}" -m semu '
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        re.sub(r"(^|&& )semu ", lambda match: match[1] + words, command),
        shell=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def typed_here(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code and stderr of a command: in this process, unless it takes a shell."""
    if re.search(r"[&|<>*;]", command):
        done = shell(command, folder)
        return done.returncode, done.stderr
    monkeypatch.chdir(folder)
    capsys.readouterr()
    code = main(shlex.split(command)[1:])
    return code, capsys.readouterr().err


def test_commands_are_found() -> None:
    commands = printed_commands()
    assert len(commands) > 50 and set(EXIT_CODES) <= set(commands)
    assert {shlex.split(command)[1] for command in commands} >= {"simulate", "import", "grid", "search", "calibrate"}
    for begin in AFTER:
        assert any(command.startswith(begin) for command in commands), begin


@pytest.mark.slow
@pytest.mark.parametrize("command", printed_commands())
def test_printed_commands_end_as_the_pages_say(
    command: str,
    folder: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = command
    if "runs.json" in command.lower() or "validate --runs FILE" in command:
        data = request.getfixturevalue("data_dir") / "runs" / "runs.json"
        rows = json.loads(data.read_text())
        timed = [row for row in rows if "profiled_ms_per_microbatch" in row.get("measured_values", {})]
        (folder / "runs.json").write_text(json.dumps([*rows[:8], *timed[:2]]))
    for word, own in WORDS.items():
        typed = re.sub(rf"(?<!\S){re.escape(word)}(?!\S)", own, typed)
    typed = re.sub(r"(?<!\S)NAME(?!\S)", "megatron" if "--baseline" in command else "h100", typed)
    files = "runs.json" if "validate" in command else "gemm.csv"
    typed = re.sub(r"(?<!\S)FILES?(?!\S)", files, typed)
    for begin, before in AFTER.items():
        if command.startswith(begin):
            code, err = typed_here(before, folder, monkeypatch, capsys)
            assert code == 0, err
    if command.startswith("semu init"):
        (folder / "run.toml").unlink(missing_ok=True)
    if "semu run" in typed or "semu drill" in typed:
        pytest.importorskip("torch", reason="running plans needs torch (pip install '.[executor]')")
    code, err = typed_here(typed, folder, monkeypatch, capsys)
    assert code == EXIT_CODES.get(command, 0), f"{typed}\n{err}"
    assert "Traceback" not in err


def shown_run_files() -> list[tuple[str, str]]:
    return [
        (f"{page.stem}-{number}", block)
        for page in PAGES
        if page not in WALKED
        for number, block in enumerate(
            re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
    ]


@pytest.mark.parametrize(("name", "text"), shown_run_files(), ids=[name for name, _ in shown_run_files()])
@pytest.mark.sampled(2)
def test_run_files_of_the_pages_run(
    name: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "[cluster]" not in text:
        text += '[cluster]\ndevice = "h100"\n[parallel]\ntp = 4\npp = 2\n[training]\nglobal_batch = 4\n'
    (folder / f"{name}.toml").write_text(text)
    monkeypatch.chdir(folder)
    assert main(["simulate", f"{name}.toml", "--json"]) in (0, 3)
    assert json.loads(capsys.readouterr().out)["iteration_time_s"] > 0

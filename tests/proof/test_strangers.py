"""Files of strangers: nothing in them is run, none is too deep or too long to be refused, no name leaves a folder."""

from __future__ import annotations

import ast
import gzip
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semu.cli import main
from semu.errors import MALFORMED, ConfigError
from semu.files import parse_json, read_bounded, read_source, read_toml
from semu.masks.bits import read_bits
from semu.masks.intervals import read_intervals
from tests.proof.doors import RUN, doors
from tests.proof.fuzz import CODES, tried

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*(ROOT / "semu").rglob("*.py"), *(ROOT / "semu_models").rglob("*.py")])
PERILS = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "subprocess", "runpy", "code"}
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "execv", "spawnv", "unsafe_load"}
ALLOWED: Mapping[str, tuple[str, str]] = {
    "semu/ahead.py subprocess": ("semu.compiled, with names of semu's own kernels", "Popen"),
    "semu/dispatchers.py pickle": ("the exception of numba's cache, which is a folder of the user's own", "Unpickling"),
    "semu/stored.py marshal": ("machine code of kernels, in the same folder", "loads"),
    "semu/stored.py compile": ("types of a kernel's arguments, which numba gave", "compile"),
    "semu/records.py exec": ("functions of semu's own classes, of the names of their fields", "exec"),
    "semu/executor/processes.py pickle": ("results through a pipe from a process that semu started", "loads"),
    "semu/executor/drill/crew.py pickle": ("messages through such a pipe", "loads"),
    "semu/present/traces/memory_snapshots.py pickle": ("written for PyTorch's viewer; semu reads none", "dumps"),
}
"""Where semu does what could run a stranger's code: why it does not, and what it calls."""


WORDS = ("loads(", ".load(", *(f"import {word}" for word in PERILS), *(f"{word}(" for word in CALLS))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Syntax trees of the files that have any word in question."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}
    assert len(texts) > 500
    return {name: ast.parse(text) for name, text in texts.items() if any(word in text for word in WORDS)}


def named(call: ast.Call) -> str:
    """``pickle.loads`` of a call; of a method of something else its name."""
    at = call.func
    if isinstance(at, ast.Attribute):
        return f"{at.value.id}.{at.attr}" if isinstance(at.value, ast.Name) else f".{at.attr}"
    return at.id if isinstance(at, ast.Name) else ""


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield named(node), node


def test_no_file_is_run(trees: Mapping[str, ast.Module]) -> None:
    """No eval and no exec; pickle and marshal only where nobody else's file arrives."""
    found = set()
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {f"{name} {item.name}" for item in node.names if item.name.split(".")[0] in PERILS}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found |= {f"{name} {node.module}"} if (node.module or "").split(".")[0] in PERILS else set()
        for called, node in calls(tree):
            if called in CALLS or (called.startswith("os.") and called[3:] in CALLS):
                found.add(f"{name} {called}")
            keys = {key.arg: ast.unparse(key.value) for key in node.keywords}
            if called in ("np.load", "numpy.load"):
                assert keys.get("allow_pickle") == "False", name
            if called == "torch.load":
                assert keys.get("weights_only") == "True", name
            if called == "yaml.load":
                assert "Safe" in ast.unparse(node), name
            if called in ("pickle.load", "pickle.loads"):
                assert ast.unparse(node.args[0]).endswith("recv_bytes()"), name
    assert found == ALLOWED.keys()


def test_every_reader_of_json_and_toml_bears_depth_and_digits(trees: Mapping[str, ast.Module]) -> None:
    """``json.loads`` and ``tomllib.loads`` raise RecursionError and ValueError, not only their own errors."""
    seen = set()
    for name, tree in trees.items():
        guarded: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Try):
                types = [inner for item in node.handlers if item.type is not None for inner in ast.walk(item.type)]
                caught = {one.id for one in types if isinstance(one, ast.Name)}
                caught |= {kind.__name__ for kind in MALFORMED} if "MALFORMED" in caught else set()
                if {"RecursionError", "ValueError"} <= caught:
                    guarded |= {inner for part in node.body for inner in ast.walk(part)}
        for called, node in calls(tree):
            if called in ("json.loads", "json.load", "tomllib.loads", "tomllib.load"):
                seen.add(name)
                is_own = ast.unparse(node.args[0]).startswith(("json.dumps", "files(", "plan.to_json"))
                assert is_own or node in guarded, f"{name}:{node.lineno}"
    assert len(seen) > 12


BOMBS: Mapping[str, tuple[bytes, ...]] = {
    ".json": (
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 50_000 + b"]" * 50_000,
        b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}",
        b'{"format": "semu plan 1", "' + b"k" * 10**6 + b'": 1}',
    ),
    ".jsonl": (b"[" * 100_000 + b"\n", b'{"id": "a", "text_tokens": ' + b"9" * 5000 + b"}\n", b"\0" * 1000),
    ".toml": (
        b"[model.transformer]\nlayers = " + b"[" * 5000 + b"]" * 5000 + b"\n",
        b"a = " + b"{a=" * 5000 + b"1" + b"}" * 5000 + b"\n",
        b".".join([b"a"] * 3000) + b" = 1\n",
        b"[model.transformer]\nlayers = " + b"9" * 5000 + b"\n",
        b"[model.transformer]\nlayers = 0x" + b"f" * 50_000 + b"\n",
        b'[model]\nhf_config = "a\\u0000b"\n',
    ),
    ".yaml": (
        b"a0: &a0 [x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i + 1, i + 1, b",".join([b"*a%d" % i] * 9)) for i in range(20)),
        b"a: " + b"[" * 20_000 + b"]" * 20_000,
        b"tensor_model_parallel_size: !!python/object/apply:os.system ['touch trace']\nnum_layers: 2\n",
    ),
    ".csv": (
        b"time_s,node,event,notice_s\n" + b'"' + b"x" * 200_000 + b'",0,fail,0\n',
        b"a,b\n" + b"1," * 10**5 + b"\n",
    ),
}
"""Of each suffix: too deep, too long, or expanding to more than there is."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("suffix", BOMBS)
def test_files_too_deep_and_too_long(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    every = {name: door for name, door in doors(tmp_path / "real").items() if door.suffix == suffix}
    assert every
    for name, door in every.items():
        for number, data in enumerate(BOMBS[suffix]):
            path = tmp_path / f"bomb{suffix}"
            path.write_bytes(data)
            verdict = tried(door, path)
            assert verdict.code in CODES[1:] and not verdict.fault, f"{name}, bomb {number}: {verdict}"
    assert not (tmp_path / "trace").exists()


def test_large_files_are_refused_before_they_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semu.files.LARGEST_UNPACKED", 1 << 20)
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(b" " * (1 << 26)))
    with pytest.raises(ConfigError, match="gzip file is too large"):
        read_source(packed, "a trace")
    packed.write_bytes(gzip.compress(b"[" + b" " * 1000 + b"]"))
    assert json.loads(read_source(packed, "a trace")) == []
    for path in ("/dev/zero",):
        with pytest.raises(ConfigError, match="too large"):
            read_bounded(path, "a table")
        with pytest.raises(ConfigError, match="too large"):
            read_toml(path, path, "a profile")
        assert main(["simulate", path, "--quiet"]) == 2
    with pytest.raises(ConfigError, match="levels"):
        parse_json("[" * 10**5, "a", "b")
    with pytest.raises(ConfigError, match="not JSON"):
        parse_json("9" * 5000, "a", "b")


# -- scripts -------------------------------------------------------------------------------------------------------
SCRIPT = """\
#!/bin/bash
touch trace1
X=$(touch trace2; echo 4)
Y=`touch trace3`
eval "touch trace4"
source ./evil.sh
. ./evil.sh
exec 3> trace5
: > trace6
echo x >> trace7
cat <(touch trace8) <<EOF
$(touch trace9)
EOF
rm -rf witness
N=$((1 + $(touch trace10; echo 1)))
Z=${UNSET:-$(touch trace11)}
A=(`touch trace12`)
[ -f $(touch trace13) ] && touch trace14
if touch trace15; then touch trace16; fi
python -c "open('trace17', 'w')"
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 \\
    --seq-length 512 --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 \\
    --vocab-size 1024 --bf16 --tensor-model-parallel-size 2 --data-path $(touch trace18)
"""


class Ran(Exception):
    """Somebody has tried to start a process."""


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def _refuse(*words: object, **_: object) -> Any:
        raise Ran(words)

    for name in ("system", "popen", "fork", "posix_spawn", "execv", "execve", "execvp"):
        monkeypatch.setattr(os, name, _refuse)
    monkeypatch.setattr(subprocess.Popen, "__init__", _refuse)


@pytest.mark.usefixtures("no_processes")
def test_a_script_is_read_and_never_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.sh").write_text("touch trace19\n")
    (tmp_path / "witness").write_text("here")
    (tmp_path / "train.sh").write_text(SCRIPT)
    before = sorted(tmp_path.iterdir())
    code = main(["import", "train.sh", "--json", "--quiet"])
    out = capsys.readouterr().out
    assert code in (0, 2) and "Ran" not in out
    # without what no reader can know, the same script is a run
    lines = [line for line in SCRIPT.splitlines() if "trace" not in line or "torchrun" in line or "data-path" in line]
    (tmp_path / "train.sh").write_text("\n".join(lines) + "\n")
    assert main(["import", "train.sh", "--json", "--quiet"]) == 0, capsys.readouterr()
    assert json.loads(capsys.readouterr().out)["kind"]
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "witness").read_text() == "here"


@pytest.mark.usefixtures("no_processes")
def test_a_configuration_in_python_is_read_and_never_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evil = "import os\nos.system('touch trace')\nopen('trace', 'w').close()\n"
    scripts = sorted((ROOT / "tests" / "imports").glob("*/files/**/*.py"))
    assert scripts
    for path in scripts:
        (tmp_path / path.name).write_text(evil + path.read_text() + evil)
        assert main(["import", path.name, "--quiet"]) in (0, 2)
    capsys.readouterr()
    assert not (tmp_path / "trace").exists()


class Bomb:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_arrays_with_pickles_are_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    objects = np.array([Bomb(trace)], dtype=object)
    np.save(tmp_path / "mask.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "mask.npz", ptr=objects, first=objects, low=objects, high=objects, is_causal=objects)
    (tmp_path / "half.npz").write_bytes((tmp_path / "mask.npz").read_bytes()[:100])
    for read, name in ((read_bits, "mask.npy"), (read_intervals, "mask.npz"), (read_intervals, "half.npz")):
        with pytest.raises(ConfigError, match="cannot read the mask"):
            read(tmp_path / name)
    assert not trace.exists()
    np.load(tmp_path / "mask.npy", allow_pickle=True)
    assert trace.exists()  # the bomb is one


# -- names ---------------------------------------------------------------------------------------------------------
EVIL = "<img src=x onerror=alert(1)>"
CLOSES = "</script><script>alert(2)</script>"


class Parts(HTMLParser):
    """Elements of a page, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: set[str] = set()
        self.scripts: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data


def check_page(path: Path) -> None:
    parts = Parts(path.read_text())
    assert "onerror" not in parts.attributes, path
    assert parts.scripts and not any(script.strip().startswith("alert(") for script in parts.scripts), path


def test_names_in_files_are_escaped_and_make_no_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of rules, profiles, runs and samples that a stranger chose."""
    inside = tmp_path / "inside"
    inside.mkdir()
    run = inside / f"{EVIL}.toml"
    run.write_text(RUN)
    profile = inside / "mine.toml"
    profile.write_text(
        f'name = "../../{EVIL}{CLOSES}"\nmemory_bytes = 84e9\nmem_bytes_per_s = 3.0e12\nnvlink_bytes_per_s = 400e9\n'
        "nic_bytes_per_s = 50e9\n[flop_per_s]\nbf16 = 800e12\n"
    )
    rules = inside / "rules.toml"
    rules.write_text(
        f'[schedule."../../{EVIL.replace("=", "")}"]\nin_flight = "p - r"\n[schedule."{CLOSES}"]\nin_flight = "p"\n'
    )
    out = inside / "out"
    words = {
        "simulate": ["simulate", str(run), "--profile", str(profile), "--trace", "none"],
        "schedules": ["schedules", str(run), "--program", str(rules)],
    }
    made = 0
    for name, own in words.items():
        code = main([*own, "--out", str(out / name), "--quiet"])
        assert code in (0, 2), capsys.readouterr().err
        if code == 0:
            made += 1
            check_page(out / name / "report.html")
    capsys.readouterr()
    assert made == 2
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert {path.name for path in inside.iterdir()} == {"out", run.name, profile.name, rules.name}

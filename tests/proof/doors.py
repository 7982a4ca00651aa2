"""``doors``: every command that reads a file, with real files of its kind; the seeds of the fuzzer.

Seeds are small: each is made by semu itself or taken from the tests of its reader.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from semu.cli import main

TESTS = Path(__file__).resolve().parents[1]
LARGEST_SEED = 40_000
"""Bytes of a seed: damage in a long file mostly hits what does not matter."""

RUN = """\
[model.transformer]
layers = 4
hidden = 256
heads = 4
vocab = 1024

[cluster]
device = "h100"
nodes = 1
gpus_per_node = 8

[parallel]
dp = 2
tp = 2
pp = 2
zero = 1

[training]
micro_batch = 1
global_batch = 8
seq_len = 512
schedule = "1f1b"
"""
EXPERTS = RUN.replace("vocab = 1024", "vocab = 1024\nexperts = 4\ntop_k = 2\nmoe_ffn = 512").replace(
    "zero = 1", "ep = 2"
)
RULE = """\
[schedule.mine]
in_flight = "p - r"

[schedule.other]
placement = "v-shape"
vpp = 2
forward = "depth(p,last)"
units = [2, 1]
in_flight = [3, "p"]
"""
PROFILE = """\
name = "guessed"
memory_bytes = 84e9
mem_bytes_per_s = 3.0e12
nvlink_bytes_per_s = 400e9
nic_bytes_per_s = 50e9
[flop_per_s]
bf16 = 800e12
"""
EVENTS = "time_s,node,event,notice_s\n100,0,fail,0\n4000,0,join,0\n9000.5,0,fail,120\n20000,0,join,0\n"
COUNTS = "hours,count\n1,1\n2,0\n3,1\n"
SLURM = """\
JobID|State|Start|End
1|NODE_FAIL|2024-05-01T00:00:00|2024-05-01T01:00:00
2|CANCELLED by 1000|2024-05-01T01:10:00|2024-05-01T02:00:00
3|FAILED|2024-05-01T02:10:00|2024-05-01T03:00:00
"""
LOG = """\
using world size: 8, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 2, \
pipeline-model-parallel size: 2
  micro_batch_size ................................ 1
  seq_length ...................................... 512
""" + "".join(
    f" iteration {i:8}/   10 | consumed samples: {8 * i} | elapsed time per iteration (ms): {20 + i % 3}.5 | "
    "global batch size:     8 | lm loss: 1.0E+00 |\n"
    for i in range(1, 11)
)
GEMM = "device,dtype,m,n,k,batch,time_us,time_us_min,time_us_max,n_src,source,note\n" + "".join(
    f"H100-SXM,bf16,{m},{n},{k},1,{2 * m * n * k / 6e8:.1f},,,1,mine,\n"
    for m in (512, 1024, 4096)
    for n in (2048, 8192)
    for k in (1024, 4096)
)
MEMORY = "device,op,pass,dtype,shape,bytes,time_us,gbps,source,note\n" + "".join(
    f"H100-SXM,rmsnorm,fwd,bf16,{rows}x8192,{4 * rows * 8192},{4 * rows * 8192 / 2.4e6:.1f},2400,mine,\n"
    for rows in (256, 1024, 4096, 16384)
)


def _samples() -> bytes:
    lines: list[dict[str, object]] = []
    for i in range(100):
        images = [{"patches": 16 * side**2, "tokens": side**2} for side in (6, 9 + i % 7)]
        lines.append({"id": f"s{i}", "text_tokens": 20 + 37 * i % 400, "images": images})
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@dataclass(frozen=True)
class Door:
    """A command that reads a damaged file.

    Attributes:
        name: for people and for folders. words: of the command; ``{}`` is the damaged file's path. suffix: of the
            damaged file. make: contents of real files. share: of the time; that of an ordinary door is 1.
    """

    name: str
    words: tuple[str, ...]
    suffix: str
    make: Callable[[], Sequence[bytes]]
    share: float = 1.0

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        """Contents of real files, made when they are first asked for."""
        return tuple(self.make())


def quietly(*words: str) -> bytes:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main([*words, "--quiet"])
    if code != 0:
        raise AssertionError(f"{words}: exit code {code}")
    return out.getvalue().encode()


def small(paths: Iterable[Path]) -> list[bytes]:
    return [path.read_bytes() for path in sorted(paths) if path.is_file() and path.stat().st_size <= LARGEST_SEED]


def doors(folder: Path) -> dict[str, Door]:
    """All doors by name.

    Args:
        folder: where undamaged files may be put.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / "run.toml"
    run.write_text(RUN)
    at = str(run)
    found: dict[str, Door] = {}

    def door(name: str, words: str, suffix: str, make: Callable[[], Sequence[bytes]]) -> None:
        found[name] = Door(name, tuple(words.split()), suffix, make)

    def texts(*given: str) -> Callable[[], Sequence[bytes]]:
        return lambda: [text.encode() for text in given]

    def written(*words: str) -> Callable[[], Sequence[bytes]]:
        """What a command writes to the file that it is told last."""
        path = folder / "written"

        def make() -> Sequence[bytes]:
            quietly(*words, str(path))
            return [path.read_bytes()]

        return make

    def result() -> Sequence[bytes]:
        quietly("simulate", at, "--out", str(folder / "out"))
        return [(folder / "out" / "result.json").read_bytes()]

    def rows() -> Sequence[bytes]:
        published = json.loads((TESTS.parent / "semu" / "validation" / "published.json").read_text())
        return [json.dumps([row for row in published if row["gpus"] <= 64 or row["model"]["moe"]][:4]).encode()]

    def dumped() -> Sequence[bytes]:
        return [quietly("simulate", name, "--dump-config") for name in (at, "vlm-7b")]

    runs = texts(RUN, EXPERTS)
    few = "vlm-7b --set training.global_batch=4"
    text = "lm-7b --set training.global_batch=8"
    door("run", "simulate {} --json", ".toml", lambda: [*runs(), *dumped()])
    door("run-grid", "grid {} --json --top 3", ".toml", runs)
    door("run-init", "init {}", ".toml", dumped)
    door("run-export", "export {} --to megatron", ".toml", lambda: [*runs(), *dumped()])
    configs = TESTS / "semu_models" / "hf" / "configs"
    door("hf", "simulate {} --json --cluster h100:1x8", ".json", lambda: small(configs.glob("*.json")))
    for files in sorted(TESTS.glob("imports/*/files")):
        for suffix in sorted({path.suffix for path in files.iterdir() if path.is_file()}):
            name = f"import-{files.parent.name}{suffix.replace('.', '-')}"
            door(name, "import {} --json", suffix, partial(small, list(files.glob(f"*{suffix}"))))
    plan = written("plan", at, "-o")
    door("plan-verify", "plan --verify {} --json", ".json", plan)
    door("plan-show", "plan --show {}", ".json", plan)
    stream = written("plan", *text.split(), "--iterations", "2", "--write-stream")
    door("stream", f"plan {text} --stream {{}} --json --deadline 0.01 --iterations 2", ".jsonl", stream)
    door("result", f"compare {at} {{}} --json", ".json", result)
    door("rule", f"schedules {at} --program {{}} --json", ".toml", texts(RULE))
    door("profile", f"simulate {at} --profile {{}} --json", ".toml", texts(PROFILE))
    door("assign", f"assign {few} --samples {{}} --method coupled --json", ".jsonl", lambda: [_samples()])
    door("workload", f"workload {few} --samples {{}} --json", ".jsonl", lambda: [_samples()])
    for name, suffix, text in (("", ".csv", EVENTS), ("-counts", ".csv", COUNTS), ("-slurm", ".txt", SLURM)):
        door(f"events{name}", f"goodput {at} --trace {{}} --days 1 --seeds 1 --json", suffix, texts(text))
    door("log", f"validate --run {at} --log {{}} --json", ".log", texts(LOG))
    door("rows", "validate --runs {} --workers 1 --json", ".json", rows)
    door("calibrate-gemm", "calibrate {} --device h100 --json", ".csv", texts(GEMM))
    door("calibrate-memory", "calibrate {} --device h100 --json", ".csv", texts(MEMORY))
    from tests.proof.quick_doors import quick_doors

    return found | quick_doors(folder)
